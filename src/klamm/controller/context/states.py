"""Partition and replica states, and the table of legal transitions that the code and the tests read.

A transition that the table does not allow is refused and logged; others in the same call go on. The values are the
bytes that Kafka gives the states (PartitionStateMachine, ReplicaStateMachine), so a column is a bytearray.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final

PartitionIndex = int
"""Position of a partition in the columns."""


class PartitionState(IntEnum):
    NEW = 0
    """Known, but without a state znode: it has never had a leader."""
    ONLINE = 1
    OFFLINE = 2
    """Without a live leader. In memory only: ZooKeeper still names the dead one."""
    NON_EXISTENT = 3

    @property
    def label(self) -> str:
        """As Kafka's state-change log spells it."""
        return _PARTITION_LABELS[self]


class ReplicaState(IntEnum):
    NEW = 1
    ONLINE = 2
    OFFLINE = 3
    DELETION_STARTED = 4
    DELETION_SUCCESSFUL = 5
    DELETION_INELIGIBLE = 6
    NON_EXISTENT = 7


_PARTITION_LABELS: Final = {
    PartitionState.NEW: "NewPartition",
    PartitionState.ONLINE: "OnlinePartition",
    PartitionState.OFFLINE: "OfflinePartition",
    PartitionState.NON_EXISTENT: "NonExistentPartition",
}

PARTITION_MAY_FOLLOW: Final[Mapping[PartitionState, frozenset[PartitionState]]] = {
    PartitionState.NON_EXISTENT: frozenset({PartitionState.NEW}),
    PartitionState.NEW: frozenset({PartitionState.ONLINE, PartitionState.OFFLINE}),
    PartitionState.ONLINE: frozenset({PartitionState.ONLINE, PartitionState.OFFLINE}),
    PartitionState.OFFLINE: frozenset({PartitionState.ONLINE, PartitionState.OFFLINE, PartitionState.NON_EXISTENT}),
}
"""The states that may follow each state."""

REPLICA_MAY_FOLLOW: Final[Mapping[ReplicaState, frozenset[ReplicaState]]] = {
    ReplicaState.NON_EXISTENT: frozenset({ReplicaState.NEW}),
    ReplicaState.NEW: frozenset({ReplicaState.ONLINE, ReplicaState.OFFLINE}),
    ReplicaState.ONLINE: frozenset({ReplicaState.ONLINE, ReplicaState.OFFLINE}),
    ReplicaState.OFFLINE: frozenset(
        {
            ReplicaState.ONLINE,
            ReplicaState.OFFLINE,
            ReplicaState.DELETION_STARTED,
            ReplicaState.DELETION_INELIGIBLE,
        }
    ),
    ReplicaState.DELETION_STARTED: frozenset({ReplicaState.DELETION_SUCCESSFUL, ReplicaState.DELETION_INELIGIBLE}),
    ReplicaState.DELETION_SUCCESSFUL: frozenset({ReplicaState.NON_EXISTENT}),
    ReplicaState.DELETION_INELIGIBLE: frozenset({ReplicaState.ONLINE, ReplicaState.OFFLINE}),
}

PARTITION_MAY_ENTER: Final[Mapping[PartitionState, frozenset[int]]] = {
    target: frozenset(int(state) for state, followers in PARTITION_MAY_FOLLOW.items() if target in followers)
    for target in PartitionState
}
"""The same table inverted, for loops over a column: the bytes from which each state may be entered."""

REPLICA_MAY_ENTER: Final[Mapping[ReplicaState, frozenset[int]]] = {
    target: frozenset(int(state) for state, followers in REPLICA_MAY_FOLLOW.items() if target in followers)
    for target in ReplicaState
}


def legal(
    partitions: Sequence[PartitionIndex], column: bytearray, may_enter: frozenset[int]
) -> tuple[Sequence[PartitionIndex], list[PartitionIndex]]:
    """Partitions whose transition the table allows, and those that it refuses. Usually it allows all, and one
    comparison of sets is enough."""
    if may_enter.issuperset(map(column.__getitem__, partitions)):
        return partitions, []
    allowed: list[PartitionIndex] = []
    refused: list[PartitionIndex] = []
    for partition in partitions:
        (allowed if column[partition] in may_enter else refused).append(partition)
    return allowed, refused
