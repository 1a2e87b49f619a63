"""Writes the offset checkpoints of each log directory: recovery points, log start offsets, high watermarks.

The offsets are collected in the loop and written in the pool, where writes may overtake each other. So each write has a
turn, and one that comes late does nothing (`ports.Disk`): a truncation lowers a recovery point, and no older write may
raise it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from klamm.log.directories.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS
from klamm.log.directories.log_directory import LogDirectory
from klamm.log.log import Log
from klamm.log.log_registry import LogRegistry
from klamm.model.ids import TopicPartition
from klamm.model.ports import Disk

Write = Callable[[], None]
"""Writes offsets that were collected. Runs in the pool, or in the loop where nothing may happen before its end. Raises
OSError."""


class OffsetCheckpoints:
    def __init__(self, disk: Disk, registry: LogRegistry) -> None:
        self._disk = disk
        self._registry = registry
        self._one_collects = asyncio.Lock()
        """Timers of the same interval end in one turn of the loop, and to collect ten thousand offsets takes long."""
        self.high_watermarks = SharedWrites(self, self._high_watermarks)
        self.recovery_points = SharedWrites(self, self._recovery_points)
        self.log_starts = SharedWrites(self, self._log_starts)

    # --- collecting, in the loop ---

    def collected(self, directory: LogDirectory, name: str, offsets: dict[TopicPartition, int]) -> Write:
        turn = self._disk.next_turn()
        return lambda: directory.write_offsets(name, offsets, turn)

    def _recovery_points(self, directory: LogDirectory) -> Write:
        offsets = {log.topic_partition: log.recovery_begins for log in self._registry.logs_in(directory)}
        return self.collected(directory, RECOVERY_POINTS, offsets)

    def _log_starts(self, directory: LogDirectory) -> Write:
        """Only those that lie above the start of the first segment."""
        offsets = {
            log.topic_partition: log.log_start_offset
            for log in self._registry.logs_in(directory)
            if log.log_start_offset > log.segments.first.base_offset
        }
        return self.collected(directory, LOG_START_OFFSETS, offsets)

    def _high_watermarks(self, directory: LogDirectory) -> Write:
        offsets = {log.topic_partition: log.high_watermark for log in self._registry.logs_in(directory)}
        return self.collected(directory, HIGH_WATERMARKS, offsets)

    def all_of(self, directory: LogDirectory) -> Write:
        writes = [self._recovery_points(directory), self._log_starts(directory), self._high_watermarks(directory)]

        def write() -> None:
            for one in writes:
                one()

        return write

    # --- writing ---

    async def in_pool(self, directory: LogDirectory, write: Write) -> bool:
        """False if the write failed: then the directory goes offline. If only room is missing, the file stays as it
        was."""
        try:
            await self._disk.run(write)
        except OSError as error:
            self._registry.storage_error(directory, error)
            return False
        return True

    async def everywhere(self, collect: Callable[[LogDirectory], Write]) -> None:
        for directory in self._registry.directories.loaded():
            async with self._one_collects:
                await self.in_pool(directory, collect(directory))

    async def recovery_point_of(self, log: Log) -> None:
        """Together with the others of its directory. Raises OSError."""
        write = self._collected_for(log)
        if write is not None:
            await self._disk.run(write)

    def write_recovery_point_of(self, log: Log) -> None:
        """The same, in the loop."""
        write = self._collected_for(log)
        if write is not None:
            write()

    def _collected_for(self, log: Log) -> Write | None:
        directory = self._registry.home_of(log.topic_partition)
        is_usable = directory is not None and directory.failure is None and directory.loaded
        return self._recovery_points(directory) if directory is not None and is_usable else None

    def guarded(self, directory: LogDirectory, write: Write) -> None:
        """As `in_pool`, in the loop."""
        try:
            write()
        except OSError as error:
            self._registry.storage_error(directory, error)

    async def settled(self) -> None:
        for writes in (self.high_watermarks, self.recovery_points, self.log_starts):
            await writes.settled()


class SharedWrites:
    """One kind of checkpoint in all directories: one write at a time, and those who ask during it share the next."""

    def __init__(self, checkpoints: OffsetCheckpoints, collect: Callable[[LogDirectory], Write]) -> None:
        self._checkpoints = checkpoints
        self._collect = collect
        self._writing: asyncio.Task[None] | None = None
        self._again = False

    def write(self) -> asyncio.Task[None]:
        """The task ends when the current offsets are on disk. Shield it: others may wait for it too."""
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())
        else:
            self._again = True
        return self._writing

    async def _write(self) -> None:
        try:
            while True:
                self._again = False
                await self._checkpoints.everywhere(self._collect)
                if not self._again:
                    return
        finally:
            self._writing = None

    async def settled(self) -> None:
        if self._writing is not None:
            await self._writing
