"""All logs of one broker: opens, creates, deletes and closes them, and runs their timers (Kafka's LogManager).

Order that must hold: lock, check meta.properties, remove the clean-shutdown marker, load the logs; at the end close the
logs, write checkpoints and marker, unlock. The parts: `LogRegistry` knows which logs there are and takes a failed
directory offline, `LogLoading` and `LogCreation` add to it, `LogDirMoves` and `LogCleaner` work in the background.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Final

from klamm.log.compaction.log_cleaner import LogCleaner
from klamm.log.directories.log_directories import LogDirectories
from klamm.log.directories.log_directory import LogDirectory, PreviousRun, deleted_name, stray_name
from klamm.log.directories.offset_checkpoints import OffsetCheckpoints, Write
from klamm.log.directories.removal import DelayedRemoval
from klamm.log.directories.topic_lives import TopicLives
from klamm.log.directory_moves.log_dir_moves import LogDirMoves
from klamm.log.flush_scheduler import FlushScheduler
from klamm.log.log import Log
from klamm.log.log_creation import LogCreation
from klamm.log.log_loading import LogLoading
from klamm.log.log_registry import LogRegistry, OfflineCallback
from klamm.log.log_reopening import ClosedLog, LogReopening
from klamm.log.recovery import LoadedLog
from klamm.log.segments.retention import SEGMENTS_AT_ONCE, deletable_segments
from klamm.model.config import BrokerConfig, TopicConfig
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.guard import Guard
from klamm.model.ids import BrokerId, TopicPartition
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
        self._registry = LogRegistry(
            LogDirectories(disk, config.log_dirs), self._went_offline, lambda: self.on_all_offline()
        )
        self.guard = Guard()
        self._flushes = FlushScheduler(clock, self._flushed)
        self._removal = DelayedRemoval(disk)
        self._checkpoints = OffsetCheckpoints(disk, self._registry)
        self.cleaner = LogCleaner(disk, clock, config, self._registry, self._checkpoints)
        self._creation = LogCreation(disk, clock, self._registry, self._flushes, self.cleaner, self._adopt)
        self.dir_moves = LogDirMoves(disk, clock, random, self)
        self.lives = TopicLives(disk, self._registry)
        self._reopening = LogReopening(
            disk, clock, self._registry, self._adopt, self._settled, lambda name: self.on_reopened(name)
        )
        self.stray_count = 0
        """Logs that were set aside, now or in an earlier run."""
        self._closed = False
        self._settling = asyncio.Lock()
        self._unsettled: dict[LogDirectory, set[TopicPartition]] = {}
        """Deleted logs that a power cut may bring back, or that a checkpoint still has."""
        self.on_offline: OfflineCallback | None = None
        self.on_all_offline: Callable[[], None] = lambda: None
        """The last log directory failed: a broker without one serves nothing."""
        self.recovered = False
        """Logs were opened after a stop that was not clean: they may lack what was written last."""
        self.on_reopened: Callable[[TopicPartition], None] = lambda name: None
        """A log that was offline alone can be used again."""
        self.on_flushed: Callable[[TopicPartition], None] | None = None
        """A flush moved the recovery point of this partition: what waited for it may be acknowledged."""

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
    def offline(self) -> Mapping[TopicPartition, str]:
        """The partitions that are offline, each with the reason."""
        return self._registry.offline

    def _went_offline(self, path: str, partitions: list[TopicPartition]) -> None:
        if self.on_offline is not None:
            self.on_offline(path, partitions)

    def _flushed(self, partition: TopicPartition) -> None:
        if self.on_flushed is not None:
            self.on_flushed(partition)

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
            on_stray=self._found_stray,
            on_loaded=self._directory_loaded,
            reopen=self._reopening.later,
        ).load()

    def _found_stray(self, path: str) -> None:
        self.stray_count += 1
        logger.warning("%s was set aside: klamm neither uses nor removes it", path)

    def _directory_loaded(self, directory: LogDirectory, previous: PreviousRun) -> None:
        if not previous.clean and (directory.log_count or self._registry.has_offline_in(directory)):
            self.recovered = True  # a log that cannot be opened now may be opened later
        self._checkpoints.guarded(directory, lambda: self.cleaner.remember(directory, previous.cleaner_offsets))
        self._checkpoints.guarded(directory, lambda: self.lives.load(directory))

    def _adopt(self, partition: TopicPartition, directory: LogDirectory, config: TopicConfig, loaded: LoadedLog) -> Log:
        log = Log(self._disk, self._clock, self._random, partition, config, loaded, self)
        self._registry.add(log, directory)
        return log

    def write_meta(self, broker_id: BrokerId, cluster_id: str) -> None:
        """Write meta.properties where it is missing. Call it after the registration: then the id is ours, and a broker
        that was refused leaves nothing behind that ties the directories to the wrong id."""
        for directory in self.directories.loaded():
            self._checkpoints.guarded(directory, partial(directory.write_meta, broker_id, cluster_id))

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
        unsettled = await self.settle_deletions()  # a new log must not find the recovery point of an old one
        wanted = list(partitions)
        created = await self._creation.create_many(one for one in wanted if one[0] not in unsettled)
        return created | {name: _not_deleted(name) for name, _, _ in wanted if name in unsettled}

    def reconfigure(self, topic: str, config: TopicConfig) -> None:
        """Open logs use it at once; a segment keeps what it was created with."""
        for log in self._registry.logs_of(topic):
            log.config = config

    def use(self, config: BrokerConfig) -> None:
        """The broker's configuration changed: the cleaner reads its part at each run."""
        self._config = self.cleaner.config = config

    def delete(self, partition: TopicPartition) -> None:
        """Rename the directory at once, so that a topic of the same name starts empty, and remove it after
        file.delete.delay.ms. A power cut may undo it until `settle_deletions`, once for many deletions."""
        renamed = self._rename(partition, deleted_name)
        if renamed is not None:
            self.remove_later([renamed.directory], renamed.config.file_delete_delay_ms)

    async def set_aside(self, partition: TopicPartition) -> str | None:
        """Rename the directory, so that the log is neither used nor removed. Returns its new path."""
        renamed = self._rename(partition, stray_name)
        if renamed is None:
            return None
        if partition in await self.settle_deletions():
            raise _not_deleted(partition)
        self.stray_count += 1
        return renamed.directory

    def _rename(self, partition: TopicPartition, name: Callable[[TopicPartition, str], str]) -> Log | None:
        """Take the log out of use. None if there is no such log."""
        removed = self._registry.remove(partition)
        self._flushes.forget(partition)
        self.cleaner.forget(partition)
        if removed is None:
            self.lives.forget(partition)
            return None
        log, directory = removed
        trash = directory.file(name(partition, f"{self._random.getrandbits(128):032x}"))
        try:
            log.close_files()
            self._disk.rename(log.directory, trash)
            log.move_to(trash)
        except OSError as error:
            self._registry.add(log, directory)  # it is still here: a repeated deletion must not find nothing to do
            self.directory_failed(directory, error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition}: {error}") from error
        self.lives.forget(partition)
        self._unsettled.setdefault(directory, set()).add(partition)
        return log

    async def settle_deletions(self) -> set[TopicPartition]:
        """The deletions so far survive a power cut, and no checkpoint describes what was deleted. Returns the
        partitions for which this is not certain, because their directory failed or is full: they are neither deleted
        nor can they be created again."""
        asked = {partition for deleted in self._unsettled.values() for partition in deleted}
        async with self._settling:  # those of another caller may still be on their way to the disk
            for directory, deleted in list(self._unsettled.items()):
                settled = set(deleted)
                is_usable = directory.failure is None and directory.loaded
                if is_usable and await self._checkpoints.in_pool(directory, self._settlement(directory)):
                    deleted -= settled
                    if not deleted:
                        del self._unsettled[directory]
        return asked & {partition for deleted in self._unsettled.values() for partition in deleted}

    def _settlement(self, directory: LogDirectory) -> Write:
        writes = (self._checkpoints.all_of(directory), self.cleaner.checkpoint(directory))

        def job() -> None:
            self._disk.sync_directory(directory.path)
            for write in writes:
                write()

        return job

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
                self._checkpoints.guarded(changed, self._checkpoints.all_of(changed))
                self._checkpoints.guarded(changed, self.cleaner.checkpoint(changed))
        self.remove_later([trash], current.config.file_delete_delay_ms)

    def _trash_path(self, directory: LogDirectory, partition: TopicPartition) -> str:
        return directory.file(deleted_name(partition, f"{self._random.getrandbits(128):032x}"))

    # --- LogOwner ----------------------------------------------------------------------------------------------------

    def when_flush_took(self, call: Callable[[float], None]) -> None:
        """Call `call` with the milliseconds of each flush."""
        self._flushes.on_duration = call

    def flush_soon(self, log: Log) -> None:
        self._flushes.flush_soon(log)

    def flush_within(self, log: Log, delay_ms: int) -> None:
        self._flushes.flush_within(log, delay_ms)

    def remove_later(self, paths: list[str], delay_ms: int) -> None:
        self._removal.remove_later(paths, delay_ms)

    async def lowering(self, log: Log) -> None:
        await asyncio.shield(self._checkpoints.recovery_points.write())

    def truncating(self, log: Log, offset: int, *, recovery_point_lowered: bool) -> None:
        if recovery_point_lowered:
            self._checkpoints.write_recovery_point_of(log)
        self.cleaner.truncating(log, offset)

    def storage_failed(self, log: Log, error: OSError) -> None:
        directory = self._registry.home_of(log.topic_partition)
        if directory is not None:
            self.directory_failed(directory, error)

    def log_failed(self, log: Log, reason: Exception) -> None:
        directory = self._registry.home_of(log.topic_partition)
        if self._registry.get(log.topic_partition) is log and directory is not None:
            self._reopening.later(
                ClosedLog(
                    log.topic_partition,
                    directory,
                    log.directory,
                    log.config,
                    log.log_start_offset,
                    log.recovery_begins,
                    log.high_watermark,
                    clean=False,
                )
            )
        self._registry.take_log_offline(log, reason)

    async def _settled(self, partitions: Iterable[TopicPartition]) -> None:
        await self._flushes.settled(partitions)
        await self.cleaner.settled(partitions)

    def directory_failed(self, directory: LogDirectory, error: OSError) -> None:
        self._registry.storage_error(directory, error)

    # --- timers ------------------------------------------------------------------------------------------------------

    def checkpoint_high_watermarks(self) -> asyncio.Task[None]:
        return self._checkpoints.high_watermarks.write()

    async def checkpoint_recovery_points(self) -> None:
        await asyncio.shield(self._checkpoints.recovery_points.write())

    async def checkpoint_log_start_offsets(self) -> None:
        await asyncio.shield(self._checkpoints.log_starts.write())

    async def apply_retention(self) -> int:
        """One pass over all logs that are not being cleaned; returns the number of segments deleted. Those of one log
        are deleted in slices."""
        deleted = 0
        for log in self.logs():
            some = SEGMENTS_AT_ONCE
            while some == SEGMENTS_AT_ONCE and not log.failed and not self.cleaner.is_busy(log.topic_partition):
                some = self._delete_old_segments(log)
                deleted += some
                await asyncio.sleep(0)
        return deleted

    def _delete_old_segments(self, log: Log) -> int:
        """Whatever fails, the other logs go on."""
        try:
            return log.delete_oldest(deletable_segments(log, self._clock.wall_ms()))
        except KafkaError as error:
            logger.error("retention: %s", error)
        except OSError as error:
            logger.error("retention: %s", log.fail(error))
        except Exception as error:
            self.guard.record("retention", log.topic_partition, error)
        return 0

    async def _expire_producers(self) -> None:
        for log in self.logs():
            try:
                log.expire_producers(self._config.producer_id_expiration_ms)
            except Exception as error:
                self.guard.record("expiry", log.topic_partition, error)
            await asyncio.sleep(0)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[LogManager]:
        """Runs the timers (retention, checkpoints, expiry of producers) and the cleaner. Closes the logs on exit."""
        try:
            async with self.guard.running():
                self._start_timers()
                try:
                    yield self
                finally:
                    await self.cleaner.close()
        finally:
            await self.close()

    def _start_timers(self) -> None:
        retention_ms = self._config.log_retention_check_interval_ms
        recovery_ms = self._config.log_flush_offset_checkpoint_interval_ms
        start_ms = self._config.log_flush_start_offset_checkpoint_interval_ms
        timers: dict[str, Callable[[], Awaitable[object]]] = {
            "retention": lambda: _every(_RETENTION_FIRST_MS, retention_ms, self.apply_retention),
            "recovery-point-checkpoint": lambda: _every(recovery_ms, recovery_ms, self.checkpoint_recovery_points),
            "log-start-checkpoint": lambda: _every(start_ms, start_ms, self.checkpoint_log_start_offsets),
            "log-reopening": self._reopening.run,
            "producer-expiry": lambda: _every(_EXPIRY_MS, _EXPIRY_MS, self._expire_producers),
        }
        if self._config.log_cleaner_enable:
            timers["log-cleaner"] = self.cleaner.run
        for name, timer in timers.items():
            self.guard.start("timer", name, timer)

    # --- the end -----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Flush, write checkpoints, mark the directories clean, unlock. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        await self.settle_deletions()
        await self._checkpoints.settled()
        await self._flushes.close()
        await self._removal.close()
        for directory in self.directories.online():
            logs = self._registry.logs_in(directory)
            for start in range(0, len(logs), _CLOSED_TOGETHER_MAX):
                await self._close_logs(directory, logs[start : start + _CLOSED_TOGETHER_MAX])
            if directory.failure is None and directory.loaded:
                await self._checkpoints.in_pool(directory, self._last_words(directory))
        for log in self.logs():
            log.close_files()
        self.directories.unlock()

    async def _close_logs(self, directory: LogDirectory, logs: list[Log]) -> None:
        def job() -> None:
            for log in logs:
                log.close()

        try:
            await self._disk.run(job)
        except OSError as error:  # without a clean marker, the next start recovers it
            self._registry.take_offline(directory, error)

    def _last_words(self, directory: LogDirectory) -> Write:
        write = self._checkpoints.all_of(directory)
        # A log that could not be opened may still need its recovery.
        is_clean = not self._registry.has_offline_in(directory)

        def job() -> None:
            write()
            if is_clean:
                directory.leave_clean_marker()

        return job


def _not_deleted(partition: TopicPartition) -> KafkaError:
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition}: the deletion of its former log may be undone")


async def _every(first_ms: int, interval_ms: int, action: Callable[[], Awaitable[object]]) -> None:
    await asyncio.sleep(first_ms / 1000)
    while True:
        await action()
        await asyncio.sleep(interval_ms / 1000)
