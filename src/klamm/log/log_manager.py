"""All logs of one broker over its log directories: which exist, where a new one goes, which directory still works.

Order that must hold: lock, then meta.properties, then the clean-shutdown marker is taken away, then logs are loaded; at
the end logs, checkpoints, marker, lock. One bad partition never stops the broker: it is offline, and reported. A
file operation that fails takes its whole directory offline, once, and the broker hears of it through `on_offline`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Final

from klamm.log.compaction.log_cleaner import LogCleaner
from klamm.log.directories.checkpoints import MetaProperties
from klamm.log.directories.log_directories import LogDirectories
from klamm.log.directories.log_directory import Kind, LogDirectory, PartitionDirectory, Past, deleted_name
from klamm.log.directories.offset_checkpoints import OffsetCheckpoints
from klamm.log.directories.removal import DelayedRemoval
from klamm.log.directory_moves.log_dir_moves import LogDirMoves
from klamm.log.flush_scheduler import FlushScheduler
from klamm.log.log import Log
from klamm.log.recovery import LoadedLog, load_log
from klamm.log.segments.retention import deletable_segments
from klamm.model.config import BrokerConfig, TopicConfig
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import BrokerId, TopicPartition
from klamm.model.ports import Clock, Disk

__all__ = ["LogManager", "MetaProperties", "OfflineCallback"]

logger = logging.getLogger(__name__)

OfflineCallback = Callable[[str, list[TopicPartition]], None]
"""A log directory went offline, with the partitions that lived in it. Called in the loop, once per directory."""

_RETENTION_FIRST_MS: Final = 30_000
_EXPIRY_MS: Final = 600_000
_TOGETHER_MAX: Final = 64
"""Partitions opened by one job of the pool: enough to make the hop cheap, few enough to share the pool."""


class LogManager:
    def __init__(self, disk: Disk, clock: Clock, config: BrokerConfig, random: random.Random) -> None:
        self._disk = disk
        self._clock = clock
        self._config = config
        self._random = random
        self._directories = LogDirectories(disk, config.log_dirs)
        self._logs: dict[TopicPartition, Log] = {}
        self._home: dict[TopicPartition, LogDirectory] = {}
        self._wanted_home: dict[TopicPartition, LogDirectory] = {}
        self._offline: set[TopicPartition] = set()
        self._flushes = FlushScheduler()
        self._removal = DelayedRemoval(disk)
        self._checkpoints = OffsetCheckpoints(disk, self._directories, self._logs_in, self._take_offline)
        self.cleaner = LogCleaner(disk, clock, config, self)
        self.dir_moves = LogDirMoves(disk, clock, random, self)
        self._closed = False
        self.on_offline: OfflineCallback | None = None

    def reconfigure(self, topic: str, config: TopicConfig) -> None:
        """Open logs take it at once; what a segment was made with stays with it."""
        for partition, log in self._logs.items():
            if partition.topic == topic:
                log.config = config

    # --- before anything is loaded -----------------------------------------------------------------------------------

    def lock_directories(self) -> None:
        """Take `.lock` in every log directory (made if absent); ConfigError if another process has one."""
        self._directories.lock()

    def unlock_directories(self) -> None:
        self._directories.unlock()

    def read_meta(self) -> MetaProperties:
        """What the directories agree on; ConfigError where they contradict each other."""
        return self._directories.read_meta()

    def verify_and_write_meta(self, broker_id: BrokerId, cluster_id: str) -> None:
        """ConfigError for a directory of another broker or cluster; written where it is missing."""
        self._directories.verify_and_write_meta(broker_id, cluster_id)

    # --- loading -----------------------------------------------------------------------------------------------------

    async def load(self, topic_config: Callable[[str], TopicConfig]) -> None:
        """Open every log, recovering where the last stop was not clean; high watermarks come from their checkpoint."""
        found = self._directories.survey()
        async with asyncio.TaskGroup() as tasks:
            for directory, partitions in found.items():
                tasks.create_task(self._load_directory(directory, partitions, topic_config))

    async def _load_directory(
        self,
        directory: LogDirectory,
        partitions: list[tuple[str, PartitionDirectory]],
        topic_config: Callable[[str], TopicConfig],
    ) -> None:
        leftovers = [path for path, found in partitions if found.kind in (Kind.DELETE, Kind.FUTURE)]
        self._removal.remove_later(leftovers, 0)
        try:
            past = directory.take_past()
        except OSError as error:
            self._take_offline(directory, error)
            return
        queue = iter([(path, found.partition) for path, found in partitions if found.kind is Kind.CURRENT])

        async def worker() -> None:
            for path, partition in queue:
                if directory.failure is None:
                    await self._load_one(directory, past, path, partition, topic_config(partition.topic))

        workers = self._config.num_recovery_threads_per_data_dir
        await asyncio.gather(*(worker() for _ in range(workers)))
        directory.loaded = True
        self._checkpoints.guarded(directory, lambda _: self.cleaner.remember(directory, past.cleaner_offsets))

    async def _load_one(
        self, directory: LogDirectory, past: Past, path: str, partition: TopicPartition, config: TopicConfig
    ) -> None:
        def job() -> LoadedLog:
            return load_log(
                self._disk,
                path,
                config,
                log_start_offset=past.log_start_offsets.get(partition, 0),
                recovery_point=past.recovery_points.get(partition, 0),
                clean=past.clean,
                now_ms=self._clock.wall_ms(),
            )

        self._home[partition] = directory
        try:
            loaded = await self._disk.run(job)
        except OSError as error:
            self._take_offline(directory, error)
        except KafkaError as error:
            logger.error("%s cannot be opened and stays offline: %s", path, error)
            self._offline.add(partition)
        else:
            log = self._adopt(partition, directory, path, config, loaded)
            log.update_high_watermark(past.high_watermarks.get(partition, 0))

    def _adopt(
        self, partition: TopicPartition, directory: LogDirectory, path: str, config: TopicConfig, loaded: LoadedLog
    ) -> Log:
        log = Log(self._disk, self._clock, self._random, partition, path, config, loaded, self)
        self._logs[partition] = log
        self._home[partition] = directory
        directory.log_count += 1
        if directory.failure is not None:
            log.fail(directory.failure)
        return log

    # --- which logs there are ----------------------------------------------------------------------------------------

    def get(self, partition: TopicPartition) -> Log | None:
        return self._logs.get(partition)

    def logs(self) -> Iterator[Log]:
        """In order of topic and partition."""
        return iter([self._logs[partition] for partition in sorted(self._logs)])

    @property
    def offline_count(self) -> int:
        return len(self._offline)

    def home_of(self, partition: TopicPartition) -> LogDirectory | None:
        return self._home.get(partition)

    @property
    def directories(self) -> LogDirectories:
        return self._directories

    def is_offline(self, partition: TopicPartition) -> bool:
        """Known to have lived in a directory that failed, or could not be opened."""
        return partition in self._offline

    def offline_directories(self) -> list[str]:
        return self._directories.offline()

    # --- creating and deleting ---------------------------------------------------------------------------------------

    def get_or_create(self, partition: TopicPartition, config: TopicConfig, *, is_new: bool) -> Log:
        """KAFKA_STORAGE_ERROR if it is offline, or absent while some directory is offline and it is not new."""
        existing = self._logs.get(partition)
        if existing is not None:
            return existing
        self._check_creatable(partition, is_new=is_new)
        if self._flushes.is_busy(partition) or self.cleaner.is_busy(partition):
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{partition} was deleted a moment ago, and is still in use"
            )
        for directory in self._directories.by_load():
            try:
                loaded = self._make(directory, partition, config)
            except OSError as error:
                self._take_offline(directory, error)
                continue
            return self._adopt(partition, directory, directory.file(str(partition)), config, loaded)
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"no log directory is left for {partition}")

    async def create_many(
        self, partitions: Iterable[tuple[TopicPartition, TopicConfig, bool]]
    ) -> dict[TopicPartition, Log | KafkaError]:
        """(partition, config, is_new) in bulk, files made in the pool; a failure is a value, per partition."""
        partitions = list(partitions)
        absent = [partition for partition, _, _ in partitions if partition not in self._logs]
        await self._flushes.settled(absent)  # work on a former log of that name, which still writes by path
        await self.cleaner.settled(absent)
        result: dict[TopicPartition, Log | KafkaError] = {}
        planned: dict[LogDirectory, list[tuple[TopicPartition, TopicConfig]]] = defaultdict(list)
        for partition, config, is_new in partitions:
            existing = self._logs.get(partition)
            try:
                if existing is None:
                    self._check_creatable(partition, is_new=is_new)
                    directory = self._preferred(partition) or min(
                        self._directories.online(), key=lambda d: d.log_count + len(planned[d])
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
            return [self._make(directory, partition, config) for partition, config in wanted]

        result: dict[TopicPartition, Log | KafkaError] = {}
        try:
            made = await self._disk.run(job)
        except OSError as error:
            self._take_offline(directory, error)
            failure = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{directory.path}: {error}")
            return {partition: failure for partition, _ in wanted}
        for (partition, config), loaded in zip(wanted, made, strict=True):
            # Another request may have created it while the pool was at work.
            existing = self._logs.get(partition)
            path = directory.file(str(partition))
            result[partition] = existing or self._adopt(partition, directory, path, config, loaded)
        return result

    def _check_creatable(self, partition: TopicPartition, *, is_new: bool) -> None:
        if partition in self._offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition} is in a log directory that failed")
        offline = self.offline_directories()
        if offline and not is_new:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{partition} is not here, and may be in {', '.join(offline)}"
            )
        if len(offline) == len(self._directories):
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "every log directory failed")

    def prefer(self, partition: TopicPartition, directory: LogDirectory) -> None:
        """Where a replica is to be created that is not here yet. Forgotten with the process, as Kafka does."""
        self._wanted_home[partition] = directory

    def _preferred(self, partition: TopicPartition) -> LogDirectory | None:
        wanted = self._wanted_home.pop(partition, None)
        return wanted if wanted is not None and wanted.failure is None else None

    def replace(self, current: Log, directory: LogDirectory, loaded: LoadedLog) -> None:
        """`loaded`, a complete copy of `current` in `directory`, takes its place; `current` is renamed for deletion."""
        partition = current.topic_partition
        source = self._home[partition]
        trash = source.file(deleted_name(partition, f"{self._random.getrandbits(128):032x}"))
        high_watermark = current.high_watermark
        self._flushes.forget(partition)
        self._home[partition] = directory  # from here on a failure of the old directory does not concern the partition
        current.close_files()
        try:
            self._disk.rename(current.directory, trash)
        except OSError as error:
            self._take_offline(source, error)
        current.move_to(trash)
        source.log_count -= 1
        log = self._adopt(partition, directory, directory.file(str(partition)), current.config, loaded)
        for entry in current.epochs.entries:  # an epoch that begins at the log's end has no batch to be read from
            log.epochs.assign(entry.epoch, entry.start_offset)
        log.update_high_watermark(high_watermark)
        for changed in (directory, source):
            if changed.failure is None:
                self._checkpoints.guarded(changed, self._checkpoints.write_all)
                self._checkpoints.guarded(changed, self.cleaner.write_checkpoint)
        self.remove_later([trash], current.config.file_delete_delay_ms)

    def _make(self, directory: LogDirectory, partition: TopicPartition, config: TopicConfig) -> LoadedLog:
        path = directory.file(str(partition))
        self._disk.make_directories(path)
        return load_log(
            self._disk,
            path,
            config,
            log_start_offset=0,
            recovery_point=0,
            clean=True,
            now_ms=self._clock.wall_ms(),
        )

    def delete(self, partition: TopicPartition) -> None:
        """Renamed at once, so that a topic of the same name starts empty; removed after file.delete.delay.ms."""
        log = self._logs.pop(partition, None)
        directory = self._home.pop(partition, None)
        self._flushes.forget(partition)
        was_cleaned = self.cleaner.forget(partition)
        if log is None or directory is None:
            self._offline.discard(partition)
            return
        directory.log_count -= 1
        target = directory.file(deleted_name(partition, f"{self._random.getrandbits(128):032x}"))
        try:
            log.close_files()
            self._disk.rename(log.directory, target)
            self._disk.sync_directory(directory.path)
            log.move_to(target)
            self._checkpoints.write_all(directory)
            if was_cleaned:
                self.cleaner.write_checkpoint(directory)
        except OSError as error:
            self._take_offline(directory, error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition}: {error}") from error
        self.remove_later([target], log.config.file_delete_delay_ms)

    # --- LogOwner ----------------------------------------------------------------------------------------------------

    def flush_soon(self, log: Log) -> None:
        self._flushes.flush_soon(log)

    def flush_within(self, log: Log, delay_ms: int) -> None:
        self._flushes.flush_within(log, delay_ms)

    def remove_later(self, paths: list[str], delay_ms: int) -> None:
        self._removal.remove_later(paths, delay_ms)

    def truncating(self, log: Log, offset: int, *, recovery_point_lowered: bool) -> None:
        if recovery_point_lowered:
            self.checkpoint_recovery_point(log)
        self.cleaner.truncating(log, offset)

    def storage_failed(self, log: Log, error: OSError) -> None:
        directory = self._home.get(log.topic_partition)
        if directory is not None:
            self._take_offline(directory, error)

    def directory_failed(self, directory: LogDirectory, error: OSError) -> None:
        self._take_offline(directory, error)

    def _take_offline(self, directory: LogDirectory, error: OSError) -> None:
        if directory.failure is not None:
            return
        directory.failure = error
        gone = sorted(partition for partition, home in self._home.items() if home is directory)
        logger.error("log directory %s is offline with %d partitions: %s", directory.path, len(gone), error)
        for partition in gone:
            self._offline.add(partition)
            log = self._logs.pop(partition, None)
            if log is not None:
                log.fail(error)
                log.close_files()
        if self.on_offline is not None:
            self.on_offline(directory.path, gone)

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def checkpoint_high_watermarks(self) -> asyncio.Task[None]:
        return self._checkpoints.write_high_watermarks()

    def checkpoint_recovery_points(self) -> None:
        self._checkpoints.write_offsets()

    def checkpoint_recovery_point(self, log: Log) -> None:
        """With those of its directory. Raises OSError."""
        directory = self._home.get(log.topic_partition)
        if directory is not None and directory.failure is None and directory.loaded:
            self._checkpoints.write_recovery_points(directory)

    def _logs_in(self, directory: LogDirectory) -> list[Log]:
        return [log for partition, log in self._logs.items() if self._home[partition] is directory]

    # --- timers ------------------------------------------------------------------------------------------------------

    async def apply_retention(self) -> int:
        """One pass over all logs but the one that is being cleaned; returns the number of segments deleted."""
        deleted = 0
        for log in self.logs():
            if not log.failed and not self.cleaner.is_busy(log.topic_partition):
                try:
                    deleted += log.delete_oldest(deletable_segments(log, self._clock.wall_ms()))
                except KafkaError as error:
                    logger.error("retention: %s", error)  # its directory is offline; the others go on
                except OSError as error:
                    log.fail(error)
            await asyncio.sleep(0)
        return deleted

    @asynccontextmanager
    async def running(self) -> AsyncIterator[LogManager]:
        """The timers: retention, flush, checkpoints, expiry of producers; and the cleaner. On exit `close`."""
        try:
            async with asyncio.TaskGroup() as tasks:
                retention_ms = self._config.log_retention_check_interval_ms
                checkpoint_ms = self._config.log_flush_offset_checkpoint_interval_ms
                timers = [
                    tasks.create_task(self._every(_RETENTION_FIRST_MS, retention_ms, self.apply_retention)),
                    tasks.create_task(self._every(checkpoint_ms, checkpoint_ms, self._checkpoint_recovery_points)),
                    tasks.create_task(self._every(_EXPIRY_MS, _EXPIRY_MS, self._expire_producers)),
                ]
                if self._config.log_cleaner_enable:
                    timers.append(tasks.create_task(self.cleaner.run(), name="log-cleaner"))
                try:
                    yield self
                finally:
                    await self.cleaner.close()
                    for timer in timers:
                        timer.cancel()
        finally:
            await self.close()

    @staticmethod
    async def _every(first_ms: int, interval_ms: int, action: Callable[[], Awaitable[object]]) -> None:
        await asyncio.sleep(first_ms / 1000)
        while True:
            await action()
            await asyncio.sleep(interval_ms / 1000)

    async def _checkpoint_recovery_points(self) -> None:
        self.checkpoint_recovery_points()

    async def _expire_producers(self) -> None:
        for log in self.logs():
            log.expire_producers(self._config.producer_id_expiration_ms)
            await asyncio.sleep(0)

    # --- the end -----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Flush, checkpoint, mark the directories clean, unlock. Calling it twice is harmless."""
        if self._closed:
            return
        self._closed = True
        await self._checkpoints.settled()
        await self._flushes.close()
        await self._removal.close()
        for directory in self._directories.online():
            logs = self._logs_in(directory)
            for start in range(0, len(logs), _TOGETHER_MAX):
                await self._close_logs(directory, logs[start : start + _TOGETHER_MAX])
            if directory.failure is None and directory.loaded:
                self._checkpoints.guarded(directory, self._finish)
        for log in self._logs.values():
            log.close_files()
        self.unlock_directories()

    async def _close_logs(self, directory: LogDirectory, logs: list[Log]) -> None:
        def job() -> None:
            for log in logs:
                log.close()

        try:
            await self._disk.run(job)
        except OSError as error:
            self._take_offline(directory, error)  # and no clean marker: the next start recovers it

    def _finish(self, directory: LogDirectory) -> None:
        self._checkpoints.write_all(directory)
        if not any(self._home.get(partition) is directory for partition in self._offline):
            directory.leave_clean_marker()  # one that could not be opened may still need its recovery
