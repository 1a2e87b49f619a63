"""The tree as the checks see it: decoded once, with what could not be decoded set aside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from klamm.model.brokers import Broker
from klamm.model.errors import ZNodeError
from klamm.model.ids import BrokerId, TopicPartition
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.model.ports import Node
from klamm.zookeeper.znodes import broker_id, controller, controller_epoch, partition_state, topic
from klamm.zookeeper.znodes.kafka_tree import KafkaTree

SETTLED_MS: Final = 60_000
"""A change that is younger may still be under way."""
STUCK_MS: Final = 300_000
"""What a controller does within seconds has not happened after this long."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    tree: KafkaTree
    brokers: Mapping[BrokerId, Broker]
    sessions: Mapping[BrokerId, int]
    """The session that holds each registration, also of those that cannot be decoded."""
    controller: BrokerId | None
    epoch: int | None
    assignments: Mapping[TopicPartition, Assignment]
    states: Mapping[TopicPartition, LeaderAndIsr]
    broken: Mapping[str, str]
    """Paths that cannot be decoded, and why."""

    def age_ms(self, node: Node) -> int:
        return self.tree.read_at_ms - node.stat.mtime_ms


def observe(tree: KafkaTree) -> Observation:
    broken: dict[str, str] = {}

    def decoded(path: str, data: bytes | None, decode: Callable[[str, bytes | None], T]) -> T | None:
        try:
            return decode(path, data)
        except ZNodeError as error:
            broken[path] = error.reason
            return None

    brokers: dict[BrokerId, Broker] = {}
    sessions: dict[BrokerId, int] = {}
    for name, node in tree.brokers.items():
        path = f"{broker_id.PARENT}/{name}"
        number = decoded(path, node.data, lambda path, _: broker_id.id_of(path))
        if number is None:
            continue
        sessions[number] = node.stat.ephemeral_owner
        found = decoded(path, node.data, broker_id.decode)
        if found is not None:
            brokers[number] = found
    assignments: dict[TopicPartition, Assignment] = {}
    for name, node in tree.topics.items():
        read = decoded(topic.path(name), node.data, topic.decode)
        for partition, assignment in (read.partitions if read is not None else {}).items():
            assignments[TopicPartition(name, partition)] = assignment
    states: dict[TopicPartition, LeaderAndIsr] = {}
    for named, raw in tree.states.items():
        state = decoded(partition_state.path(named), raw.data, partition_state.decode) if raw.exists else None
        if state is not None:
            states[named] = state
    holder, epoch = tree.controller, tree.controller_epoch
    return Observation(
        tree=tree,
        brokers=brokers,
        sessions=sessions,
        controller=None if holder is None else decoded(controller.PATH, holder.data, controller.decode),
        epoch=None if epoch is None else decoded(controller_epoch.PATH, epoch.data, controller_epoch.decode),
        assignments=assignments,
        states=states,
        broken=broken,
    )
