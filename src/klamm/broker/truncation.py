"""Where a follower's log departs from its leader's (KIP-101, KIP-279): the answer to OffsetsForLeaderEpoch as a table.

Pure. The follower asked for the end of its own latest epoch; the leader answered with the largest epoch it has that is
not above, and where that one ends. Repeated until both agree on an epoch (reference controller 8.6).
"""

from __future__ import annotations

from typing import NamedTuple

from klamm.log.leader_epochs import UNDEFINED_EPOCH, UNDEFINED_OFFSET, EpochEndOffset


class Truncation(NamedTuple):
    offset: int
    done: bool
    """False: truncate, then ask again with what is the latest epoch afterwards."""


def truncation(leader: EpochEndOffset, local: EpochEndOffset, *, log_end: int, initial_offset: int) -> Truncation:
    """`local` is our own end of the epoch that the leader named, `initial_offset` the high watermark at the start."""
    if leader.offset == UNDEFINED_OFFSET:
        return Truncation(initial_offset, done=True)
    if leader.epoch == UNDEFINED_EPOCH or local.offset == UNDEFINED_OFFSET:
        return Truncation(min(leader.offset, log_end), done=True)
    if local.epoch != leader.epoch:
        return Truncation(min(local.offset, log_end), done=False)
    return Truncation(min(local.offset, leader.offset, log_end), done=True)
