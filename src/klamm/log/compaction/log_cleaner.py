"""The log cleaner: one task that cleans the filthiest compacted log, again and again, and rests when none is due.

It owns `cleaner-offset-checkpoint`: for each log the offset up to which it is clean. A deletion, truncation or move
never waits for a cleaning: after each step the cleaner checks that the log has not changed, and abandons the cleaning
if it has. Only the creation of a log of the same name waits, until the last step of the old log's cleaning is over.
Data that cannot be cleaned makes its partition uncleanable until the next start, and is reported; the others go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from inspect import GEN_RUNNING, getgeneratorstate
from typing import Final

from klamm.log.compaction.cleanable import Cleanable, cleanable, filthiest, is_compacted
from klamm.log.compaction.cleaning import Cleaning, CleaningTally, plan_cleaning
from klamm.log.compaction.swap import Swap
from klamm.log.directories.checkpoints import CLEANER_OFFSETS
from klamm.log.directories.log_directory import LogDirectory
from klamm.log.directories.offset_checkpoints import OffsetCheckpoints, Write
from klamm.log.log import Log
from klamm.log.log_registry import LogRegistry
from klamm.log.storage_errors import is_passing
from klamm.model.config import BrokerConfig
from klamm.model.errors import KafkaError
from klamm.model.ids import TopicPartition
from klamm.model.ports import Clock, Disk

logger = logging.getLogger(__name__)

_DONE: Final = object()


class LogCleaner:
    def __init__(
        self, disk: Disk, clock: Clock, config: BrokerConfig, registry: LogRegistry, checkpoints: OffsetCheckpoints
    ) -> None:
        self._disk = disk
        self._clock = clock
        self.config = config
        self._registry = registry
        self._checkpoints = checkpoints
        self._offsets: dict[TopicPartition, int] = {}
        """First dirty offsets, as in the checkpoints."""
        self.uncleanable: dict[TopicPartition, str] = {}
        """With the reason."""
        self._paused: Counter[TopicPartition] = Counter()
        self._busy: dict[TopicPartition, asyncio.Event] = {}
        """Logs that are being cleaned, each with an event that its end sets."""
        self._stop = asyncio.Event()
        self._last_run_ms = clock.wall_ms()
        self.max_dirty_ratio = 0.0
        self.max_overdue_ms = 0
        """By how much the most overdue log exceeded max.compaction.lag.ms when last checked."""
        self.last = CleaningTally()
        self.last_seconds = 0.0

    # --- changes of logs ---------------------------------------------------------------------------------------------

    def remember(self, directory: LogDirectory, offsets: Mapping[TopicPartition, int]) -> None:
        """Take over the checkpoint of a loaded directory. Entries without a log are dropped: they must not apply to a
        later log of the same name. Raises OSError."""
        here = {at: offset for at, offset in offsets.items() if self._registry.home_of(at) is directory}
        self._offsets.update(here)
        if len(here) < len(offsets):
            self.checkpoint(directory)()

    def forget(self, partition: TopicPartition) -> None:
        """The log is being deleted. The caller writes the checkpoint of its directory afterwards."""
        self.uncleanable.pop(partition, None)
        self._offsets.pop(partition, None)

    def truncating(self, log: Log, offset: int) -> None:
        """Its checkpoint is written in the loop: it must not promise what the truncation removes. Raises OSError."""
        partition = log.topic_partition
        directory = self._registry.home_of(partition)
        if self._offsets.get(partition, 0) > offset and directory is not None:
            self._offsets[partition] = offset
            if directory.failure is None and directory.loaded:
                self.checkpoint(directory)()

    def checkpoint(self, directory: LogDirectory) -> Write:
        offsets = {at: offset for at, offset in self._offsets.items() if self._registry.home_of(at) is directory}
        return self._checkpoints.collected(directory, CLEANER_OFFSETS, offsets)

    @contextmanager
    def paused(self, partition: TopicPartition) -> Iterator[None]:
        """The log is not cleaned, so that a copy of it is as clean as the checkpoint says."""
        self._paused[partition] += 1
        try:
            log = self._registry.get(partition)
            if log is not None:
                log.finish_swap()
            yield
        finally:
            self._paused[partition] -= 1
            if not self._paused[partition]:
                del self._paused[partition]

    def is_busy(self, partition: TopicPartition) -> bool:
        return partition in self._busy

    async def settled(self, partitions: Iterable[TopicPartition]) -> None:
        """Wait until no cleaning of these partitions is under way."""
        for event in [self._busy[partition] for partition in partitions if partition in self._busy]:
            await event.wait()

    # --- the task ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        while not self._stop.is_set():
            if not await self.clean_filthiest():
                try:
                    async with asyncio.timeout(self.config.log_cleaner_backoff_ms / 1000):
                        await self._stop.wait()
                except TimeoutError:
                    pass  # the rest is over

    async def close(self) -> None:
        """Returns when no step is under way; none begins afterwards."""
        self._stop.set()
        await self.settled(list(self._busy))

    async def clean_filthiest(self) -> bool:
        """True if a log was due, and was cleaned or abandoned because it changed."""
        self._last_run_ms = self._clock.wall_ms()
        found = await self._choose()
        return found is not None and await self._clean(found)

    async def _choose(self) -> Cleanable | None:
        candidates = []
        for log in self._registry.logs():
            partition = log.topic_partition
            if not is_compacted(log) or log.failed or partition in self.uncleanable or partition in self._paused:
                continue
            try:
                candidates.append(self._look_at(log))
            except OSError as error:
                log.fail(error)
            except Exception as error:
                self._set_aside(log, error)
            await asyncio.sleep(0)
        self.max_dirty_ratio = max((candidate.ratio for candidate in candidates), default=0.0)
        self.max_overdue_ms = max((candidate.overdue_ms for candidate in candidates), default=0)
        found = filthiest(candidates)
        # The log may have been removed, or the cleaner stopped, while the other logs were checked.
        return found if found is not None and self._is_current(found.log) and not self._stop.is_set() else None

    def _look_at(self, log: Log) -> Cleanable:
        return cleanable(log, self._offsets.get(log.topic_partition), self._clock.wall_ms())

    async def _clean(self, found: Cleanable) -> bool:
        log, partition, generation = found.log, found.log.topic_partition, found.log.generation
        self._busy[partition] = ended = asyncio.Event()
        try:
            return await self._clean_as_long_as_it_is_the_same(log, generation)
        except OSError as error:
            if self._may_go_on(log, generation):  # otherwise a step read files that were removed or truncated
                logger.error("cleaning: %s", log.fail(error))
            return not is_passing(error)
        except Exception as error:
            # Catch every exception: if one ended this task, every compacted log would grow without end.
            if not self._may_go_on(log, generation):
                return True
            self._set_aside(log, error)
            return False
        finally:
            del self._busy[partition]
            ended.set()

    def _set_aside(self, log: Log, error: Exception) -> None:
        partition = log.topic_partition
        logger.error("%s cannot be cleaned and stays as it is until the next start", partition, exc_info=error)
        self.uncleanable[partition] = str(error)

    async def _clean_as_long_as_it_is_the_same(self, log: Log, generation: int) -> bool:
        began = self._clock.monotonic()
        if not self._look_at(log).is_due:  # again: checking the other logs took time
            return True
        await self._checkpoints.recovery_point_of(log)  # a recovery must not begin in the cleaned part
        if not self._may_go_on(log, generation):
            return True
        found = self._look_at(log)
        if not found.is_due:
            return True
        cleaning = Cleaning(self._disk, plan_cleaning(found), self.config.log_cleaner_dedupe_buffer_size)
        steps = cleaning.steps()
        try:
            while (step := await self._disk.run(lambda: next(steps, _DONE))) is not _DONE:
                if not self._may_go_on(log, generation):
                    break
                if isinstance(step, Swap):
                    await self._swap_in(log, step)
            if not self._may_go_on(log, generation):
                logger.info("%s changed during its cleaning, which is abandoned", log.topic_partition)
                await self._disk.run(steps.close)  # there may be many files to remove
                return True
        finally:
            if getgeneratorstate(steps) != GEN_RUNNING:  # a cancellation cannot stop its thread
                steps.close()
        await self._cleaned(log, found, cleaning, self._clock.monotonic() - began)
        return True

    async def _swap_in(self, log: Log, swap: Swap) -> None:
        log.begin_swap(swap)
        await self._disk.run(swap.make_safe)
        if not log.failed:
            log.finish_swap()  # unless a truncation finished it already

    def _is_current(self, log: Log) -> bool:
        return not log.failed and self._registry.get(log.topic_partition) is log

    def _may_go_on(self, log: Log, generation: int) -> bool:
        return (
            self._is_current(log)
            and log.generation == generation
            and log.topic_partition not in self._paused
            and is_compacted(log)  # KAFKA-12840
            and not self._stop.is_set()
        )

    async def _cleaned(self, log: Log, found: Cleanable, cleaning: Cleaning, seconds: float) -> None:
        partition, tally = log.topic_partition, cleaning.tally
        directory = self._registry.home_of(partition)
        assert directory is not None
        self._offsets[partition] = cleaning.end_offset
        await self._disk.run(self.checkpoint(directory))
        self.last, self.last_seconds = tally, seconds
        logger.info(
            "%s cleaned from offset %d to %d in %.1f s: %d of %d records and %d of %d bytes are left",
            partition,
            found.first_dirty,
            cleaning.end_offset,
            seconds,
            tally.records_kept,
            tally.records_read,
            tally.bytes_written,
            tally.bytes_read,
        )
        if tally.records_without_key:
            logger.warning("%s: %d records without a key were removed", partition, tally.records_without_key)

    # --- for metrics -------------------------------------------------------------------------------------------------

    @property
    def ms_since_last_run(self) -> int:
        return self._clock.wall_ms() - self._last_run_ms

    def uncleanable_in(self, directory: LogDirectory) -> list[Log]:
        found = [self._registry.get(at) for at in self.uncleanable if self._registry.home_of(at) is directory]
        return [log for log in found if log is not None]

    def uncleanable_bytes_in(self, directory: LogDirectory) -> int:
        return sum(self._uncleanable_bytes(log) for log in self.uncleanable_in(directory))

    def _uncleanable_bytes(self, log: Log) -> int:
        try:
            return self._look_at(log).cleanable_bytes
        except (KafkaError, OSError):
            return log.size_bytes  # what made it uncleanable
