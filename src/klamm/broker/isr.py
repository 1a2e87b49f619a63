"""The ISR rules: what a leader knows of each follower, which replicas leave and may join the ISR, and how far the high
watermark may go.

Pure decisions over plain values; `partition` holds the state, and `isr_writer` writes the outcome to ZooKeeper.

- A follower is caught up when it fetches from the leader's end, or, in retrospect, at its previous fetch if it now
  fetches from where the leader's end was then. It leaves the ISR when that moment is too long ago.
- Shrinking is always safe. To join, a follower must have reached the high watermark and the start of the leader's own
  epoch (KAFKA-7128).
- The high watermark waits for every member of the current ISR, for every member of an ISR whose write is undecided, and
  for caught-up followers outside both: the next leader may read an ISR with them from ZooKeeper. A member that a
  reassignment has dropped from the replicas cannot fetch any more, but another controller may still elect it, so the
  high watermark stands still until it has left the ISR. Kafka goes on.
- The leader itself counts with what it has flushed, if flush.messages wants that, as its followers do: else another
  leader could acknowledge what this one may still lose.
- The size of the ISR does not matter for the high watermark: min.insync.replicas restricts acks=all, not what acks=1
  readers see (ADR 0009).
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
    """What the leader knows of one remote replica. Times are the clock's monotonic seconds."""

    log_end_offset: int = UNKNOWN_OFFSET
    log_start_offset: int = UNKNOWN_OFFSET
    last_caught_up: float = NEVER
    last_fetch: float = NEVER
    leader_end_at_last_fetch: int = 0

    def record_fetch(self, fetch_offset: int, log_start_offset: int, *, now: float, leader_end: int) -> None:
        """`leader_end` is the leader's log end *before* the read that answers this fetch."""
        if fetch_offset >= leader_end:
            self.last_caught_up = max(self.last_caught_up, now)
        elif fetch_offset >= self.leader_end_at_last_fetch:
            self.last_caught_up = max(self.last_caught_up, self.last_fetch)
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset
        self.last_fetch = now
        self.leader_end_at_last_fetch = leader_end

    def had_everything_at(self, time: float) -> None:
        """Fetches from the leader's end, at which nothing has changed, were not recorded. This was the last of them."""
        self.last_caught_up = max(self.last_caught_up, time)
        self.last_fetch = max(self.last_fetch, time)

    def reset(self, *, in_isr: bool, now: float, leader_end: int) -> None:
        """A new leader does not know any follower's offset; members of the ISR have the full lag limit to fetch."""
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
    """Members to drop, including one that is not a replica any more because a reassignment ended (KAFKA-9672)."""
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
    leader: BrokerId,
    must_have: Collection[BrokerId],
    now: float,
    max_lag: float,
) -> int:
    """The high watermark that the replicas' ends allow; UNKNOWN_OFFSET while a required replica has not fetched yet, or
    is not a follower any more."""
    if any(broker not in followers and broker != leader for broker in must_have):
        return UNKNOWN_OFFSET
    end = leader_end
    for broker, follower in followers.items():
        if follower.log_end_offset < end and (broker in must_have or now - follower.last_caught_up <= max_lag):
            end = follower.log_end_offset
    return end
