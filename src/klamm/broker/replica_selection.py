"""Which replica a consumer should read from (KIP-392): one in its own rack, as RackAwareReplicaSelector chooses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from klamm.model.ids import BrokerId


class ReplicaView(NamedTuple):
    """What the leader knows of a replica that has the consumer's offset."""

    broker: BrokerId
    rack: str | None
    log_end_offset: int
    caught_up_at: float


def nearest(rack: str, leader: BrokerId, candidates: Iterable[ReplicaView]) -> BrokerId:
    """The leader, unless others are in the consumer's rack and it is not: then the one that is ahead of the others."""
    in_rack = [replica for replica in candidates if rack and replica.rack == rack]
    if not in_rack or any(replica.broker == leader for replica in in_rack):
        return leader
    return max(in_rack, key=lambda replica: (replica.log_end_offset, replica.caught_up_at, replica.broker)).broker
