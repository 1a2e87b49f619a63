"""The cluster for measuring controllers: written into ZooKeeper once, and restored between two controllers."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final

from klamm.admin.placement import PlacementBroker, place
from klamm.model.ids import BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.model.ports import Create, Delete, Set
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.znodes import config as config_znode
from klamm.zookeeper.znodes import controller_epoch, partition_state
from klamm.zookeeper.znodes import topic as topic_znode
from klamm.zookeeper.znodes.persistent import PERSISTENT_PATHS

PARTITIONS_PER_TOPIC: Final = 100
NEW_TOPIC: Final = "bench-new"
NEW_PARTITIONS: Final = 2_000


async def write_cluster(
    zk: ZooKeeperClient, partitions: int, brokers: Sequence[int], replication: int
) -> dict[str, bytes]:
    """Create topics of 100 partitions, placed as Kafka would and led by their first replicas. Return the states."""
    for path in PERSISTENT_PATHS:
        await zk.ensure_path(path)
    # A cluster with partitions has had a controller. Without this znode klamm would look for its last epoch.
    nodes = [Create(controller_epoch.PATH, controller_epoch.encode(ControllerEpoch(0)))]
    states: dict[str, bytes] = {}
    for number in range(-(-partitions // PARTITIONS_PER_TOPIC)):
        topic = f"bench-{number:05d}"
        count = min(PARTITIONS_PER_TOPIC, partitions - number * PARTITIONS_PER_TOPIC)
        assignments = _placed(topic, count, brokers, replication)
        nodes += _topic_nodes(topic, count, brokers, replication)
        nodes.append(Create(partition_state.partitions_path(topic)))
        for index, assignment in assignments.items():
            name = TopicPartition(topic, index)
            state = LeaderAndIsr(assignment.replicas[0], LeaderEpoch(0), assignment.replicas, ControllerEpoch(0))
            nodes.append(Create(partition_state.partition_path(name)))
            states[partition_state.path(name)] = partition_state.encode(state)
    await zk.write_many(nodes)
    await zk.write_many([Create(path, data) for path, data in states.items()])
    return states


def new_topic(brokers: Sequence[int], replication: int) -> list[Create]:
    """The znodes that request the topic of the benchmark."""
    return _topic_nodes(NEW_TOPIC, NEW_PARTITIONS, brokers, replication)


async def reset_cluster(zk: ZooKeeperClient, states: Mapping[str, bytes]) -> None:
    """Restore what `write_cluster` wrote, while there is no controller."""
    await zk.write_many([Set(path, data) for path, data in states.items()])
    names = [TopicPartition(NEW_TOPIC, index) for index in range(NEW_PARTITIONS)]
    below = [partition_state.path(name) for name in names] + [partition_state.partition_path(name) for name in names]
    above = [
        partition_state.partitions_path(NEW_TOPIC),
        topic_znode.path(NEW_TOPIC),
        config_znode.topic_path(NEW_TOPIC),
    ]
    await zk.write_many([Delete(path) for path in below + above])


def _placed(topic: str, count: int, brokers: Sequence[int], replication: int) -> dict[int, Assignment]:
    rng = random.Random(topic)
    start, shift = rng.randrange(len(brokers)), rng.randrange(len(brokers))
    candidates = [PlacementBroker(BrokerId(broker), None) for broker in brokers]
    placement = place(candidates, range(count), replication, start=start, shift=shift)
    return {index: Assignment(replicas) for index, replicas in placement.items()}


def _topic_nodes(topic: str, count: int, brokers: Sequence[int], replication: int) -> list[Create]:
    """The znodes that the creator of a topic writes. The controller writes the rest."""
    return [
        Create(config_znode.topic_path(topic), config_znode.encode({})),
        Create(topic_znode.path(topic), topic_znode.encode(_placed(topic, count, brokers, replication))),
    ]
