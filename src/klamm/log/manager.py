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

from klamm.log.checkpoints import MetaProperties
from klamm.log.directory import Kind, LogDirectory, deleted_name
from klamm.log.log import Log
from klamm.log.recovery import LoadedLog, load_log
from klamm.log.retention import deletable_segments
from klamm.model.config import BrokerConfig, TopicConfig
from klamm.model.errors import ConfigError, ErrorCode, KafkaError
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
        self._directories = {path: LogDirectory(disk, path) for path in config.log_dirs}
        self._logs: dict[TopicPartition, Log] = {}
        self._home: dict[TopicPartition, LogDirectory] = {}
        self._offline: set[TopicPartition] = set()
        self._flushing: dict[TopicPartition, asyncio.Task[None]] = {}
        self._flush_again: set[TopicPartition] = set()
        self._removals: dict[int, tuple[asyncio.TimerHandle, list[str]]] = {}
        self._jobs: set[asyncio.Task[None]] = set()
        self._closed = False
        self.on_offline: OfflineCallback | None = None

    # --- before anything is loaded -----------------------------------------------------------------------------------

    def lock_directories(self) -> None:
        """Take `.lock` in every log directory (made if absent); ConfigError if another process has one."""
        for directory in self._directories.values():
            try:
                directory.lock()
            except BlockingIOError:
                self.unlock_directories()
                raise ConfigError(
                    f"log.dirs: {directory.path} is in use by another process (its .lock is held): "
                    f"every broker needs directories of its own"
                ) from None
            except OSError as error:
                self._take_offline(directory, error)
        if all(directory.failure for directory in self._directories.values()):
            raise ConfigError(f"log.dirs: none of {', '.join(self._directories)} can be used")

    def unlock_directories(self) -> None:
        for directory in self._directories.values():
            directory.unlock()

    def read_meta(self) -> MetaProperties:
        """What the directories agree on; ConfigError where they contradict each other."""
        known: dict[MetaProperties, str] = {}
        for directory in self._online():
            meta = directory.read_meta()
            if meta is not None:
                known.setdefault(meta, directory.path)
        if len(known) > 1:
            said = "; ".join(f"{path} of broker {m.broker_id} in cluster {m.cluster_id}" for m, path in known.items())
            raise ConfigError(f"log.dirs: the directories belong to different brokers or clusters: {said}")
        return next(iter(known), MetaProperties(None, None))

    def verify_and_write_meta(self, broker_id: BrokerId, cluster_id: str) -> None:
        """ConfigError for a directory of another broker or cluster; written where it is missing."""
        meta = self.read_meta()
        where = ", ".join(directory.path for directory in self._online())
        if meta.cluster_id is not None and meta.cluster_id != cluster_id:
            raise ConfigError(
                f"log.dirs: {where} belongs to cluster {meta.cluster_id}, but zookeeper.connect leads to cluster "
                f"{cluster_id}: point it at the right cluster, or use empty directories"
            )
        if meta.broker_id is not None and meta.broker_id != broker_id:
            raise ConfigError(
                f"log.dirs: {where} belongs to broker {meta.broker_id}, but broker.id is {broker_id}: "
                f"use that id, or empty directories"
            )
        for directory in self._online():
            if directory.read_meta() != MetaProperties(broker_id, cluster_id):
                directory.write_meta(broker_id, cluster_id)

    # --- loading -----------------------------------------------------------------------------------------------------

    async def load(self, topic_config: Callable[[str], TopicConfig]) -> None:
        """Open every log, recovering where the last stop was not clean; high watermarks come from their checkpoint."""
        await asyncio.gather(*(self._load_directory(directory, topic_config) for directory in self._online()))

    async def _load_directory(self, directory: LogDirectory, topic_config: Callable[[str], TopicConfig]) -> None:
        try:
            clean = directory.take_clean_marker()
            partitions = directory.partitions()
        except OSError as error:
            self._take_offline(directory, error)
            return
        recovery_points = _tolerant(directory.read_recovery_points)
        log_starts = _tolerant(directory.read_log_start_offsets)
        high_watermarks = _tolerant(directory.read_high_watermarks)
        self._remove_deleted([path for path, found in partitions if found.kind is Kind.DELETE])
        current = [(path, found.partition) for path, found in partitions if found.kind is Kind.CURRENT]
        self._refuse_duplicates([partition for _, partition in current], directory)

        def job(path: str, partition: TopicPartition, config: TopicConfig) -> LoadedLog:
            return load_log(
                self._disk,
                path,
                config,
                log_start_offset=log_starts.get(partition, 0),
                recovery_point=recovery_points.get(partition, 0),
                clean=clean,
                now_ms=self._clock.wall_ms(),
            )

        async def worker(queue: Iterator[tuple[str, TopicPartition]]) -> None:
            for path, partition in queue:
                config = topic_config(partition.topic)
                try:
                    loaded = await self._disk.run(lambda p=path, tp=partition, c=config: job(p, tp, c))  # type: ignore[misc]
                except OSError as error:
                    self._offline.add(partition)
                    self._take_offline(directory, error)
                    return
                except KafkaError as error:
                    logger.error("%s cannot be opened and stays offline: %s", path, error)
                    self._offline.add(partition)
                    continue
                log = self._adopt(partition, directory, path, config, loaded)
                log.update_high_watermark(high_watermarks.get(partition, 0))

        queue = iter(current)
        await asyncio.gather(*(worker(queue) for _ in range(self._config.num_recovery_threads_per_data_dir)))

    def _refuse_duplicates(self, partitions: list[TopicPartition], directory: LogDirectory) -> None:
        for partition in partitions:
            other = self._home.get(partition)
            if other is not None and other is not directory:
                raise ConfigError(f"log.dirs: {partition} exists in {other.path} and in {directory.path}: remove one")
            self._home[partition] = directory

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

    def is_offline(self, partition: TopicPartition) -> bool:
        """Known to have lived in a directory that failed, or could not be opened."""
        return partition in self._offline

    def offline_directories(self) -> list[str]:
        return [path for path, directory in self._directories.items() if directory.failure is not None]

    def _online(self) -> list[LogDirectory]:
        return [directory for directory in self._directories.values() if directory.failure is None]

    # --- creating and deleting ---------------------------------------------------------------------------------------

    def get_or_create(self, partition: TopicPartition, config: TopicConfig, *, is_new: bool) -> Log:
        """KAFKA_STORAGE_ERROR if it is offline, or absent while some directory is offline and it is not new."""
        existing = self._logs.get(partition)
        if existing is not None:
            return existing
        self._check_creatable(partition, is_new=is_new)
        for directory in self._by_load():
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
        result: dict[TopicPartition, Log | KafkaError] = {}
        planned: dict[str, list[tuple[TopicPartition, TopicConfig]]] = defaultdict(list)
        for partition, config, is_new in partitions:
            existing = self._logs.get(partition)
            try:
                if existing is None:
                    self._check_creatable(partition, is_new=is_new)
                    directory = min(self._online(), key=lambda d: d.log_count + len(planned[d.path]))
                    planned[directory.path].append((partition, config))
                else:
                    result[partition] = existing
            except KafkaError as error:
                result[partition] = error
        for path, wanted in planned.items():
            for start in range(0, len(wanted), _TOGETHER_MAX):
                result.update(await self._create_in(self._directories[path], wanted[start : start + _TOGETHER_MAX]))
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

    def _by_load(self) -> list[LogDirectory]:
        return sorted(self._online(), key=lambda directory: directory.log_count)

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
            self._checkpoint(directory)
        except OSError as error:
            self._take_offline(directory, error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition}: {error}") from error
        self._after(log.config.file_delete_delay_ms, [target])

    # --- LogOwner ----------------------------------------------------------------------------------------------------

    def flush_soon(self, log: Log) -> None:
        """One flush of a log at a time; what comes meanwhile makes one more."""
        partition = log.topic_partition
        if self._closed or partition in self._flushing:
            self._flush_again.add(partition)
            return
        task = asyncio.get_running_loop().create_task(self._flush(log), name=f"flush-{partition}")
        self._flushing[partition] = task

    async def _flush(self, log: Log) -> None:
        partition = log.topic_partition
        try:
            while not log.failed:
                self._flush_again.discard(partition)
                await log.flush()
                if partition not in self._flush_again:
                    break
        except KafkaError as error:
            logger.error("flush: %s", error)  # the directory is offline by now, and its owner told
        finally:
            del self._flushing[partition]

    def remove_later(self, paths: list[str], delay_ms: int) -> None:
        self._after(delay_ms, paths)

    def recovery_point_lowered(self, log: Log) -> None:
        directory = self._home.get(log.topic_partition)
        if directory is not None and directory.failure is None:
            directory.write_recovery_points(self._recovery_points(directory))

    def storage_failed(self, log: Log, error: OSError) -> None:
        directory = self._home.get(log.topic_partition)
        if directory is not None:
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
        if self.on_offline is not None:
            self.on_offline(directory.path, gone)

    # --- removal of what was renamed ---------------------------------------------------------------------------------

    def _after(self, delay_ms: int, paths: list[str]) -> None:
        loop = asyncio.get_running_loop()
        key = id(paths)
        handle = loop.call_later(delay_ms / 1000, self._remove_now, key)
        self._removals[key] = (handle, paths)

    def _remove_deleted(self, paths: list[str]) -> None:
        """Left over from the last life: their delay has passed."""
        if paths:
            self._after(0, paths)

    def _remove_now(self, key: int) -> None:
        _, paths = self._removals.pop(key)
        task = asyncio.get_running_loop().create_task(self._remove(paths), name="remove-deleted")
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    async def _remove(self, paths: list[str]) -> None:
        def job() -> None:
            for path in paths:
                if self._disk.is_directory(path):
                    self._disk.remove_tree(path)
                elif self._disk.exists(path):
                    self._disk.remove(path)

        try:
            await self._disk.run(job)
        except OSError as error:
            logger.warning("could not remove %s: %s (the next start tries again)", ", ".join(paths), error)

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def checkpoint_high_watermarks(self) -> None:
        for directory in self._online():
            self._guarded(directory, lambda d=directory: d.write_high_watermarks(self._high_watermarks(d)))  # type: ignore[misc]

    def checkpoint_recovery_points(self) -> None:
        """Recovery points, and log start offsets where they are not simply the first segment's."""
        for directory in self._online():
            self._guarded(directory, lambda d=directory: self._checkpoint_offsets(d))  # type: ignore[misc]

    def _checkpoint(self, directory: LogDirectory) -> None:
        self._checkpoint_offsets(directory)
        directory.write_high_watermarks(self._high_watermarks(directory))

    def _checkpoint_offsets(self, directory: LogDirectory) -> None:
        directory.write_recovery_points(self._recovery_points(directory))
        directory.write_log_start_offsets(
            {
                log.topic_partition: log.log_start_offset
                for log in self._logs_in(directory)
                if log.log_start_offset > log.segments.first.base_offset
            }
        )

    def _recovery_points(self, directory: LogDirectory) -> dict[TopicPartition, int]:
        return {log.topic_partition: log.recovery_point for log in self._logs_in(directory)}

    def _high_watermarks(self, directory: LogDirectory) -> dict[TopicPartition, int]:
        return {log.topic_partition: log.high_watermark for log in self._logs_in(directory)}

    def _logs_in(self, directory: LogDirectory) -> list[Log]:
        return [log for partition, log in self._logs.items() if self._home[partition] is directory]

    def _guarded(self, directory: LogDirectory, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            self._take_offline(directory, error)

    # --- timers ------------------------------------------------------------------------------------------------------

    async def apply_retention(self) -> int:
        """One pass over all logs; returns the number of segments deleted."""
        deleted = 0
        for log in self.logs():
            if not log.failed:
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
        """The timers: retention, flush, checkpoints, expiry of producers. On exit `close`."""
        try:
            async with asyncio.TaskGroup() as tasks:
                retention_ms = self._config.log_retention_check_interval_ms
                checkpoint_ms = self._config.log_flush_offset_checkpoint_interval_ms
                timers = [
                    tasks.create_task(self._every(_RETENTION_FIRST_MS, retention_ms, self.apply_retention)),
                    tasks.create_task(self._every(checkpoint_ms, checkpoint_ms, self._flush_and_checkpoint)),
                    tasks.create_task(self._every(_EXPIRY_MS, _EXPIRY_MS, self._expire_producers)),
                ]
                try:
                    yield self
                finally:
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

    async def _flush_and_checkpoint(self) -> None:
        for log in self.logs():
            if not log.failed and self._flush_is_due(log):
                self.flush_soon(log)
        await asyncio.gather(*self._flushing.values(), return_exceptions=True)
        self.checkpoint_recovery_points()

    def _flush_is_due(self, log: Log) -> bool:
        """flush.ms is checked with the checkpoint's own interval: an unflushed log is at most that much older."""
        return log.config.flush_ms < self._config.log_flush_interval_ms and log.recovery_point < log.log_end_offset

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
        for handle, _ in self._removals.values():
            handle.cancel()  # what is renamed is removed by the next start
        self._removals.clear()
        await asyncio.gather(*self._flushing.values(), *self._jobs, return_exceptions=True)
        for directory in self._online():
            logs = self._logs_in(directory)
            for start in range(0, len(logs), _TOGETHER_MAX):
                await self._close_logs(directory, logs[start : start + _TOGETHER_MAX])
            if directory.failure is None:
                self._guarded(directory, lambda d=directory: self._finish(d))  # type: ignore[misc]
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
        self._checkpoint(directory)
        directory.leave_clean_marker()


def _tolerant(read: Callable[[], dict[TopicPartition, int]]) -> dict[TopicPartition, int]:
    """A checkpoint that cannot be read promises nothing: recovery begins at 0, the high watermark at the log start."""
    try:
        return read()
    except KafkaError as error:
        logger.error("%s: going on without it", error)
        return {}
