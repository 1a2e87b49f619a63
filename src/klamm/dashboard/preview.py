"""The cluster as its brokers tell it in one answer to Metadata, to be shown until ZooKeeper has been read. Pure.

A ZooKeeper without multi-read (3.5, with Kafka 2.5) needs a request for each partition, which takes seconds in a large
cluster; a broker answers for all partitions at once. But it does not tell what is being moved or deleted, and a replica
that is being added looks like one that fell behind. So pages that say such things wait for ZooKeeper.
"""

from __future__ import annotations

from typing import Any

from klamm.dashboard.snapshot import DEFAULT_MIN_ISR, BrokerRow, ClusterSnapshot, Tally, Verdict, verdict_of
from klamm.model.ids import ControllerEpoch
from klamm.model.partition import Assignment, LeaderAndIsr

UNKNOWN_EPOCH = ControllerEpoch(-1)


def preview_of(metadata: Any, read_at_ms: int) -> ClusterSnapshot:
    """`metadata` is the answer to Metadata about all topics."""
    tally, known = Tally(), dict[tuple[Any, ...], Verdict]()
    topics = {}
    for entry in sorted(metadata.topics, key=lambda topic: str(topic.name)):
        if entry.error_code:
            continue  # it is being created or deleted
        verdicts = {each.partition_index: _verdict(each, known) for each in entry.partitions}
        topics[entry.name] = tally.topic(entry.name, dict(sorted(verdicts.items())), min_isr=DEFAULT_MIN_ISR)
    registered = {
        broker.node_id: BrokerRow(
            broker.node_id, True, (f"{broker.host}:{broker.port}",), broker.rack, None, False, 0, 0, 0
        )
        for broker in metadata.brokers
    }
    return ClusterSnapshot(
        read_at_ms=read_at_ms,
        cluster_id=metadata.cluster_id or "",
        controller=metadata.controller_id if metadata.controller_id >= 0 else None,
        brokers=tally.brokers(registered),
        topics=topics,
        health=tally.health(),
    )


def _verdict(partition: Any, known: dict[tuple[Any, ...], Verdict]) -> Verdict:
    replicas, isr = tuple(partition.replica_nodes), tuple(partition.isr_nodes)
    key = replicas, isr, partition.leader_id, partition.leader_epoch
    verdict = known.get(key)
    if verdict is None:
        state = LeaderAndIsr(partition.leader_id, partition.leader_epoch, isr, UNKNOWN_EPOCH)
        verdict = known[key] = verdict_of(Assignment(replicas), state, DEFAULT_MIN_ISR)
    return verdict
