"""Which partitions of an internal topic this broker coordinates: none, those it loads, those it owns.

Loading and resigning carry the leader epoch of the order that caused them. What is older than the newest epoch seen is
skipped, so that a slow load cannot bring back a partition that has moved away since (KAFKA-10614).
"""

from __future__ import annotations

from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import LeaderEpoch


class Ownership:
    def __init__(self) -> None:
        self._newest: dict[int, LeaderEpoch] = {}
        self._loading: dict[int, LeaderEpoch] = {}
        self._owned: dict[int, LeaderEpoch] = {}

    @property
    def is_loading(self) -> bool:
        """At least one partition is being loaded."""
        return bool(self._loading)

    @property
    def owned(self) -> frozenset[int]:
        return frozenset(self._owned)

    def epoch(self, partition: int) -> LeaderEpoch | None:
        """The leader epoch under which the partition was loaded; None if this broker does not own it."""
        return self._owned.get(partition)

    def check(self, partition: int | None) -> None:
        """Raises COORDINATOR_LOAD_IN_PROGRESS or NOT_COORDINATOR unless this broker owns the partition."""
        if partition in self._loading:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        if partition not in self._owned:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)

    def begin_loading(self, partition: int, epoch: LeaderEpoch) -> bool:
        """False if a later order was seen, or if this load is already under way or done."""
        if epoch <= self._newest.get(partition, -1):
            return False
        self._newest[partition] = self._loading[partition] = epoch
        self._owned.pop(partition, None)
        return True

    def is_wanted(self, partition: int, epoch: LeaderEpoch) -> bool:
        """The load of this epoch should go on."""
        return self._loading.get(partition) == epoch

    def loaded(self, partition: int, epoch: LeaderEpoch) -> bool:
        """From now on the partition is owned; False if the load is no longer wanted."""
        if not self.is_wanted(partition, epoch):
            return False
        del self._loading[partition]
        self._owned[partition] = epoch
        return True

    def resign(self, partition: int, epoch: LeaderEpoch | None) -> bool:
        """False for an older order. Without an epoch the replica is gone, and so is the memory of its epochs: a topic
        that is created again begins at epoch 0."""
        if epoch is None:
            self._newest.pop(partition, None)
        elif epoch < self._newest.get(partition, -1):
            return False
        else:
            self._newest[partition] = epoch
        self._loading.pop(partition, None)
        self._owned.pop(partition, None)
        return True
