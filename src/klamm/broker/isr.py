"""Who is in sync: what a leader knows of each follower, who leaves and who may join the ISR, and the high watermark.

Pure decisions over plain values; `partition` holds the state and writes the outcome to ZooKeeper. Rules (reference
controller 8.5, reliability 1.1 and 3.3):

- A follower is caught up at the moment of a fetch that asks for the leader's end, or retroactively at the moment of its
  previous fetch when it asks for what was the end then. It leaves when that moment is too long ago.
- Shrinking is always safe; joining needs the high watermark and the start of the leader's own epoch (KAFKA-7128).
- The high watermark waits for every member of the current ISR and of one whose write is still undecided, and for
  followers outside that are caught up: those may be in an ISR that a successor of ours reads from ZooKeeper.
- Below min.insync.replicas it does not advance at all (KAFKA-15583): else a single replica could commit alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from klamm.model.ids import BrokerId

UNKNOWN_OFFSET: Final = -1
NEVER: Final = float("-inf")


@dataclass(slots=True)
class Follower:
    """What the leader has seen of one remote replica. Times are the clock's monotonic seconds."""

    log_end_offset: int = UNKNOWN_OFFSET
    log_start_offset: int = UNKNOWN_OFFSET
    last_caught_up: float = NEVER
    last_fetch: float = NEVER
    leader_end_at_last_fetch: int = 0

    def record_fetch(self, fetch_offset: int, log_start_offset: int, *, now: float, leader_end: int) -> None:
        """`leader_end` is the end *before* the read that answers this fetch."""
        if fetch_offset >= leader_end:
            self.last_caught_up = max(self.last_caught_up, now)
        elif fetch_offset >= self.leader_end_at_last_fetch:
            self.last_caught_up = max(self.last_caught_up, self.last_fetch)
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset
        self.last_fetch = now
        self.leader_end_at_last_fetch = leader_end

    def reset(self, *, in_isr: bool, now: float, leader_end: int) -> None:
        """A new leader knows nobody's offsets; members of the ISR get the full lag limit to show up."""
        self.log_end_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.last_caught_up = now if in_isr else NEVER
        self.last_fetch = NEVER
        self.leader_end_at_last_fetch = leader_end

    def is_caught_up(self, *, leader_end: int, now: float, max_lag: float) -> bool:
        return self.log_end_offset == leader_end or now - self.last_caught_up <= max_lag


def out_of_sync(
    isr: Sequence[BrokerId],
    followers: Mapping[BrokerId, Follower],
    *,
    leader: BrokerId,
    leader_end: int,
    now: float,
    max_lag: float,
) -> tuple[BrokerId, ...]:
    """Members to drop. One that is no replica any more (a reassignment ended) goes too: KAFKA-9672."""
    return tuple(
        broker
        for broker in isr
        if broker != leader
        and (
            broker not in followers
            or not followers[broker].is_caught_up(leader_end=leader_end, now=now, max_lag=max_lag)
        )
    )


def may_join(follower: Follower, *, high_watermark: int, epoch_start: int) -> bool:
    return follower.log_end_offset >= max(high_watermark, epoch_start)


def committed_end(
    leader_end: int,
    followers: Mapping[BrokerId, Follower],
    *,
    must_have: Collection[BrokerId],
    now: float,
    max_lag: float,
) -> int:
    """The high watermark that the replicas' ends allow; UNKNOWN_OFFSET while a needed one has not fetched yet."""
    end = leader_end
    for broker, follower in followers.items():
        if follower.log_end_offset < end and (broker in must_have or now - follower.last_caught_up <= max_lag):
            end = follower.log_end_offset
    return end


def enough_in_sync(isr_size: int, *, replicas: int, min_insync_replicas: int) -> bool:
    """min.insync.replicas above the replication factor cannot be met by anyone, so it is cut to it for the high
    watermark; acks=all is still refused by the full number."""
    return isr_size >= min(min_insync_replicas, replicas)
