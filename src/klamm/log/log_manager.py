"""All logs of one broker: opens, creates, deletes and closes them, and runs their timers (Kafka's LogManager).

Order that must hold: lock, check meta.properties, remove the clean-shutdown marker, load the logs; at the end close the
logs, write checkpoints and marker, unlock. The parts: `LogRegistry` knows which logs there are and takes a failed
directory offline, `LogLoading` and `LogCreation` add to it, `LogDirMoves` and `LogCleaner` work in the background.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from random import Random
from typing import Final

from klamm.log.compaction.log_cleaner import LogCleaner
from klamm.log.directories.log_directories import LogDirectories
from klamm.log.directories.log_directory import LogDirectory, PreviousRun, deleted_name
from klamm.log.directories.offset_checkpoints import OffsetCheckpoints
from klamm.log.directories.removal import DelayedRemoval
from klamm.log.directory_moves.log_dir_moves import LogDirMoves
from klamm.log.flush_scheduler import FlushScheduler
from klamm.log.log import Log
from klamm.log.log_creation import LogCreation
from klamm.log.log_loading import LogLoading
from klamm.log.log_registry import LogRegistry, OfflineCallback
from klamm.log.recovery import LoadedLog
from klamm.log.segments.retention import deletable_segments
from klamm.model.config import BrokerConfig, TopicConfig
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.model.ports import Clock, Disk

logger = logging.getLogger(__name__)

_RETENTION_FIRST_MS: Final = 30_000
_EXPIRY_MS: Final = 600_000
_CLOSED_TOGETHER_MAX: Final = 64
"""Logs closed by one job of the pool: enough to make the job cheap, few enough to share the pool."""


class LogManager:
    def __init__(self, disk: Disk, clock: Clock, config: BrokerConfig, random: Random) -> None:
        self._disk = disk
        self._clock = clock
        self._config = config
        self._random = random
        self._registry = LogRegistry(LogDirectories(disk, config.log_dirs), self._directory_went_offline)
        self._flushes = FlushScheduler()
        self._removal = DelayedRemoval(disk)
        self._checkpoints = OffsetCheckpoints(disk, self._registry)
        self.cleaner = LogCleaner(disk, clock, config, self._registry, self._checkpoints)
        self._creation = LogCreation(disk, clock, self._registry, self._flushes, self.cleaner, self._adopt)
        self.dir_moves = LogDirMoves(disk, clock, random, self)
        self._closed = False
        self.on_offline: OfflineCallback | None = None

    # --- which logs there are ----------------------------------------------------------------------------------------

    @property
    def directories(self) -> LogDirectories:
        return self._registry.directories

    def get(self, partition: TopicPartition) -> Log | None:
        return self._registry.get(partition)

    def logs(self) -> Iterator[Log]:
        """In order of topic and partition."""
        return self._registry.logs()

    def home_of(self, partition: TopicPartition) -> LogDirectory | None:
        return self._registry.home_of(partition)

    def is_offline(self, partition: TopicPartition) -> bool:
        """The partition lives in a directory that failed, or its log could not be opened."""
        return self._registry.is_offline(partition)

    @property
    def offline_count(self) -> int:
        return self._registry.offline_count

    def _directory_went_offline(self, path: str, partitions: list[TopicPartition]) -> None:
        if self.on_offline is not None:
            self.on_offline(path, partitions)

    # --- opening, creating, deleting ---------------------------------------------------------------------------------

    async def load(self, topic_config: Callable[[str], TopicConfig]) -> None:
        """Open every log of every directory; high watermarks come from their checkpoint."""
        await LogLoading(
            self._disk,
            self._clock,
            self._registry,
            workers_per_directory=self._config.num_recovery_threads_per_data_dir,
            topic_config=topic_config,
            adopt=self._adopt,
            remove_later=self.remove_later,
            on_loaded=self._directory_loaded,
        ).load()

    def _directory_loaded(self, directory: LogDirectory, previous: PreviousRun) -> None:
        self._checkpoints.guarded(directory, lambda _: self.cleaner.remember(directory, previous.cleaner_offsets))

    def _adopt(self, partition: TopicPartition, directory: LogDirectory, config: TopicConfig, loaded: LoadedLog) -> Log:
        log = Log(self._disk, self._clock, self._random, partition, config, loaded, self)
        self._registry.add(log, directory)
        return log

    def prefer(self, partition: TopicPartition, directory: LogDirectory) -> None:
        """Remember to create the log of this partition in `directory`. Kept in memory only, as in Kafka."""
        self._creation.prefer(partition, directory)

    async def create_many(
        self, partitions: Iterable[tuple[TopicPartition, TopicConfig, bool]]
    ) -> dict[TopicPartition, Log | KafkaError]:
        """Create logs for (partition, config, is_new), files in the pool; existing logs are returned as they are.

        A failure is a value, per partition: KAFKA_STORAGE_ERROR if the partition is offline, or if it is not new and
        some directory is offline.
        """
        return await self._creation.create_many(partitions)

    def reconfigure(self, topic: str, config: TopicConfig) -> None:
        """Open logs use it at once; a segment keeps what it was created with."""
        for log in self._registry.logs_of(topic):
            log.config = config

    def delete(self, partition: TopicPartition) -> None:
        """Rename the directory at once, so that a topic of the same name starts empty, and remove it after
        file.delete.delay.ms."""
        removed = self._registry.remove(partition)
        self._flushes.forget(partition)
        was_cleaned = self.cleaner.forget(partition)
        if removed is None:
            return
        log, directory = removed
        trash = self._trash_path(directory, partition)
        try:
            log.close_files()
            self._disk.rename(log.directory, trash)
            self._disk.sync_directory(directory.path)
            log.move_to(trash)
            self._checkpoints.write_all(directory)
            if was_cleaned:
                self.cleaner.write_checkpoint(directory)
        except OSError as error:
            self.directory_failed(directory, error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition}: {error}") from error
        self.remove_later([trash], log.config.file_delete_delay_ms)

    def replace(self, current: Log, directory: LogDirectory, loaded: LoadedLog) -> None:
        """`loaded`, a complete copy of `current` in `directory`, takes its place; `current` is renamed for deletion."""
        partition, high_watermark = current.topic_partition, current.high_watermark
        source = self._registry.home_of(partition)
        assert source is not None
        trash = self._trash_path(source, partition)
        self._flushes.forget(partition)
        self._registry.expect(partition, directory)  # from now on a failure of the old directory does not affect it
        current.close_files()
        try:
            self._disk.rename(current.directory, trash)
        except OSError as error:
            self.directory_failed(source, error)
        current.move_to(trash)
        source.log_count -= 1
        log = self._adopt(partition, directory, current.config, loaded)
        for entry in current.epochs.entries:  # an epoch that begins at the log end has no batch to be read from
            log.epochs.assign(entry.epoch, entry.start_offset)
        log.update_high_watermark(high_watermark)
        for changed in (directory, source):
            if changed.failure is None:
                self._checkpoints.guarded(changed, self._checkpoints.write_all)
                self._checkpoints.guarded(changed, self.cleaner.write_checkpoint)
        self.remove_later([trash], current.config.file_delete_delay_ms)

    def _trash_path(self, directory: LogDirectory, partition: TopicPartition) -> str:
        return directory.file(deleted_name(partition, f"{self._random.getrandbits(128):032x}"))

    # --- LogOwner ----------------------------------------------------------------------------------------------------

    def flush_soon(self, log: Log) -> None:
        self._flushes.flush_soon(log)

    def flush_within(self, log: Log, delay_ms: int) -> None:
        self._flushes.flush_within(log, delay_ms)

    def remove_later(self, paths: list[str], delay_ms: int) -> None:
        self._removal.remove_later(paths, delay_ms)

    def truncating(self, log: Log, offset: int, *, recovery_point_lowered: bool) -> None:
        if recovery_point_lowered:
            self._checkpoints.write_recovery_point_of(log)
        self.cleaner.truncating(log, offset)

    def storage_failed(self, log: Log, error: OSError) -> None:
        directory = self._registry.home_of(log.topic_partition)
        if directory is not None:
            self.directory_failed(directory, error)

    def directory_failed(self, directory: LogDirectory, error: OSError) -> None:
        self._registry.take_offline(directory, error)

    # --- timers ------------------------------------------------------------------------------------------------------

    def checkpoint_high_watermarks(self) -> asyncio.Task[None]:
        return self._checkpoints.write_high_watermarks()

    async def checkpoint_recovery_points(self) -> None:
        self._checkpoints.write_everywhere(self._checkpoints.write_recovery_points)

    async def checkpoint_log_start_offsets(self) -> None:
        self._checkpoints.write_everywhere(self._checkpoints.write_log_start_offsets)

    async def apply_retention(self) -> int:
        """One pass over all logs that are not being cleaned; returns the number of segments deleted."""
        deleted = 0
        for log in self.logs():
            if not log.failed and not self.cleaner.is_busy(log.topic_partition):
                try:
                    deleted += log.delete_oldest(deletable_segments(log, self._clock.wall_ms()))
                except KafkaError as error:
                    logger.error("retention: %s", error)  # its directory is offline; the other logs go on
                except OSError as error:
                    log.fail(error)
            await asyncio.sleep(0)
        return deleted

    async def _expire_producers(self) -> None:
        for log in self.logs():
            log.expire_producers(self._config.producer_id_expiration_ms)
            await asyncio.sleep(0)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[LogManager]:
        """Runs the timers (retention, checkpoints, expiry of producers) and the cleaner. Closes the logs on exit."""
        try:
            async with asyncio.TaskGroup() as tasks:
                retention_ms = self._config.log_retention_check_interval_ms
                recovery_ms = self._config.log_flush_offset_checkpoint_interval_ms
                start_ms = self._config.log_flush_start_offset_checkpoint_interval_ms
                timers = [
                    tasks.create_task(_every(_RETENTION_FIRST_MS, retention_ms, self.apply_retention)),
                    tasks.create_task(_every(recovery_ms, recovery_ms, self.checkpoint_recovery_points)),
                    tasks.create_task(_every(start_ms, start_ms, self.checkpoint_log_start_offsets)),
                    tasks.create_task(_every(_EXPIRY_MS, _EXPIRY_MS, self._expire_producers)),
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

    # --- the end -----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Flush, write checkpoints, mark the directories clean, unlock. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        await self._checkpoints.settled()
        await self._flushes.close()
        await self._removal.close()
        for directory in self.directories.online():
            logs = self._registry.logs_in(directory)
            for start in range(0, len(logs), _CLOSED_TOGETHER_MAX):
                await self._close_logs(directory, logs[start : start + _CLOSED_TOGETHER_MAX])
            if directory.failure is None and directory.loaded:
                self._checkpoints.guarded(directory, self._close_directory)
        for log in self.logs():
            log.close_files()
        self.directories.unlock()

    async def _close_logs(self, directory: LogDirectory, logs: list[Log]) -> None:
        def job() -> None:
            for log in logs:
                log.close()

        try:
            await self._disk.run(job)
        except OSError as error:
            self.directory_failed(directory, error)  # and without a clean marker: the next start recovers it

    def _close_directory(self, directory: LogDirectory) -> None:
        self._checkpoints.write_all(directory)
        if not self._registry.has_offline_in(directory):  # a log that could not be opened may still need its recovery
            directory.leave_clean_marker()


async def _every(first_ms: int, interval_ms: int, action: Callable[[], Awaitable[object]]) -> None:
    await asyncio.sleep(first_ms / 1000)
    while True:
        await action()
        await asyncio.sleep(interval_ms / 1000)
