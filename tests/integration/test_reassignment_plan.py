"""klamm reassign plan on a skewed cluster: the load becomes what the plan predicted, and a second plan is empty."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.client.admin import NewTopic
from klamm.client.blocking import blocking_client
from klamm.client.producer import Producer
from klamm.testing.cluster import KlammCluster
from klamm.testing.waiting import wait_until
from klamm.wire.records import Record

SIZES = {"large": 300, "middle": 100, "small": 20}
"""Records of 1,000 bytes in each partition of a topic."""


class Operator:
    def __init__(self, cluster: KlammCluster) -> None:
        self._at = ("--bootstrap-server", cluster.bootstrap)

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(app, ["reassign", *arguments, *self._at])

    def json(self, *arguments: str) -> Any:
        result = self.run(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)


def fill_two_of_three_brokers(bootstrap: str) -> None:
    with blocking_client(bootstrap) as client:
        placed = dict.fromkeys(range(6), (1, 2))
        client.run(client.admin.create_topics({name: NewTopic(assignments=placed) for name in SIZES}))
        producer = Producer(client.cluster)
        for name, count in SIZES.items():
            records = [Record(None, bytes(1000), 1_700_000_000_000) for _ in range(count)]
            client.run(producer.send(name, dict.fromkeys(placed, records)))


def test_a_plan_is_executed_as_shown(klamm_cluster: KlammCluster, tmp_path: Path) -> None:
    operator, file = Operator(klamm_cluster), tmp_path / "plan.json"
    fill_two_of_three_brokers(klamm_cluster.bootstrap)
    shown = operator.run("plan", str(tmp_path / "shown.json")).stdout
    assert "BROKER" in shown and "klamm reassign execute" in shown
    made = operator.json("plan", str(file))
    predicted = {load["broker"]: load for load in made["after"]}
    assert made["before"][2]["size_bytes"] == 0
    even = sum(load["size_bytes"] for load in predicted.values()) / 3
    assert all(abs(load["size_bytes"] - even) <= 0.05 * even for load in predicted.values())

    edited = tmp_path / "edited.json"
    edited.write_text(file.read_text().replace('"middle"', '"small"', 1))
    refused = operator.run("execute", str(edited))
    assert refused.exit_code == 1 and "edited after it was made" in refused.stderr

    assert operator.json("execute", str(file))["refused"] == {}
    wait_until("the moves", lambda: operator.json("status")["reassignments"] == [])
    again = operator.run("execute", str(file))
    assert again.exit_code == 1 and "the cluster has changed since the plan was made" in again.stderr

    def is_as_predicted(load: dict[str, Any]) -> bool:
        promised = predicted[load["broker"]]
        same = (load["replicas"], load["leaders"]) == (promised["replicas"], promised["leaders"])
        return same and abs(load["size_bytes"] - promised["size_bytes"]) <= 0.05 * promised["size_bytes"]

    second: dict[str, Any] = {}

    def nothing_to_do() -> bool:
        """A broker deletes what it gave away a moment later; until then it counts as its load."""
        (tmp_path / "second.json").unlink(missing_ok=True)
        second.update(operator.json("plan", str(tmp_path / "second.json")))
        return second["partitions"] == 0 and all(map(is_as_predicted, second["before"]))

    wait_until(lambda: f"the load as predicted: {second['before']} instead of {predicted}", nothing_to_do)
    assert second["file"] is None and not (tmp_path / "second.json").exists()
    assert "nothing to do" in operator.run("plan", str(file)).stdout
    assert "cannot drain brokers [9]" in operator.run("plan", str(file), "--drain", "9").stderr
