"""Deletes the znodes of a topic whose replicas are deleted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from klamm.controller.execution.fenced_writes import FencedWrites
from klamm.model.errors import NoAuth, ZooKeeperError
from klamm.model.ids import TopicPartition
from klamm.model.ports import Delete
from klamm.zookeeper.znodes import config, delete_topics, partition_state
from klamm.zookeeper.znodes import topic as topic_znode

ONE_TRANSACTION: Final = 1_000


async def delete_topic_znodes(
    committer: FencedWrites, topic: str, partitions: Sequence[TopicPartition]
) -> dict[str, ZooKeeperError]:
    """First delete the known nodes: a small topic in one transaction. Only if others are there too, list them. The
    configuration goes before the topic: if this controller is killed in between, its successor finds a marked topic,
    not an orphaned configuration that the next topic of that name would inherit. The marker goes last, and only if
    nothing is left: without it, what is left would be a topic again. Returns the nodes that could not be deleted, and
    why."""
    configuration, marker = config.topic_path(topic), delete_topics.path(topic)
    paths = [
        *(partition_state.path(name) for name in partitions),
        *(partition_state.partition_path(name) for name in partitions),
        partition_state.partitions_path(topic),
        configuration,
        topic_znode.path(topic),
    ]
    if len(paths) < ONE_TRANSACTION:
        results = await committer.write([Delete(path) for path in (*paths, marker)])
        if not any(isinstance(result, ZooKeeperError) for result in results):
            return {}
        denied: dict[str, ZooKeeperError] = {r.path: r for r in results if isinstance(r, NoAuth)}
        if denied:
            return denied  # what is left of a topic would be worse than all of it
    stuck = await committer.delete(paths) and await committer.delete_trees([configuration, topic_znode.path(topic)])
    return stuck or await committer.delete([marker])
