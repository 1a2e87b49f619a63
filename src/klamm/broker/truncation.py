"""Where a follower's log departs from its leader's (KIP-101, KIP-279): what to do with each answer to
OffsetForLeaderEpoch.

Pure. The follower asks for the end of its own latest epoch. The leader answers with its own latest epoch that is not
above it, and where that epoch ends. This repeats until both agree on an epoch.
"""

from __future__ import annotations

from typing import NamedTuple

from klamm.log.leader_epochs import UNDEFINED_EPOCH, UNDEFINED_OFFSET, EpochEndOffset


class Truncation(NamedTuple):
    offset: int
    done: bool
    """False means: truncate, then ask again with the latest epoch that remains."""


def truncation(leader: EpochEndOffset, local: EpochEndOffset, *, log_end: int, initial_offset: int) -> Truncation:
    """`local` is the follower's end of the epoch that the leader named; `initial_offset` is its high watermark at the
    start."""
    if leader.offset == UNDEFINED_OFFSET:
        return Truncation(initial_offset, done=True)
    if leader.epoch == UNDEFINED_EPOCH or local.offset == UNDEFINED_OFFSET:
        return Truncation(min(leader.offset, log_end), done=True)
    if local.epoch != leader.epoch:
        return Truncation(min(local.offset, log_end), done=False)
    return Truncation(min(local.offset, leader.offset, log_end), done=True)
