"""A transactional id as the coordinator knows it, and which state may follow which (Kafka's TransactionMetadata).

A value never changes. A decision returns the next value, and the coordinator replaces the old one only after the record
of the next one is replicated. So a failed write leaves no trace, not even a used-up epoch (KAFKA-9666).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Final

from klamm.model.ids import ProducerId, TopicPartition

NO_PRODUCER_ID: Final = ProducerId(-1)
NO_PRODUCER_EPOCH: Final = -1
LAST_EPOCH: Final = 32766
"""The last epoch that a producer gets. Only a fence uses the one after it."""
NO_TIME: Final = -1


class TransactionState(IntEnum):
    """The numbers are those of the records. Kafka's 6 (dead) and 7 (fencing) are never written, and klamm has no use
    for them."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def is_prepared(self) -> bool:
        """The outcome is decided, and markers tell it to the partitions."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_at_rest(self) -> bool:
        """No transaction is open or being completed."""
        return self in (
            TransactionState.EMPTY,
            TransactionState.COMPLETE_COMMIT,
            TransactionState.COMPLETE_ABORT,
        )

    @property
    def kafka_name(self) -> str:
        """PREPARE_COMMIT is PrepareCommit to Kafka's tools."""
        return self.name.title().replace("_", "")


MAY_FOLLOW: Final[Mapping[TransactionState, frozenset[TransactionState]]] = {
    TransactionState.EMPTY: frozenset({TransactionState.EMPTY, TransactionState.ONGOING}),
    TransactionState.ONGOING: frozenset(
        {TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT}
    ),
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.COMPLETE_COMMIT}),
    TransactionState.PREPARE_ABORT: frozenset({TransactionState.COMPLETE_ABORT}),
    TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.EMPTY, TransactionState.ONGOING}),
    TransactionState.COMPLETE_ABORT: frozenset({TransactionState.EMPTY, TransactionState.ONGOING}),
}


@dataclass(frozen=True, slots=True)
class Transaction:
    transactional_id: str
    producer_id: ProducerId
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition] = frozenset()
    """The partitions that the open transaction has written to, or may have."""
    last_update_ms: int = NO_TIME
    start_ms: int = NO_TIME
    last_producer_id: ProducerId = NO_PRODUCER_ID
    """Before the last change of the producer id. This and `last_epoch` are in memory only, as in Kafka: they recognise
    an InitProducerId that repeats because its answer was lost (KIP-360)."""
    last_epoch: int = NO_PRODUCER_EPOCH

    def become(self, state: TransactionState, now_ms: int, **changes: Any) -> Transaction:
        assert state in MAY_FOLLOW[self.state], f"{self.state.name} to {state.name}"
        return replace(self, state=state, last_update_ms=now_ms, **changes)


def new_transaction(transactional_id: str, producer_id: ProducerId, timeout_ms: int, now_ms: int) -> Transaction:
    """An id that was never used: its first InitProducerId raises the epoch to 0."""
    return Transaction(
        transactional_id, producer_id, NO_PRODUCER_EPOCH, timeout_ms, TransactionState.EMPTY, last_update_ms=now_ms
    )
