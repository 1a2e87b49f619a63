"""How many partitions this broker leads, and how many of those lack replicas.

The counts change when a partition changes, so that a scrape of a broker with 100,000 partitions reads five integers
(design D13).
"""

from __future__ import annotations

from typing import NamedTuple

from klamm.broker.partition import Partition
from klamm.model.ids import TopicPartition


class _Counted(NamedTuple):
    leader: bool
    under_replicated: bool
    under_min_isr: bool
    at_min_isr: bool
    reassigning: bool


class PartitionGauges:
    def __init__(self) -> None:
        self._counted: dict[TopicPartition, _Counted] = {}
        self.leaders = 0
        self.under_replicated = 0
        self.under_min_isr = 0
        self.at_min_isr = 0
        self.reassigning = 0

    def update(self, partition: Partition) -> None:
        """Call it after every change of role, ISR or assignment. Only partitions that this broker leads count."""
        before = self._counted.pop(partition.topic_partition, None)
        if before is not None:
            self._add(before, -1)
        if partition.is_leader:
            now = _Counted(
                True,
                partition.is_under_replicated,
                partition.is_under_min_isr,
                partition.is_at_min_isr,
                partition.assignment.is_being_reassigned,
            )
            self._counted[partition.topic_partition] = now
            self._add(now, 1)

    def _add(self, counted: _Counted, sign: int) -> None:
        self.leaders += sign * counted.leader
        self.under_replicated += sign * counted.under_replicated
        self.under_min_isr += sign * counted.under_min_isr
        self.at_min_isr += sign * counted.at_min_isr
        self.reassigning += sign * counted.reassigning
