"""Batches that are prepared, or even written, off the loop: the world may change before they are appended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from klamm.log.log import Log
from klamm.log.validation import STAGED_BYTES_MIN, PreparedAppend
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.wire.records import Record, build_batch, iter_batches, iter_records
from klamm.zookeeper.znodes import config as config_znode

from .coordinators.transactions.whole_broker import TIME, WholeBroker, running_broker

TP = TopicPartition("orders", 0)
COSTLY = b"c" * (2 << 20)
LARGE = b"l" * STAGED_BYTES_MIN


@pytest.fixture
async def broker(tmp_path: Path, zk: Any) -> AsyncIterator[WholeBroker]:
    zk.put(config_znode.topic_path(TP.topic), config_znode.encode({"max.message.bytes": str(8 << 20)}))
    async with running_broker(tmp_path, zk=zk) as running:
        await running.lead(TP.topic)
        yield running


def batch(value: bytes) -> bytes:
    return build_batch([Record(None, value, TIME)])


async def append(broker: WholeBroker, *values: bytes) -> list[tuple[ErrorCode, int]]:
    entries = [(TP, batch(value)) for value in values]
    results = await broker.node.appends.append(entries, acks=1, timeout_ms=1_000)
    return [(result.error, result.base_offset) for result in results]


def stored(broker: WholeBroker) -> list[bytes | None]:
    read = 0
    found: list[bytes | None] = []
    while read < broker.log(TP).log_end_offset:
        part = broker.log(TP).read(read, 1, upper_bound=1 << 60, at_least_one=True)
        view = memoryview(part.records)
        found += [record.value for at, _ in iter_batches(view) for record in iter_records(view[at:])]
        read = part.next_offset
    return found


@pytest.mark.parametrize("values", [(b"small", COSTLY), (COSTLY, b"small"), (COSTLY, LARGE)])
async def test_a_partition_that_is_named_twice_gets_each_batch_once(
    broker: WholeBroker, values: tuple[bytes, ...]
) -> None:
    assert await append(broker, *values) == [(ErrorCode.NONE, 0), (ErrorCode.NONE, 1)]
    assert stored(broker) == list(values)


async def test_one_of_two_batches_for_a_partition_is_refused(broker: WholeBroker) -> None:
    damaged = bytearray(batch(COSTLY))
    damaged[-1] ^= 1
    entries = [(TP, bytes(damaged)), (TP, batch(b"small"))]
    results = await broker.node.appends.append(entries, acks=1, timeout_ms=1_000)
    assert [result.error for result in results] == [ErrorCode.CORRUPT_MESSAGE, ErrorCode.NONE]
    assert stored(broker) == [b"small"]


async def test_a_costly_batch_for_a_partition_that_is_not_here(broker: WholeBroker) -> None:
    entries = [(TopicPartition("unknown", 0), batch(COSTLY))]
    (result,) = await broker.node.appends.append(entries, acks=1, timeout_ms=1_000)
    assert result.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_refusal_stays_a_refusal_when_the_other_batch_is_not_replicated(broker: WholeBroker) -> None:
    await broker.lead(TP.topic, epoch=1, isr=2)
    damaged = bytearray(batch(b"small"))
    damaged[-1] ^= 1
    entries = [(TP, bytes(damaged)), (TP, batch(b"small"))]
    results = await broker.node.appends.append(entries, acks=-1, timeout_ms=1)
    assert [result.error for result in results] == [ErrorCode.CORRUPT_MESSAGE, ErrorCode.REQUEST_TIMED_OUT]


class Staging:
    """Holds the staging of a large batch up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()
        self.error: KafkaError | None = None
        self.dropped = 0
        stage, drop = Log.stage, PreparedAppend.drop

        async def held_up(log: Log, large: Any) -> Any:
            staged = await stage(log, large)
            self.begun.set()
            await self.may_end.wait()
            if self.error is not None:
                staged.drop()
                raise self.error
            return staged

        def counted(prepared: Any) -> None:
            self.dropped += 1
            drop(prepared)

        monkeypatch.setattr(Log, "stage", held_up)
        monkeypatch.setattr(PreparedAppend, "drop", counted)


@pytest.fixture
def staging(monkeypatch: pytest.MonkeyPatch) -> Staging:
    return Staging(monkeypatch)


async def test_appends_to_the_partition_wait_for_a_large_batch(broker: WholeBroker, staging: Staging) -> None:
    large = asyncio.create_task(append(broker, LARGE))
    await staging.begun.wait()
    behind = asyncio.create_task(append(broker, b"behind"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert (behind.done(), broker.log(TP).log_end_offset) == (False, 0)
    staging.may_end.set()
    async with asyncio.timeout(10):
        assert await large == [(ErrorCode.NONE, 0)]
        assert await behind == [(ErrorCode.NONE, 1)]
    assert stored(broker) == [LARGE, b"behind"]
    assert staging.dropped == 1, "nothing of it may stay beyond the end of the file"


async def test_a_large_batch_loses_its_leader_while_it_is_written(broker: WholeBroker, staging: Staging) -> None:
    large = asyncio.create_task(append(broker, LARGE))
    await staging.begun.wait()
    await broker.lead(TP.topic, epoch=1, leader=2, isr=2)
    staging.may_end.set()
    assert await large == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]
    assert (broker.log(TP).log_end_offset, staging.dropped) == (0, 1)
    await broker.lead(TP.topic, epoch=2)
    async with asyncio.timeout(10):
        assert await append(broker, b"next") == [(ErrorCode.NONE, 0)]


async def test_a_large_batch_that_cannot_be_written_is_refused(broker: WholeBroker, staging: Staging) -> None:
    staging.error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no space left on device")
    staging.may_end.set()
    assert await append(broker, LARGE) == [(ErrorCode.KAFKA_STORAGE_ERROR, -1)]
    async with asyncio.timeout(10):
        assert await append(broker, b"next") == [(ErrorCode.NONE, 0)]
    assert stored(broker) == [b"next"]
