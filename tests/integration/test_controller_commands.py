"""klamm controller and klamm deletions against a real cluster: what they do, print and refuse."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.model.ids import BrokerId
from klamm.model.partition import Assignment
from klamm.model.ports import Acl
from klamm.server.inspection import zookeeper
from klamm.testing.cluster import KlammCluster
from klamm.testing.waiting import wait_until
from klamm.zookeeper.znodes import delete_topics
from klamm.zookeeper.znodes import topic as topic_znode

READ = 1


class Operator:
    def __init__(self, cluster: KlammCluster) -> None:
        self._at = ("--zookeeper", cluster.zookeeper)

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, *self._at])

    def json(self, *arguments: str) -> Any:
        result = self.run(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def refusal(self, *arguments: str) -> str:
        result = self.run(*arguments)
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1), result.output
        return result.stderr.removeprefix("klamm: ").rstrip()


async def delete_what_is_partly_elsewhere(connect: str, topic: str, replicas: list[int]) -> None:
    """Mark a topic for deletion that has a replica on an unknown broker."""
    async with zookeeper(connect) as zk:
        await zk.create(topic_znode.path(topic), topic_znode.encode({0: Assignment(tuple(map(BrokerId, replicas)))}))
        await zk.create(delete_topics.path(topic))


@pytest.mark.case("DEL-14")
@pytest.mark.klamm(properties={"klamm.controller.settle.ms": "500"})
def test_the_office_is_moved_preferred_and_remembered(klamm_cluster: KlammCluster) -> None:
    operator = Operator(klamm_cluster)
    at = ("--bootstrap-server", klamm_cluster.bootstrap)
    first = klamm_cluster.controller
    second, third = (broker for broker in klamm_cluster.broker_ids if broker != first)
    assert operator.json("controller", "candidates", "list") == {"candidates": []}
    assert operator.refusal("controller", "move") == "no candidate is alive: name a broker"
    assert operator.refusal("controller", "move", "70").startswith("broker 70 is not registered")

    # By name.
    assert operator.json("controller", "move", str(second)) == {"from": first, "to": second, "moved": True}
    wait_until("the news", lambda: klamm_cluster.controller == second)
    again = operator.run("controller", "move", str(second))
    assert again.stdout == f"broker {second} is already the controller\n"

    # By preference.
    assert operator.json("controller", "candidates", "add", str(third))["added"] is True
    assert operator.json("controller", "candidates", "add", str(third))["added"] is False
    wait_until("the candidate's take-over", lambda: klamm_cluster.controller == third)
    assert "would take over again" in operator.refusal("controller", "move", str(second))
    (candidate,) = operator.json("controller", "candidates", "list")["candidates"]
    assert candidate == {"broker": third, "alive": True, "controller": True}
    shown = operator.json("controller", "show", *at)
    assert (shown["controller"], shown["epoch"], shown["candidates"]) == (third, 3, [third])
    assert shown["quarantined"] == []
    assert operator.json("controller", "candidates", "remove", str(third))["removed"] is True
    assert operator.refusal("controller", "candidates", "remove", str(third)) == f"broker {third} is not a candidate"

    # From the events of the three brokers.
    def history() -> list[dict[str, Any]] | None:
        """None until the brokers have written down how each term began and ended: they do it when they have time."""
        told = CliRunner().invoke(app, ["controller", "history", str(klamm_cluster.directory(1).parents[1]), "--json"])
        terms: list[dict[str, Any]] = json.loads(told.stdout)["terms"]
        is_whole = len(terms) == 3 and all(term["ended_by"] for term in terms[:2]) and terms[2]["why"]
        return terms if is_whole else None

    terms = wait_until("three terms", history)
    assert [(term["epoch"], term["broker"]) for term in terms] == [(1, first), (2, second), (3, third)]
    assert [term["why"] for term in terms[1:]] == [
        "asked for by an operator",
        f"a candidate replaces broker {second}, which is not one",
    ]
    assert [term["ended_by"] for term in terms] == [f"/controller names {second}", f"/controller names {third}", ""]

    # The report names the broker that a deletion waits for.
    assert operator.json("deletions") == {"deletions": []}
    asyncio.run(delete_what_is_partly_elsewhere(klamm_cluster.zookeeper, "going", [first, 70]))
    expected = "replicas on brokers [70], which are not registered"
    assert [entry["waits_for"] for entry in operator.json("deletions")["deletions"]] == [expected]
    assert "going" in operator.run("deletions").stdout


async def break_a_state(connect: str, path: str) -> None:
    async with zookeeper(connect) as zk:
        await zk.set(path, b"?")
        await zk.set_acl(path, [Acl(READ, "world", "anyone")])


def test_the_doctor_finds_what_was_broken_and_nothing_else(klamm_cluster: KlammCluster) -> None:
    operator = Operator(klamm_cluster)
    klamm_cluster.create_topic("healthy", partitions=3, replication_factor=3)
    assert operator.json("zk", "doctor") == {"findings": []}
    assert operator.run("zk", "doctor").stdout == "healthy: nothing found\n"
    path = "/brokers/topics/healthy/partitions/1/state"
    assert json.loads(operator.json("zk", "get", path)["data"])["version"] == 1
    assert path in operator.json("zk", "tree", "/brokers/topics")["paths"]

    asyncio.run(break_a_state(klamm_cluster.zookeeper, path))
    told = operator.run("zk", "doctor", "--json")
    assert told.exit_code == 1
    found = json.loads(told.stdout)["findings"]
    assert [(each["code"], each["path"]) for each in found] == [("state-broken", path), ("acl-read-only", path)]


def test_usage() -> None:
    runner = CliRunner()
    for arguments in (["deletions", "now"], ["controller", "move", "one"], ["controller", "history", "/no/such/file"]):
        assert runner.invoke(app, arguments).exit_code == 2
    alone = runner.invoke(app, ["deletions", "--bootstrap-server", "127.0.0.1:1"])
    assert alone.exit_code == 1 and "127.0.0.1:1" in alone.stderr, "ZooKeeper is found through the brokers"
    nobody = runner.invoke(app, ["deletions", "--zookeeper", "no port"])
    assert nobody.exit_code == 1, nobody.output
