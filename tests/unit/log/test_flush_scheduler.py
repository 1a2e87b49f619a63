"""Requests for flushes: one at a time per log, none is forgotten, and none for a log that is gone."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from klamm.log import flush_scheduler
from klamm.log.flush_scheduler import FlushScheduler
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition

from .conftest import SetClock


class FakeLog:
    """Its flushes end when `may_end` is set; those in `failing` fail."""

    def __init__(self, topic: str) -> None:
        self.topic_partition = TopicPartition(topic, 0)
        self.failed = self.deleted = False
        self.recovery_point, self.log_end_offset = 0, 1
        self.epochs = SimpleNamespace(dirty=False)
        self.flushes = 0
        self.failing = 0
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def flush(self) -> None:
        self.flushes += 1
        await self.may_end.wait()
        if self.failing:
            self.failing -= 1
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "full")


@pytest.fixture
def told() -> list[TopicPartition]:
    return []


@pytest.fixture
def scheduler(told: list[TopicPartition]) -> FlushScheduler:
    return FlushScheduler(SetClock(), told.append)


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_requests_during_a_flush_cause_one_more(scheduler: FlushScheduler, told: list[TopicPartition]) -> None:
    log: Any = FakeLog("t")
    log.may_end.clear()
    for _ in range(3):
        scheduler.flush_soon(log)
        await turns()
    assert (log.flushes, told) == (1, [])
    log.may_end.set()
    await scheduler.drain()
    assert (log.flushes, told) == (2, [log.topic_partition] * 2)
    scheduler.flush_soon(log)
    await scheduler.settled([log.topic_partition])
    assert log.flushes == 3


async def test_a_flush_that_failed_is_repeated(
    scheduler: FlushScheduler, told: list[TopicPartition], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flush_scheduler, "_RETRY_MS", 0)
    log: Any = FakeLog("t")
    log.failing = 2
    scheduler.flush_soon(log)
    async with asyncio.timeout(10):
        while not told:
            await asyncio.sleep(0)
    assert (log.flushes, told) == (3, [log.topic_partition])


async def test_a_log_that_failed_is_not_flushed_again(
    scheduler: FlushScheduler, told: list[TopicPartition], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flush_scheduler, "_RETRY_MS", 0)
    log: Any = FakeLog("t")
    log.may_end.clear()
    log.failing = 1
    scheduler.flush_soon(log)
    await turns()
    log.failed = True
    log.may_end.set()
    await scheduler.drain()
    await asyncio.sleep(0.01)
    scheduler.flush_soon(log)
    await scheduler.drain()
    assert (log.flushes, told) == (1, [])


@pytest.mark.parametrize("reason", ["forgotten", "failed", "flushed"])
async def test_a_log_that_waits_for_its_turn(scheduler: FlushScheduler, reason: str) -> None:
    first: Any = FakeLog("a")
    second: Any = FakeLog("b")
    third: Any = FakeLog("c")
    first.may_end.clear()
    for log in (first, second, third):
        scheduler.flush_within(log, 0)
        scheduler.flush_within(log, 0)  # it has a timer already
    async with asyncio.timeout(10):
        while not first.flushes or scheduler._timers:
            await asyncio.sleep(0)
    if reason == "forgotten":
        scheduler.forget(second.topic_partition)
    elif reason == "failed":
        second.failed = True
    else:
        second.recovery_point = 1
    third.recovery_point, third.epochs.dirty = 1, True
    first.may_end.set()
    async with asyncio.timeout(10):
        while not third.flushes:
            await asyncio.sleep(0)
    await scheduler.drain()
    assert (first.flushes, second.flushes, third.flushes) == (1, 0, 1)


async def test_a_forgotten_log_has_no_timer_and_no_further_flush(scheduler: FlushScheduler) -> None:
    log: Any = FakeLog("t")
    log.may_end.clear()
    scheduler.flush_within(log, 0)
    scheduler.forget(log.topic_partition)
    await asyncio.sleep(0.01)
    assert log.flushes == 0
    scheduler.flush_soon(log)
    scheduler.flush_soon(log)
    await turns()
    scheduler.forget(log.topic_partition)
    log.may_end.set()
    await scheduler.drain()
    assert log.flushes == 1
    await scheduler.close()
    scheduler.flush_soon(log)
    scheduler.flush_within(log, 0)
    await asyncio.sleep(0.01)
    assert log.flushes == 1
