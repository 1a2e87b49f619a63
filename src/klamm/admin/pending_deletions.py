"""What a topic marked for deletion waits for, as far as ZooKeeper shows.

A klamm controller knows more (failed log directories, failed attempts) and records it in its events. This is the view
from outside, which also works while a JVM broker is the controller.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from klamm.model.ids import BrokerId
from klamm.model.partition import Assignment


def waits_for(
    partitions: Mapping[int, Assignment] | None,
    live: Container[BrokerId],
    *,
    has_controller: bool,
    quarantined: bool = False,
) -> str:
    """`partitions` is None if the topic's znode is gone.

    >>> waits_for({0: Assignment((BrokerId(1), BrokerId(2)))}, {1}, has_controller=True)
    'replicas on brokers [2], which are not registered'
    """
    if not has_controller:
        return "a controller"
    if partitions is None:
        return "the controller to remove the marker: the topic is gone"
    if quarantined:
        return "a change of its znode: the topic is quarantined"
    moving = sorted(number for number, assignment in partitions.items() if assignment.is_being_reassigned)
    if moving:
        return f"the reassignment of partitions {moving}"
    replicas = sorted({broker for assignment in partitions.values() for broker in assignment.replicas})
    dead = [broker for broker in replicas if broker not in live]
    if dead:
        return f"replicas on brokers {dead}, which are not registered"
    return f"brokers {replicas} to delete their replicas"
