"""The klamm command against a real cluster: what it prints, what it refuses, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result
from kazoo.client import KazooClient
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.testing.cluster import KlammCluster


def klamm(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "klamm", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def here(*arguments: str) -> Result:
    """Run the command in this process, which saves half a second."""
    return CliRunner().invoke(app, list(arguments))


def test_topics_records_and_the_controller(klamm_cluster: KlammCluster, tmp_path: Path) -> None:
    at = ("--bootstrap-server", klamm_cluster.bootstrap)

    created = klamm("topics", "create", "orders", "--partitions", "2", "--replication-factor", "3", *at)
    assert created.returncode == 0, created.stderr
    assert created.stdout == "created topic orders with 2 partitions, 3 replicas each\n"
    again = klamm("topics", "create", "orders", *at)
    assert (again.returncode, again.stderr.count("\n")) == (1, 1)
    assert "orders" in again.stderr and "exists" in again.stderr.lower()

    assert klamm("topics", "list", *at).stdout == "orders\n"
    described = json.loads(klamm("topics", "describe", "orders", "--json", *at).stdout)
    assert [partition["partition"] for partition in described["partitions"]] == [0, 1]
    assert all(sorted(partition["isr"]) == [1, 2, 3] for partition in described["partitions"])
    assert "PARTITION" in klamm("topics", "describe", "orders", *at).stdout

    sent = klamm("produce", "orders", "--partition", "0", "--json", *at, stdin="one\ntwo\n")
    assert [record["offset"] for record in json.loads(sent.stdout)["records"]] == [0, 1], sent.stderr
    read = klamm("consume", "orders", "--partition", "0", "--from-beginning", "--max-messages", "2", *at)
    assert read.stdout == "one\ntwo\n", read.stderr

    shown = json.loads(klamm("controller", "show", "--json", "--zookeeper", klamm_cluster.zookeeper, *at).stdout)
    assert shown["controller"] == klamm_cluster.controller
    assert shown["epoch"] == 1 and shown["since"]

    unknown = klamm("topics", "describe", "nothing", *at)
    assert (unknown.returncode, unknown.stderr.count("\n")) == (1, 1)
    refused = klamm("consume", "nothing", *at)
    assert (refused.returncode, refused.stderr) == (1, "klamm: topic nothing does not exist\n")

    plan = tmp_path / "plan.json"
    first = described["partitions"][0]
    target = [*first["replicas"][1:], first["replicas"][0]]
    plan.write_text(json.dumps({"partitions": [{"topic": "orders", "partition": 0, "replicas": target}]}))
    started = klamm("reassign", "execute", str(plan), *at)
    assert started.stdout == "started: 1 of 1 partitions\n", started.stderr
    assert json.loads(klamm("reassign", "status", "--json", *at).stdout) == {"reassignments": []}, "same brokers: done"
    elected = klamm("leaders", "elect", "--type", "preferred", "--all", "--json", *at)
    assert json.loads(elected.stdout)["elected"] == ["orders-0"]
    assert klamm_cluster.leader_of("orders", 0) == target[0]
    nothing = klamm("reassign", "cancel", str(plan), *at)
    assert (nothing.returncode, nothing.stderr) == (1, "klamm: refused: orders-0 NoReassignmentInProgress\n")
    plan.write_text("{}")
    assert klamm("reassign", "execute", str(plan), *at).stderr.startswith(f"klamm: {plan} is not a plan")

    grown = klamm("topics", "grow", "orders", "--partitions", "3", *at)
    assert grown.stdout == "topic orders has 3 partitions\n", grown.stderr
    assert klamm("topics", "grow", "orders", "--partitions", "2", *at).returncode == 1

    deleted = klamm("topics", "delete", "orders", *at)
    assert deleted.stdout == "deleted topic orders\n", deleted.stderr
    assert klamm("topics", "list", *at).stdout == ""


@pytest.mark.case("TOP-19")
@pytest.mark.klamm(properties={"log.dirs": "{directory}/one,{directory}/two"})
def test_plans_with_directories_and_growth_that_keeps_the_configuration(
    klamm_cluster: KlammCluster, tmp_path: Path
) -> None:
    at = ("--bootstrap-server", klamm_cluster.bootstrap)
    first, second, _ = klamm_cluster.broker_ids
    klamm_cluster.create_topic("moving", partitions=1, replication_factor=1, retention_ms=86_400_000)
    plan = tmp_path / "plan.json"
    wanted = klamm_cluster.directory(second).parent / "two"

    def execute(path: str) -> Result:
        entry = {"topic": "moving", "partition": 0, "replicas": [first, second], "log_dirs": ["any", path]}
        plan.write_text(json.dumps({"partitions": [entry]}))
        return here("reassign", "execute", str(plan), *at)

    refused = execute("/nowhere")
    why = f"moving-0 names /nowhere, which is not a log directory of broker {second}"
    assert (refused.exit_code, refused.stderr) == (1, f"klamm: nothing was started: {why}\n")
    started = execute(str(wanted))
    assert started.stdout == "started: 1 of 1 partitions\n", started.output
    klamm_cluster.wait_until_healthy()
    assert (wanted / "moving-0").is_dir()

    assert here("topics", "grow", "moving", "--partitions", "2", *at).exit_code == 0
    zookeeper = KazooClient(klamm_cluster.zookeeper)
    zookeeper.start()
    try:
        overrides = json.loads(zookeeper.get("/config/topics/moving")[0])["config"]
    finally:
        zookeeper.stop()
        zookeeper.close()
    assert overrides == {"retention.ms": "86400000"}
    refused = here("topics", "grow", "__consumer_offsets", "--partitions", "60", *at)
    assert (refused.exit_code, "is internal" in refused.stderr) == (1, True)


@pytest.mark.case("DEL-13")
def test_internal_topics_are_not_deleted() -> None:
    refused = klamm("topics", "delete", "__consumer_offsets", "--bootstrap-server", "127.0.0.1:1")
    assert (refused.returncode, "is internal" in refused.stderr) == (1, True)


@pytest.mark.case("PRE-08")
def test_an_election_without_a_broker() -> None:
    nobody = klamm("leaders", "elect", "--type", "preferred", "--all", "--bootstrap-server", "127.0.0.1:1")
    assert nobody.returncode == 1
    assert nobody.stderr.splitlines()[-1].startswith("klamm: no broker answers")


@pytest.mark.case("PRE-14")
@pytest.mark.parametrize(
    "arguments",
    [
        ("--type", "preferred", "--topic", "orders"),
        ("--type", "preferred", "--partition", "0"),
        ("--topic", "orders", "--partition", "0"),
        ("--type", "preferred"),
        ("--type", "preferred", "--all", "--topic", "orders", "--partition", "0"),
        ("--type", "any", "--all"),
    ],
    ids=" ".join,
)
def test_elections_that_are_not_said_fully(arguments: tuple[str, ...]) -> None:
    refused = CliRunner().invoke(app, ["leaders", "elect", *arguments])
    assert refused.exit_code == 2, refused.output


def test_wrong_usage_and_nobody_there() -> None:
    assert klamm("topics", "create").returncode == 2
    assert klamm("no-such-command").returncode == 2
    nobody = klamm("topics", "list", "--bootstrap-server", "127.0.0.1:1")
    assert nobody.returncode == 1
    assert nobody.stderr.splitlines()[-1].startswith("klamm: no broker answers")
