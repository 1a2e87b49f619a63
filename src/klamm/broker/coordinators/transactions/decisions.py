"""What the coordinator decides about one transactional id: a request and the current value in, a decision out. Pure.

A decision refuses, or finds that nothing has to change, or names the value to write. The coordinator writes it, applies
it and answers. While a write is pending, every request gets CONCURRENT_TRANSACTIONS, and the client tries again.
"""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from klamm.broker.coordinators.transactions.transaction import (
    LAST_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_TIME,
    Transaction,
    TransactionState,
)
from klamm.model.errors import ErrorCode
from klamm.model.ids import ProducerId, TopicPartition


class Refuse(NamedTuple):
    error: ErrorCode


class Keep(NamedTuple):
    """The request succeeds without a write."""


class Write(NamedTuple):
    target: Transaction
    answer: ErrorCode = ErrorCode.NONE
    """The answer once the record is replicated. A fence succeeds, but its client must ask again."""


class TakeProducerId(NamedTuple):
    """The epochs of the producer id are used up: decide again with a new id."""


Decision = Refuse | Keep | Write | TakeProducerId


class Expected(NamedTuple):
    """What a client from InitProducerId version 3 on believes to have (KIP-360)."""

    producer_id: ProducerId
    epoch: int


# --- InitProducerId ---


def init_producer_id(
    current: Transaction,
    *,
    is_pending: bool,
    expected: Expected | None,
    timeout_ms: int,
    now_ms: int,
    new_id: ProducerId | None = None,
) -> Decision:
    """The next epoch for a producer, after aborting what its predecessor left open."""
    if is_pending:
        return Refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
    if expected is not None and not _may_be_its_producer(current, expected):
        return Refuse(ErrorCode.INVALID_PRODUCER_EPOCH)
    if current.state.is_prepared:
        return Refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
    has_current_epoch = expected is None or expected.epoch == current.producer_epoch
    if current.state is TransactionState.ONGOING:
        if not has_current_epoch:  # it was fenced before, and must not interrupt its successor
            return Refuse(ErrorCode.INVALID_PRODUCER_EPOCH)
        return Write(fence(current, now_ms), ErrorCode.CONCURRENT_TRANSACTIONS)
    producer_id, epoch, last_epoch = current.producer_id, current.producer_epoch, NO_PRODUCER_EPOCH
    if current.producer_epoch >= LAST_EPOCH and has_current_epoch:
        if new_id is None:
            return TakeProducerId()
        producer_id, epoch = new_id, 0
        last_epoch = NO_PRODUCER_EPOCH if expected is None else current.producer_epoch
    elif has_current_epoch or current.producer_epoch == NO_PRODUCER_EPOCH:
        epoch = current.producer_epoch + 1
        last_epoch = NO_PRODUCER_EPOCH if expected is None else current.producer_epoch
    elif expected is not None and expected.epoch == current.last_epoch:
        last_epoch = current.last_epoch  # its answer was lost: the same one again
    else:
        return Refuse(ErrorCode.INVALID_PRODUCER_EPOCH)
    return Write(
        current.become(
            TransactionState.EMPTY,
            now_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
            last_producer_id=current.producer_id if epoch != current.producer_epoch else current.last_producer_id,
            last_epoch=last_epoch,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            start_ms=NO_TIME,
        )
    )


def _may_be_its_producer(current: Transaction, expected: Expected) -> bool:
    """The former producer id passes only if its epochs were used up, which is how it became the former one."""
    if current.producer_epoch == NO_PRODUCER_EPOCH or expected.producer_id == current.producer_id:
        return True
    return expected.producer_id == current.last_producer_id and expected.epoch >= LAST_EPOCH


def fence(current: Transaction, now_ms: int) -> Transaction:
    """Abort with the next epoch. The markers carry it to the partitions, which then refuse the old producer.

    The former epoch is forgotten: a producer that was fenced must not continue by KIP-360 (Kafka from 2.6 on).
    """
    return current.become(
        TransactionState.PREPARE_ABORT,
        now_ms,
        producer_epoch=current.producer_epoch + 1,
        last_epoch=NO_PRODUCER_EPOCH,
    )


# --- AddPartitionsToTxn and AddOffsetsToTxn ---


def add_partitions(
    current: Transaction,
    *,
    is_pending: bool,
    producer_id: int,
    epoch: int,
    partitions: Set[TopicPartition],
    now_ms: int,
) -> Decision:
    refusal = _check_caller(current, is_pending=is_pending, producer_id=producer_id, epoch=epoch)
    if refusal is not None:
        return refusal
    if current.state.is_prepared:
        return Refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
    is_open = current.state is TransactionState.ONGOING
    if is_open and partitions <= current.partitions:
        return Keep()
    added = current.partitions | partitions if is_open else frozenset(partitions)
    start_ms = current.start_ms if is_open else now_ms
    return Write(current.become(TransactionState.ONGOING, now_ms, partitions=added, start_ms=start_ms))


def _check_caller(current: Transaction, *, is_pending: bool, producer_id: int, epoch: int) -> Refuse | None:
    """Any other epoch is refused, also a higher one (KAFKA-9600): it can only come from a coordinator's lost write."""
    if producer_id != current.producer_id:
        return Refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if epoch != current.producer_epoch:
        return Refuse(ErrorCode.INVALID_PRODUCER_EPOCH)
    if is_pending:
        return Refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
    return None


# --- EndTxn ---


def end(current: Transaction, *, is_pending: bool, producer_id: int, epoch: int, commit: bool, now_ms: int) -> Decision:
    refusal = _check_caller(current, is_pending=is_pending, producer_id=producer_id, epoch=epoch)
    if refusal is not None:
        return refusal
    prepared = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
    completed = _COMPLETED[prepared]
    if current.state is TransactionState.ONGOING:
        return Write(current.become(prepared, now_ms))
    if current.state is prepared:
        return Refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
    return Keep() if current.state is completed else Refuse(ErrorCode.INVALID_TXN_STATE)


# --- what happens without a request ---

_COMPLETED = {
    TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
    TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
}


def complete(current: Transaction, now_ms: int) -> Transaction:
    """Every partition has its marker."""
    return current.become(_COMPLETED[current.state], now_ms, partitions=frozenset())


def has_timed_out(current: Transaction, now_ms: int) -> bool:
    return current.state is TransactionState.ONGOING and current.start_ms + current.timeout_ms < now_ms


def has_expired(current: Transaction, now_ms: int, expiration_ms: int) -> bool:
    return current.state.is_at_rest and current.last_update_ms <= now_ms - expiration_ms
