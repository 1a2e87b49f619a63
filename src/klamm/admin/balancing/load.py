"""What the planner takes and gives: the load of a cluster, the goals, and the plan. Values only.

A size is what a replica occupies on disk, in bytes. The weight of a broker is its share of capacity relative to the
others: a broker of weight 2 should carry twice the bytes of one of weight 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Replicas = tuple[int, ...]


class PlannedBroker(NamedTuple):
    id: int
    rack: str | None = None
    weight: float = 1.0


class PartitionLoad(NamedTuple):
    topic: str
    partition: int
    replicas: Replicas
    """The first one is the preferred leader."""
    size_bytes: int
    """The leader's size, because that is what a move copies."""

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goals:
    tolerance: float = 0.02
    """How far a broker's bytes may stay from its even share."""
    start_beyond: float = 0.05
    """Balancing starts only if a broker is further than this from its even share, so that a plan is worth its bytes."""
    count_tolerance: float = 0.05
    drained: frozenset[int] = frozenset()
    """Brokers that must not keep any replica."""
    replication_factor: int | None = None
    """None keeps the factor of each partition."""
    is_forced: bool = False
    """Balance even if every broker is within `start_beyond`."""


class BrokerLoad(NamedTuple):
    broker: int
    size_bytes: int
    replicas: int
    leaders: int


class Change(NamedTuple):
    topic: str
    partition: int
    before: Replicas
    after: Replicas
    size_bytes: int

    @property
    def bytes_to_copy(self) -> int:
        return self.size_bytes * len(set(self.after) - set(self.before))


@dataclass(frozen=True, slots=True)
class Plan:
    changes: tuple[Change, ...]
    before: tuple[BrokerLoad, ...]
    after: tuple[BrokerLoad, ...]
    reasons: tuple[str, ...] = field(default=())
    """Why nothing is to be done, or why the goals could not be met."""

    @property
    def bytes_to_copy(self) -> int:
        return sum(change.bytes_to_copy for change in self.changes)

    def incoming_bytes(self) -> Mapping[int, int]:
        """What each broker must receive. During the moves it holds these bytes beside its old load."""
        incoming: dict[int, int] = {}
        for change in self.changes:
            for broker in sorted(set(change.after) - set(change.before)):
                incoming[broker] = incoming.get(broker, 0) + change.size_bytes
        return incoming


def loads(partitions: Sequence[PartitionLoad], brokers: Sequence[int]) -> tuple[BrokerLoad, ...]:
    """The load of each broker, in order of ids; brokers that only replicas name are included."""
    size, count, leaders = (dict.fromkeys(brokers, 0) for _ in range(3))
    for entry in partitions:
        for position, broker in enumerate(entry.replicas):
            size[broker] = size.get(broker, 0) + entry.size_bytes
            count[broker] = count.get(broker, 0) + 1
            leaders[broker] = leaders.get(broker, 0) + (position == 0)
    return tuple(BrokerLoad(broker, size[broker], count[broker], leaders[broker]) for broker in sorted(size))
