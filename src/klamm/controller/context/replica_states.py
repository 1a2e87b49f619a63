"""Which partitions each broker holds by assignment, and the state of each replica: one column per broker.

A replica may have a state although no assignment names it: a reassignment removed it, and it is being stopped and
deleted. Like the rest of the context, this changes only after ZooKeeper has accepted the change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from klamm.controller.context.states import REPLICA_MAY_ENTER, PartitionIndex, ReplicaState, legal
from klamm.model.ids import BrokerId

_NON_EXISTENT = bytes((ReplicaState.NON_EXISTENT,))


class Replicas:
    def __init__(self) -> None:
        self._on: dict[BrokerId, set[PartitionIndex]] = {}
        self._columns: dict[BrokerId, bytearray] = {}
        self._partitions = 0
        self.changes = 0
        """Grows with every change, so that what was counted can be kept until then."""

    @property
    def brokers(self) -> list[BrokerId]:
        """Every broker that has a partition assigned, alive or not."""
        return sorted(broker for broker, partitions in self._on.items() if partitions)

    def on(self, broker: BrokerId) -> list[PartitionIndex]:
        """In order of their indexes."""
        return sorted(self._on.get(broker, ()))

    def state_of(self, partition: PartitionIndex, broker: BrokerId) -> ReplicaState:
        column = self._columns.get(broker)
        return ReplicaState.NON_EXISTENT if column is None else ReplicaState(column[partition])

    def states_on(self, broker: BrokerId) -> Sequence[int]:
        """The column itself. Read only, and only within one event."""
        return self._column(broker)

    def may_move(
        self, broker: BrokerId, partitions: Sequence[PartitionIndex], to: ReplicaState
    ) -> tuple[Sequence[PartitionIndex], list[PartitionIndex]]:
        """Partitions whose transition is legal, and those whose transition is refused."""
        return legal(partitions, self._column(broker), REPLICA_MAY_ENTER[to])

    def columns_of(self, brokers: Iterable[BrokerId], partitions: Collection[PartitionIndex]) -> dict[BrokerId, bytes]:
        """The states of these partitions' replicas on each broker, one byte per partition."""
        return {b: bytes(map(self._column(b).__getitem__, partitions)) for b in brokers}

    # --- changes ---

    def move(self, broker: BrokerId, partitions: Sequence[PartitionIndex], to: ReplicaState) -> list[PartitionIndex]:
        """Returns the partitions whose transition the table refuses; they stay in their state."""
        moving, refused = self.may_move(broker, partitions, to)
        self.load(broker, moving, to)
        return refused

    def load(self, broker: BrokerId, partitions: Iterable[PartitionIndex], found: ReplicaState) -> None:
        """Set the first states after a load. The table of transitions does not apply, because nothing moved."""
        self.changes += 1
        column, value = self._column(broker), int(found)
        for partition in partitions:
            column[partition] = value

    def grow(self, count: int) -> None:
        """Make room for this many more partitions."""
        self._partitions += count
        for column in self._columns.values():
            column += _NON_EXISTENT * count

    def assign(self, partitions: Sequence[PartitionIndex], brokers: Iterable[BrokerId]) -> None:
        """Partitions that are assigned to the same brokers."""
        self.changes += 1
        for broker in brokers:
            on = self._on.get(broker)
            if on is None:
                on = self._on[broker] = set()
                self._column(broker)
            on.update(partitions)

    def unassign(self, partition: PartitionIndex, brokers: Iterable[BrokerId]) -> None:
        self.changes += 1
        for broker in brokers:
            self._on[broker].discard(partition)

    def forget(self, partition: PartitionIndex) -> None:
        """The partition is gone; another one will reuse its index."""
        for column in self._columns.values():
            column[partition] = ReplicaState.NON_EXISTENT

    def clear(self) -> None:
        self._on.clear()
        self._columns.clear()
        self._partitions = 0

    def _column(self, broker: BrokerId) -> bytearray:
        column = self._columns.get(broker)
        if column is None:
            column = self._columns[broker] = bytearray(_NON_EXISTENT) * self._partitions
        return column
