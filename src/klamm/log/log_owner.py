"""What a log asks of its owner, the log manager: work that must not happen inside the append that causes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from klamm.log.log import Log


class LogOwner(Protocol):
    def flush_soon(self, log: Log) -> None: ...

    def flush_within(self, log: Log, delay_ms: int) -> None: ...

    def remove_later(self, paths: list[str], delay_ms: int) -> None: ...

    async def lowering(self, log: Log) -> None:
        """The recovery point of this log was lowered: the checkpoint on disk has it when this returns, unless it could
        not be written."""

    def truncating(self, log: Log, offset: int, *, recovery_point_lowered: bool) -> None:
        """Called before a truncation. The checkpoints on disk are correct for the shorter log when this returns."""

    def storage_failed(self, log: Log, error: OSError) -> None:
        """The directory of this log can no longer be used."""

    def log_failed(self, log: Log, reason: Exception) -> None:
        """This log can no longer be used, its neighbours can."""
