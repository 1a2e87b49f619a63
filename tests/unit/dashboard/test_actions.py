"""Nothing is written to another cluster than the one that the page showed, and a plan is executed as it was shown."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from klamm.admin.balancing import plan_file
from klamm.admin.balancing.load import PartitionLoad, PlannedBroker
from klamm.admin.balancing.planner import PlanRefused, plan
from klamm.cli.app import app
from klamm.dashboard import reassigning
from klamm.dashboard.actions import ActionRefused
from klamm.dashboard.plans import Plans
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.testing.zookeeper import InMemoryTree, InMemoryZooKeeper
from klamm.zookeeper.znodes import candidates, cluster_id

from .clusters import HEALTHY, URL, dashboard, observed, snapshot
from .test_security import token_in


class OtherCluster:
    """What now answers at the addresses: the brokers of another cluster."""

    cluster_id = "other"

    def __init__(self, *_: object, **__: object) -> None:
        self.asked: list[str] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[OtherCluster]:
        yield self


def test_a_form_for_another_cluster_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would fail with an AttributeError if it asked the other cluster for anything."""
    monkeypatch.setattr("klamm.dashboard.actions.ClusterClient", OtherCluster)
    visitor = dashboard(observed(snapshot(HEALTHY)))
    form = {"form_token": token_in(visitor.get("/topics").text), "cluster_id": "the-cluster"}
    topic = {"name": "t", "partitions": "1", "replication_factor": "1", "plan": "p", "to": "latest"}
    for path in ("/topics", "/topics/orders/grow", "/leaders/elect", "/reassignments/cancel", "/groups/g/plan"):
        visitor.post(path, data={**form, **topic}, headers={"origin": URL})
        page = visitor.get("/topics").text
        assert "nothing was done: the page showed cluster the-cluster, the brokers belong to cluster other" in page


def test_nor_does_a_form_for_another_zookeeper(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = InMemoryTree()

    class OtherZooKeeper(InMemoryZooKeeper):
        def __init__(self, *_: object) -> None:
            super().__init__(tree, 1)

        @asynccontextmanager
        async def running(self) -> AsyncIterator[OtherZooKeeper]:
            await self.ensure_path("/cluster")
            await self.create(cluster_id.PATH, cluster_id.encode("other"))
            yield self

    monkeypatch.setattr("klamm.dashboard.actions.ZooKeeperClient", OtherZooKeeper)
    visitor = dashboard(observed(snapshot(HEALTHY)))
    form = {"form_token": token_in(visitor.get("/topics").text), "cluster_id": "the-cluster", "broker": "2"}
    visitor.post("/controller/candidates/add", data=form, headers={"origin": URL})
    assert "ZooKeeper belong to cluster other" in visitor.get("/").text
    assert candidates.PARENT not in tree.nodes


def test_a_page_that_refreshes_itself_does_not_take_the_notice() -> None:
    """The page with the form still lives while the form is being sent."""
    visitor = dashboard(observed(snapshot(HEALTHY)))
    form = {"form_token": token_in(visitor.get("/topics").text), "cluster_id": "the-cluster", "name": ""}
    visitor.post("/topics", data=form, headers={"origin": URL}, follow_redirects=False)
    assert "name is missing" not in visitor.get("/topics", headers={"X-Klamm-Live": "1"}).text
    assert "name is missing" in visitor.get("/topics").text
    assert "name is missing" not in visitor.get("/topics").text, "it is said once"


@pytest.mark.parametrize(
    ("field", "value"), [("name", ""), ("partitions", "0"), ("partitions", "x"), ("partitions", "9" * 30)]
)
def test_a_wrong_form_does_nothing(field: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.dashboard.actions.ClusterClient", None)  # it must not come so far
    visitor = dashboard(observed(snapshot(HEALTHY)))
    form = {"form_token": token_in(visitor.get("/topics").text), "cluster_id": "the-cluster"}
    topic = {"name": "t", "partitions": "1", "replication_factor": "1", field: value}
    visitor.post("/topics", data={**form, **topic}, headers={"origin": URL})
    assert f"nothing was done: {field}" in visitor.get("/topics").text


class Admin:
    """The part of the cluster that moves use."""

    def __init__(self, replicas: list[int], moving: tuple[TopicPartition, ...] = ()) -> None:
        self.replicas = replicas
        self.moving = moving
        self.altered: dict[TopicPartition, Any] = {}
        self.settings: list[tuple[int, str, dict[str, Any]]] = []
        self.error: KafkaError | None = None

    def __call__(self, _cluster: object) -> Admin:
        return self

    async def reassignments(self) -> dict[TopicPartition, Any]:
        return dict.fromkeys(self.moving)

    async def describe_topics(self) -> list[Any]:
        entries = [SimpleNamespace(partition_index=n, replica_nodes=self.replicas) for n in range(4)]
        return [SimpleNamespace(name="t", partitions=entries)]

    async def alter_configs(self, kind: int, name: str, changes: dict[str, Any]) -> None:
        assert not self.altered, "throttles come first"
        self.settings.append((kind, name, changes))

    async def alter_reassignments(self, targets: dict[TopicPartition, Any]) -> dict[TopicPartition, Any]:
        self.altered = dict(targets)
        return dict.fromkeys(targets, self.error)


CLUSTER: Any = SimpleNamespace(cluster_id="abc")


def kept(cluster: str = "abc") -> Any:
    made = plan([PartitionLoad("t", n, (1,), 100) for n in range(4)], [PlannedBroker(1), PlannedBroker(2)])
    return Plans().keep(made, plan_file.encode(made, cluster_id=cluster, made_at_ms=1), 1)


async def test_a_plan_is_started_throttled(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Admin([1])
    monkeypatch.setattr(reassigning, "Admin", admin)
    assert await reassigning.start(CLUSTER, kept(), 5_000) == 2
    assert admin.altered == {TopicPartition("t", 0): (2,), TopicPartition("t", 1): (2,)}
    names = [name for _, name, _ in admin.settings]
    assert names == ["1", "2", "t"], "rates of both brokers, then the replicas"
    assert admin.settings[2][2]["follower.replication.throttled.replicas"][1] == "0:2,1:2"
    unthrottled = Admin([1])
    monkeypatch.setattr(reassigning, "Admin", unthrottled)
    await reassigning.start(CLUSTER, kept(), None)
    assert unthrottled.settings == []


@pytest.mark.parametrize(
    ("admin", "cluster", "refusal"),
    [
        (Admin([1], (TopicPartition("x", 0),)), "abc", "x-0 is being moved already"),
        (Admin([3]), "abc", "the cluster has changed since the plan was made: t-0 is on"),
        (Admin([1]), "other", "made for cluster other, this is cluster abc"),
    ],
)
async def test_a_plan_that_no_longer_fits_is_refused(
    admin: Admin, cluster: str, refusal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reassigning, "Admin", admin)
    with pytest.raises(PlanRefused, match=refusal):
        await reassigning.start(CLUSTER, kept(cluster), 5_000)
    assert admin.altered == {} and admin.settings == []


async def test_all_moves_are_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Admin([1], (TopicPartition("t", 0), TopicPartition("t", 3)))
    monkeypatch.setattr(reassigning, "Admin", admin)
    assert await reassigning.cancel(CLUSTER) == 2
    assert admin.altered == {TopicPartition("t", 0): None, TopicPartition("t", 3): None}
    admin.error = KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    with pytest.raises(ActionRefused, match="2 of 2 were not cancelled: t-0 NO_REASSIGNMENT_IN_PROGRESS"):
        await reassigning.cancel(CLUSTER)
    admin.moving = ()
    with pytest.raises(ActionRefused, match="no partition is being moved"):
        await reassigning.cancel(CLUSTER)


def test_the_command_refuses_to_serve_strangers() -> None:
    refused = CliRunner().invoke(app, ["dashboard", "--host", "0.0.0.0", "--zookeeper", "127.0.0.1:2"])
    assert (refused.exit_code, refused.stderr.count("\n")) == (1, 1)
    assert "on 0.0.0.0 the dashboard needs --password-file or --token-file" in refused.stderr
    nothing = CliRunner().invoke(
        app, ["dashboard", "--bootstrap-server", "127.0.0.1:1", "--zookeeper", "127.0.0.1:2", "--port", "0"]
    )
    assert nothing.exit_code == 1
    assert nothing.stderr.startswith("klamm: no broker answers at 127.0.0.1:1")
