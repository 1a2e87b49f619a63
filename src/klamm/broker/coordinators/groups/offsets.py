"""The offsets of one group: committed, written but not acknowledged, and part of an open transaction.

The order of the log decides between commits of a partition, whether plain or transactional. So each committed offset
remembers the offset of its record, and only a later record replaces it, in whatever order acknowledgements and markers
arrive. Loading the log gives the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from klamm.broker.coordinators.groups.records import Offset
from klamm.model.ids import ProducerId, TopicPartition


class Committed(NamedTuple):
    record_offset: int
    """The offset of the first record of its batch."""
    value: Offset


Offsets = Mapping[TopicPartition, Offset]


class GroupOffsets:
    def __init__(self) -> None:
        self.committed: dict[TopicPartition, Committed] = {}
        self.pending: dict[TopicPartition, Offset] = {}
        """Written, not acknowledged yet."""
        self.transactional: dict[ProducerId, dict[TopicPartition, Committed]] = {}
        """In the log, to be decided by a marker of this producer."""
        self._staged = 0
        """The number of offsets in `transactional`."""

    @property
    def is_empty(self) -> bool:
        return not (self.committed or self.pending or self.transactional)

    @property
    def count(self) -> int:
        """Offsets that are held, decided or not."""
        return len(self.committed) + self._staged

    def value(self, partition: TopicPartition) -> Offset | None:
        held = self.committed.get(partition)
        return None if held is None else held.value

    def has_record(self, partition: TopicPartition) -> bool:
        """The log has a commit of this partition, decided or not."""
        return partition in self.committed or self.is_unstable(partition)

    def is_unstable(self, partition: TopicPartition) -> bool:
        """A commit of this partition is not decided yet."""
        return partition in self.pending or any(partition in held for held in self.transactional.values())

    def commit(self, partition: TopicPartition, committed: Committed) -> None:
        held = self.committed.get(partition)
        if held is None or held.record_offset < committed.record_offset:
            self.committed[partition] = committed

    # --- plain commits ---

    def prepare(self, values: Offsets) -> None:
        self.pending.update(values)

    def acknowledged(self, values: Offsets, record_offset: int) -> None:
        for partition, value in values.items():
            if partition in self.pending:  # else the partition was deleted meanwhile
                self.commit(partition, Committed(record_offset, value))
        self._settle(values)

    def failed(self, values: Offsets) -> None:
        """What was committed before stays."""
        self._settle(values)

    def _settle(self, values: Offsets) -> None:
        """A later commit of the same partition stays pending."""
        for partition, value in values.items():
            if self.pending.get(partition) is value:
                del self.pending[partition]

    # --- transactions ---

    def stage(self, producer: ProducerId, values: Offsets, record_offset: int) -> None:
        held = self.transactional.setdefault(producer, {})
        self._staged -= len(held)
        held.update((partition, Committed(record_offset, value)) for partition, value in values.items())
        self._staged += len(held)

    def unstage(self, producer: ProducerId, partition: TopicPartition) -> None:
        """The transaction takes its offset of this partition back, and stays open."""
        if self.transactional.setdefault(producer, {}).pop(partition, None) is not None:
            self._staged -= 1

    def end_transaction(self, producer: ProducerId, *, committed: bool) -> None:
        ended = self.transactional.pop(producer, {})
        self._staged -= len(ended)
        for partition, staged in ended.items():
            if committed:
                self.commit(partition, staged)

    # --- removal ---

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Also what is not decided yet: no marker and no acknowledgement brings it back."""
        for partition in partitions:
            self.committed.pop(partition, None)
            self.pending.pop(partition, None)
            for producer in [producer for producer, held in self.transactional.items() if partition in held]:
                self.unstage(producer, partition)
                if not self.transactional[producer]:
                    del self.transactional[producer]

    def partitions(self) -> set[TopicPartition]:
        """All that the log has a commit of."""
        return {*self.committed, *self.pending, *(name for held in self.transactional.values() for name in held)}
