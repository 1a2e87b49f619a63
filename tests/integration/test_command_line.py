"""The klamm command against a real cluster: what it prints, what it refuses, how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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
    assert json.loads(klamm("leaders", "elect", "--topic", "orders", "--json", *at).stdout)["elected"] == ["orders-0"]
    assert klamm_cluster.leader_of("orders", 0) == target[0]
    nothing = klamm("reassign", "cancel", str(plan), *at)
    assert (nothing.returncode, nothing.stderr) == (1, "klamm: refused: orders-0 NoReassignmentInProgress\n")
    plan.write_text("{}")
    assert klamm("reassign", "execute", str(plan), *at).stderr.startswith(f"klamm: {plan} is no plan")

    deleted = klamm("topics", "delete", "orders", *at)
    assert deleted.stdout == "deleted topic orders\n", deleted.stderr
    assert klamm("topics", "list", *at).stdout == ""


def test_wrong_usage_and_nobody_there() -> None:
    assert klamm("topics", "create").returncode == 2
    assert klamm("no-such-command").returncode == 2
    nobody = klamm("topics", "list", "--bootstrap-server", "127.0.0.1:1")
    assert nobody.returncode == 1
    assert nobody.stderr.splitlines()[-1].startswith("klamm: no broker answers")
