"""Opens every log at the start of a broker, directory by directory, and recovers those that were not closed cleanly.

One bad partition never stops the broker: it is offline and reported, and tried again (`log_reopening`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from klamm.log.directories.log_directory import DirectoryKind, LogDirectory, PartitionDirectory, PreviousRun
from klamm.log.log_creation import Adopt
from klamm.log.log_registry import LogRegistry
from klamm.log.log_reopening import ClosedLog
from klamm.log.recovery import LoadedLog, load_log
from klamm.log.storage_errors import is_passing
from klamm.model.config import TopicConfig
from klamm.model.errors import KafkaError
from klamm.model.ids import TopicPartition
from klamm.model.ports import Clock, Disk

logger = logging.getLogger(__name__)


class LogLoading:
    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        registry: LogRegistry,
        *,
        workers_per_directory: int,
        topic_config: Callable[[str], TopicConfig],
        adopt: Adopt,
        remove_later: Callable[[list[str], int], None],
        on_stray: Callable[[str], None],
        on_loaded: Callable[[LogDirectory, PreviousRun], None],
        reopen: Callable[[ClosedLog], None],
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._registry = registry
        self._workers = workers_per_directory
        self._topic_config = topic_config
        self._adopt = adopt
        self._remove_later = remove_later
        self._on_stray = on_stray
        self._on_loaded = on_loaded
        self._reopen = reopen

    async def load(self) -> None:
        found = self._registry.directories.survey()
        async with asyncio.TaskGroup() as tasks:
            for directory, partitions in found.items():
                tasks.create_task(self._load_directory(directory, partitions))

    async def _load_directory(self, directory: LogDirectory, partitions: list[tuple[str, PartitionDirectory]]) -> None:
        leftovers = [path for path, found in partitions if found.kind in (DirectoryKind.DELETE, DirectoryKind.FUTURE)]
        self._remove_later(leftovers, 0)
        for path, found in partitions:
            if found.kind is DirectoryKind.STRAY:
                self._on_stray(path)
        try:
            previous = directory.take_previous_run()
        except OSError as error:
            self._registry.take_offline(directory, error)
            return
        queue = iter([(path, found.partition) for path, found in partitions if found.kind is DirectoryKind.CURRENT])

        async def worker() -> None:
            for path, partition in queue:
                if directory.failure is None:
                    await self._load_log(directory, previous, path, partition)

        await asyncio.gather(*(worker() for _ in range(self._workers)))
        directory.loaded = True
        self._on_loaded(directory, previous)

    async def _load_log(
        self, directory: LogDirectory, previous: PreviousRun, path: str, partition: TopicPartition
    ) -> None:
        config = self._topic_config(partition.topic)
        log_start_offset = previous.log_start_offsets.get(partition, 0)
        recovery_point = previous.recovery_points.get(partition, 0)
        high_watermark = previous.high_watermarks.get(partition, 0)

        def job() -> LoadedLog:
            return load_log(
                self._disk,
                path,
                config,
                log_start_offset=log_start_offset,
                recovery_point=recovery_point,
                clean=previous.clean,
                now_ms=self._clock.wall_ms(),
            )

        def set_aside(reason: Exception) -> None:
            self._set_aside(partition, path, reason)
            start, clean = log_start_offset, previous.clean
            self._reopen(
                ClosedLog(partition, directory, path, config, start, recovery_point, high_watermark, clean=clean)
            )

        self._registry.expect(partition, directory)
        try:
            loaded = await self._disk.run(job)
        except OSError as error:
            if is_passing(error):
                set_aside(error)
            else:
                self._registry.take_offline(directory, error)
        except Exception as error:
            set_aside(error)
        else:
            log = self._adopt(partition, directory, config, loaded)
            log.update_high_watermark(high_watermark)

    def _set_aside(self, partition: TopicPartition, path: str, reason: Exception) -> None:
        """Whatever is wrong with one log, the others are opened. A defect of ours leaves its traceback."""
        is_known = isinstance(reason, (KafkaError, OSError))
        logger.error("%s cannot be opened and is offline: %s", path, reason, exc_info=None if is_known else reason)
        self._registry.mark_offline(partition, reason)
