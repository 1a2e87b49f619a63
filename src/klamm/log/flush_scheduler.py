"""Flushes that logs ask for: one at a time per log, off the loop; what is asked meanwhile makes one more."""

from __future__ import annotations

import asyncio
import logging

from klamm.log.log import Log
from klamm.model.errors import KafkaError
from klamm.model.ids import TopicPartition

logger = logging.getLogger(__name__)


class FlushScheduler:
    def __init__(self) -> None:
        self._running: dict[TopicPartition, asyncio.Task[None]] = {}
        self._again: set[TopicPartition] = set()
        self._timers: dict[TopicPartition, asyncio.TimerHandle] = {}
        self._closed = False

    def flush_soon(self, log: Log) -> None:
        partition = log.topic_partition
        if self._closed:
            return  # closing flushes everything anyway
        if partition in self._running:
            self._again.add(partition)
            return
        task = asyncio.get_running_loop().create_task(self._flush(log), name=f"flush-{partition}")
        self._running[partition] = task

    def flush_within(self, log: Log, delay_ms: int) -> None:
        partition = log.topic_partition
        if partition not in self._timers and not self._closed:
            loop = asyncio.get_running_loop()
            self._timers[partition] = loop.call_later(delay_ms / 1000, self._timer_fired, log)

    def _timer_fired(self, log: Log) -> None:
        del self._timers[log.topic_partition]
        if not log.failed and log.recovery_point < log.log_end_offset:
            self.flush_soon(log)

    async def _flush(self, log: Log) -> None:
        partition = log.topic_partition
        try:
            while not log.failed:
                self._again.discard(partition)
                await log.flush()
                if partition not in self._again:
                    break
        except KafkaError as error:
            logger.error("flush: %s", error)  # the directory is offline by now, and its owner told
        finally:
            del self._running[partition]

    async def drain(self) -> None:
        """Until nothing is under way."""
        while self._running:
            await asyncio.gather(*self._running.values())

    async def close(self) -> None:
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._again.clear()
        await self.drain()
