"""What must hold between the replicas of one partition at any moment.

- S9: below the lowest of their high watermarks, replicas have the same batches.
- S1: what a leader shows as committed, every running member of the ISR has.
- matching: a follower that has reconciled with its leader has a prefix of the leader's log.
- S3: the leader waits for every replica that may be in the ISR of ZooKeeper.
- KIP-320: what a leader knows of a follower, the follower has told it in the leader's epoch, and still has.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from functools import cached_property

from klamm.broker.fetcher import FetchState
from klamm.broker.isr import NEVER
from klamm.broker.partition import Partition
from klamm.log.log import Log
from klamm.model.ids import BrokerId, TopicPartition
from klamm.simulation.invariants import Problem
from klamm.simulation.log_checks import content_of
from klamm.wire.records import read_header


class Replica:
    """One replica that runs, as it is now."""

    def __init__(self, broker: BrokerId, partition: Partition, log: Log, fetching: FetchState | None) -> None:
        self.broker = broker
        self.partition = partition
        self.log = log
        self._fetching = fetching

    @property
    def name(self) -> TopicPartition:
        return self.partition.topic_partition

    @property
    def is_leader(self) -> bool:
        return self.partition.is_leader

    @cached_property
    def batches(self) -> list[bytes]:
        return content_of(self.log, self.log.log_end_offset)

    @cached_property
    def _ends(self) -> list[int]:
        return [read_header(batch).next_offset for batch in self.batches]

    def between(self, start: int, end: int) -> list[bytes]:
        """The batches that end in (start, end]."""
        return self.batches[bisect_right(self._ends, start) : bisect_right(self._ends, end)]

    def follows(self, leader: Replica) -> bool:
        """It fetches from this leader in this epoch, and has reconciled."""
        mine, other = self.partition, leader.partition
        same = (mine.leader, mine.leader_epoch) == (leader.broker, other.leader_epoch)
        return same and self._fetching is FetchState.FETCHING


def agree(replicas: Sequence[Replica]) -> Problem:
    """S9."""
    if len(replicas) < 2:
        return None
    end = min(replica.log.high_watermark for replica in replicas)
    start = max(replica.log.log_start_offset for replica in replicas)
    first, *others = replicas
    expected = first.between(start, end)
    for other in others:
        found = other.between(start, end)
        if found != expected:
            at = next(n for n, (a, b) in enumerate(zip([*found, b""], [*expected, b""], strict=False)) if a != b)
            return f"{first.name} differs between brokers {first.broker} and {other.broker} below {end}, at batch {at}"
    return None


def isr_has_it(replicas: Sequence[Replica], isr: Collection[BrokerId]) -> Problem:
    """S1."""
    for leader in (replica for replica in replicas if replica.is_leader):
        end = leader.log.high_watermark
        for other in (replica for replica in replicas if replica.broker in isr):
            start = max(leader.log.log_start_offset, other.log.log_start_offset)
            if other.between(start, end) != leader.between(start, end):
                return (
                    f"{leader.name}: broker {leader.broker} has committed up to {end}, "
                    f"broker {other.broker} of the ISR {list(isr)} does not have the same records"
                )
    return None


def match(replicas: Sequence[Replica]) -> Problem:
    """matching. A new leader may know of less that is committed than its followers, up to the start of its epoch."""
    for leader in (replica for replica in replicas if replica.is_leader):
        for other in (replica for replica in replicas if replica.follows(leader)):
            start, end = max(leader.log.log_start_offset, other.log.log_start_offset), other.log.log_end_offset
            about = (
                f"{leader.name}: broker {other.broker} follows {leader.broker} in epoch {leader.partition.leader_epoch}"
            )
            if end > leader.log.log_end_offset:
                return f"{about}, but ends at {end}, after the leader's end {leader.log.log_end_offset}"
            if other.between(start, end) != leader.between(start, end):
                return f"{about}, but does not have the same records below {end}"
            known = max(leader.log.high_watermark, leader.partition.epoch_start_offset)
            if other.log.high_watermark > known:
                return f"{about}, its high watermark {other.log.high_watermark} is above the leader's"
    return None


def is_known(
    leader: Replica,
    replicas: Sequence[Replica],
    began_after: Callable[[BrokerId, float], bool],
    forgot_after: Callable[[BrokerId, float], bool],
) -> Problem:
    """KIP-320. The leader's epoch is the latest. A new leader forgets the time of a follower's last fetch."""
    epoch = leader.partition.leader_epoch
    for other in replicas:
        known = leader.partition.followers.get(other.broker)
        if known is None or known.last_fetch == NEVER:
            continue
        about = f"{leader.name}: leader {leader.broker} in epoch {epoch} counts a fetch of broker {other.broker}"
        if other.partition.leader_epoch < epoch and not began_after(other.broker, known.last_fetch):
            return f"{about}, which is in epoch {other.partition.leader_epoch}"
        start, end = max(leader.log.log_start_offset, other.log.log_start_offset), known.log_end_offset
        if other.between(start, end) != leader.between(start, end) and not forgot_after(other.broker, known.last_fetch):
            return f"{about} from {end}, which does not have the same records below that"
    return None


def maximal_isr(leader: BrokerId, partition: Partition, isr: Collection[BrokerId]) -> Problem:
    """S3. `isr` is what ZooKeeper has in this leader epoch."""
    counted = {*partition.isr, *(partition.pending_isr or ())}
    if set(isr) <= counted:
        return None
    return f"leader {leader} of {partition.topic_partition} counts {sorted(counted)}, ZooKeeper has {list(isr)}"
