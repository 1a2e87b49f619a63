"""What producers were promised and consumers have read, by partition, and what may be missing after a power cut.

- S2: a record acknowledged with acks=all stays at its offset for ever, and every reader finds the same record there:
  what consumers read is a prefix of one history.
- S11: a batch of an idempotent producer is there once, and its batches are in order.

Power cuts: with flush.messages=1 nothing that was acknowledged or read may be lost, whatever loses power. Without it,
records live in page caches, and replication keeps them: a replica in the ISR that loses power is *suspect* until it
leaves the ISR, after which it must fetch what it lost. Only if at some moment every member of the ISR is suspect or
cannot lead (not registered, stopping, its directory failed), what was promised before is *excused*: a suspect may lead
next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from klamm.model.ids import NO_EPOCH, BrokerId, TopicPartition
from klamm.model.partition import LeaderAndIsr
from klamm.simulation.invariants import Problem


class Sent(NamedTuple):
    """One batch of an idempotent producer."""

    producer: int
    number: int


class PartitionHistory:
    def __init__(self, name: TopicPartition, *, flushed: bool, min_insync_replicas: int = 1) -> None:
        self.name = name
        self.min_insync_replicas = min_insync_replicas
        self.is_flushed = flushed
        """flush.messages=1."""
        self.promised: dict[int, bytes] = {}
        """By offset: acknowledged with acks=all."""
        self.read: dict[int, bytes] = {}
        """By offset: what any consumer has read."""
        self.refused: set[bytes] = set()
        """Values that were refused before they were appended."""
        self.trimmed = 0
        """Below this offset, records may have been deleted by request."""
        self.excused_at = 0.0
        self.suspects: set[BrokerId] = set()
        self.isr: tuple[BrokerId, ...] = ()
        self.leader_epoch = NO_EPOCH

    # --- what happened ---

    def acknowledged(self, offset: int, values: Sequence[bytes], asked_at: float) -> Problem:
        """With acks=all. An answer to a request from before an excuse promises nothing."""
        if asked_at <= self.excused_at:
            return None
        for at, value in enumerate(values, offset):
            known = self.promised.get(at, value)
            if known != value:
                return f"{self.name} acknowledged {value!r} at offset {at} after {known!r}"
            if self.read.get(at, value) != value:
                return f"{self.name} acknowledged {value!r} at offset {at}, where {self.read[at]!r} was read"
            self.promised[at] = value
        return None

    def was_read(self, offset: int, value: bytes, asked_at: float) -> Problem:
        if asked_at <= self.excused_at:
            return None
        if value in self.refused:
            return f"{self.name} has {value!r} at offset {offset}, which was refused"
        for what, known in (("acknowledged", self.promised.get(offset)), ("read", self.read.get(offset))):
            if known is not None and known != value:
                return f"{self.name} has {value!r} at offset {offset}, where {known!r} was {what} before"
        self.read[offset] = value
        return None

    def may_end_at(self, offset: int) -> Problem:
        """A leader says that its log ends below what was promised or read."""
        lost = [at for at in (*self.promised, *self.read) if at >= offset]
        return f"{self.name} ends at {offset}, but offset {max(lost)} was promised or read" if lost else None

    # --- power ---

    def lost_power(self, broker: BrokerId) -> None:
        if broker in self.isr:
            self.suspects.add(broker)

    def state_is(self, state: LeaderAndIsr) -> None:
        """ZooKeeper has a new state."""
        self.isr, self.leader_epoch = state.isr, state.leader_epoch
        self.suspects &= set(state.isr)

    def excuse(self, can_lead: Callable[[BrokerId], bool], now: float) -> bool:
        """True if what was promised may be lost from now on."""
        if self.is_flushed or not self.suspects:
            return False
        if any(can_lead(broker) for broker in self.isr if broker not in self.suspects):
            return False
        self.excused_at = now
        self.read.clear()
        self.promised.clear()
        return True

    # --- the end ---

    def everything_is_there(self, found: dict[int, bytes]) -> Problem:
        """S2, for what a leader has below its high watermark in the end."""
        for what, expected in (("acknowledged", self.promised), ("read", self.read)):
            for offset, value in sorted(expected.items()):
                if offset < self.trimmed and offset not in found:
                    continue
                if found.get(offset) != value:
                    return f"{self.name}: {value!r} was {what} at offset {offset}, found {found.get(offset)!r}"
        refused = sorted(self.refused & set(found.values()))
        return f"{self.name} has {refused[0]!r}, which was refused" if refused else None


def once_and_in_order(name: TopicPartition, found: Iterable[Sent]) -> Problem:
    """S11."""
    last: dict[int, int] = {}
    for producer, number in found:
        if number <= last.get(producer, -1):
            return f"{name} has batch {number} of producer {producer} after batch {last[producer]}"
        last[producer] = number
    return None
