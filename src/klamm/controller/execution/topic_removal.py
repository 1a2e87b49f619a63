"""Deletes the znodes of a topic whose replicas are deleted."""

from __future__ import annotations

from collections.abc import Sequence

from klamm.controller.execution.commit import Committer
from klamm.model.ids import TopicPartition
from klamm.zookeeper.znodes import config, delete_topics, partition_state
from klamm.zookeeper.znodes import topic as topic_znode


async def delete_topic_znodes(committer: Committer, topic: str, partitions: Sequence[TopicPartition]) -> list[str]:
    """First delete the known nodes: one transaction for a small topic. Only if others are there too, list them. The
    configuration goes before the topic: if this controller is killed in between, its successor finds a marked topic,
    not an orphaned configuration that the next topic of that name would inherit. Returns the nodes that could not be
    deleted."""
    configuration, marker = config.topic_path(topic), delete_topics.path(topic)
    paths = [
        *(partition_state.path(name) for name in partitions),
        *(partition_state.partition_path(name) for name in partitions),
        partition_state.partitions_path(topic),
        configuration,
        topic_znode.path(topic),
        marker,
    ]
    if not await committer.delete(paths):
        return []
    stuck = await committer.delete_trees([configuration, topic_znode.path(topic)])
    return stuck or await committer.delete([marker])
