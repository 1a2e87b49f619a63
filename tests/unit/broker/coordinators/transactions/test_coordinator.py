"""The coordinator around its decisions: writes, what a failed or late write changes, loads, timers, completion."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from klamm.broker.coordinators.transactions import coordinator
from klamm.broker.coordinators.transactions.decisions import Expected
from klamm.broker.coordinators.transactions.marker_sender import Written
from klamm.broker.coordinators.transactions.markers import TransactionEnd
from klamm.broker.coordinators.transactions.timers import ABORTS_PER_SLICE
from klamm.broker.coordinators.transactions.transaction import LAST_EPOCH, Transaction, TransactionState
from klamm.model.config import BrokerConfig
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import LeaderEpoch, ProducerId, TopicPartition

from .coordinating import Coordinating, refused, state_partition

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
EMPTY = Transaction(
    "tx", ProducerId(7), 10, 60_000, TransactionState.EMPTY, last_update_ms=1, last_producer_id=ProducerId(7)
)
OPEN = replace(EMPTY, state=TransactionState.ONGOING, partitions=frozenset({A, B}), start_ms=1_000_000)
FAST = BrokerConfig(
    broker_id=1,
    transaction_abort_timed_out_interval_ms=1,
    transaction_remove_expired_interval_ms=1,
    producer_id_expiration_ms=1_000,
)


@pytest.fixture
async def world() -> AsyncIterator[Coordinating]:
    async with Coordinating().running() as running:
        await running.told({A: 1, B: 2})
        yield running


def init(world: Coordinating, transactional_id: str = "tx", timeout_ms: int = 1_000, expected: Expected | None = None):  # type: ignore[no-untyped-def]
    return world.coordinator.init_producer_id(transactional_id, timeout_ms, expected)


# --- InitProducerId ---


@pytest.mark.case("TXN-02")
@pytest.mark.parametrize(("timeout_ms", "answer"), [(-1, 50), (0, 50), (900_001, 50), (1, 0), (900_000, 0)])
async def test_the_timeout_has_limits(world: Coordinating, timeout_ms: int, answer: int) -> None:
    await world.lead()
    assert await refused(init(world, timeout_ms=timeout_ms)) == answer


@pytest.mark.case("TXN-03")
async def test_a_new_id_is_stored_before_it_is_answered(world: Coordinating) -> None:
    await world.lead()
    assert await init(world) == (1000, 0)
    assert await init(world, "tx", expected=Expected(ProducerId(1000), 0)) == (1000, 1)
    assert [(value.producer_id, value.producer_epoch) for _, _, value in world.log.written if value] == [
        (1000, 0),
        (1000, 1),
    ]


@pytest.mark.case("TXN-07")
async def test_used_up_epochs_take_a_producer_id(world: Coordinating) -> None:
    world.put(replace(EMPTY, producer_epoch=LAST_EPOCH))
    await world.lead()
    assert await init(world) == (1000, 0)
    assert world.log.last.producer_id == 1000


@pytest.mark.case("TXN-06")
async def test_an_interrupted_transaction_is_aborted_and_the_producer_comes_back(world: Coordinating) -> None:
    world.put(OPEN)
    await world.lead()
    assert await refused(init(world)) == ErrorCode.CONCURRENT_TRANSACTIONS
    await world.settled(lambda: world.now().state is TransactionState.COMPLETE_ABORT)
    assert {entry.producer_epoch for broker in world.brokers.values() for [entry] in broker.requests} == {11}
    assert await init(world) == (7, 12)


async def test_two_first_requests_at_once_make_one_id(world: Coordinating) -> None:
    await world.lead()
    world.log.gate.clear()
    first, second = asyncio.ensure_future(refused(init(world))), asyncio.ensure_future(refused(init(world)))
    await world.log.waiting.wait()
    world.log.gate.set()
    assert sorted([await first, await second]) == [ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS]
    assert len(world.log.written) == 1


async def test_an_id_that_could_not_be_stored_is_unknown(world: Coordinating) -> None:
    await world.lead()
    world.log.errors = [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert await refused(init(world)) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.coordinator.find("tx") is None


# --- ownership ---


@pytest.mark.case("TXN-09")
async def test_another_broker_coordinates(world: Coordinating) -> None:
    coordinator = world.coordinator
    calls = [
        lambda: init(world),
        lambda: coordinator.add_partitions("tx", 7, 10, frozenset({A})),
        lambda: coordinator.end("tx", 7, 10, commit=True),
    ]
    for call in calls:
        assert await refused(call()) == ErrorCode.NOT_COORDINATOR
    await world.lead("elsewhere")  # so that the number of partitions is known
    for call in calls:
        assert await refused(call()) == ErrorCode.NOT_COORDINATOR
    world.log.gate.clear()
    loading = asyncio.ensure_future(world.lead())
    await asyncio.sleep(0)
    for call in calls:
        assert await refused(call()) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.log.gate.set()
    await loading
    assert await refused(init(world)) == ErrorCode.NONE


@pytest.mark.case("TXN-11")
@pytest.mark.case("TXN-15")
async def test_empty_and_unknown_ids(world: Coordinating) -> None:
    await world.lead()
    for transactional_id, answer in (("", ErrorCode.INVALID_REQUEST), ("tx", ErrorCode.INVALID_PRODUCER_ID_MAPPING)):
        added = world.coordinator.add_partitions(transactional_id, 7, 10, frozenset({A}))
        assert await refused(added) == answer
        assert await refused(world.coordinator.end(transactional_id, 7, 10, commit=True)) == answer


@pytest.mark.case("TXN-29")
async def test_a_resignation_forgets_at_once(world: Coordinating) -> None:
    world.put(OPEN)
    await world.lead()
    assert world.now() == OPEN
    world.resign()
    with pytest.raises(KafkaError) as gone:
        world.coordinator.find("tx")
    assert gone.value.code is ErrorCode.NOT_COORDINATOR


async def test_a_load_that_fails_is_tried_again(world: Coordinating, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.broker.coordinators.transactions.coordinator.LOAD_PAUSE_S", 0.001)
    world.put(EMPTY)
    world.log.load_errors = [ErrorCode.KAFKA_STORAGE_ERROR]
    await world.lead()
    assert world.now() == EMPTY and not world.log.load_errors


async def test_a_load_of_an_older_epoch_publishes_nothing(world: Coordinating) -> None:
    world.put(EMPTY)
    world.log.gate.clear()
    world.coordinator.became_leader(state_partition("tx"), LeaderEpoch(5))
    world.coordinator.resigned(state_partition("tx"), LeaderEpoch(6))
    world.log.gate.set()
    await asyncio.sleep(0.01)
    assert world.coordinator.transactions() == []


# --- writes ---


@pytest.mark.case("TXN-18")
async def test_a_failed_write_changes_nothing(world: Coordinating) -> None:
    world.put(OPEN)
    await world.lead()
    for error in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.UNKNOWN_SERVER_ERROR):
        world.log.errors = [error]
        assert await refused(world.coordinator.end("tx", 7, 10, commit=True)) == error
        assert world.now() == OPEN
    assert not any(broker.requests for broker in world.brokers.values())
    assert await refused(world.coordinator.end("tx", 7, 10, commit=True)) == ErrorCode.NONE  # nothing was pending


@pytest.mark.case("TXN-10")
@pytest.mark.case("TXN-19")
async def test_a_write_is_applied_when_it_is_replicated(world: Coordinating) -> None:
    world.put(EMPTY)
    await world.lead()
    world.log.gate.clear()
    adding = asyncio.ensure_future(world.coordinator.add_partitions("tx", 7, 10, frozenset({A})))
    await world.log.waiting.wait()
    assert world.now() == EMPTY
    assert await refused(init(world)) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert await refused(world.coordinator.end("tx", 7, 10, commit=True)) == ErrorCode.CONCURRENT_TRANSACTIONS
    world.log.gate.set()
    await adding
    assert (world.now().state, world.now().partitions) == (TransactionState.ONGOING, {A})
    assert await refused(world.coordinator.end("tx", 7, 10, commit=True)) == ErrorCode.NONE


async def test_the_next_transaction_waits_for_the_completion_of_the_last_one(world: Coordinating) -> None:
    world.put(OPEN)
    await world.lead()
    await world.coordinator.end("tx", 7, 10, commit=True)
    assert world.now().state is TransactionState.PREPARE_COMMIT
    await world.coordinator.add_partitions("tx", 7, 10, frozenset({A}))
    assert world.log.states() == [("tx", "PREPARE_COMMIT"), ("tx", "COMPLETE_COMMIT"), ("tx", "ONGOING")]
    assert world.now().partitions == {A}


async def test_a_coordinator_that_moved_during_the_wait_answers_so(world: Coordinating) -> None:
    world.put(OPEN)
    await world.lead()
    world.log.gate.clear()
    ending = asyncio.ensure_future(refused(world.coordinator.end("tx", 7, 10, commit=True)))
    await world.log.waiting.wait()
    adding = asyncio.ensure_future(refused(world.coordinator.add_partitions("tx", 7, 10, frozenset({A}))))
    await asyncio.sleep(0)
    world.resign()
    world.log.gate.set()
    assert [await ending, await adding] == [ErrorCode.NOT_COORDINATOR] * 2


async def test_a_completion_that_takes_long_is_not_waited_for(
    world: Coordinating, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "COMPLETION_WAIT_S", 0.01)
    await world.told({A: -1, B: -1})
    world.put(replace(OPEN, state=TransactionState.PREPARE_COMMIT))
    await world.lead()
    assert await refused(world.coordinator.add_partitions("tx", 7, 10, frozenset({A}))) == (
        ErrorCode.CONCURRENT_TRANSACTIONS
    )
    assert await refused(world.coordinator.add_partitions("tx", 7, 9, frozenset({A}))) == (
        ErrorCode.INVALID_PRODUCER_EPOCH
    )


@pytest.mark.case("TXN-13")
async def test_partitions_of_the_transaction_are_not_written_again(world: Coordinating) -> None:
    world.put(OPEN)
    await world.lead()
    await world.coordinator.add_partitions("tx", 7, 10, frozenset({A}))
    assert world.log.written == []


@pytest.mark.parametrize("comes_back", [False, True])
async def test_a_coordinator_that_moved_during_the_write_answers_so(world: Coordinating, comes_back: bool) -> None:
    """It must not send markers: another coordinator may have decided otherwise since."""
    world.put(OPEN)
    await world.lead()
    world.log.gate.clear()
    ending = asyncio.ensure_future(refused(world.coordinator.end("tx", 7, 10, commit=True)))
    await world.log.waiting.wait()
    world.resign()
    if comes_back:
        world.coordinator.became_leader(state_partition("tx"), LeaderEpoch(7))
    world.log.gate.set()
    assert await ending in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    await asyncio.sleep(0.01)
    assert not any(broker.requests for broker in world.brokers.values())


# --- completion ---


@pytest.mark.case("TXN-17")
@pytest.mark.case("TXN-23")
@pytest.mark.parametrize(
    ("commit", "prepared", "completed"),
    [(True, "PREPARE_COMMIT", "COMPLETE_COMMIT"), (False, "PREPARE_ABORT", "COMPLETE_ABORT")],
)
async def test_an_ended_transaction_is_completed(
    world: Coordinating, commit: bool, prepared: str, completed: str
) -> None:
    world.put(OPEN)
    await world.lead()
    world.brokers[2].gate.clear()
    await world.coordinator.end("tx", 7, 10, commit=commit)  # answered before any marker is
    assert world.log.states() == [("tx", prepared)]
    await world.brokers[2].asked.wait()
    [[entry]] = world.brokers[2].requests
    assert (entry.producer_id, entry.producer_epoch, entry.commit, entry.coordinator_epoch) == (7, 10, commit, 5)
    assert entry.partitions == (B,)
    world.brokers[2].gate.set()
    await world.settled(lambda: world.now().state.name == completed)
    assert world.log.states() == [("tx", prepared), ("tx", completed)]
    assert world.log.last.partitions == frozenset()
    assert world.markers.open_count == 0


@pytest.mark.case("TXN-24")
async def test_a_completion_that_cannot_be_written_is_repeated(world: Coordinating) -> None:
    world.put(replace(OPEN, state=TransactionState.PREPARE_COMMIT))
    world.log.errors = [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2
    await world.lead()
    await world.settled(lambda: world.coordinator.completions_waiting)
    assert world.now().state is TransactionState.PREPARE_COMMIT
    await world.settled(lambda: world.now().state is TransactionState.COMPLETE_COMMIT)
    assert world.log.states() == [("tx", "COMPLETE_COMMIT")]
    assert sum(len(broker.requests) for broker in world.brokers.values()) == 2  # the markers are not sent again


@pytest.mark.case("TXN-24")
async def test_a_completion_is_left_to_the_next_coordinator(world: Coordinating) -> None:
    world.put(replace(OPEN, state=TransactionState.PREPARE_COMMIT))
    world.log.errors = [ErrorCode.NOT_COORDINATOR]
    await world.lead()
    await world.settled(lambda: not world.log.errors)
    await asyncio.sleep(0.1)
    assert (world.now().state, world.log.written) == (TransactionState.PREPARE_COMMIT, [])
    assert await refused(init(world)) == ErrorCode.CONCURRENT_TRANSACTIONS


@pytest.mark.case("TXN-30")
@pytest.mark.parametrize("state", [TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT])
async def test_a_load_continues_what_was_decided(world: Coordinating, state: TransactionState) -> None:
    world.put(replace(OPEN, state=state))
    world.put(replace(OPEN, transactional_id="another id"))
    await world.lead()
    await world.settled(lambda: world.now().state.name.startswith("COMPLETE"))
    commits = {entry.commit for broker in world.brokers.values() for [entry] in broker.requests}
    assert commits == {state is TransactionState.PREPARE_COMMIT}
    assert world.log.states() == [("tx", state.name.replace("PREPARE", "COMPLETE"))]


def ids_beside_tx() -> list[str]:
    return [name for name in (f"tx-{n}" for n in range(5_000)) if state_partition(name) == state_partition("tx")]


def decided(transactional_id: str, producer: int) -> Transaction:
    state = TransactionState.PREPARE_COMMIT
    return replace(OPEN, transactional_id=transactional_id, producer_id=ProducerId(producer), state=state)


async def test_many_decided_transactions_are_continued_in_slices(world: Coordinating) -> None:
    sent: list[int] = []
    send = world.markers.send

    def counted(end: TransactionEnd, written: Written) -> None:
        sent[-1] += 1
        send(end, written)

    world.markers.send = counted  # type: ignore[method-assign]
    names = ids_beside_tx()
    for number, name in enumerate(names):
        world.put(decided(name, number))
    world.coordinator.became_leader(state_partition("tx"), LeaderEpoch(5))
    while sum(sent) < len(names):
        sent.append(0)
        await asyncio.sleep(0)
    assert max(sent) <= coordinator.ENDS_PER_SLICE < len(names)
    await world.settled(lambda: len(world.log.written) == len(names))


async def test_slices_of_markers_end_when_the_partition_moves(world: Coordinating) -> None:
    names = ids_beside_tx()
    for number, name in enumerate(names):
        world.put(decided(name, number))
    for broker in world.brokers.values():
        broker.gate.clear()
    world.coordinator.became_leader(state_partition("tx"), LeaderEpoch(5))
    while not world.markers.open_count:
        await asyncio.sleep(0)
    assert world.markers.open_count < len(names)
    world.resign()
    for _ in range(100):
        await asyncio.sleep(0)
    assert world.markers.open_count == 0


async def test_a_reload_ends_the_attempt_of_the_epoch_before(world: Coordinating) -> None:
    """Its answers arrive late. One completion is written, by the epoch that owns the partition now (KAFKA-10080)."""
    world.put(replace(OPEN, state=TransactionState.PREPARE_COMMIT))
    world.brokers[1].gate.clear()
    await world.lead()
    await world.brokers[1].asked.wait()
    world.resign(epoch=6)
    await world.lead(epoch=7)
    world.brokers[1].gate.set()
    await world.settled(lambda: world.now().state is TransactionState.COMPLETE_COMMIT)
    assert world.log.states() == [("tx", "COMPLETE_COMMIT")]
    assert [entry.coordinator_epoch for [entry] in world.brokers[1].requests] == [5, 7]


# --- timers ---


@pytest.fixture
async def fast() -> AsyncIterator[Coordinating]:
    async with Coordinating(FAST).running() as running:
        await running.told({A: 1, B: 2})
        yield running


@pytest.mark.case("TXN-26")
@pytest.mark.case("TXN-27")
async def test_a_transaction_that_timed_out_is_fenced_and_aborted(fast: Coordinating) -> None:
    now_ms = fast.clock.wall_ms()
    fast.put(replace(OPEN, timeout_ms=100, start_ms=now_ms - 101, last_update_ms=now_ms))
    fast.put(replace(OPEN, transactional_id="young", timeout_ms=100, start_ms=now_ms - 100, last_update_ms=now_ms))
    assert state_partition("young") == state_partition("tx")
    await fast.lead()
    await fast.settled(lambda: fast.now().state is TransactionState.COMPLETE_ABORT)
    assert (fast.now().producer_epoch, fast.now("young").state) == (11, TransactionState.ONGOING)
    assert fast.log.states() == [("tx", "PREPARE_ABORT"), ("tx", "COMPLETE_ABORT")]
    late = fast.coordinator.end("tx", 7, 10, commit=True)
    assert await refused(late) == ErrorCode.INVALID_PRODUCER_EPOCH


async def test_many_that_time_out_together_are_aborted_in_several_turns(fast: Coordinating) -> None:
    now_ms = fast.clock.wall_ms()
    late = replace(OPEN, timeout_ms=100, start_ms=now_ms - 101, last_update_ms=now_ms)
    fast.log.contents[state_partition("tx").partition] = {
        f"{number}": replace(late, transactional_id=f"{number}") for number in range(3 * ABORTS_PER_SLICE)
    }
    started: list[int] = []
    turn, start = 0, fast.guard.start

    def noted(kind: str, *args: Any) -> None:
        if kind == "timeout of":
            started.append(turn)
        start(kind, *args)

    fast.guard.start = noted  # type: ignore[method-assign]
    leading = asyncio.ensure_future(fast.lead())
    while len(started) < 3 * ABORTS_PER_SLICE:
        await asyncio.sleep(0)
        turn += 1
    await leading
    assert max(map(started.count, started)) == ABORTS_PER_SLICE


@pytest.mark.case("TXN-27")
async def test_a_pending_end_is_not_timed_out(fast: Coordinating) -> None:
    now_ms = fast.clock.wall_ms()
    fast.put(replace(OPEN, timeout_ms=100, start_ms=now_ms, last_update_ms=now_ms))
    await fast.lead()
    fast.log.gate.clear()
    ending = asyncio.ensure_future(fast.coordinator.end("tx", 7, 10, commit=True))
    await fast.log.waiting.wait()
    fast.clock.now += 1
    await asyncio.sleep(0.02)
    fast.log.gate.set()
    await ending
    await fast.settled(lambda: fast.now().state is TransactionState.COMPLETE_COMMIT)
    assert [state for _, state in fast.log.states()] == ["PREPARE_COMMIT", "COMPLETE_COMMIT"]


async def test_an_abort_that_fails_is_tried_again_with_the_same_epoch(fast: Coordinating) -> None:
    """Epochs are not used up while the log is unavailable (KAFKA-9666)."""
    now_ms = fast.clock.wall_ms()
    fast.put(replace(OPEN, timeout_ms=100, start_ms=now_ms - 101, last_update_ms=now_ms))
    fast.log.errors = [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 3
    await fast.lead()
    await fast.settled(lambda: fast.now().state is TransactionState.COMPLETE_ABORT)
    assert fast.now().producer_epoch == 11


@pytest.mark.case("TXN-28")
async def test_unused_ids_expire(fast: Coordinating) -> None:
    now_ms = fast.clock.wall_ms()
    old = {
        state: replace(EMPTY, transactional_id=f"tx{state.name}", state=state, last_update_ms=now_ms - 1_000)
        for state in (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
    }
    open_still = replace(OPEN, transactional_id="open", start_ms=now_ms, last_update_ms=now_ms - 1_000)
    young = replace(EMPTY, transactional_id="young", last_update_ms=now_ms - 999)
    for transaction in (*old.values(), open_still, young):
        fast.put(transaction)
    fast.log.errors = [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    for name in {state_partition(transaction.transactional_id) for transaction in (*old.values(), open_still, young)}:
        fast.coordinator.became_leader(name, LeaderEpoch(0))
    await fast.settled(lambda: len(fast.log.written) == 3 and len(fast.coordinator.transactions()) == 2)
    assert {entry.transactional_id for entry in fast.coordinator.transactions()} == {"open", "young"}
    assert sorted(fast.log.states()) == sorted((entry.transactional_id, "tombstone") for entry in old.values())


@pytest.mark.case("TXN-28")
async def test_an_id_whose_tombstone_fails_is_usable(fast: Coordinating, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = asyncio.Event()

    async def fail(partition: int, transactional_id: str) -> ErrorCode:
        failed.set()
        return ErrorCode.COORDINATOR_NOT_AVAILABLE

    monkeypatch.setattr(fast.log, "write_tombstone", fail)
    fast.put(replace(EMPTY, last_update_ms=fast.clock.wall_ms() - 1_000))
    await fast.lead()
    await failed.wait()
    await asyncio.sleep(0)
    assert await init(fast) == (7, 11)
