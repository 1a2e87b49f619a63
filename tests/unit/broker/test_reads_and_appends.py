"""Limits, order and waiting of fetches; acknowledgement of produces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from klamm.broker.appends import Appends
from klamm.broker.metadata_cache import MetadataCache
from klamm.broker.reads import FetchQuery, Reads
from klamm.broker.replica_manager import ReplicaManager
from klamm.broker.topic_configs import TopicConfigs
from klamm.model.brokers import Broker
from klamm.model.config import BrokerConfig, TopicConfig
from klamm.model.control import MetadataUpdate, Sender, StopOrder
from klamm.model.errors import ErrorCode
from klamm.model.ids import BrokerEpoch, BrokerId, ControllerEpoch, TopicPartition
from klamm.model.partition import Assignment
from klamm.model.requests import ClientConnection
from klamm.wire.fetch import FetchPartition

from .conftest import FakeLog

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
TWO = BrokerId(2)
SENDER = Sender(TWO, ControllerEpoch(1), BrokerEpoch(-1))


class Events:
    def emit(self, records: Any) -> None: ...


class Leader:
    """Broker 1 leads A and B; the test plays follower 2."""

    def __init__(self, replicas: ReplicaManager, logs: Any, make_order: Any) -> None:
        self.replicas = replicas
        self.logs = logs
        self.appends = Appends(replicas)
        self.reads = Reads(replicas)
        self.order = make_order
        self.sender = SENDER

    async def lead(self, epoch: int = 0, leader: int = 1, isr: tuple[int, ...] = (1, 2)) -> None:
        orders = [self.order(leader, epoch, isr, (1, 2), partition=name) for name in (A, B)]
        await self.replicas.leader_and_isr(self.sender, orders)

    async def follow(self, *entries: FetchPartition, wait_ms: int = 0) -> Any:
        return await self.reads.fetch(FetchQuery(11, TWO, wait_ms, 1, 1000), entries)

    async def consume(self, *entries: FetchPartition, version: int = 11, **query: Any) -> Any:
        fields = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1000} | query
        return await self.reads.fetch(FetchQuery(version, BrokerId(-1), **fields), entries)

    @property
    def metered_topics(self) -> tuple[set[str], set[str]]:
        """Topics with metrics of what was produced, and of what was consumed."""
        return set(self.appends.traffic.topics), set(self.reads.traffic.topics)


@pytest.fixture
async def leader(zk: Any, logs: Any, clock: Any, make_order: Any) -> AsyncIterator[Leader]:
    metadata = MetadataCache()
    await metadata.update(MetadataUpdate(SENDER, [Broker(BrokerId(1), ()), Broker(TWO, ())], []))
    replicas = ReplicaManager(
        BrokerId(1),
        BrokerConfig(broker_id=1),
        clock=clock,
        zk=zk,
        logs=logs,
        metadata=metadata,
        configs=TopicConfigs(zk, clock, TopicConfig(), 1.0),
        events=Events(),
        endpoint=lambda broker: Nowhere(),
    )
    async with replicas.running():
        leader = Leader(replicas, logs, make_order)
        await leader.lead()
        yield leader


class Nowhere:
    async def fetch(self, wanted: Any) -> Any:
        raise ConnectionRefusedError

    epoch_ends = log_ends = fetch

    def close(self) -> None: ...


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_limits_and_the_first_batch_rule(leader: Leader) -> None:
    for name in (A, B):
        leader.logs.kept[name].fill(*[0] * 10)
    both = [FetchPartition(A, 0, 6), FetchPartition(B, 0, 6)]
    sizes = [len(r.records) for r in await leader.reads.fetch(FetchQuery(11, TWO, 0, 1, 8), both)]
    assert sizes == [6, 2], "each up to its own limit and the rest of the response's"
    tiny = await leader.reads.fetch(FetchQuery(11, TWO, 0, 1, 0), both)
    assert [len(r.records) for r in tiny] == [1, 0], "the first batch comes whole, whatever the limit"
    refused = (await leader.follow(FetchPartition(A, 11, 6)))[0]
    assert (refused.error, refused.high_watermark, refused.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1, -1)
    assert (await leader.consume(FetchPartition(A, 5, 6)))[0].error is ErrorCode.NONE, "between high watermark and end"


@pytest.mark.case("RPM-06")
async def test_follower_reads_to_the_end_consumer_to_the_high_watermark(leader: Leader) -> None:
    leader.logs.kept[A].fill(0, 0)
    follower, consumer = await leader.follow(FetchPartition(A, 1, 9)), await leader.consume(FetchPartition(A, 1, 9))
    assert (follower[0].error, len(follower[0].records)) == (ErrorCode.NONE, 1)
    assert (consumer[0].error, len(consumer[0].records)) == (ErrorCode.NONE, 0)


async def test_follower_from_outside_the_assignment(leader: Leader) -> None:
    query = FetchQuery(11, BrokerId(9), 0, 1, 100)
    without, with_epoch = [
        (await leader.reads.fetch(query, [FetchPartition(A, 0, 6, epoch)]))[0].error for epoch in (-1, 0)
    ]
    assert (without, with_epoch) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_LEADER_EPOCH)


async def test_acknowledged_when_the_follower_asks_for_what_comes_after(leader: Leader) -> None:
    produce = asyncio.create_task(leader.appends.append([(A, b"xx"), (B, b"y")], acks=-1, timeout_ms=60_000))
    await turns()
    assert not produce.done()
    await leader.follow(FetchPartition(A, 2, 9), FetchPartition(B, 0, 9))
    await turns()
    assert not produce.done(), "one partition of two"
    waiting = asyncio.create_task(leader.follow(FetchPartition(A, 2, 9), FetchPartition(B, 1, 9), wait_ms=60_000))
    results = await produce
    assert [(r.partition, r.error, r.base_offset) for r in results] == [(A, 0, 0), (B, 0, 0)]
    waiting.cancel()


async def test_timeout_names_only_what_is_still_pending(leader: Leader, clock: Any) -> None:
    clock.advance(60)  # the removed follower is no longer caught up, so it holds nothing back
    leader.replicas.partitions[B].settle_isr((BrokerId(1),), 1)
    results = await leader.appends.append(
        [(A, b"x"), (B, b"y"), (TopicPartition("no", 0), b"z")], acks=-1, timeout_ms=1
    )
    assert [r.error for r in results] == [
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


async def test_acks_one_does_not_wait_and_internal_topics_are_closed(leader: Leader) -> None:
    assert (await leader.appends.append([(A, b"x")], acks=1, timeout_ms=0))[0].error is ErrorCode.NONE
    internal = TopicPartition("__consumer_offsets", 0)
    refused = await leader.appends.append([(internal, b"x")], acks=1, timeout_ms=0)
    assert refused[0].error is ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_a_partition_that_is_named_twice_is_answered_twice(leader: Leader) -> None:
    """Both batches are appended, so the answer must tell if either fails; with acks=0 it closes the connection."""
    results = await leader.appends.append([(A, b"x"), (A, b"y")], acks=1, timeout_ms=0)
    assert [(r.partition, r.error, r.base_offset) for r in results] == [(A, 0, 0), (A, 0, 1)]
    late = await leader.appends.append([(A, b"x"), (A, b"y")], acks=-1, timeout_ms=1)
    assert [(r.error, r.base_offset) for r in late] == [(ErrorCode.REQUEST_TIMED_OUT, -1)] * 2


async def test_consumer_is_woken_by_the_high_watermark_not_by_the_append(leader: Leader) -> None:
    fetch = asyncio.create_task(
        leader.consume(FetchPartition(A, 0, 100), FetchPartition(B, 0, 100), max_wait_ms=60_000)
    )
    await turns()
    await leader.appends.append([(A, b"xy")], acks=1, timeout_ms=0)
    await turns()
    assert not fetch.done()
    follower = asyncio.create_task(leader.follow(FetchPartition(A, 2, 100), wait_ms=60_000))
    results = await fetch
    assert [(len(r.records), r.high_watermark) for r in results] == [(2, 2), (0, 0)]
    follower.cancel()


async def test_fetch_waits_for_its_minimum(leader: Leader) -> None:
    follower = [FetchPartition(A, 0, 100), FetchPartition(B, 0, 100)]
    fetch = asyncio.create_task(leader.reads.fetch(FetchQuery(11, TWO, 60_000, 4, 1000), follower))
    await turns()
    await leader.appends.append([(A, b"xy")], acks=1, timeout_ms=0)
    await leader.appends.append([(B, b"z")], acks=1, timeout_ms=0)
    await turns()
    assert not fetch.done()
    await leader.appends.append([(B, b"z")], acks=1, timeout_ms=0)
    assert [len(r.records) for r in await fetch] == [2, 2]
    assert leader.reads.replication_bytes_out == 4


async def test_nothing_is_read_for_a_client_that_has_disconnected(leader: Leader) -> None:
    client, consumer = ClientConnection(), FetchQuery(11, BrokerId(-1), 60_000, 2, 1000)
    fetch = asyncio.create_task(leader.reads.fetch(consumer, [FetchPartition(A, 0, 100)], client))
    await turns()
    client.gone()
    assert await fetch == []


async def test_waiting_fetch_hears_of_a_new_epoch(leader: Leader) -> None:
    fetch = asyncio.create_task(leader.consume(FetchPartition(A, 0, 100, 0), max_wait_ms=60_000))
    await turns()
    await leader.lead(epoch=1)
    assert (await fetch)[0].error is ErrorCode.FENCED_LEADER_EPOCH


async def test_state_of_the_follower_is_recorded_once_by_the_first_read(leader: Leader, clock: Any) -> None:
    fetch = asyncio.create_task(leader.follow(FetchPartition(A, 0, 100), wait_ms=60_000))
    await turns()
    first = leader.replicas.partitions[A].followers[TWO].last_fetch
    clock.advance(5)
    await leader.appends.append([(A, b"x")], acks=1, timeout_ms=0)
    await fetch
    assert leader.replicas.partitions[A].followers[TWO].last_fetch == first


async def test_silence_of_zookeeper_before_the_acknowledgement(leader: Leader, zk: Any) -> None:
    produce = asyncio.create_task(leader.appends.append([(A, b"x")], acks=-1, timeout_ms=60_000))
    await turns()
    zk.silent_s = 13
    await leader.follow(FetchPartition(A, 1, 9))
    assert (await produce)[0].error is ErrorCode.REQUEST_TIMED_OUT


async def test_a_leader_that_hears_nothing_answers_those_who_wait(leader: Leader, zk: Any) -> None:
    """Its followers fetch from another, so nothing but the timeout of the request would end the wait."""
    produce = asyncio.create_task(leader.appends.append([(A, b"x")], acks=-1, timeout_ms=60_000))
    await turns()
    zk.session_timeout_ms = 150
    leader.replicas.guard.start("timer", "silence", leader.replicas._answer_when_silent)
    zk.silent_s = 13
    async with asyncio.timeout(10):
        assert (await produce)[0].error is ErrorCode.REQUEST_TIMED_OUT


async def test_a_throttled_follower_gets_nothing_while_the_quota_is_exceeded(leader: Leader, clock: Any) -> None:
    await leader.lead(epoch=1, isr=(1,))
    for name in (A, B):
        leader.logs.kept[name].config = TopicConfig(leader_replication_throttled_replicas=("0:1",))
        await leader.appends.append([(name, b"xy")], acks=1, timeout_ms=0)
    quota = leader.replicas.leader_quota
    quota.limit = 1
    both = [FetchPartition(A, 0, 100), FetchPartition(B, 0, 100)]
    assert [len(r.records) for r in await leader.follow(*both)] == [2, 2]
    assert quota.is_exceeded()  # by partition 0, which the configuration names
    waiting = asyncio.create_task(leader.follow(FetchPartition(A, 0, 100), wait_ms=60_000))
    assert [len(r.records) for r in await leader.follow(*both)] == [0, 2]
    assert [len(r.records) for r in await leader.consume(FetchPartition(A, 0, 100))] == [2], (
        "consumers are not throttled"
    )
    await turns()
    assert not waiting.done(), "throttled records do not end the wait"
    waiting.cancel()
    clock.advance(12)
    assert [len(r.records) for r in await leader.follow(*both)] == [2, 2]


async def test_a_throttled_follower_in_the_isr_is_not_held_back(leader: Leader) -> None:
    leader.logs.kept[A].config = TopicConfig(leader_replication_throttled_replicas=("*",))
    leader.replicas.leader_quota.limit = 0
    leader.replicas.leader_quota.record(1)
    await leader.appends.append([(A, b"xy")], acks=1, timeout_ms=0)
    assert [len(r.records) for r in await leader.follow(FetchPartition(A, 0, 100))] == [2]


async def test_a_new_replica_does_not_inherit_the_bytes_of_a_former_one(leader: Leader) -> None:
    name = TopicPartition("again", 0)
    for is_new, expected in ((False, 2), (True, 0)):
        leader.replicas.partitions.pop(name, None)
        leader.logs.kept[name] = FakeLog(name).fill(0, 0)
        await leader.replicas.leader_and_isr(leader.sender, [leader.order(partition=name, is_new=is_new)])
        assert leader.logs.kept[name].log_end_offset == expected
    # Ordered again in the same life, the partition is known and keeps its records.
    leader.logs.kept[name].fill(0)
    await leader.replicas.leader_and_isr(leader.sender, [leader.order(epoch=1, partition=name, is_new=True)])
    assert leader.logs.kept[name].log_end_offset == 1


async def test_a_log_that_moved_while_an_order_was_prepared_is_the_one_that_is_used(leader: Leader) -> None:
    """Opening the logs of an order takes time, during which a directory move may replace a log with its copy."""
    moved, create_many = FakeLog(A), leader.logs.create_many

    async def exchanging(partitions: Any) -> Any:
        leader.logs.kept[A] = moved
        return await create_many(partitions)

    leader.logs.create_many = exchanging
    new = TopicPartition("new", 0)
    orders = [leader.order(1, 1, (1, 2), (1, 2), partition=name) for name in (A, new)]
    await leader.replicas.leader_and_isr(leader.sender, orders)
    assert leader.replicas.partitions[A].log is moved


@pytest.mark.parametrize("acks", [1, -1])
async def test_an_answer_waits_for_the_flush_that_covers_it(leader: Leader, acks: int) -> None:
    await leader.lead(epoch=1, isr=(1,))
    log = leader.logs.get(A)
    log.waits_for_flush = True
    produce = asyncio.create_task(leader.appends.append([(A, b"x")], acks=acks, timeout_ms=5000))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not produce.done()
    log.waits_for_flush = False
    leader.logs.on_flushed(A)
    assert [result.error for result in await produce] == [ErrorCode.NONE]


async def test_what_the_leader_has_not_flushed_is_not_committed(leader: Leader) -> None:
    """Else the next leader, which has flushed it, would acknowledge it to a producer that tries again, while this
    replica may still lose it."""
    await leader.lead(epoch=1, isr=(1, 2))
    log = leader.logs.get(A)
    log.waits_for_flush = True
    produce = asyncio.create_task(leader.appends.append([(A, b"x")], acks=-1, timeout_ms=5000))
    await asyncio.sleep(0)
    leader.replicas.follower_fetched(A, BrokerId(2), 1, 0)
    assert log.high_watermark == 0
    log.waits_for_flush = False
    leader.logs.on_flushed(A)
    assert log.high_watermark == 1
    assert [result.error for result in await produce] == [ErrorCode.NONE]


async def test_acks_0_does_not_wait_for_a_flush(leader: Leader) -> None:
    leader.logs.get(A).waits_for_flush = True
    async with asyncio.timeout(1):
        await leader.appends.append([(A, b"x")], acks=0, timeout_ms=5000)


async def test_a_flush_that_does_not_end_in_time_is_a_time_out(leader: Leader) -> None:
    leader.logs.get(A).waits_for_flush = True
    (result,) = await leader.appends.append([(A, b"x")], acks=1, timeout_ms=1)
    assert result.error is ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.case("RPM-07")
async def test_which_versions_may_read_from_a_follower(leader: Leader) -> None:
    leader.logs.kept[A].fill(0, 0)
    leader.logs.kept[A].update_high_watermark(2)
    answers = []
    for epoch, broker in ((1, 1), (2, 2)):
        await leader.lead(epoch=epoch, leader=broker)
        for version in (11, 10):
            (found,) = await leader.consume(FetchPartition(A, 0, 10), version=version)
            answers.append((broker, version, found.error, len(found.records)))
    assert answers == [
        (1, 11, ErrorCode.NONE, 2),
        (1, 10, ErrorCode.NONE, 2),
        (2, 11, ErrorCode.NONE, 2),
        (2, 10, ErrorCode.NOT_LEADER_OR_FOLLOWER, 0),
    ]


@pytest.mark.case("RPM-11")
async def test_the_metrics_of_a_topic_end_with_its_last_leader_and_its_last_replica(leader: Leader) -> None:
    await leader.appends.append([(A, b"x")], acks=1, timeout_ms=0)
    leader.logs.kept[A].update_high_watermark(1)
    await leader.consume(FetchPartition(A, 0, 10))
    assert leader.metered_topics == ({"t"}, {"t"})

    async def lead(name: TopicPartition, broker: int, epoch: int) -> None:
        await leader.replicas.leader_and_isr(SENDER, [leader.order(broker, epoch, (1, 2), (1, 2), partition=name)])

    await lead(A, 2, 1)
    assert leader.metered_topics == ({"t"}, {"t"}), "the topic's other partition is led here"
    await lead(B, 2, 1)
    assert leader.metered_topics == (set(), {"t"}), "consumers may read from followers"
    await lead(B, 1, 2)
    await leader.appends.append([(B, b"x")], acks=1, timeout_ms=0)
    assert leader.metered_topics == ({"t"}, {"t"})
    for name, held in ((B, {"t"}), (A, set())):
        await leader.replicas.stop_replica(SENDER, [StopOrder(name, 2, delete=True)])
        assert leader.metered_topics == (set(), held)


@pytest.mark.case("FET-18")
async def test_bytes_for_a_follower_that_is_being_added_are_counted_apart(leader: Leader) -> None:
    leader.logs.kept[A].fill(0, 0, 0)
    plain = leader.order(1, 1, (1,), (1, 2), partition=A)
    for order, counted in (
        (plain, (3, 0)),
        (plain._replace(assignment=Assignment((BrokerId(1), TWO), adding=(TWO,))), (6, 3)),
    ):
        state = order.state._replace(leader_epoch=leader.replicas.partitions[A].leader_epoch + 1)
        await leader.replicas.leader_and_isr(SENDER, [order._replace(state=state)])
        await leader.follow(FetchPartition(A, 0, 10))
        assert (leader.reads.replication_bytes_out, leader.reads.reassignment_bytes_out) == counted


@pytest.mark.case("FET-21")
async def test_a_throttle_slows_the_leader_that_is_listed_to_the_rate(leader: Leader, clock: Any) -> None:
    size, chunk, rate, pause = 900, 100, 100, 0.1
    leader.replicas.leader_quota.limit = rate
    for name in (A, B):
        leader.logs.kept[name].fill(*[0] * size)
        leader.logs.kept[name].config = TopicConfig(leader_replication_throttled_replicas=("0:1",))
    await leader.lead(epoch=1, isr=(1,))
    began, took, ends = clock.now, {}, {A: 0, B: 0}
    while len(took) < 2:
        for result in await leader.follow(*(FetchPartition(name, end, chunk) for name, end in ends.items())):
            ends[result.partition] += len(result.records)
        clock.advance(pause)
        took |= {name: clock.now - began for name, end in ends.items() if name not in took and end == size}
    assert took[B] <= 1, "an unlisted replica gets everything as fast as it asks"
    assert 0.7 * rate <= size / took[A] <= 1.3 * rate


@pytest.mark.case("PAR-13")
async def test_slow_appends_do_not_hold_up_followers(
    leader: Leader, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One append is still being prepared off the loop, another waits for its flush. The follower fetches meanwhile."""
    log, may_go_on = leader.logs.kept[A], asyncio.Event()

    async def slow(records: bytes) -> None:
        await may_go_on.wait()

    monkeypatch.setattr(log, "prepare", slow)
    costly = bytes(1 << 20)
    preparing = asyncio.create_task(leader.appends.append([(A, costly)], acks=-1, timeout_ms=60_000))
    log.fill(0, 0)
    log.waits_for_flush = True
    log.flushed_to = 2
    flushing = asyncio.create_task(leader.appends.append([(A, b"x")], acks=1, timeout_ms=60_000))
    await turns()
    partition = leader.replicas.partitions[A]
    for end in (1, 2, 3):
        clock.advance(5)
        async with asyncio.timeout(5):
            await leader.follow(FetchPartition(A, end, 10))
        leader.replicas._shrink_isr(partition)
        assert (partition.followers[TWO].log_end_offset, partition.isr, partition.pending_isr) == (end, (1, 2), None)
        assert log.high_watermark == min(end, log.flushed_to)
    assert not preparing.done()
    assert not flushing.done()
    may_go_on.set()
    log.waits_for_flush = False
    leader.logs.on_flushed(A)
    assert [result.error for result in await flushing] == [ErrorCode.NONE]
    await turns()
    await leader.follow(FetchPartition(A, log.log_end_offset, 10))
    assert [result.error for result in await preparing] == [ErrorCode.NONE]
