"""Which broker holds which partitions, by their assignments, and in which state each replica is: one column a broker.

A replica may have a state where no assignment names it: one that a reassignment removed, while it is being stopped and
deleted. Like the rest of the context this changes only after ZooKeeper took the change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from klamm.controller.context.states import REPLICA_MAY_ENTER, PartitionIndex, ReplicaState, legal
from klamm.model.ids import BrokerId

_NON_EXISTENT = bytes((ReplicaState.NON_EXISTENT,))


class Replicas:
    def __init__(self) -> None:
        self._on: dict[BrokerId, set[PartitionIndex]] = {}
        self._columns: dict[BrokerId, bytearray] = {}
        self._partitions = 0

    @property
    def brokers(self) -> list[BrokerId]:
        """Every broker that some partition is assigned to, alive or not."""
        return sorted(broker for broker, partitions in self._on.items() if partitions)

    def on(self, broker: BrokerId) -> list[PartitionIndex]:
        """In order of their ids."""
        return sorted(self._on.get(broker, ()))

    def state_of(self, partition: PartitionIndex, broker: BrokerId) -> ReplicaState:
        column = self._columns.get(broker)
        return ReplicaState.NON_EXISTENT if column is None else ReplicaState(column[partition])

    def states_on(self, broker: BrokerId) -> Sequence[int]:
        """The column itself, to be read within one event."""
        return self._column(broker)

    def may_move(
        self, broker: BrokerId, partitions: Sequence[PartitionIndex], to: ReplicaState
    ) -> tuple[Sequence[PartitionIndex], list[PartitionIndex]]:
        """Legal and refused, before anything is written for them."""
        return legal(partitions, self._column(broker), REPLICA_MAY_ENTER[to])

    # --- changes ---

    def move(self, broker: BrokerId, partitions: Sequence[PartitionIndex], to: ReplicaState) -> list[PartitionIndex]:
        """Returns those whose transition the table refuses: they stay as they were."""
        moving, refused = self.may_move(broker, partitions, to)
        self.load(broker, moving, to)
        return refused

    def load(self, broker: BrokerId, partitions: Iterable[PartitionIndex], found: ReplicaState) -> None:
        """First states after a load: outside the table, because nothing moved."""
        column, value = self._column(broker), int(found)
        for partition in partitions:
            column[partition] = value

    def grow(self, count: int) -> None:
        """So many partitions more, with no replica yet."""
        self._partitions += count
        for column in self._columns.values():
            column += _NON_EXISTENT * count

    def assign(self, partitions: Sequence[PartitionIndex], brokers: Iterable[BrokerId]) -> None:
        """Partitions that the same brokers hold."""
        for broker in brokers:
            on = self._on.get(broker)
            if on is None:
                on = self._on[broker] = set()
                self._column(broker)
            on.update(partitions)

    def unassign(self, partition: PartitionIndex, brokers: Iterable[BrokerId]) -> None:
        for broker in brokers:
            self._on[broker].discard(partition)

    def forget(self, partition: PartitionIndex) -> None:
        """It is gone, and its id is for another."""
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
