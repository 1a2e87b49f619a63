"""Fetches that are wide, large or many: cut into slices, counted once per change, limited by a budget."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from klamm.broker import appends, reads
from klamm.broker.reads import FetchQuery, Reads
from klamm.model.byte_budget import ByteBudget
from klamm.model.control import Sender
from klamm.model.errors import ErrorCode
from klamm.model.ids import BrokerEpoch, BrokerId, ControllerEpoch, TopicPartition
from klamm.model.requests import ClientConnection
from klamm.wire.apis import ApiKey
from klamm.wire.fetch import FetchPartition, decode_follower_response, encode_follower_request
from klamm.wire.produce import encode_request as encode_produce
from klamm.wire.records import Record, build_batch
from klamm.wire.server_connection import RequestHeader

from .one_broker import CLIENT, OneBroker, one

__all__ = ["one"]

SENDER = Sender(BrokerId(2), ControllerEpoch(1), BrokerEpoch(-1))
CONSUMER, FOLLOWER = BrokerId(-1), BrokerId(2)
NAMES = [TopicPartition("orders", n) for n in range(6)]


@pytest.fixture
async def six(one: OneBroker, make_order: Any) -> OneBroker:
    """Broker 1 leads six partitions of ten committed records each."""
    await one.told(partitions=len(NAMES))
    orders = [make_order(epoch=0, isr=(1, 2), replicas=(1, 2), partition=name) for name in NAMES]
    await one.replicas.leader_and_isr(SENDER, orders)
    for name in NAMES:
        log = one.logs.kept[name].fill(*[0] * 10)
        log.update_high_watermark(10)
    return one


class Ticks:
    """Counts the turns of the loop in which another task could run."""

    def __init__(self) -> None:
        self.count = 0
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.count += 1

    def stop(self) -> int:
        self._task.cancel()
        return self.count


async def fetch(one: OneBroker, entries: list[FetchPartition]) -> Any:
    body = encode_follower_request(replica_id=-1, max_wait_ms=0, min_bytes=1, max_bytes=1000, partitions=entries)
    answer = await one.handle(CLIENT, RequestHeader(ApiKey.FETCH, 11, 1, "x"), memoryview(b"".join(body)))
    assert answer is not None
    return decode_follower_response(memoryview(b"".join(answer)))[2]


async def test_a_partition_that_is_named_often_is_read_once(six: OneBroker) -> None:
    """The last entry counts, as in Kafka."""
    entries = [FetchPartition(NAMES[0], offset % 10, 1) for offset in range(5_003)]
    (answered,) = await fetch(six, entries)
    assert (answered.partition, bytes(answered.records)) == (NAMES[0], bytes(1))


async def test_other_tasks_run_during_a_wide_fetch(six: OneBroker) -> None:
    unknown = [FetchPartition(TopicPartition("nowhere", n), 0, 1) for n in range(20_000)]
    ticks = Ticks()
    results = await fetch(six, unknown)
    assert ticks.stop() >= 20
    assert {result.error for result in results} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


@pytest.mark.parametrize(("entries", "size"), [(2, 1 << 20), (500, 10)])
async def test_reads_are_cut_by_entries_and_by_bytes(
    six: OneBroker, monkeypatch: pytest.MonkeyPatch, entries: int, size: int
) -> None:
    monkeypatch.setattr(reads, "ENTRIES_PER_SLICE", entries)
    monkeypatch.setattr(reads, "BYTES_PER_SLICE", size)
    ticks = Ticks()
    wanted = [FetchPartition(name, 0, 100) for name in NAMES]
    results = await Reads(six.replicas).fetch(FetchQuery(11, CONSUMER, 0, 1, 1000), wanted)
    assert [len(result.records) for result in results] == [10] * 6
    assert ticks.stop() >= 2


async def test_what_changes_between_two_slices_ends_the_wait(six: OneBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "ENTRIES_PER_SLICE", 2)
    wanted = [FetchPartition(name, 10, 100) for name in NAMES]
    waiting = asyncio.create_task(Reads(six.replicas).fetch(FetchQuery(11, CONSUMER, 60_000, 1, 1000), wanted))
    await asyncio.sleep(0)  # the first slice is read, and the watch is set
    six.logs.kept[NAMES[0]].fill(0).update_high_watermark(11)
    six.replicas.moved(NAMES[0])
    results = await asyncio.wait_for(waiting, 5)
    assert [len(result.records) for result in results] == [1, 0, 0, 0, 0, 0]


async def test_a_partition_that_goes_between_two_slices_is_no_error_of_the_others(
    six: OneBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "ENTRIES_PER_SLICE", 2)
    wanted = [FetchPartition(name, 10, 100) for name in NAMES]
    waiting = asyncio.create_task(Reads(six.replicas).fetch(FetchQuery(11, FOLLOWER, 0, 1, 1000), wanted))
    await asyncio.sleep(0)
    for name in (NAMES[0], NAMES[5]):
        del six.replicas.partitions[name]
    results = await waiting
    assert [result.error for result in results] == [*[ErrorCode.NONE] * 5, ErrorCode.NOT_LEADER_OR_FOLLOWER]


async def test_a_change_costs_a_read_of_what_is_new(six: OneBroker) -> None:
    """More bytes are wanted than there are: each append must not read everything again."""
    read: list[tuple[int, int]] = []
    for name in NAMES:
        log = six.logs.kept[name]

        def counting(offset: int, size: int, *, real: Any = log.read, number: int = name.partition, **how: Any) -> Any:
            read.append((number, offset))
            return real(offset, size, **how)

        log.read = counting
    wanted = [FetchPartition(name, 0, 20) for name in NAMES]
    waiting = asyncio.create_task(Reads(six.replicas).fetch(FetchQuery(11, CONSUMER, 60_000, 65, 1000), wanted))
    await asyncio.sleep(0)
    assert read == [(number, 0) for number in range(6)]
    read.clear()
    for end in (11, 12, 13):
        six.logs.kept[NAMES[3]].fill(0).update_high_watermark(end)
        six.replicas.moved(NAMES[3])
    assert read == [(3, 0), (3, 11), (3, 12)], "once everything of the partition, then only what is new"
    assert not waiting.done()
    for end in (11, 12):
        six.logs.kept[NAMES[4]].fill(0).update_high_watermark(end)
        six.replicas.moved(NAMES[4])
    results = await asyncio.wait_for(waiting, 5)
    assert sum(len(result.records) for result in results) == 65


async def test_a_waiting_fetch_hears_of_a_truncation(six: OneBroker) -> None:
    wanted = [FetchPartition(NAMES[0], 5, 20)]
    waiting = asyncio.create_task(Reads(six.replicas).fetch(FetchQuery(11, CONSUMER, 60_000, 50, 1000), wanted))
    await asyncio.sleep(0)
    six.logs.kept[NAMES[0]].truncate_to(2)
    six.replicas.moved(NAMES[0])
    (result,) = await asyncio.wait_for(waiting, 5)
    assert result.error is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_responses_that_are_not_sent_leave_less_for_the_next(six: OneBroker) -> None:
    budget = ByteBudget(96)
    fetching = Reads(six.replicas, budget)
    slow = ClientConnection()

    async def size_of(client: ClientConnection, wait_ms: int = 0) -> int:
        wanted = [FetchPartition(name, 0, 100) for name in NAMES]
        results = await fetching.fetch(FetchQuery(11, CONSUMER, wait_ms, 1, 1000), wanted, client=client)
        return sum(len(result.records) for result in results)

    assert [await size_of(slow), budget.used] == [6, 6], "a sixteenth of what is left"
    assert [await size_of(slow), budget.used] == [5, 11]
    for _ in range(200):
        await size_of(slow)
    assert budget.used == 96, "in the end one batch at a time"
    assert await size_of(slow) == 0, "no room: an answer without records"
    waiting = asyncio.create_task(size_of(ClientConnection(), wait_ms=60_000))
    await asyncio.sleep(0)
    slow.answered()
    assert await asyncio.wait_for(waiting, 5) == 6
    wanted = [FetchPartition(NAMES[0], 0, 100)]
    budget.take(1000)
    (result,) = await fetching.fetch(FetchQuery(11, FOLLOWER, 0, 1, 1000), wanted, client=ClientConnection())
    assert len(result.records) == 10, "a follower is not limited"


async def test_idle_consumers_leave_the_budget_to_the_others(six: OneBroker) -> None:
    budget = ByteBudget(96)
    fetching = Reads(six.replicas, budget)
    query, at_the_end = FetchQuery(11, CONSUMER, 60_000, 1, 1000), [FetchPartition(NAMES[0], 10, 100)]
    idle = [asyncio.create_task(fetching.fetch(query, at_the_end, client=ClientConnection())) for _ in range(100)]
    await asyncio.sleep(0)
    assert budget.used == 0
    six.logs.kept[NAMES[0]].fill(1).update_high_watermark(11)
    six.replicas.moved(NAMES[0])
    results = await asyncio.wait_for(asyncio.gather(*idle), 5)
    assert all(len(result.records) for (result,) in results[:20]), "each reads within what is left then"
    assert budget.used <= 96


@pytest.mark.parametrize(("entries", "size"), [(2, 1 << 20), (500, 25)])
async def test_large_requests_are_appended_in_slices(
    six: OneBroker, monkeypatch: pytest.MonkeyPatch, entries: int, size: int
) -> None:
    monkeypatch.setattr(appends, "ENTRIES_PER_SLICE", entries)
    monkeypatch.setattr(appends, "BYTES_PER_SLICE", size)
    ticks = Ticks()
    results = await appends.Appends(six.replicas).append([(name, bytes(13)) for name in NAMES], acks=1, timeout_ms=0)
    assert [(r.partition, r.base_offset) for r in results] == [(name, 10) for name in NAMES]
    assert ticks.stop() >= 1


async def test_a_wide_produce_request_lets_others_run(six: OneBroker) -> None:
    batch = build_batch([Record(key=None, value=b"v", timestamp=1)])
    nowhere = [(TopicPartition("nowhere", n), batch) for n in range(10_000)]
    body = memoryview(b"".join(encode_produce(8, acks=1, timeout_ms=0, entries=nowhere)))
    ticks = Ticks()
    answer = await six.handle(CLIENT, RequestHeader(ApiKey.PRODUCE, 8, 1, "x"), body)
    assert answer is not None and ticks.stop() >= 50
