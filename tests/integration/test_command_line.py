"""The klamm command against a real cluster: what it prints, what it refuses, and its exit codes."""

from __future__ import annotations

import importlib.metadata
import json
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import Result
from confluent_kafka import Consumer
from kazoo.client import KazooClient
from typer.testing import CliRunner

from klamm import __version__
from klamm.cli.app import app
from klamm.testing.cluster import KlammCluster
from klamm.testing.waiting import wait_until


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


@pytest.mark.klamm(properties={"auto.leader.rebalance.enable": False})  # five seconds later, it elects what we elect
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

    shown = json.loads(klamm("controller", "show", "--json", *at).stdout)
    assert shown["controller"] == klamm_cluster.controller
    assert shown["epoch"] == 1 and shown["since"]

    nothing_marked = here("deletions", *at)
    assert (nothing_marked.stdout, nothing_marked.stderr) == ("", "no topic is marked for deletion\n")
    assert here("zk", "doctor", *at).stdout == "healthy: nothing found\n"
    absent = here("controller", "candidates", "add", "77", *at).stdout
    assert absent == "broker 77 is now a candidate; it is not registered, and takes over when it is there\n"
    assert here("controller", "candidates", "remove", "77", *at).exit_code == 0
    added = here("controller", "candidates", "add", str(klamm_cluster.controller), *at)
    assert added.stdout == f"broker {klamm_cluster.controller} is now a candidate\n", "the brokers name ZooKeeper"
    assert here("controller", "move", *at).stdout == f"broker {klamm_cluster.controller} is already the controller\n"
    nothing = here("leaders", "elect", "--type", "preferred", "--all", *at)
    assert nothing.stdout == "elected: 0 partitions, because every preferred replica leads already\n"

    unknown = klamm("topics", "describe", "nothing", *at)
    assert (unknown.returncode, unknown.stderr) == (1, "klamm: topic nothing does not exist\n")
    refused = klamm("consume", "nothing", *at)
    assert (refused.returncode, refused.stderr) == (1, "klamm: topic nothing does not exist\n")

    plan = tmp_path / "plan.json"
    first = described["partitions"][0]
    target = [*first["replicas"][1:], first["replicas"][0]]
    plan.write_text(json.dumps({"partitions": [{"topic": "orders", "partition": 0, "replicas": target}]}))
    started = klamm("reassign", "execute", str(plan), *at)
    assert started.stdout == "started: 1 of 1 partitions\n", started.stderr
    moving = json.loads(klamm("reassign", "status", "--json", *at).stdout)
    assert (moving["reassignments"], moving["throttles"]) == ([], {}), "same brokers: done"
    elected = klamm("leaders", "elect", "--type", "preferred", "--all", "--json", *at)
    assert json.loads(elected.stdout)["elected"] == ["orders-0"]
    assert klamm_cluster.leader_of("orders", 0) == target[0]
    nothing = klamm("reassign", "cancel", str(plan), *at)
    assert (nothing.returncode, nothing.stderr) == (
        1,
        "klamm: nothing to cancel: no partition of the plan is being moved\n",
    )
    plan.write_text("{}")
    assert klamm("reassign", "execute", str(plan), *at).stderr.startswith(f"klamm: {plan} is not a plan")

    grown = klamm("topics", "grow", "orders", "--partitions", "3", *at)
    assert grown.stdout == "topic orders has 3 partitions\n", grown.stderr
    assert klamm("topics", "grow", "orders", "--partitions", "2", *at).returncode == 1

    deleted = klamm("topics", "delete", "orders", "--yes", *at)
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
    wait_until("the replica in its directory", (wanted / "moving-0").is_dir)
    klamm_cluster.wait_until_healthy()

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


def cpu_seconds_of_children() -> float:
    """Other work on the machine does not change it much. Counts those that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_the_version_and_the_time_to_say_it() -> None:
    before = cpu_seconds_of_children()
    said = klamm("--version")
    assert said.stdout == f"klamm {__version__}\n"
    assert importlib.metadata.version("klamm") == __version__
    assert cpu_seconds_of_children() - before < 1.0
    assert here("--version").stdout == said.stdout


def test_wrong_usage_and_nobody_there() -> None:
    assert klamm("topics", "create").returncode == 2
    assert klamm("no-such-command").returncode == 2
    began = time.monotonic()
    nobody = klamm("topics", "list", "--bootstrap-server", "127.0.0.1:1")
    assert time.monotonic() - began < 12, "what may pass is tried for 15 s"
    why = "127.0.0.1:1 (the connection was refused): is the cluster running, and is the address right?"
    assert (nobody.returncode, nobody.stderr) == (1, f"klamm: no broker answers at {why}\n")
    unknown = klamm("topics", "list", "--bootstrap-server", "no-such-host.invalid:9092")
    assert (unknown.returncode, "the name does not resolve" in unknown.stderr) == (1, True)
    unknown = klamm("zk", "tree", "--zookeeper", "no-such-host.invalid:2181")
    assert (unknown.returncode, unknown.stderr.count("\n")) == (1, 1)
    assert "no-such-host.invalid does not resolve" in unknown.stderr, "it does not wait for a session"
    nonsense = klamm("topics", "list", "--bootstrap-server", "127.0.0.1:port")
    why = "'127.0.0.1:port' is not the address of a broker: it has the form HOST:PORT"
    assert (nonsense.returncode, nonsense.stderr) == (1, f"klamm: {why}\n")


def test_ctrl_c_commits_what_was_printed(klamm_module_cluster: KlammCluster) -> None:
    at = ("--bootstrap-server", klamm_module_cluster.bootstrap)
    klamm_module_cluster.create_topic("interrupted", partitions=1, replication_factor=1)
    assert klamm("produce", "interrupted", *at, stdin="1\n2\n3\n").returncode == 0
    command = [sys.executable, "-m", "klamm", "consume", "interrupted", "--group", "readers", "--follow", *at]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as reading:
        assert reading.stdout is not None and reading.stderr is not None
        try:
            assert [reading.stdout.readline() for _ in range(3)] == ["1\n", "2\n", "3\n"]
            reading.send_signal(signal.SIGINT)
            assert reading.wait(60) == 0
            assert (reading.stdout.read(), reading.stderr.read()) == ("", "")
        finally:
            reading.kill()
    group = json.loads(here("groups", "describe", "readers", "--json", *at).stdout)
    assert [(entry["committed"], entry["lag"]) for entry in group["partitions"]] == [(3, 0)]


def test_a_group_in_use_is_neither_reset_nor_deleted(klamm_module_cluster: KlammCluster) -> None:
    at = ("--bootstrap-server", klamm_module_cluster.bootstrap)
    klamm_module_cluster.create_topic("used", partitions=2, replication_factor=1)
    consumer = Consumer({"bootstrap.servers": klamm_module_cluster.bootstrap, "group.id": "app", "client.id": "shop"})
    try:
        consumer.subscribe(["used"])
        deadline = time.monotonic() + 60
        while not consumer.assignment():
            consumer.poll(0.2)
            assert time.monotonic() < deadline
        described = json.loads(here("groups", "describe", "app", "--json", *at).stdout)
        assert described["state"] == "Stable"
        assert [member["partitions"] for member in described["members"]] == [["used-0", "used-1"]]
        assert [entry["member"] for entry in described["partitions"]] == ["shop", "shop"]
        for words in (
            ("groups", "reset", "app", "--topic", "used", "--to-earliest", "--execute"),
            ("groups", "delete", "app", "--yes"),
            ("consume", "used", "--group", "app"),
        ):
            refused = here(*words, *at)
            assert refused.exit_code == 1
            assert refused.stderr.startswith("klamm: group app is Stable with 1 member: stop its consumers first")
    finally:
        consumer.close()


def test_a_pipe_gets_no_colours_and_no_progress(klamm_cluster: KlammCluster) -> None:
    at = ("--bootstrap-server", klamm_cluster.bootstrap)
    klamm_cluster.create_topic("orders", partitions=1, replication_factor=3)
    for words in (("topics", "describe", "orders"), ("brokers", "list"), ("brokers", "drain", "1")):
        said = klamm(*words, *at)
        assert said.returncode == 0, said.stderr
        assert "\x1b" not in said.stdout + said.stderr and "\r" not in said.stderr
