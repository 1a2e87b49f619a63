"""How many partitions this broker leads, how many of those lack replicas, and which topics it leads or holds at all.

The counts change when a partition changes, so that a scrape of a broker with 100,000 partitions reads five integers
(design D13).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from klamm.broker.partition import Partition
from klamm.model.ids import TopicPartition


class _Counted(NamedTuple):
    leader: bool
    under_replicated: bool
    under_min_isr: bool
    at_min_isr: bool
    reassigning: bool


_FOLLOWER: Final = _Counted(False, False, False, False, False)


class PartitionGauges:
    def __init__(self) -> None:
        self.led = _Topics()
        """Topics of which this broker leads a partition."""
        self.held = _Topics()
        """Topics of which it has a replica."""
        self._counted: dict[TopicPartition, _Counted] = {}
        self.leaders = 0
        self.under_replicated = 0
        self.under_min_isr = 0
        self.at_min_isr = 0
        self.reassigning = 0

    def update(self, partition: Partition) -> None:
        """Call it after every change of role, ISR, assignment or log."""
        name = partition.topic_partition
        before, now = self._counted.pop(name, None), _counted(partition)
        if before is not None:
            self._add(before, -1)
        if now is not None:
            self._counted[name] = now
            self._add(now, 1)
        self.held.change(name.topic, (now is not None) - (before is not None))
        self.led.change(name.topic, (now is not None and now.leader) - (before is not None and before.leader))

    def _add(self, counted: _Counted, sign: int) -> None:
        self.leaders += sign * counted.leader
        self.under_replicated += sign * counted.under_replicated
        self.under_min_isr += sign * counted.under_min_isr
        self.at_min_isr += sign * counted.at_min_isr
        self.reassigning += sign * counted.reassigning


def _counted(partition: Partition) -> _Counted | None:
    if partition.log is None:
        return None
    if not partition.is_leader:
        return _FOLLOWER
    return _Counted(
        True,
        partition.is_under_replicated,
        partition.is_under_min_isr,
        partition.is_at_min_isr,
        partition.assignment.is_being_reassigned,
    )


class _Topics:
    """Counts partitions by topic."""

    def __init__(self) -> None:
        self._partitions: Counter[str] = Counter()
        self.when_gone: list[Callable[[str], None]] = []
        """Called with a topic when its last partition is gone."""

    def change(self, topic: str, by: int) -> None:
        if not by:
            return
        self._partitions[topic] += by
        if not self._partitions[topic]:
            del self._partitions[topic]
            for call in self.when_gone:
                call(topic)
