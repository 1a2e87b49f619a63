"""Writes the offset checkpoints of each log directory: recovery points, log start offsets, high watermarks.

High watermarks are many and are written often, so this happens off the loop. Recovery points and log start offsets are
written in the loop: a truncation writes the same files, and the later write must win.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from klamm.log.directories.log_directory import LogDirectory
from klamm.log.log import Log
from klamm.log.log_registry import LogRegistry
from klamm.model.ids import TopicPartition
from klamm.model.ports import Disk


class OffsetCheckpoints:
    def __init__(self, disk: Disk, registry: LogRegistry) -> None:
        self._disk = disk
        self._registry = registry
        self._writing: asyncio.Task[None] | None = None
        self._again = False

    def write_high_watermarks(self) -> asyncio.Task[None]:
        """Write off the loop, one write at a time; the task ends when the current high watermarks are on disk."""
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_high_watermarks())
        else:
            self._again = True
        return self._writing

    async def _write_high_watermarks(self) -> None:
        try:
            while True:
                self._again = False
                for directory in self._registry.directories.loaded():
                    offsets = self._high_watermarks(directory)
                    try:
                        await self._disk.run(lambda d=directory, o=offsets: d.write_high_watermarks(o))  # type: ignore[misc]
                    except OSError as error:
                        self._registry.take_offline(directory, error)
                if not self._again:
                    return
        finally:
            self._writing = None

    async def settled(self) -> None:
        if self._writing is not None:
            await self._writing

    def write_everywhere(self, write: Callable[[LogDirectory], None]) -> None:
        for directory in self._registry.directories.loaded():
            self.guarded(directory, write)

    def write_all(self, directory: LogDirectory) -> None:
        """Raises OSError."""
        self.write_recovery_points(directory)
        self.write_log_start_offsets(directory)
        directory.write_high_watermarks(self._high_watermarks(directory))

    def write_recovery_points(self, directory: LogDirectory) -> None:
        """Raises OSError."""
        directory.write_recovery_points(
            {log.topic_partition: log.recovery_point for log in self._registry.logs_in(directory)}
        )

    def write_recovery_point_of(self, log: Log) -> None:
        """Together with the others of its directory. Raises OSError."""
        directory = self._registry.home_of(log.topic_partition)
        if directory is not None and directory.failure is None and directory.loaded:
            self.write_recovery_points(directory)

    def guarded(self, directory: LogDirectory, write: Callable[[LogDirectory], None]) -> None:
        """If the write fails, the directory goes offline."""
        try:
            write(directory)
        except OSError as error:
            self._registry.take_offline(directory, error)

    def write_log_start_offsets(self, directory: LogDirectory) -> None:
        """Writes only those that lie above the start of the first segment. Raises OSError."""
        directory.write_log_start_offsets(
            {
                log.topic_partition: log.log_start_offset
                for log in self._registry.logs_in(directory)
                if log.log_start_offset > log.segments.first.base_offset
            }
        )

    def _high_watermarks(self, directory: LogDirectory) -> dict[TopicPartition, int]:
        return {log.topic_partition: log.high_watermark for log in self._registry.logs_in(directory)}
