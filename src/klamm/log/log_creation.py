"""Creates logs: in the requested directory (KIP-113), else in the one with the fewest logs.

A partition that is offline, or that may live in a directory that is offline, is not created a second time elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final

from klamm.log.compaction.log_cleaner import LogCleaner
from klamm.log.directories.log_directory import LogDirectory
from klamm.log.flush_scheduler import FlushScheduler
from klamm.log.log import Log
from klamm.log.log_registry import LogRegistry
from klamm.log.recovery import LoadedLog, load_log
from klamm.model.config import TopicConfig
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.model.ports import Clock, Disk

Adopt = Callable[[TopicPartition, LogDirectory, TopicConfig, LoadedLog], Log]

_TOGETHER_MAX: Final = 64
"""Logs created by one job of the pool: enough to make the job cheap, few enough to share the pool."""


class LogCreation:
    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        registry: LogRegistry,
        flushes: FlushScheduler,
        cleaner: LogCleaner,
        adopt: Adopt,
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._registry = registry
        self._flushes = flushes
        self._cleaner = cleaner
        self._adopt = adopt
        self._preferred: dict[TopicPartition, LogDirectory] = {}

    def prefer(self, partition: TopicPartition, directory: LogDirectory) -> None:
        self._preferred[partition] = directory

    async def create_many(
        self, partitions: Iterable[tuple[TopicPartition, TopicConfig, bool]]
    ) -> dict[TopicPartition, Log | KafkaError]:
        partitions = list(partitions)
        absent = [partition for partition, _, _ in partitions if self._registry.get(partition) is None]
        await self._flushes.settled(absent)  # it may still flush an earlier log of the same name, by path
        await self._cleaner.settled(absent)
        result: dict[TopicPartition, Log | KafkaError] = {}
        planned: dict[LogDirectory, list[tuple[TopicPartition, TopicConfig]]] = defaultdict(list)
        for partition, config, is_new in partitions:
            existing = self._registry.get(partition)
            try:
                if existing is None:
                    self._check_creatable(partition, is_new=is_new)
                    directory = self._take_preferred(partition) or min(
                        self._registry.directories.online(), key=lambda d: d.log_count + len(planned[d])
                    )
                    planned[directory].append((partition, config))
                else:
                    result[partition] = existing
            except KafkaError as error:
                result[partition] = error
        for directory, wanted in planned.items():
            for start in range(0, len(wanted), _TOGETHER_MAX):
                result.update(await self._create_in(directory, wanted[start : start + _TOGETHER_MAX]))
        return result

    async def _create_in(
        self, directory: LogDirectory, wanted: list[tuple[TopicPartition, TopicConfig]]
    ) -> dict[TopicPartition, Log | KafkaError]:
        def job() -> list[LoadedLog]:
            created = [self._create(directory, partition, config) for partition, config in wanted]
            self._disk.sync_directory(directory.path)  # or a power cut could take the whole partition
            return created

        try:
            created = await self._disk.run(job)
        except OSError as error:
            self._registry.storage_error(directory, error)
            failure = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{directory.path}: {error}")
            return {partition: failure for partition, _ in wanted}
        # Another request may have created a log while the pool was at work.
        return {
            partition: self._registry.get(partition) or self._adopt(partition, directory, config, loaded)
            for (partition, config), loaded in zip(wanted, created, strict=True)
        }

    def _create(self, directory: LogDirectory, partition: TopicPartition, config: TopicConfig) -> LoadedLog:
        path = directory.file(str(partition))
        self._disk.make_directories(path)
        now_ms = self._clock.wall_ms()
        return load_log(self._disk, path, config, log_start_offset=0, recovery_point=0, clean=True, now_ms=now_ms)

    def _check_creatable(self, partition: TopicPartition, *, is_new: bool) -> None:
        directories = self._registry.directories
        offline = directories.offline()
        if self._registry.is_offline(partition):
            reason = f"{partition} is in a log directory that failed"
        elif offline and not is_new:
            reason = f"{partition} is not here, and may be in {', '.join(offline)}"
        elif len(offline) == len(directories):
            reason = "every log directory failed"
        else:
            return
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, reason)

    def _take_preferred(self, partition: TopicPartition) -> LogDirectory | None:
        preferred = self._preferred.pop(partition, None)
        return preferred if preferred is not None and preferred.failure is None else None
