"""A snapshot counts what ZooKeeper says, and names what it cannot read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from klamm.dashboard import snapshot as snapshots
from klamm.dashboard.preview import preview_of
from klamm.dashboard.snapshot import PartitionHealth
from klamm.model.ids import TopicPartition
from klamm.model.partition import Assignment

from .clusters import HEALTHY, METADATA, P, snapshot


@pytest.mark.parametrize(
    ("partition", "min_isr", "health"),
    [
        (P([1, 2, 3]), 2, PartitionHealth.IN_SYNC),
        (P([1, 2, 3], isr=[1, 2]), 2, PartitionHealth.UNDER_REPLICATED),
        (P([1, 2, 3], isr=[1]), 2, PartitionHealth.UNDER_MIN_ISR),
        (P([1], isr=[1]), 2, PartitionHealth.IN_SYNC),
        (P([1, 2, 3], leader=-1, isr=[1]), 1, PartitionHealth.OFFLINE),
        (P([1, 2, 3], isr=[1, 2], adding=[3]), 1, PartitionHealth.MOVING),
        (P([1, 2, 3], isr=[1], adding=[3]), 1, PartitionHealth.UNDER_REPLICATED),
    ],
)
def test_the_health_of_a_partition(partition: P, min_isr: int, health: PartitionHealth) -> None:
    found = snapshot({"t": [partition]}, min_isr={"t": min_isr})
    row = found.partition(TopicPartition("t", 0))
    assert row is not None and row.health is health
    assert found.health == {health: 1}


def test_brokers_are_counted_with_those_that_only_assignments_name() -> None:
    found = snapshot({"t": [P([1, 2]), P([1, 2]), P([4, 1], leader=1, isr=[1])]}, brokers=(1, 2, 3))
    rows = {b.id: (b.is_registered, b.leaders, b.replicas, b.lagging) for b in found.brokers.values()}
    assert rows == {1: (True, 3, 3, 0), 2: (True, 0, 2, 0), 3: (True, 0, 0, 0), 4: (False, 0, 1, 1)}
    assert (found.registered, found.down) == ([1, 2, 3], [4])
    assert found.not_preferred == 1
    assert found.brokers[1].endpoints == ("PLAINTEXT://host-1:9092",)


def test_controller_deletions_and_broken_topics() -> None:
    found = snapshot(HEALTHY, deletions=["clicks", "gone", "bad"], raw_topics={"bad": b"junk"}, brokers=(1, 2))
    assert (found.controller, found.controller_epoch, found.controller_since_ms) == (1, 4, 5_000)
    assert list(found.unreadable) == ["bad"]
    waits = {marked.topic: marked.waits_for for marked in found.deletions}
    assert waits["clicks"] == "replicas on brokers [3], which are not registered"
    assert waits["gone"].endswith("the topic is gone")
    assert waits["bad"].startswith("a repair of its znode")
    assert found.topics["clicks"].is_being_deleted and not found.topics["orders"].is_being_deleted
    assert snapshot({}, leading=None).controller is None


def test_partitions_that_look_alike_are_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[Assignment] = []
    judge = snapshots._health

    def counting(assignment: Assignment, *state: Any) -> PartitionHealth:
        judged.append(assignment)
        return judge(assignment, *state)

    monkeypatch.setattr(snapshots, "_health", counting)
    alike = [P([n % 3 + 1, (n + 1) % 3 + 1]) for n in range(30)]
    found = snapshot({f"t{n}": alike for n in range(10)} | {"lagging": [P([1, 2], isr=[1])]})
    assert len(judged) == 4
    assert (found.partitions, found.health[PartitionHealth.UNDER_REPLICATED], found.brokers[2].lagging) == (301, 1, 1)


def test_a_preview_counts_what_a_broker_tells() -> None:
    found = preview_of(METADATA, 1_000)
    assert (found.cluster_id, found.controller, found.registered, found.down) == ("the-cluster", 2, [1, 2], [3])
    assert list(found.topics) == ["clicks", "orders"], "a topic that comes or goes is left out"
    assert [row.number for row in found.topics["orders"].partitions] == [0, 1]
    kinds = (PartitionHealth.IN_SYNC, PartitionHealth.UNDER_REPLICATED, PartitionHealth.OFFLINE)
    assert found.health == dict.fromkeys(kinds, 1)
    assert (found.brokers[1].leaders, found.brokers[1].replicas, found.brokers[1].lagging) == (1, 2, 1)
    assert found.brokers[1].endpoints == ("host-1:9092",)
    leaderless = SimpleNamespace(**{**vars(METADATA), "controller_id": -1})
    assert preview_of(leaderless, 1_000).controller is None
