"""Opens every log at the start of a broker, directory by directory, and recovers those that were not closed cleanly.

One bad partition never stops the broker: it stays offline and is reported.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from klamm.log.directories.log_directory import DirectoryKind, LogDirectory, PartitionDirectory, PreviousRun
from klamm.log.log_creation import Adopt
from klamm.log.log_registry import LogRegistry
from klamm.log.recovery import LoadedLog, load_log
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
        on_loaded: Callable[[LogDirectory, PreviousRun], None],
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._registry = registry
        self._workers = workers_per_directory
        self._topic_config = topic_config
        self._adopt = adopt
        self._remove_later = remove_later
        self._on_loaded = on_loaded

    async def load(self) -> None:
        found = self._registry.directories.survey()
        async with asyncio.TaskGroup() as tasks:
            for directory, partitions in found.items():
                tasks.create_task(self._load_directory(directory, partitions))

    async def _load_directory(self, directory: LogDirectory, partitions: list[tuple[str, PartitionDirectory]]) -> None:
        leftovers = [path for path, found in partitions if found.kind in (DirectoryKind.DELETE, DirectoryKind.FUTURE)]
        self._remove_later(leftovers, 0)
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

        def job() -> LoadedLog:
            return load_log(
                self._disk,
                path,
                config,
                log_start_offset=previous.log_start_offsets.get(partition, 0),
                recovery_point=previous.recovery_points.get(partition, 0),
                clean=previous.clean,
                now_ms=self._clock.wall_ms(),
            )

        self._registry.expect(partition, directory)
        try:
            loaded = await self._disk.run(job)
        except OSError as error:
            self._registry.take_offline(directory, error)
        except KafkaError as error:
            logger.error("%s cannot be opened and stays offline: %s", path, error)
            self._registry.mark_offline(partition)
        else:
            log = self._adopt(partition, directory, config, loaded)
            log.update_high_watermark(previous.high_watermarks.get(partition, 0))
