"""One replica on its way to another log directory: the current log, the copy of it, and how far the copy is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.log.directories.log_directory import LogDirectory
from klamm.log.log import Log

if TYPE_CHECKING:
    from klamm.log.log_manager import LogManager

CHUNK_BYTES: Final = 1 << 20


class LogDirMove:
    """Also the owner of the copy, which needs none of the checkpoints and timers that a log in use has."""

    def __init__(self, manager: LogManager, current: Log, target: LogDirectory) -> None:
        self._manager = manager
        self.current = current
        self.target = target
        self.copy: Log | None = None
        self._generation = current.generation

    @property
    def lag(self) -> int:
        return self.current.log_end_offset - (0 if self.copy is None else self.copy.log_end_offset)

    def copy_chunk(self) -> bool:
        """Copy the next chunk. True if the copy is complete at this moment."""
        current, copy = self.current, self.copy
        assert copy is not None
        if current.generation != self._generation or copy.log_end_offset < current.log_start_offset:
            self._generation = current.generation
            copy.truncate_fully_and_start_at(current.log_start_offset)
        if copy.log_end_offset < current.log_end_offset:
            end = current.log_end_offset
            read = current.read(copy.log_end_offset, CHUNK_BYTES, upper_bound=end, at_least_one=True)
            copy.append_as_follower(read.records)
        return copy.log_end_offset == current.log_end_offset

    def copy_offsets(self) -> None:
        """Take over the high watermark and the log start offset, which the batches do not carry."""
        assert self.copy is not None
        self.copy.update_high_watermark(self.current.high_watermark)
        self.copy.advance_log_start(self.current.log_start_offset)

    # --- LogOwner ---

    def flush_soon(self, log: Log) -> None: ...

    def flush_within(self, log: Log, delay_ms: int) -> None: ...

    async def lowering(self, log: Log) -> None: ...

    def truncating(self, log: Log, offset: int, *, recovery_point_lowered: bool) -> None: ...

    def remove_later(self, paths: list[str], delay_ms: int) -> None:
        self._manager.remove_later(paths, 0)  # a copy has no readers to wait for

    def storage_failed(self, log: Log, error: OSError) -> None:
        self._manager.directory_failed(self.target, error)

    def log_failed(self, log: Log, reason: Exception) -> None:
        """The copy is abandoned: its next use raises."""
