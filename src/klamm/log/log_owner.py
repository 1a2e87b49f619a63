"""What a log asks of its owner, the log manager: work that must not happen inside the append that causes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from klamm.log.log import Log


class LogOwner(Protocol):
    def flush_soon(self, log: Log) -> None: ...

    def flush_within(self, log: Log, delay_ms: int) -> None: ...

    def remove_later(self, paths: list[str], delay_ms: int) -> None: ...

    def truncating(self, log: Log, offset: int, *, recovery_point_lowered: bool) -> None:
        """Called before a truncation. The checkpoints on disk are correct for the shorter log when this returns."""

    def storage_failed(self, log: Log, error: OSError) -> None: ...
