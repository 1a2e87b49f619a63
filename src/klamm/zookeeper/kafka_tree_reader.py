"""Reads the whole tree of a Kafka cluster in bulk, for the doctor and the dashboard. Nothing here writes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from klamm.model.errors import NoNode, ZNodeError, ZooKeeperError
from klamm.model.ids import TopicPartition
from klamm.model.ports import NO_NODE_VERSION, Node
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.retries import children_or_none
from klamm.zookeeper.znodes import (
    broker_id,
    config,
    controller,
    controller_epoch,
    delete_topics,
    isr_change,
    log_dir_event,
    partition_state,
    quarantine,
    reassign_partitions,
    topic,
)
from klamm.zookeeper.znodes.kafka_tree import KafkaTree, RawState

MIGRATION_PATH: Final = "/migration"
WRITE: Final = 2
"""The bit of an ACL that allows setting data."""
ACLS_IN_FLIGHT: Final = 1000


async def read_kafka_tree(zk: ZooKeeperClient, read_at_ms: int, *, with_acls: bool = True) -> KafkaTree:
    """ACLs cost as much as all the rest; without them, `writers` is empty."""
    root = sorted(await children_or_none(zk, "/") or [])
    singles = [controller.PATH, controller_epoch.PATH, MIGRATION_PATH, reassign_partitions.PATH]
    holder, epoch, migration, reassignment = await zk.get_many(singles)
    topics = await _nodes_below(zk, topic.PARENT)
    names = sorted(topics)
    listings = await zk.children_many([partition_state.partitions_path(name) for name in names])
    states = await _states(zk, topics)
    notifications = [await _nodes_below(zk, parent) for parent in (isr_change.PARENT, log_dir_event.PARENT)]
    return KafkaTree(
        read_at_ms=read_at_ms,
        root=root,
        below_root={} if "brokers" in root else await _listings(zk, root),
        controller=holder,
        controller_epoch=epoch,
        migration=migration,
        brokers=await _nodes_below(zk, broker_id.PARENT),
        topics=topics,
        partitions={name: listed for name, listed in zip(names, listings, strict=True) if listed is not None},
        states=states,
        configured_topics=sorted(await children_or_none(zk, config.type_path(config.TOPICS)) or []),
        deletions=await _nodes_below(zk, delete_topics.PARENT),
        reassignment=reassignment,
        notifications={
            f"{parent}/{name}": node
            for parent, found in zip((isr_change.PARENT, log_dir_event.PARENT), notifications, strict=True)
            for name, node in found.items()
        },
        quarantined={
            f"{quarantine.PARENT}/{n}": node for n, node in (await _nodes_below(zk, quarantine.PARENT)).items()
        },
        writers=await _writers(zk, _writable(names, states)) if with_acls else {},
    )


def _writable(topics: Sequence[str], states: Mapping[TopicPartition, RawState]) -> list[str]:
    existing = (partition_state.path(partition) for partition, raw in states.items() if raw.exists)
    return [*map(topic.path, topics), *existing]


async def _nodes_below(zk: ZooKeeperClient, parent: str) -> dict[str, Node]:
    names = sorted(await children_or_none(zk, parent) or [])
    nodes = await zk.get_many([f"{parent}/{name}" for name in names])
    return {name: node for name, node in zip(names, nodes, strict=True) if node is not None}


async def _listings(zk: ZooKeeperClient, root: Sequence[str]) -> dict[str, Sequence[str]]:
    below = await zk.children_many([f"/{name}" for name in root])
    return {name: found for name, found in zip(root, below, strict=True) if found is not None}


async def _states(zk: ZooKeeperClient, topics: Mapping[str, Node]) -> dict[TopicPartition, RawState]:
    partitions: list[TopicPartition] = []
    for name, node in topics.items():
        try:
            assigned = topic.decode(topic.path(name), node.data)
        except ZNodeError:
            continue  # the doctor reports the topic
        partitions += (TopicPartition(name, number) for number in sorted(assigned.partitions))
    contents = await zk.read_many([partition_state.path(partition) for partition in partitions])
    return {
        partition: RawState(data, version != NO_NODE_VERSION)
        for partition, data, version in zip(partitions, contents.data, contents.versions, strict=True)
    }


async def _writers(zk: ZooKeeperClient, paths: Sequence[str]) -> dict[str, frozenset[str]]:
    """Needs a request per znode, so many are in flight."""
    found: dict[str, frozenset[str]] = {}
    for start in range(0, len(paths), ACLS_IN_FLIGHT):
        some = paths[start : start + ACLS_IN_FLIGHT]
        answers = await asyncio.gather(*(zk.get_acl(path) for path in some), return_exceptions=True)
        for path, answer in zip(some, answers, strict=True):
            if isinstance(answer, NoNode):
                continue  # deleted meanwhile
            if isinstance(answer, ZooKeeperError):
                found[path] = frozenset()  # not even its ACL may be read
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found[path] = frozenset(f"{acl.scheme}:{acl.id}" for acl in answer[0] if acl.perms & WRITE)
    return found
