"""The load of a live cluster, as the planner takes it: assignments from Metadata, sizes from DescribeLogDirs.

The size of a partition is its leader's. A follower that lags is smaller, and a move copies what the leader has.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from klamm.client.admin import Admin
from klamm.client.errors import ClientError
from klamm.model.ids import TopicPartition

Sizes = dict[TopicPartition, dict[int, int]]
"""Bytes of each replica, by broker."""


class LoadedPartition(NamedTuple):
    name: TopicPartition
    replicas: tuple[int, ...]
    size_bytes: int


async def loaded_partitions(admin: Admin) -> list[LoadedPartition]:
    """Raises ClientError if a partition has no size, because its leader is down or its directory has failed."""
    described = await admin.describe_topics()
    sizes = await replica_sizes(admin)
    return [
        _loaded(TopicPartition(topic.name, entry.partition_index), entry, sizes)
        for topic in sorted(described, key=lambda topic: str(topic.name))
        for entry in sorted(topic.partitions, key=lambda entry: int(entry.partition_index))
    ]


async def replica_sizes(admin: Admin, partitions: Iterable[TopicPartition] | None = None) -> Sizes:
    """The sizes of the replicas of these partitions, or of all."""
    sizes: Sizes = {}
    wanted = None if partitions is None else list(partitions)
    for broker in sorted(await admin.brokers()):
        for directory in await admin.log_dirs(broker, wanted):
            for topic in directory.topics:
                for entry in topic.partitions:
                    if not entry.is_future_key:
                        sizes.setdefault(TopicPartition(topic.name, entry.partition_index), {})[broker] = (
                            entry.partition_size
                        )
    return sizes


def _loaded(name: TopicPartition, entry: Any, sizes: Sizes) -> LoadedPartition:
    size = sizes.get(name, {}).get(entry.leader_id)
    if size is None:
        raise ClientError(
            f"the size of {name} is not known: it has no leader, or its leader's log directory has failed"
        )
    return LoadedPartition(name, tuple(entry.replica_nodes), size)
