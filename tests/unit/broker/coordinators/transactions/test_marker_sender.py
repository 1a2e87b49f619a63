"""Markers on their way: grouping, leaders that move or die, answers of every kind, and one completion each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from klamm.broker.coordinators.transactions import marker_channel
from klamm.broker.coordinators.transactions.markers import (
    EXPECTED,
    Outcome,
    TransactionEnd,
    outcome_of,
    route,
)
from klamm.model.errors import ConnectionLoss, ErrorCode, ZNodeError
from klamm.model.ids import BrokerId, LeaderEpoch, ProducerId, TopicPartition

from .coordinating import Coordinating

A, B, C = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("bills", 0)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Coordinating]:
    monkeypatch.setattr(marker_channel, "FIRST_PAUSE_S", 0.002)
    async with Coordinating().running() as running:
        await running.told({A: 1, B: 2, C: 1})
        yield running


def end_of(transactional_id: str, producer_id: int, *partitions: TopicPartition, epoch: int = 5) -> TransactionEnd:
    return TransactionEnd(
        transactional_id, 0, LeaderEpoch(epoch), ProducerId(producer_id), 3, commit=True, missing=set(partitions)
    )


class Done:
    def __init__(self) -> None:
        self.ends: list[str] = []

    def __call__(self, end: TransactionEnd) -> None:
        self.ends.append(end.transactional_id)


def test_routes() -> None:
    leaders = {A: BrokerId(1), B: BrokerId(2), C: BrokerId(-1)}
    unknown = TopicPartition("unknown", 0)
    routes = route([A, B, C, unknown], leaders.get, lambda broker: broker == 1)
    assert routes == ({1: {A}}, {B, C, unknown})


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ErrorCode.NONE, Outcome.DONE),
        (ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, Outcome.DONE),
        (ErrorCode.UNSUPPORTED_VERSION, Outcome.DONE),
        (ErrorCode.INVALID_PRODUCER_EPOCH, Outcome.FENCED),
        (ErrorCode.TRANSACTION_COORDINATOR_FENCED, Outcome.FENCED),
        (ErrorCode.UNKNOWN_SERVER_ERROR, Outcome.AGAIN),
        *((error, Outcome.AGAIN) for error in EXPECTED),
    ],
)
def test_what_an_answer_means(error: ErrorCode, outcome: Outcome) -> None:
    assert outcome_of(error) is outcome


@pytest.mark.case("TXN-20")
async def test_one_request_per_broker_with_an_entry_per_id(world: Coordinating) -> None:
    done = Done()
    world.markers.send(end_of("one", 7, A, B, C), done)
    world.markers.send(end_of("two", 8, A), done)
    await world.settled(lambda: len(done.ends) == 2)
    [to_1], [to_2] = world.brokers[1].requests, world.brokers[2].requests
    assert [(entry.producer_id, entry.partitions) for entry in to_1] == [(7, (C, A)), (8, (A,))]
    assert [(entry.producer_id, entry.partitions) for entry in to_2] == [(7, (B,))]
    assert (world.markers.open_count, world.markers.waiting_count) == (0, 0)


async def test_one_request_is_in_flight_and_the_next_takes_all_that_waits(world: Coordinating) -> None:
    done, broker = Done(), world.brokers[1]
    broker.gate.clear()
    world.markers.send(end_of("one", 7, A), done)
    await broker.asked.wait()
    world.markers.send(end_of("two", 8, A), done)
    world.markers.send(end_of("three", 9, A), done)
    await asyncio.sleep(0.01)
    assert len(broker.requests) == 1
    broker.gate.set()
    await world.settled(lambda: len(done.ends) == 3)
    assert [[entry.producer_id for entry in request] for request in broker.requests] == [[7], [8, 9]]


async def test_a_request_is_bounded(world: Coordinating, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marker_channel, "TRANSACTIONS_PER_REQUEST", 2)
    done = Done()
    for number in range(5):
        world.markers.send(end_of(f"tx{number}", number, A), done)
    await world.settled(lambda: len(done.ends) == 5)
    assert [len(request) for request in world.brokers[1].requests] == [2, 2, 1]


@pytest.mark.case("TXN-21")
async def test_a_deleted_partition_needs_no_marker(world: Coordinating) -> None:
    done = Done()
    await world.told({B: -2})
    world.markers.send(end_of("one", 7, B), done)
    await world.settled(lambda: done.ends == ["one"])
    world.markers.send(end_of("two", 8, A, B), done)
    await world.settled(lambda: len(done.ends) == 2)
    assert world.brokers[2].requests == []


@pytest.mark.case("TXN-21")
async def test_a_partition_that_is_deleted_while_it_waits_is_done(world: Coordinating) -> None:
    done = Done()
    await world.told({B: 3})
    world.markers.send(end_of("one", 7, B), done)
    await world.told({B: -2})
    await world.settled(lambda: done.ends)


@pytest.mark.parametrize("informed", [True, False])
async def test_a_partition_that_this_broker_does_not_know_is_not_deleted(
    monkeypatch: pytest.MonkeyPatch, informed: bool
) -> None:
    """A restarted broker may coordinate before it was told of all topics. ZooKeeper knows them."""
    monkeypatch.setattr(marker_channel, "FIRST_PAUSE_S", 0.002)
    async with Coordinating().running() as world:
        done = Done()
        world.existing.add(A)
        if informed:
            await world.told({})
        world.markers.send(end_of("one", 7, A), done)
        await asyncio.sleep(0.02)
        assert done.ends == [] and world.markers.waiting_count == 1
        await world.told({A: 1})
        await world.settled(lambda: done.ends)
        assert len(world.brokers[1].requests) == 1


async def test_markers_wait_while_zookeeper_does_not_answer(
    world: Coordinating, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, failures = Done(), [ConnectionLoss("/"), ZNodeError("/brokers/topics/orders", "not JSON")]
    answer = world.markers._partitions_left

    async def unreliable(topic: str) -> int:
        if failures:
            raise failures.pop()
        return await answer(topic)

    monkeypatch.setattr(world.markers, "_partitions_left", unreliable)
    await world.told({B: -2})
    world.markers.send(end_of("one", 7, B), done)
    await world.settled(lambda: done.ends)
    assert failures == []


@pytest.mark.case("TXN-22")
@pytest.mark.parametrize("leader", [2, -1])
async def test_markers_wait_for_a_leader_that_lives(world: Coordinating, leader: int) -> None:
    done = Done()
    await world.told({B: leader}, alive=(1,))
    world.markers.send(end_of("one", 7, A, B), done)
    await world.settled(lambda: world.brokers[1].requests)
    await asyncio.sleep(0.01)
    assert (done.ends, world.brokers[2].requests, world.markers.waiting_count) == ([], [], 1)
    await world.told({B: 2})
    await world.settled(lambda: done.ends)
    assert [entry.partitions for [entry] in world.brokers[2].requests] == [(B,)]
    assert len(world.brokers[1].requests) == 1  # a partition that has its marker gets no other


@pytest.mark.case("TXN-25")
@pytest.mark.parametrize("error", [*EXPECTED, ErrorCode.UNKNOWN_SERVER_ERROR])
async def test_a_refused_marker_is_sent_again(world: Coordinating, error: ErrorCode) -> None:
    done = Done()
    world.brokers[1].errors[A] = [error, error]
    world.markers.send(end_of("one", 7, A, C), done)
    await world.settled(lambda: done.ends)
    assert [entry.partitions for [entry] in world.brokers[1].requests] == [(C, A), (A,), (A,)]


@pytest.mark.case("TXN-25")
async def test_a_marker_follows_the_leader(world: Coordinating) -> None:
    done = Done()
    world.brokers[1].errors[A] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    world.brokers[1].gate.clear()
    world.markers.send(end_of("one", 7, A), done)
    await world.brokers[1].asked.wait()
    world.markers.send(end_of("two", 8, A), done)  # waits in the queue of the former leader
    await world.told({A: 2})
    world.brokers[1].gate.set()
    await world.settled(lambda: len(done.ends) == 2)
    assert len(world.brokers[1].requests) == 1
    assert sorted(entry.producer_id for request in world.brokers[2].requests for entry in request) == [7, 8]


@pytest.mark.case("TXN-25")
async def test_a_broken_connection_concerns_its_broker_alone(world: Coordinating) -> None:
    done = Done()
    world.brokers[1].failures = [ConnectionResetError("gone"), TimeoutError("late")]
    world.markers.send(end_of("one", 7, A), done)
    world.markers.send(end_of("two", 8, B), done)
    await world.settled(lambda: done.ends == ["two"])
    await world.settled(lambda: done.ends == ["two", "one"])
    assert len(world.brokers[1].requests) == 3


async def test_a_bug_in_a_channel_loses_no_marker(world: Coordinating, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.model.guard.FIRST_PAUSE_S", 0.001)
    done = Done()
    world.brokers[1].failures = [RuntimeError("a bug")]
    world.markers.send(end_of("one", 7, A), done)
    await world.settled(lambda: done.ends == ["one"])
    assert world.guard.failures.total() == 1
    world.guard.failures.clear()  # it was meant to happen


@pytest.mark.case("TXN-25")
@pytest.mark.parametrize("error", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED])
async def test_a_fenced_transaction_stops(world: Coordinating, error: ErrorCode) -> None:
    done = Done()
    world.brokers[1].errors[A] = [error]
    world.brokers[2].gate.clear()
    world.markers.send(end_of("one", 7, A, B), done)
    await world.settled(lambda: world.markers.fenced == 1)
    world.brokers[2].gate.set()
    await asyncio.sleep(0.01)
    assert (done.ends, world.markers.open_count) == ([], 0)


async def test_a_dropped_partition_takes_its_transactions_along(world: Coordinating) -> None:
    done = Done()
    world.brokers[1].gate.clear()
    world.markers.send(end_of("one", 7, A), done)
    await world.brokers[1].asked.wait()
    world.markers.drop(0)
    again = end_of("one", 7, A, epoch=6)
    world.markers.send(again, done)
    world.brokers[1].gate.set()
    await world.settled(lambda: done.ends)
    assert done.ends == ["one"]
    assert [entry.coordinator_epoch for [entry] in world.brokers[1].requests] == [5, 6]


async def test_an_answer_to_a_dropped_end_does_not_end_the_present_one(world: Coordinating) -> None:
    done = Done()
    world.brokers[1].errors[A] = [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
    world.brokers[1].gate.clear()
    world.markers.send(end_of("one", 7, A), done)
    await world.brokers[1].asked.wait()
    world.markers.drop(0)
    world.markers.send(end_of("one", 7, A, epoch=6), done)
    world.brokers[1].gate.set()
    await world.settled(lambda: done.ends or world.markers.fenced)
    assert (done.ends, world.markers.fenced) == (["one"], 0)


async def test_an_idle_channel_ends_and_comes_back(world: Coordinating, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marker_channel, "IDLE_S", 0.01)
    done = Done()
    world.markers.send(end_of("one", 7, A), done)
    await world.settled(lambda: done.ends and not world.markers._channels)
    world.markers.send(end_of("two", 8, A), done)
    await world.settled(lambda: len(done.ends) == 2)
