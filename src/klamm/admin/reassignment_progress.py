"""How far the running moves are, how long they still take, and whether there is room for them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from klamm.model.ids import TopicPartition
from klamm.model.wording import size

Sizes = Mapping[TopicPartition, Mapping[int, int]]
"""Bytes of each replica, by broker."""


class Move(NamedTuple):
    name: TopicPartition
    leader: int
    adding: Sequence[int]


class MoveProgress(NamedTuple):
    name: TopicPartition
    copied_bytes: int
    total_bytes: int
    """What the leader has, for each replica that is added."""
    is_known: bool
    """False if the leader's size is not known, because it is down."""

    @property
    def left_bytes(self) -> int:
        return max(0, self.total_bytes - self.copied_bytes)


class Rate(NamedTuple):
    bytes_per_second: float
    seconds_left: float | None
    """None if nothing moves."""


def progress_of(moves: Iterable[Move], sizes: Sizes) -> list[MoveProgress]:
    found = []
    for name, leader, adding in moves:
        by_broker = sizes.get(name, {})
        whole = by_broker.get(leader)
        copied = sum(min(by_broker.get(broker, 0), whole or 0) for broker in adding)
        found.append(MoveProgress(name, copied, (whole or 0) * len(adding), whole is not None))
    return found


def rate_of(before: Sequence[MoveProgress], now: Sequence[MoveProgress], seconds: float) -> Rate:
    """From two looks. A move that ended meanwhile copied what was left of it."""
    now_by_name = {entry.name: entry for entry in now}
    grown = 0
    for entry in before:
        later = now_by_name.get(entry.name)
        grown += entry.left_bytes if later is None else max(0, later.copied_bytes - entry.copied_bytes)
    speed = grown / seconds if seconds > 0 else 0.0
    left = sum(entry.left_bytes for entry in now)
    return Rate(speed, 0.0 if not left else left / speed if speed > 0 else None)


def lacking_space(incoming: Mapping[int, int], free: Mapping[int, int | None]) -> list[str]:
    """Brokers that would run out of space. Those that do not tell their free space are not judged.

    >>> lacking_space({1: 500, 2: 500}, {1: 400, 2: None})
    ['broker 1 must receive 500 B and has 400 B free']
    """
    return [
        f"broker {broker} must receive {size(needed)} and has {size(room)} free"
        for broker, needed in sorted(incoming.items())
        if (room := free.get(broker)) is not None and needed > room
    ]


def incoming_bytes(
    targets: Mapping[TopicPartition, Sequence[int]], current: Mapping[TopicPartition, Sequence[int]], sizes: Sizes
) -> dict[int, int]:
    """What each broker must receive: the largest replica of each partition that it does not have yet."""
    found: dict[int, int] = {}
    for name, replicas in targets.items():
        whole = max(sizes.get(name, {}).values(), default=0)
        for broker in set(replicas) - set(current.get(name, ())):
            found[broker] = found.get(broker, 0) + whole
    return found
