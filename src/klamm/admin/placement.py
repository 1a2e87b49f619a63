"""Places the replicas of new partitions: round robin over brokers, alternating over racks if every broker has one.

Kafka's own algorithm (KIP-36): with the same start and shift, klamm and a JVM broker create the same assignment.
Leaders are spread evenly. The followers of one leader are spread over the other brokers by a shift that grows with
each round. With racks, no rack gets a second replica of a partition before each rack has one.

Pure: the two random numbers are arguments.

>>> brokers = [PlacementBroker(BrokerId(b)) for b in (1, 2, 3, 4)]
>>> place(brokers, range(6), 2, start=2, shift=1)
{0: (3, 1), 1: (4, 2), 2: (1, 3), 3: (2, 4), 4: (3, 2), 5: (4, 3)}
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from enum import Enum
from itertools import zip_longest
from typing import NamedTuple

from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import BrokerId

Placement = dict[int, tuple[BrokerId, ...]]


class PlacementBroker(NamedTuple):
    id: BrokerId
    rack: str | None = None


class RackMode(Enum):
    """What to do when only some brokers name their rack."""

    ENFORCED = "enforced"
    """Refuse; used by CreateTopics and CreatePartitions."""
    SAFE = "safe"
    """Ignore racks; used for auto-creation and internal topics."""


def place(
    brokers: Sequence[PlacementBroker],
    partitions: range,
    replication_factor: int,
    *,
    start: int,
    shift: int,
    mode: RackMode = RackMode.ENFORCED,
) -> Placement:
    """Replica lists of `partitions`; the first of each list is the preferred leader.

    `start` and `shift` are random in [0, brokers) for a new topic, and both `growth_start` for a growing one.
    """
    if replication_factor <= 0:
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0.")
    if replication_factor > len(brokers):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor: {replication_factor} larger than available brokers: {len(brokers)}.",
        )
    by_id = sorted(brokers)
    with_rack = sum(broker.rack is not None for broker in by_id)
    if with_rack == len(by_id):
        return _place_over_racks(by_id, partitions, replication_factor, start, shift)
    if with_rack and mode is RackMode.ENFORCED:
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR, "Not all brokers have rack information for replica rack aware assignment."
        )
    return _place_without_racks([broker.id for broker in by_id], partitions, replication_factor, start, shift)


def growth_start(brokers: Sequence[PlacementBroker], first_replica: BrokerId) -> int:
    """New partitions continue from where partition 0 began, so that old and new ones together are spread evenly."""
    ids = sorted(broker.id for broker in brokers)
    position = bisect_left(ids, first_replica)
    return position if position < len(ids) else 0


def _place_without_racks(
    brokers: Sequence[BrokerId], partitions: range, replication_factor: int, start: int, shift: int
) -> Placement:
    count = len(brokers)
    placed: Placement = {}
    for partition in partitions:
        if partition > 0 and partition % count == 0:
            shift += 1
        first = (partition + start) % count
        followers = (brokers[_follower(first, shift, j, count)] for j in range(replication_factor - 1))
        placed[partition] = (brokers[first], *followers)
    return placed


def _place_over_racks(
    by_id: Sequence[PlacementBroker], partitions: range, replication_factor: int, start: int, shift: int
) -> Placement:
    brokers = rack_alternated(by_id)
    count = len(brokers)
    rack_count = len({broker.rack for broker in brokers})
    placed: Placement = {}
    for partition in partitions:
        if partition > 0 and partition % count == 0:
            shift += 1
        first = (partition + start) % count
        replicas = [brokers[first].id]
        racks = {brokers[first].rack}
        candidate = 0
        while len(replicas) < replication_factor:
            broker = brokers[_follower(first, shift * rack_count, candidate, count)]
            candidate += 1  # keeps counting across replicas, so that no broker is tried twice in a round
            crowds_rack = broker.rack in racks and len(racks) < rack_count
            if crowds_rack or broker.id in replicas:
                continue
            replicas.append(broker.id)
            racks.add(broker.rack)
        placed[partition] = tuple(replicas)
    return placed


def rack_alternated(by_id: Sequence[PlacementBroker]) -> list[PlacementBroker]:
    """One broker per rack in turn, racks by name, brokers of a rack by id."""
    racks: dict[str, list[PlacementBroker]] = {}
    for broker in by_id:
        assert broker.rack is not None
        racks.setdefault(broker.rack, []).append(broker)
    rounds = zip_longest(*(racks[name] for name in sorted(racks)))
    return [broker for turn in rounds for broker in turn if broker is not None]


def _follower(first: int, shift: int, index: int, count: int) -> int:
    """Position of a follower: never the leader's, because it counts from the leader's neighbour, modulo count - 1."""
    return (first + 1 + (shift + index) % (count - 1)) % count
