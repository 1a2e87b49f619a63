"""The partitions of a cluster, from Metadata, the reassignments under way and min.insync.replicas."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from klamm.client.admin import Admin
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.wire.errors import error_of


class SeenPartition(NamedTuple):
    name: TopicPartition
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    offline: list[int]
    """Replicas whose broker or directory is down."""
    adding: list[int]
    removing: list[int]
    min_isr: int


async def seen_partitions(
    admin: Admin, topics: Collection[str] | None = None, *, with_min_isr: bool = False
) -> list[SeenPartition]:
    """In order. Raises KafkaError if one of the named topics does not exist. Without `with_min_isr`, that is 1."""
    described = await admin.describe_topics(topics)
    for topic in described if topics is not None else ():
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise KafkaError(error_of(topic.error_code), f"topic {topic.name} does not exist")
    moving = await admin.reassignments()
    settings = {}
    if with_min_isr:
        settings = await admin.setting_of_topics([t.name for t in described], "min.insync.replicas")
    found = []
    for topic in described:
        min_isr = int(settings.get(topic.name) or 1)
        for entry in topic.partitions:
            name = TopicPartition(topic.name, entry.partition_index)
            move = moving.get(name)
            lists = ([], []) if move is None else (list(move.adding_replicas), list(move.removing_replicas))
            replicas, isr = list(entry.replica_nodes), list(entry.isr_nodes)
            offline = list(entry.offline_replicas or ())
            found.append(
                SeenPartition(name, entry.leader_id, entry.leader_epoch, replicas, isr, offline, *lists, min_isr)
            )
    return sorted(found)
