"""The tables of the transaction coordinator: every request in every state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from klamm.broker.coordinators.transactions import decisions
from klamm.broker.coordinators.transactions.decisions import (
    Decision,
    Expected,
    Keep,
    Refuse,
    TakeProducerId,
    Write,
)
from klamm.broker.coordinators.transactions.transaction import (
    LAST_EPOCH,
    MAY_FOLLOW,
    Transaction,
    TransactionState,
    new_transaction,
)
from klamm.model.errors import ErrorCode
from klamm.model.ids import ProducerId, TopicPartition

EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT
AT_REST = [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT]

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
ID, OTHER_ID, NEW_ID = ProducerId(7), ProducerId(8), ProducerId(1000)
NOW = 5_000
CONCURRENT = Refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
FENCED = Refuse(ErrorCode.INVALID_PRODUCER_EPOCH)
WRONG_STATE = Refuse(ErrorCode.INVALID_TXN_STATE)


def transaction(state: TransactionState, epoch: int = 10, **fields: object) -> Transaction:
    is_open = state is ONGOING or state.is_prepared
    base = Transaction(
        "tx",
        ID,
        epoch,
        60_000,
        state,
        partitions=frozenset({P0}) if is_open else frozenset(),
        last_update_ms=1_000,
        start_ms=-1 if state is EMPTY else 900,
        last_producer_id=ID,
    )
    return replace(base, **fields)  # type: ignore[arg-type]


def init(
    current: Transaction,
    expected: Expected | None = None,
    *,
    is_pending: bool = False,
    new_id: ProducerId | None = None,
) -> Decision:
    return decisions.init_producer_id(
        current, is_pending=is_pending, expected=expected, timeout_ms=100, now_ms=NOW, new_id=new_id
    )


def written(decision: Decision) -> Transaction:
    assert isinstance(decision, Write)
    return decision.target


# --- InitProducerId ---


@pytest.mark.case("TXN-03")
@pytest.mark.parametrize("expected", [None, Expected(OTHER_ID, 3)])
def test_an_unknown_id_gets_epoch_0(expected: Expected | None) -> None:
    target = written(init(new_transaction("tx", NEW_ID, 100, NOW), expected))
    assert (target.producer_id, target.producer_epoch, target.state) == (NEW_ID, 0, EMPTY)


@pytest.mark.case("TXN-04")
@pytest.mark.parametrize("state", AT_REST)
def test_a_new_producer_gets_the_next_epoch(state: TransactionState) -> None:
    decision = init(transaction(state, last_epoch=9))
    assert isinstance(decision, Write) and decision.answer is ErrorCode.NONE
    target = decision.target
    assert (target.producer_id, target.producer_epoch, target.state) == (ID, 11, EMPTY)
    assert (target.timeout_ms, target.last_update_ms, target.start_ms) == (100, NOW, -1)
    assert target.last_epoch == -1  # a producer without an expectation is another one: the old one cannot come back


@pytest.mark.case("TXN-05")
@pytest.mark.parametrize("state", [PREPARE_COMMIT, PREPARE_ABORT])
def test_a_decided_transaction_is_completed_first(state: TransactionState) -> None:
    assert init(transaction(state)) == CONCURRENT
    assert init(transaction(state), Expected(ID, 10)) == CONCURRENT


@pytest.mark.case("TXN-06")
def test_an_open_transaction_is_fenced_and_aborted() -> None:
    decision = init(transaction(ONGOING, last_epoch=9))
    assert isinstance(decision, Write) and decision.answer is ErrorCode.CONCURRENT_TRANSACTIONS
    target = decision.target
    assert (target.state, target.producer_epoch, target.partitions) == (PREPARE_ABORT, 11, {P0})
    assert target.last_epoch == -1  # or the fenced producer could go on by KIP-360


def test_a_fence_may_use_the_epoch_that_no_producer_gets() -> None:
    fenced = written(init(transaction(ONGOING, LAST_EPOCH)))
    assert fenced.producer_epoch == 32767
    completed = decisions.complete(fenced, NOW)
    assert init(completed) == TakeProducerId()
    assert written(init(completed, new_id=NEW_ID)).producer_epoch == 0


@pytest.mark.case("TXN-07")
@pytest.mark.parametrize("state", AT_REST)
@pytest.mark.parametrize(("expected", "last_epoch"), [(None, -1), (Expected(ID, LAST_EPOCH), LAST_EPOCH)])
def test_used_up_epochs_lead_to_a_new_producer_id(
    state: TransactionState, expected: Expected | None, last_epoch: int
) -> None:
    current = transaction(state, LAST_EPOCH)
    assert init(current, expected) == TakeProducerId()
    target = written(init(current, expected, new_id=NEW_ID))
    assert (target.producer_id, target.producer_epoch) == (NEW_ID, 0)
    assert (target.last_producer_id, target.last_epoch) == (ID, last_epoch)


@pytest.mark.case("TXN-08")
def test_an_expected_epoch_is_raised_once() -> None:
    first = written(init(transaction(EMPTY), Expected(ID, 10)))
    assert (first.producer_epoch, first.last_epoch) == (11, 10)
    again = written(init(first, Expected(ID, 10)))
    assert (again.producer_id, again.producer_epoch, again.last_epoch) == (ID, 11, 10)


@pytest.mark.case("TXN-08")
def test_a_lost_answer_with_a_new_producer_id_is_repeated() -> None:
    rotated = written(init(transaction(EMPTY, LAST_EPOCH), Expected(ID, LAST_EPOCH), new_id=NEW_ID))
    again = written(init(rotated, Expected(ID, LAST_EPOCH)))
    assert (again.producer_id, again.producer_epoch, again.last_producer_id) == (NEW_ID, 0, ID)
    later = written(init(again, Expected(NEW_ID, 0)))
    assert init(later, Expected(ID, LAST_EPOCH)) == FENCED


@pytest.mark.parametrize(
    ("current", "expected"),
    [
        (transaction(EMPTY), Expected(OTHER_ID, 10)),
        (transaction(EMPTY, last_producer_id=OTHER_ID), Expected(OTHER_ID, 10)),
        (transaction(EMPTY), Expected(ID, 9)),
        (transaction(EMPTY), Expected(ID, 11)),
        (transaction(EMPTY, LAST_EPOCH), Expected(ID, LAST_EPOCH - 1)),
        (transaction(ONGOING), Expected(OTHER_ID, 10)),
        (transaction(PREPARE_ABORT), Expected(OTHER_ID, 10)),
    ],
)
def test_another_producer_is_fenced(current: Transaction, expected: Expected) -> None:
    assert init(current, expected) == FENCED


@pytest.mark.parametrize("epoch", [8, 9, 11])
def test_a_fenced_producer_does_not_interrupt_its_successor(epoch: int) -> None:
    """Kafka aborts the successor's transaction and fences both."""
    current = transaction(ONGOING, last_epoch=9)
    assert init(current, expected=Expected(ID, epoch)) == FENCED
    assert written(init(current, expected=Expected(ID, 10))).producer_epoch == 11


@pytest.mark.case("TXN-10")
@pytest.mark.parametrize("state", list(TransactionState))
def test_a_pending_transition_goes_first(state: TransactionState) -> None:
    assert init(transaction(state), is_pending=True) == CONCURRENT
    assert init(transaction(state), Expected(OTHER_ID, 1), is_pending=True) == CONCURRENT


# --- AddPartitionsToTxn ---


def add(
    current: Transaction, *names: TopicPartition, producer_id: int = ID, epoch: int = 10, is_pending: bool = False
) -> Decision:
    return decisions.add_partitions(
        current, is_pending=is_pending, producer_id=producer_id, epoch=epoch, partitions=set(names), now_ms=NOW
    )


@pytest.mark.case("TXN-11")
@pytest.mark.parametrize("state", list(TransactionState))
@pytest.mark.parametrize("is_pending", [False, True])
def test_a_wrong_caller_is_told_before_the_state_is_looked_at(state: TransactionState, is_pending: bool) -> None:
    current = transaction(state)
    wrong_id = add(current, P0, producer_id=OTHER_ID, epoch=9, is_pending=is_pending)
    assert wrong_id == Refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    for epoch in (9, 11):
        assert add(current, P0, epoch=epoch, is_pending=is_pending) == FENCED
    if is_pending or state.is_prepared:
        assert add(current, P0, is_pending=is_pending) == CONCURRENT


@pytest.mark.case("TXN-12")
@pytest.mark.parametrize("state", AT_REST)
def test_the_first_partitions_open_a_transaction(state: TransactionState) -> None:
    target = written(add(transaction(state), P0, P1))
    assert (target.state, target.partitions, target.start_ms, target.producer_epoch) == (ONGOING, {P0, P1}, NOW, 10)


@pytest.mark.case("TXN-12")
def test_more_partitions_keep_the_start_time() -> None:
    target = written(add(transaction(ONGOING), P1))
    assert (target.state, target.partitions, target.start_ms) == (ONGOING, {P0, P1}, 900)
    assert target.last_update_ms == NOW


@pytest.mark.case("TXN-13")
def test_known_partitions_need_no_write() -> None:
    assert add(transaction(ONGOING), P0) == Keep()


def test_no_partitions_open_a_transaction_too() -> None:
    assert written(add(transaction(EMPTY))).state is ONGOING


# --- EndTxn ---


def end(
    current: Transaction, *, commit: bool, producer_id: int = ID, epoch: int = 10, is_pending: bool = False
) -> Decision:
    return decisions.end(
        current, is_pending=is_pending, producer_id=producer_id, epoch=epoch, commit=commit, now_ms=NOW
    )


@pytest.mark.case("TXN-15")
@pytest.mark.parametrize("state", list(TransactionState))
@pytest.mark.parametrize("commit", [True, False])
def test_only_the_current_producer_ends_a_transaction(state: TransactionState, commit: bool) -> None:
    current = transaction(state)
    assert end(current, commit=commit, producer_id=OTHER_ID) == Refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    assert end(current, commit=commit, epoch=9) == FENCED
    assert end(current, commit=commit, epoch=11) == FENCED  # a write of it would strand the transaction (KAFKA-9600)


@pytest.mark.case("TXN-16")
@pytest.mark.parametrize(
    ("state", "commit", "abort"),
    [
        (PREPARE_COMMIT, CONCURRENT, WRONG_STATE),
        (PREPARE_ABORT, WRONG_STATE, CONCURRENT),
        (COMPLETE_COMMIT, Keep(), WRONG_STATE),
        (COMPLETE_ABORT, WRONG_STATE, Keep()),
        (EMPTY, WRONG_STATE, WRONG_STATE),
    ],
)
def test_a_repeated_end(state: TransactionState, commit: Decision, abort: Decision) -> None:
    assert end(transaction(state), commit=True) == commit
    assert end(transaction(state), commit=False) == abort
    assert end(transaction(state), commit=True, is_pending=True) == CONCURRENT


@pytest.mark.case("TXN-17")
@pytest.mark.parametrize(("commit", "state"), [(True, PREPARE_COMMIT), (False, PREPARE_ABORT)])
def test_the_end_of_an_open_transaction_is_prepared(commit: bool, state: TransactionState) -> None:
    target = written(end(transaction(ONGOING), commit=commit))
    assert (target.state, target.producer_epoch, target.partitions) == (state, 10, {P0})
    assert (target.start_ms, target.last_update_ms) == (900, NOW)


# --- without a request ---


@pytest.mark.parametrize(
    ("prepared", "completed"), [(PREPARE_COMMIT, COMPLETE_COMMIT), (PREPARE_ABORT, COMPLETE_ABORT)]
)
def test_completion_forgets_the_partitions(prepared: TransactionState, completed: TransactionState) -> None:
    done = decisions.complete(transaction(prepared), NOW)
    assert (done.state, done.partitions, done.producer_epoch) == (completed, frozenset(), 10)


@pytest.mark.case("TXN-26")
@pytest.mark.parametrize("state", list(TransactionState))
def test_only_open_transactions_time_out(state: TransactionState) -> None:
    current = transaction(state, start_ms=900, timeout_ms=100)
    assert not decisions.has_timed_out(current, 1_000)
    assert decisions.has_timed_out(current, 1_001) == (state is ONGOING)


@pytest.mark.case("TXN-28")
@pytest.mark.parametrize("state", list(TransactionState))
def test_only_unused_ids_expire(state: TransactionState) -> None:
    current = transaction(state, last_update_ms=1_000)
    assert not decisions.has_expired(current, 1_099, 100)
    assert decisions.has_expired(current, 1_100, 100) == (state in AT_REST)


def test_an_illegal_transition_is_a_bug() -> None:
    for state, followers in MAY_FOLLOW.items():
        for target in TransactionState:
            if target not in followers:
                with pytest.raises(AssertionError):
                    transaction(state).become(target, NOW)
