"""Runs the flushes that logs request: one at a time per log, off the loop; requests during a flush cause one more.

Flushes that are due at a certain time take turns, one log after the other, like those of Kafka's log flusher: two
seconds after thousands of logs began a leader epoch they are all due at once, and on all threads of the pool they would
take processor and disk from the records.

A flush writes by path. If its partition is deleted and created again during the flush, it would write the epochs and
snapshots of the old log into the new log's directory, so creating that log waits for the flush.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from klamm.log.log import Log
from klamm.model.errors import KafkaError
from klamm.model.ids import TopicPartition
from klamm.model.ports import Clock

logger = logging.getLogger(__name__)

_RETRY_MS: Final = 1_000
"""Pause after a flush for which the disk had no room."""


class FlushScheduler:
    def __init__(self, clock: Clock, on_flushed: Callable[[TopicPartition], None]) -> None:
        self._clock = clock
        self._on_flushed = on_flushed
        self.on_duration: Callable[[float], None] = lambda _: None
        """Called with the milliseconds that each flush took."""
        self._running: dict[TopicPartition, asyncio.Task[None]] = {}
        self._again: set[TopicPartition] = set()
        self._timers: dict[TopicPartition, asyncio.TimerHandle] = {}
        self._due: dict[TopicPartition, Log] = {}
        self._turns: asyncio.Task[None] | None = None
        self._closed = False

    def flush_soon(self, log: Log) -> None:
        partition = log.topic_partition
        if self._closed:
            return  # `close` of the log manager flushes everything anyway
        if partition in self._running:
            self._again.add(partition)
            return
        self._due.pop(partition, None)
        task = asyncio.get_running_loop().create_task(self._flush(log), name=f"flush-{partition}")
        self._running[partition] = task

    def flush_within(self, log: Log, delay_ms: int) -> None:
        partition = log.topic_partition
        if partition not in self._timers and not self._closed:
            loop = asyncio.get_running_loop()
            self._timers[partition] = loop.call_later(delay_ms / 1000, self._timer_fired, log)

    def _timer_fired(self, log: Log) -> None:
        del self._timers[log.topic_partition]
        self._due[log.topic_partition] = log
        if self._turns is None:
            self._turns = asyncio.get_running_loop().create_task(self._take_turns(), name="flushes-due")

    async def _take_turns(self) -> None:
        try:
            while self._due:
                partition, log = next(iter(self._due.items()))
                del self._due[partition]
                if not log.failed and (log.recovery_point < log.log_end_offset or log.epochs.dirty):
                    self.flush_soon(log)
                    await self.settled([partition])
        finally:
            self._turns = None

    async def _flush(self, log: Log) -> None:
        partition = log.topic_partition
        try:
            while not log.failed:
                self._again.discard(partition)
                if not await self._flush_once(log):
                    break
                self._on_flushed(partition)
                if partition not in self._again:
                    break
        finally:
            del self._running[partition]

    async def _flush_once(self, log: Log) -> bool:
        try:
            began = self._clock.monotonic()
            await log.flush()
            self.on_duration((self._clock.monotonic() - began) * 1000)
            return True
        except KafkaError as error:
            if not log.deleted:  # otherwise its files are missing on purpose
                logger.error("flush: %s", error)  # if the error does not pass, the directory is already offline
            if not log.failed:
                self.flush_within(log, _RETRY_MS)
        except Exception as error:  # a defect of ours concerns this log, not the others that wait for their turn
            logger.exception("flush of %s failed", log.topic_partition)
            log.give_up(error)
        return False

    def forget(self, partition: TopicPartition) -> None:
        """The log was deleted. A flush that is running ends by itself."""
        self._again.discard(partition)
        self._due.pop(partition, None)
        timer = self._timers.pop(partition, None)
        if timer is not None:
            timer.cancel()

    def is_busy(self, partition: TopicPartition) -> bool:
        return partition in self._running

    async def settled(self, partitions: Iterable[TopicPartition]) -> None:
        """Wait until no flush of these partitions is running."""
        running = [self._running[partition] for partition in partitions if partition in self._running]
        if running:
            await asyncio.gather(*running)

    async def drain(self) -> None:
        """Wait until no flush is running."""
        while self._running:
            await asyncio.gather(*self._running.values())

    async def close(self) -> None:
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._due.clear()
        self._again.clear()
        await self.drain()
