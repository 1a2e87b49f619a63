"""One partition fails in an unexpected way: its neighbours in the same broker, request and fetch go on (design D17)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from klamm.broker.appends import Appends
from klamm.broker.reads import FetchQuery, Reads
from klamm.model import guard
from klamm.model.control import Sender, StopOrder
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from klamm.model.ports import Acl
from klamm.wire.fetch import FetchPartition
from klamm.zookeeper.znodes import partition_state

from .one_broker import OneBroker, one

__all__ = ["one"]

BAD, GOOD = TopicPartition("orders", 0), TopicPartition("orders", 1)
SENDER = Sender(BrokerId(2), ControllerEpoch(1), BrokerEpoch(-1))
READ_ONLY = (Acl(1, "world", "anyone"),)


def broken(*args: Any, **kwargs: Any) -> Any:
    raise ValueError("a defect")


@pytest.fixture
async def both(one: OneBroker, make_order: Any) -> OneBroker:
    """Broker 1 leads BAD and GOOD; broker 2 follows."""
    await one.told(partitions=2)
    await order(one, make_order, epoch=0)
    for name in (BAD, GOOD):
        one.zk.put(partition_state.path(name), b"{}")
    return one


async def order(one: OneBroker, make_order: Any, *, epoch: int) -> dict[TopicPartition, ErrorCode]:
    orders = [make_order(epoch=epoch, isr=(1, 2), replicas=(1, 2), partition=name) for name in (BAD, GOOD)]
    return dict((await one.replicas.leader_and_isr(SENDER, orders)).partitions)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_an_append_fails_for_its_partition_only(both: OneBroker) -> None:
    both.logs.kept[BAD].append_as_leader = broken
    results = await Appends(both.replicas).append([(BAD, b"x"), (GOOD, b"y")], acks=1, timeout_ms=0)
    assert [r.error for r in results] == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]
    assert both.replicas.guard.failures["append"] == 1


async def test_a_read_fails_for_its_partition_only(both: OneBroker) -> None:
    for name in (BAD, GOOD):
        both.logs.kept[name].fill(0)
    both.logs.kept[BAD].read = broken
    query = FetchQuery(11, BrokerId(2), 0, 1, 100)
    results = await Reads(both.replicas).fetch(query, [FetchPartition(BAD, 0, 9), FetchPartition(GOOD, 0, 9)])
    assert [(r.error, len(r.records)) for r in results] == [(ErrorCode.KAFKA_STORAGE_ERROR, 0), (ErrorCode.NONE, 1)]


async def test_a_followers_fetch_is_counted_for_the_others(both: OneBroker) -> None:
    for name in (BAD, GOOD):
        both.logs.kept[name].fill(0)
    both.logs.kept[BAD].maybe_increment_high_watermark = broken
    query = FetchQuery(11, BrokerId(2), 0, 1, 100)
    await Reads(both.replicas).fetch(query, [FetchPartition(BAD, 1, 9), FetchPartition(GOOD, 1, 9)])
    assert (both.logs.kept[BAD].high_watermark, both.logs.kept[GOOD].high_watermark) == (0, 1)


async def test_a_waiting_request_that_fails_does_not_fail_the_append(both: OneBroker) -> None:
    waiting = asyncio.create_task(both.replicas.waiting_fetches.wait([GOOD], lambda key: bool(key and broken()), 60))
    await turns(2)
    (result,) = await Appends(both.replicas).append([(GOOD, b"y")], acks=1, timeout_ms=0)
    assert result.error is ErrorCode.NONE
    with pytest.raises(ValueError, match="a defect"):
        await waiting


async def test_an_order_fails_for_its_partition_which_is_offline_until_it_succeeds(
    both: OneBroker, make_order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "FIRST_PAUSE_S", 0.0)
    log = both.logs.kept[BAD]
    assign, log.epochs.assign = log.epochs.assign, broken
    assert await order(both, make_order, epoch=1) == {BAD: ErrorCode.KAFKA_STORAGE_ERROR, GOOD: ErrorCode.NONE}
    with pytest.raises(KafkaError, match="orders-0 is offline: ValueError: a defect"):
        both.replicas.partition(BAD)
    assert both.replicas.set_aside_count == 1
    assert both.replicas.partition(GOOD).leader_epoch == 1
    log.epochs.assign = assign
    await turns()
    assert both.replicas.partition(BAD).leader_epoch == 1, "the order was repeated"
    assert both.replicas.set_aside_count == 0


async def test_a_later_order_ends_the_attempts_of_the_first(
    both: OneBroker, make_order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "FIRST_PAUSE_S", 0.0)
    log = both.logs.kept[BAD]
    assign, log.epochs.assign = log.epochs.assign, broken
    await order(both, make_order, epoch=1)
    log.epochs.assign = assign
    await order(both, make_order, epoch=2)
    await turns()
    assert both.replicas.partition(BAD).leader_epoch == 2


async def test_a_state_znode_that_cannot_be_written_concerns_its_partition(both: OneBroker, clock: Any) -> None:
    """Both ISRs shrink, but ZooKeeper refuses one of the writes."""
    both.zk.tree.nodes[partition_state.path(BAD)].acl = READ_ONLY
    for name in (BAD, GOOD):
        both.logs.kept[name].fill(0)
    clock.advance(100)
    for name in (BAD, GOOD):
        both.replicas._shrink_isr(both.replicas.partitions[name])
    await turns()
    assert both.replicas.partitions[GOOD].isr == (1,)
    assert (both.replicas.partitions[BAD].isr, both.replicas.partitions[BAD].pending_isr) == ((1, 2), (1,))
    assert both.replicas.isr_writer.failed_updates == 1
    assert both.logs.kept[BAD].high_watermark == 0, "nothing is committed by an ISR that is not in force"


async def test_a_timer_goes_on_after_a_failure(both: OneBroker, clock: Any) -> None:
    both.logs.kept[BAD].maybe_increment_high_watermark = broken
    for name in (BAD, GOOD):
        both.logs.kept[name].fill(0)
    clock.advance(100)
    for partition in both.replicas.partitions.values():
        both.replicas._shrink_isr(partition)
    await turns()
    assert both.replicas.guard.failures.total() >= 1
    assert both.logs.kept[GOOD].high_watermark == 1


async def test_a_deletion_that_may_be_undone_is_not_answered_as_done(both: OneBroker) -> None:
    both.logs.unsettled = {BAD}
    stops = [StopOrder(name, LeaderEpoch(0), delete=True) for name in (BAD, GOOD)]
    answer = await both.replicas.stop_replica(SENDER, stops)
    assert answer.partitions == {BAD: ErrorCode.KAFKA_STORAGE_ERROR, GOOD: ErrorCode.NONE}
