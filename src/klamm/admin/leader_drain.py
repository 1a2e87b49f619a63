"""Which leaderships a broker can hand over, and how. Pure.

A broker keeps its replicas; it only goes to the end of each replica list that names it first, so that the next replica
is the preferred leader. An election of preferred leaders then moves the leadership. The leader must be able to move:
a partition whose other replicas are not in sync is named, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from klamm.model.ids import TopicPartition


class LedPartition(NamedTuple):
    name: TopicPartition
    leader: int
    replicas: Sequence[int]
    isr: Sequence[int]


class LeaderDrain(NamedTuple):
    orders: dict[TopicPartition, list[int]]
    """The new order of replicas, where it changes."""
    elections: list[TopicPartition]
    """Partitions that the broker leads now and another replica can lead."""
    stuck: dict[TopicPartition, str]
    """Partitions that the broker must go on leading, and why."""


def plan_leader_drain(broker: int, partitions: Iterable[LedPartition]) -> LeaderDrain:
    """
    >>> t = TopicPartition("t", 0)
    >>> plan_leader_drain(1, [LedPartition(t, 1, [1, 2, 3], [1, 3])]).orders[t]
    [3, 2, 1]
    """
    orders: dict[TopicPartition, list[int]] = {}
    elections: list[TopicPartition] = []
    stuck: dict[TopicPartition, str] = {}
    for name, leader, replicas, isr in partitions:
        if broker not in replicas or broker not in (leader, replicas[0]):
            continue
        others = [replica for replica in replicas if replica != broker]
        ready = [replica for replica in others if replica in isr]
        if not others:
            stuck[name] = "it has no other replica"
        elif not ready:
            stuck[name] = f"no other replica is in sync: ISR {list(isr)}"
        else:
            wanted = [*ready, *(replica for replica in others if replica not in isr), broker]
            if wanted != list(replicas):
                orders[name] = wanted
            if leader == broker:
                elections.append(name)
    return LeaderDrain(orders, elections, stuck)
