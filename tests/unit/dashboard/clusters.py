"""Clusters as ZooKeeper shows them, and a dashboard over one of them, without a network."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from starlette.testclient import TestClient

from klamm.dashboard.app import application
from klamm.dashboard.feed import Feed
from klamm.dashboard.observation import Observation
from klamm.dashboard.settings import DashboardSettings
from klamm.dashboard.snapshot import ClusterSnapshot, snapshot_of
from klamm.model.brokers import Broker, Endpoint
from klamm.model.ids import BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.model.ports import Node, Stat
from klamm.zookeeper.znodes import broker_id, controller, controller_epoch, partition_state, topic
from klamm.zookeeper.znodes.kafka_tree import KafkaTree, RawState

PORT = 8080
HOST = f"127.0.0.1:{PORT}"
URL = f"http://{HOST}"


class P:
    """A partition: replicas, leader, ISR."""

    def __init__(
        self,
        replicas: Sequence[int],
        leader: int | None = None,
        isr: Sequence[int] | None = None,
        *,
        epoch: int = 0,
        adding: Sequence[int] = (),
        removing: Sequence[int] = (),
    ) -> None:
        self.assignment = Assignment(*(tuple(map(BrokerId, ids)) for ids in (replicas, adding, removing)))
        chosen = replicas[0] if leader is None else leader
        in_sync = tuple(map(BrokerId, replicas if isr is None else isr))
        self.state = LeaderAndIsr(BrokerId(chosen), LeaderEpoch(epoch), in_sync, ControllerEpoch(1))


def node(data: bytes | None, ctime_ms: int = 1_000) -> Node:
    return Node(data, Stat(1, 1, ctime_ms, ctime_ms, 0, 0, 0, 7, 0, 0, 1))


def tree(
    topics: Mapping[str, Sequence[P]],
    *,
    brokers: Sequence[int] = (1, 2, 3),
    leading: int | None = 1,
    epoch: int = 4,
    since_ms: int = 5_000,
    deletions: Sequence[str] = (),
    read_at_ms: int = 100_000,
    raw_topics: Mapping[str, bytes] | None = None,
) -> KafkaTree:
    registrations = {
        str(b): node(broker_id.encode(Broker(BrokerId(b), (Endpoint("PLAINTEXT", f"host-{b}", 9092),)), 0), 2_000 + b)
        for b in brokers
    }
    return KafkaTree(
        read_at_ms=read_at_ms,
        root=("admin", "brokers", "controller", "controller_epoch"),
        controller=None if leading is None else node(controller.encode(BrokerId(leading), 5_000), since_ms),
        controller_epoch=node(controller_epoch.encode(ControllerEpoch(epoch))),
        brokers=registrations,
        topics={
            **{name: node(topic.encode({n: p.assignment for n, p in enumerate(ps)})) for name, ps in topics.items()},
            **{name: node(data) for name, data in (raw_topics or {}).items()},
        },
        states={
            TopicPartition(name, n): RawState(partition_state.encode(p.state), True)
            for name, ps in topics.items()
            for n, p in enumerate(ps)
        },
        deletions={name: node(None, 9_000) for name in deletions},
    )


def snapshot(
    topics: Mapping[str, Sequence[P]], *, min_isr: Mapping[str, int] | None = None, **how: Any
) -> ClusterSnapshot:
    return snapshot_of(tree(topics, **how), cluster_id="the-cluster", min_isr=min_isr)


def told(replicas: Sequence[int], leader: int, isr: Sequence[int]) -> SimpleNamespace:
    """A partition as a broker tells it in Metadata."""
    return SimpleNamespace(leader_id=leader, leader_epoch=4, replica_nodes=list(replicas), isr_nodes=list(isr))


def told_topic(name: str, *partitions: SimpleNamespace, error_code: int = 0) -> SimpleNamespace:
    for number, partition in enumerate(partitions):
        partition.partition_index = number
    return SimpleNamespace(name=name, error_code=error_code, partitions=list(partitions)[::-1])


METADATA = SimpleNamespace(
    cluster_id="the-cluster",
    controller_id=2,
    brokers=[SimpleNamespace(node_id=n, host=f"host-{n}", port=9092, rack=None) for n in (2, 1)],
    topics=[
        told_topic("orders", told([1, 2], 1, [1, 2]), told([2, 1], 2, [2])),
        told_topic("clicks", told([3], -1, [3])),
        told_topic("going", error_code=3),
    ],
)
HEALTHY = {"orders": [P([1, 2, 3]), P([2, 3, 1])], "clicks": [P([3, 1, 2])]}


def observed(found: ClusterSnapshot | None, **parts: Any) -> Observation:
    """Just now, unless `checked_at` says otherwise."""
    return Observation(**{"version": 1, "snapshot": found, "checked_at": time.monotonic(), "findings": (), **parts})


def dashboard(observation: Observation, **options: Any) -> TestClient:
    settings = DashboardSettings(**{"bootstrap": "127.0.0.1:1", "zookeeper": "127.0.0.1:2", **options})
    feed = Feed()
    feed.put(observation)
    scheme = "https" if settings.speaks_tls else "http"
    return TestClient(application(settings, feed, PORT), base_url=f"{scheme}://{HOST}", follow_redirects=False)
