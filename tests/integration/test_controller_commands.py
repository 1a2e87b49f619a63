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
from klamm.server.inspection import zookeeper
from klamm.testing.cluster import KlammCluster
from klamm.testing.waiting import wait_until
from klamm.zookeeper.znodes import delete_topics
from klamm.zookeeper.znodes import topic as topic_znode


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
    told = CliRunner().invoke(app, ["controller", "history", str(klamm_cluster.directory(1).parents[1]), "--json"])
    terms = json.loads(told.stdout)["terms"]
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


def test_usage() -> None:
    runner = CliRunner()
    for arguments in (["deletions"], ["controller", "move", "1"], ["controller", "history", "/no/such/file"]):
        assert runner.invoke(app, arguments).exit_code == 2
    nobody = runner.invoke(app, ["deletions", "--zookeeper", "no port"])
    assert nobody.exit_code == 1, nobody.output
