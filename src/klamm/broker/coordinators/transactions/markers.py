"""The markers that end a transaction on its partitions: what to send to which broker, and what each answer means. Pure.

Partitions are grouped by their leader of the moment. One whose leader is not known or not alive waits. A deleted
partition needs no marker, but that this broker does not know a partition does not say that it was deleted: its metadata
may be incomplete after a restart or a change of the controller. ZooKeeper decides that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from klamm.model.errors import ErrorCode
from klamm.model.ids import BrokerId, LeaderEpoch, ProducerId, TopicPartition


class MarkerEntry(NamedTuple):
    """The end of one producer's transaction on some partitions: an entry of WriteTxnMarkers."""

    producer_id: ProducerId
    producer_epoch: int
    commit: bool
    coordinator_epoch: int
    partitions: tuple[TopicPartition, ...]


MarkerAnswers = dict[tuple[ProducerId, TopicPartition], ErrorCode]


@dataclass(eq=False, slots=True)
class TransactionEnd:
    """A decided transaction whose markers are on their way. The coordinator epoch belongs to its identity: after a
    reload the same transaction is ended anew, and answers to the earlier attempt do not count (KAFKA-10080)."""

    transactional_id: str
    state_partition: int
    coordinator_epoch: LeaderEpoch
    producer_id: ProducerId
    producer_epoch: int
    commit: bool
    missing: set[TopicPartition] = field(default_factory=set)
    """Partitions that have not acknowledged their marker."""
    is_over: bool = False
    """Complete, fenced, or the coordinator has moved: nothing more happens."""
    failures: int = 0
    """Rounds in a row in which a partition has not taken its marker."""

    def entry_for(self, partitions: Iterable[TopicPartition]) -> MarkerEntry:
        return MarkerEntry(
            self.producer_id, self.producer_epoch, self.commit, self.coordinator_epoch, tuple(sorted(partitions))
        )


class Routes(NamedTuple):
    by_leader: dict[BrokerId, set[TopicPartition]]
    waiting: set[TopicPartition]


def route(
    partitions: Iterable[TopicPartition],
    leader_of: Callable[[TopicPartition], BrokerId | None],
    is_reachable: Callable[[BrokerId], bool],
) -> Routes:
    """`leader_of` is None for a partition that this broker does not know."""
    routes = Routes({}, set())
    for name in partitions:
        leader = leader_of(name)
        if leader is not None and is_reachable(leader):
            routes.by_leader.setdefault(leader, set()).add(name)
        else:
            routes.waiting.add(name)
    return routes


class Outcome(Enum):
    DONE = "done"
    AGAIN = "again"
    FENCED = "fenced"


_OUTCOMES: Final = {
    ErrorCode.NONE: Outcome.DONE,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: Outcome.DONE,
    ErrorCode.UNSUPPORTED_VERSION: Outcome.DONE,
    ErrorCode.INVALID_PRODUCER_EPOCH: Outcome.FENCED,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: Outcome.FENCED,
}
EXPECTED: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Errors that pass while leaders move and replicas catch up. Kafka takes any other one for a bug and is stuck; klamm
says so and tries again."""


def outcome_of(answer: ErrorCode) -> Outcome:
    """A partition that stores an old message format has no transactions, so it counts as done."""
    return _OUTCOMES.get(answer, Outcome.AGAIN)
