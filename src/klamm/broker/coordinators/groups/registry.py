"""All groups that this broker coordinates, and which ones it may answer for."""

from __future__ import annotations

from klamm.broker.coordinators.groups.group import Group
from klamm.broker.coordinators.internal_topic import InternalTopic, fits_a_key
from klamm.broker.coordinators.ownership import Ownership
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import ProducerId


class GroupRegistry:
    def __init__(self, topic: InternalTopic, bytes_max: int) -> None:
        self.topic = topic
        self._bytes_max = bytes_max
        self.held_bytes = 0
        """An estimate of what all groups take in memory."""
        self._weights: dict[str, int] = {}
        """Group -> its part of `held_bytes`."""
        self.refused = 0
        """Groups, members and offsets that were refused because there was no room for them."""
        self.ownership = Ownership()
        self.groups: dict[str, Group] = {}
        self._by_partition: dict[int, dict[str, Group]] = {}
        self.open_transactions: dict[ProducerId, set[str]] = {}
        """Producer -> groups with offsets that no marker has decided: a marker names only a producer."""

    def _partition_of(self, group_id: str) -> int | None:
        held = self.groups.get(group_id)
        if held is not None:
            return held.partition
        found = self.topic.known_partition_of(group_id)
        return None if found is None else found.partition

    def check(self, group_id: str | None, *, may_be_empty: bool = False) -> int:
        """The partition of the group. Raises INVALID_GROUP_ID, COORDINATOR_LOAD_IN_PROGRESS or NOT_COORDINATOR."""
        if group_id is None or (group_id == "" and not may_be_empty) or not fits_a_key(group_id):
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        partition = self._partition_of(group_id)
        self.ownership.check(partition)
        assert partition is not None
        return partition

    def get(self, group_id: str) -> Group | None:
        return self.groups.get(group_id)

    def create(self, group_id: str) -> Group:
        """After `check`: the partition is owned."""
        partition = self._partition_of(group_id)
        assert partition is not None
        group = Group(group_id, partition)
        self.add(group)
        return group

    def add(self, group: Group) -> None:
        self.groups[group.id] = group
        self._by_partition.setdefault(group.partition, {})[group.id] = group
        self.weigh(group)

    def holds(self, group: Group) -> bool:
        """The group is still the one of that name: it was not unloaded, deleted or loaded anew."""
        return self.groups.get(group.id) is group

    def forget(self, group: Group) -> None:
        if self.holds(group):
            del self.groups[group.id]
            del self._by_partition[group.partition][group.id]
            self.held_bytes -= self._weights.pop(group.id)
        self.forget_transactions(group)

    def forget_transactions(self, group: Group) -> None:
        for producer in group.offsets.transactional:
            self.close_transaction(producer, group.id)

    def take_partition(self, partition: int) -> list[Group]:
        """Remove its groups at once: `holds` says no to all of them, so nothing that still waits changes them."""
        taken = self._by_partition.pop(partition, {})
        for group_id in taken:
            del self.groups[group_id]
            self.held_bytes -= self._weights.pop(group_id)
        return list(taken.values())

    # --- room ---

    def weigh(self, group: Group) -> None:
        """Call it after a change of the group."""
        if self.holds(group):
            weight = group.held_bytes
            self.held_bytes += weight - self._weights.get(group.id, 0)
            self._weights[group.id] = weight

    def has_room(self, growth: int) -> bool:
        """What is there may stay, whatever it takes; only what is new is refused."""
        return growth <= 0 or self.held_bytes + growth <= self._bytes_max

    # --- transactions ---

    def open_transaction(self, producer: ProducerId, group_id: str) -> None:
        self.open_transactions.setdefault(producer, set()).add(group_id)

    def close_transaction(self, producer: ProducerId, group_id: str) -> None:
        names = self.open_transactions.get(producer)
        if names is not None:
            names.discard(group_id)
            if not names:
                del self.open_transactions[producer]
