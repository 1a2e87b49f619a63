"""Rewrites topic znodes: some partitions get another replica list, everything else in the document stays as found.

The document holds all partitions of a topic, and others write it too: the broker that handles CreatePartitions grows
it. Kafka writes it unconditionally, so a reassignment and a growth can overwrite each other. Here it is read, merged,
and written with the version that was read. A conflict or a lost answer starts again with the read; if the document
already says what is wanted, there is nothing to write. A document that ZooKeeper refuses (it is too large, or an ACL
protects it) fails its own topic, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from klamm.controller.decisions.faults import concerning_topic
from klamm.controller.decisions.steps import chunked
from klamm.controller.execution.fenced_writes import ROUNDS_MAX, FencedWrites, at_once, resists
from klamm.model.errors import ZNodeError, ZooKeeperError
from klamm.model.partition import Assignment
from klamm.model.ports import Node, Op, Set
from klamm.zookeeper.znodes import topic as topic_znode

TOPICS_PER_WRITE: Final = 10
"""In one transaction: a topic of 2,000 partitions takes 40 kB, and ZooKeeper refuses a transaction above 1 MB."""


async def write_assignments(
    committer: FencedWrites, wanted: Mapping[str, Mapping[int, Assignment]]
) -> Mapping[str, str]:
    """Returns the topics that could not be written, and why. Raises ControllerMoved."""
    failed: dict[str, str] = {}
    topics = sorted(wanted)
    for start in range(0, len(topics), TOPICS_PER_WRITE):
        pending = topics[start : start + TOPICS_PER_WRITE]
        for attempt in range(ROUNDS_MAX):
            again: list[str] = []
            for some in chunked(pending, at_once(attempt, len(pending))):
                again += await _write_once(committer, {topic: wanted[topic] for topic in some}, failed)
            pending = again
            if not pending:
                break
        failed.update(dict.fromkeys(pending, f"it changed during each of {ROUNDS_MAX} attempts to write it"))
    return failed


async def _write_once(
    committer: FencedWrites, wanted: Mapping[str, Mapping[int, Assignment]], failed: dict[str, str]
) -> list[str]:
    """Returns the topics that must be read again."""
    paths = [topic_znode.path(topic) for topic in wanted]
    nodes = dict(zip(wanted, await committer.read(paths), strict=True))
    ops: dict[str, Op] = {}
    for topic, node in nodes.items():
        with concerning_topic(topic):
            try:
                op = _merged(topic, node, wanted[topic])
            except ZNodeError as error:
                failed[topic] = error.reason
            else:
                if op is not None:
                    ops[topic] = op
    results = await committer.write(list(ops.values())) if ops else []
    failed.update((topic, str(result)) for topic, result in zip(ops, results, strict=True) if resists(result))
    errors = (topic for topic, result in zip(ops, results, strict=True) if isinstance(result, ZooKeeperError))
    return [topic for topic in errors if topic not in failed]


def _merged(topic: str, node: Node | None, wanted: Mapping[int, Assignment]) -> Op | None:
    """None if the document already says what is wanted."""
    path = topic_znode.path(topic)
    if node is None:
        raise ZNodeError(path, "the topic is gone")
    found = topic_znode.decode(path, node.data)
    if not wanted.keys() <= found.partitions.keys():
        raise ZNodeError(path, f"partitions {sorted(wanted.keys() - found.partitions.keys())} are gone")
    partitions = {**found.partitions, **wanted}
    if partitions == found.partitions:
        return None
    return Set(path, topic_znode.encode(partitions, found.topic_id), node.stat.version)
