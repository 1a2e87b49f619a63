"""Every noun of the klamm command, as an operator would use it, against Apache Kafka 2.5.1 and 3.9.1 and klamm."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.server.local_cluster import LocalCluster
from klamm.testing.apache_kafka import ApacheKafkaBroker, MixedCluster
from klamm.testing.waiting import eventually
from klamm.zookeeper.server.memory import MemoryZooKeeper

KINDS = ("2.5.1", "3.9.1", "klamm")
SMALL = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "auto.leader.rebalance.enable": "false",
}


@asynccontextmanager
async def running(kind: str, path: Path) -> AsyncIterator[str]:
    """The bootstrap address of a cluster with two brokers."""
    if kind == "klamm":
        local = LocalCluster(path, brokers=2, zookeeper="memory", properties=SMALL)
        async with local.running():
            yield local.bootstrap
        return
    zookeeper = MemoryZooKeeper(AsyncioNetwork(), SystemClock(), Random(1))
    async with zookeeper.running():
        brokers = [
            ApacheKafkaBroker(kind, number, zookeeper.address, path / str(number), properties=SMALL)
            for number in (1, 2)
        ]
        async with MixedCluster(brokers).running() as cluster:
            yield cluster.bootstrap


class Terminal:
    """Runs commands in a thread, because the servers of the test need the loop."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self.directory = directory
        self._environment = {"KLAMM_BOOTSTRAP_SERVER": bootstrap, "XDG_CONFIG_HOME": str(directory / "config")}

    async def run(self, *words: str, stdin: str = "", code: int = 0, **environment: str | None) -> Result:
        runner = CliRunner(env={**self._environment, **environment})
        result = await asyncio.to_thread(runner.invoke, app, list(words), input=stdin)
        assert result.exit_code == code, f"klamm {' '.join(words)}: {result.output} {result.exception!r}"
        assert "Traceback" not in result.output
        return result

    async def says(self, *words: str, stdin: str = "") -> str:
        return (await self.run(*words, stdin=stdin)).stdout

    async def json(self, *words: str, code: int = 0) -> Any:
        return json.loads((await self.run(*words, "--json", code=code)).stdout)

    async def refuses(self, *words: str) -> str:
        """The one line on stderr."""
        result = await self.run(*words, code=1)
        assert result.stderr.startswith("klamm: ") and result.stderr.count("\n") == 1, result.stderr
        return result.stderr


@pytest.mark.parametrize("kind", KINDS)
async def test_every_noun(kind: str, tmp_path: Path) -> None:
    async with running(kind, tmp_path) as bootstrap:
        terminal = Terminal(bootstrap, tmp_path)
        await topics_and_partitions(terminal)
        await records(terminal)
        await groups(terminal)
        await settings(terminal, kind)
        await brokers_and_moves(terminal, kind)
        await moves_that_run(terminal)
        await transactions_and_trees(terminal, kind)
        await contexts_and_completion(terminal, bootstrap)
        refused = await terminal.refuses("topics", "delete", "orders")
        assert "this deletes topic orders with 3 partitions and " in refused and "--yes" in refused
        assert await terminal.says("topics", "delete", "orders", "--yes") == "deleted topic orders\n"


async def topics_and_partitions(terminal: Terminal) -> None:
    create = ("topics", "create", "orders", "--partitions", "2", "--replication-factor", "2")
    assert (await terminal.says(*create)) == "created topic orders with 2 partitions, 2 replicas each\n"
    assert (await terminal.says("topics", "grow", "orders", "--partitions", "3")) == "topic orders has 3 partitions\n"
    altered = await terminal.says("topics", "alter", "orders", "--config", "min.insync.replicas=2")
    assert altered == "altered topic orders: min.insync.replicas=2\n"
    assert "orders" in await terminal.says("topics", "list")
    for option in ("--under-replicated", "--under-min-isr", "--offline", "--not-preferred"):
        assert await terminal.json("topics", "list", option) == {"topics": []}
    await terminal.run("topics", "alter", "orders", "--config", "min.insync.replicas=3")
    assert await terminal.json("topics", "list", "--under-min-isr") == {"topics": ["orders"]}
    found = (await terminal.json("partitions", "list", "--under-min-isr"))["partitions"]
    assert [(entry["topic"], entry["partition"]) for entry in found] == [("orders", number) for number in range(3)]
    await terminal.run("topics", "alter", "orders", "--delete-config", "min.insync.replicas")
    assert (await terminal.json("partitions", "list", "--under-min-isr"))["partitions"] == []
    assert "does not exist" in await terminal.refuses("topics", "describe", "nothing")
    assert "PARTITION" in await terminal.says("topics", "describe", "orders")
    described = await terminal.json("partitions", "describe", "orders", "0")
    assert (described["troubles"], described["log_end_offset"], set(described["size_bytes"])) == ([], 0, {"1", "2"})
    assert "not 9" in await terminal.refuses("partitions", "describe", "orders", "9")
    assert (await terminal.json("deletions"))["deletions"] == []


async def records(terminal: Terminal) -> None:
    lines = '{"key": "a", "value": "one", "partition": 0}\n{"value": {"n": 2}, "partition": 0, "headers": {"h": "x"}}\n'
    produce = ("produce", "orders", "--format", "json", "--compression", "gzip", "--header", "all=yes")
    assert (await terminal.run(*produce, stdin=lines)).stderr == "sent 2 records to orders\n"
    sent = await terminal.run("produce", "orders", "--partition", "0", "--format", "hex", stdin="00ff\n")
    assert sent.stderr == "sent 1 record to orders\n"
    assert (
        "is not hexadecimal" in (await terminal.run("produce", "orders", "--format", "hex", stdin="zz", code=1)).stderr
    )
    read = await terminal.says("consume", "orders", "--from-beginning", "--json")
    found = [json.loads(line) for line in read.splitlines()]
    assert [entry["value"] for entry in found] == ["one", '{"n":2}', {"base64": "AP8="}]
    assert [entry["headers"] for entry in found] == [{"all": "yes"}, {"all": "yes", "h": "x"}, {}]
    at = ("consume", "orders", "--partition", "0")
    assert await terminal.says(*at, "--from-offset", "2", "--format", "hex") == "00ff\n"
    first = found[0]["timestamp"]
    assert (await terminal.says(*at, "--from-time", str(first))).count("\n") == 3
    assert await terminal.says(*at, "--from-time", str(first + 600_000)) == ""
    assert await terminal.says(*at, "--from-offset", "0", "--max-messages", "1", "--key-separator", ":") == "a:one\n"
    assert await terminal.says("consume", "orders", "--from-beginning", "--follow", "--max-messages", "1") == "one\n"


async def groups(terminal: Terminal) -> None:
    assert await terminal.says("consume", "orders", "--group", "readers", "--max-messages", "2") == 'one\n{"n":2}\n'
    (listed,) = (await terminal.json("groups", "list"))["groups"]
    assert (listed["name"], listed["state"]) == ("readers", "Empty")
    described = await terminal.json("groups", "describe", "readers")
    lag = next(entry for entry in described["partitions"] if entry["partition"] == 0)
    assert (lag["topic"], lag["committed"], lag["end"], lag["lag"], described["total_lag"]) == ("orders", 2, 3, 1, 1)
    assert "1 record behind" in await terminal.says("groups", "describe", "readers")
    assert await terminal.says("consume", "orders", "--group", "readers", "--format", "hex") == "00ff\n"
    assert await terminal.says("consume", "orders", "--group", "readers") == "", "everything is read"
    reset = ("groups", "reset", "readers", "--topic", "orders:0")
    assert "nothing was changed" in await terminal.says(*reset, "--to-earliest")
    assert (await terminal.json("groups", "describe", "readers"))["total_lag"] == 0
    assert "reads from there" in await terminal.says(*reset, "--shift", "-2", "--execute")
    assert (await terminal.json("groups", "describe", "readers"))["total_lag"] == 2
    refused = (await terminal.run(*reset, "--to-latest", "--execute", code=1)).stderr
    assert refused == "klamm: group readers would never read 2 records that it skips: add --yes to do it\n"
    await terminal.run(*reset, "--to-latest", "--execute", "--yes")
    assert (await terminal.json("groups", "describe", "readers"))["total_lag"] == 0
    await terminal.run(*reset, "--to-earliest", "--to-latest", code=2)
    assert "--yes" in await terminal.refuses("groups", "delete", "readers")
    assert await terminal.says("groups", "delete", "readers", "--yes") == "deleted group readers\n"
    assert await terminal.refuses("groups", "describe", "readers") == "klamm: group readers does not exist\n"


async def settings(terminal: Terminal, kind: str) -> None:
    await terminal.run("configs", "set", "--topic", "orders", "retention.ms=86400000")
    (found,) = (await terminal.json("configs", "describe", "--topic", "orders", "--key", "retention.ms"))["settings"]
    assert (found["value"], found["source"]) == ("86400000", "topic")
    await terminal.run("configs", "unset", "--topic", "orders", "retention.ms")
    (found,) = (await terminal.json("configs", "describe", "--topic", "orders", "--key", "retention.ms"))["settings"]
    assert (found["value"], found["source"]) == ("604800000", "default")
    assert "klamm: " in await terminal.refuses("configs", "set", "--topic", "orders", "retention.ms=soon")
    assert (await terminal.json("configs", "diff"))["differences"] == []
    await terminal.run("configs", "set", "--broker", "2", "log.cleaner.backoff.ms=20000")

    async def different_setting() -> Any | None:
        """A broker learns of it from ZooKeeper, after the command has ended."""
        return next(iter((await terminal.json("configs", "diff"))["differences"]), None)

    different = await eventually("the setting of broker 2", different_setting)
    assert (different["key"], different["values"]["2"]) == ("log.cleaner.backoff.ms", "20000")
    assert "log.cleaner.backoff.ms" in await terminal.says("configs", "diff")
    await terminal.run("configs", "unset", "--broker", "2", "log.cleaner.backoff.ms")
    await terminal.run("configs", "set", "--all-brokers", "log.cleaner.backoff.ms=16000")

    async def has_heard() -> bool:
        return "all brokers" in await terminal.says("configs", "describe", "--broker", "1")

    await eventually("the setting of all brokers", has_heard)
    await terminal.run("configs", "unset", "--all-brokers", "log.cleaner.backoff.ms")
    logger = "klamm.broker" if kind == "klamm" else "kafka.server.KafkaApis"
    await terminal.run("configs", "set", "--loggers", "1", f"{logger}=DEBUG")
    (level,) = (await terminal.json("configs", "describe", "--loggers", "1", "--key", logger))["settings"]
    assert (level["value"], level["source"]) == ("DEBUG", "logger")
    await terminal.run("configs", "unset", "--loggers", "1", logger)


async def brokers_and_moves(terminal: Terminal, kind: str) -> None:
    listed = (await terminal.json("brokers", "list"))["brokers"]
    assert [entry["broker"] for entry in listed] == [1, 2]
    assert sum(entry["controller"] for entry in listed) == 1
    described = await terminal.json("brokers", "describe", "1")
    assert described["not_in_sync"] == [] and described["log_dirs"][0]["error"] is None
    assert (described["log_dirs"][0]["free_bytes"] is not None) == (kind != "2.5.1"), "klamm tells it, Kafka since 3.3"
    assert "alive are 1,2" in await terminal.refuses("brokers", "describe", "9")
    stuck = await _has_stuck(terminal, 1)
    assert "would move" in (await terminal.run("brokers", "drain", "1", "--dry-run", code=stuck)).stdout
    drained = await terminal.run("brokers", "drain", "1", code=stuck)
    assert "away from broker 1" in drained.stdout

    async def is_drained() -> bool:
        led = (await terminal.json("partitions", "list", "--topic", "orders"))["partitions"]
        return {entry["leader"] for entry in led} == {2}

    await eventually("broker 2 as leader everywhere", is_drained)
    held = await terminal.json("brokers", "decommission-check", "1", code=1)
    assert held["can_be_removed"] is False and "orders-0" in held["holds"]["replicas"]

    plan = terminal.directory / "plan.json"
    plan.write_text(
        json.dumps({"partitions": [{"topic": "orders", "partition": n, "replicas": [2]} for n in range(3)]})
    )
    await terminal.run("reassign", "execute", str(plan), "--wait")
    plan.write_text(json.dumps({"partitions": [{"topic": "orders", "partition": 0, "replicas": [2, 1]}]}))
    started = await terminal.says("reassign", "execute", str(plan), "--throttle", "1000000")
    assert started.startswith("started: 1 of 1 partitions\n")
    throttled = await terminal.json("reassign", "status", "--interval", "0.2")
    assert throttled["throttles"] == {"1": 1_000_000, "2": 1_000_000} and throttled["throttled_topics"] == ["orders"]
    waited = await terminal.json("reassign", "status", "--wait")
    assert (waited["reassignments"], waited["throttles"], waited["throttled_topics"]) == ([], {}, [])
    assert "no partition is being moved" in await terminal.refuses("reassign", "throttle", "1000")
    assert "nothing to cancel: no partition" in await terminal.refuses("reassign", "cancel", str(plan))
    assert (await terminal.json("leaders", "elect", "--type", "preferred", "--all"))["refused"] == {}
    shown = await terminal.json("controller", "show")
    assert shown["controller"] in (1, 2)


async def moves_that_run(terminal: Terminal) -> None:
    """A throttle of a byte per second lets the first fetch pass and then holds the move for longer than the test."""
    create = ("topics", "create", "heavy", "--partitions", "1", "--replication-factor", "1")
    await terminal.run(*create)
    await terminal.run("produce", "heavy", stdin=f"{'x' * 100_000}\n" * 30)
    home = await home_of_heavy(terminal)
    target = 3 - home
    plan = terminal.directory / "heavy.json"
    plan.write_text(json.dumps({"partitions": [{"topic": "heavy", "partition": 0, "replicas": [target]}]}))
    await terminal.run("reassign", "execute", str(plan), "--throttle", "1")
    (moving,) = (await terminal.json("reassign", "status", "--interval", "0.2"))["reassignments"]
    assert (moving["topic"], moving["adding_replicas"], moving["removing_replicas"]) == ("heavy", [target], [home])
    assert moving["copied_bytes"] < moving["total_bytes"]
    both = "brokers 1,2 move at most 2 B/s\n"
    assert await terminal.says("reassign", "throttle", "2") == both
    shown = await terminal.says("reassign", "status", "--interval", "0.2")
    assert "1 partition on the move" in shown and "throttled: broker 1 2 B/s, broker 2 2 B/s\n" in shown
    assert "heavy-0 is being moved" in await terminal.refuses("brokers", "drain", str(home))
    assert await terminal.says("reassign", "cancel", str(plan)) == "cancelled: 1 of 1 partition\n"
    left = await terminal.json("reassign", "status", "--interval", "0.2")
    assert (left["reassignments"], left["throttles"], left["throttled_topics"]) == ([], {}, [])
    assert await home_of_heavy(terminal) == home, "it stayed where it was"

    leave = terminal.directory / "leave.json"
    before = await terminal.json("partitions", "list")
    drain = ("brokers", "drain", str(home), "--plan", str(leave))
    planned = await terminal.run(*drain, code=1)
    assert planned.stderr == f"klamm: 1 replica cannot leave broker {home}\n", "orders-0 is on both brokers"
    said = planned.stdout
    assert f"written to {leave}; start it with: klamm reassign execute {leave}\n" in said and "BROKER" in said
    targets = {entry["topic"]: entry["replicas"] for entry in json.loads(leave.read_text())["partitions"]}
    assert targets["heavy"] == [target] and not any(home in replicas for replicas in targets.values())
    counted = await terminal.json(*drain, code=1)
    assert (counted["file"], counted["partitions"]) == (str(leave), len(json.loads(leave.read_text())["partitions"]))
    assert await terminal.json("partitions", "list") == before, "nothing was executed"
    await terminal.run("topics", "delete", "heavy", "--yes")


async def home_of_heavy(terminal: Terminal) -> int:
    (entry,) = (await terminal.json("partitions", "list", "--topic", "heavy"))["partitions"]
    (home,) = entry["replicas"]
    return int(home)


async def transactions_and_trees(terminal: Terminal, kind: str) -> None:
    if kind == "2.5.1":
        assert "serves ListTransactions not at all" in await terminal.refuses("transactions", "list")
    else:
        assert await terminal.json("transactions", "list") == {"transactions": []}
    (setting,) = (await terminal.json("configs", "describe", "--broker", "1", "--key", "zookeeper.connect"))["settings"]
    at = ("--zookeeper", setting["value"])
    assert "/brokers/topics/orders" in (await terminal.json("zk", "tree", "/brokers", *at))["paths"]
    assert json.loads((await terminal.json("zk", "get", "/brokers/ids/1", *at))["data"])["version"] >= 4
    assert (await terminal.json("zk", "doctor", *at))["findings"] == []
    if kind == "klamm":
        merged = await terminal.says("events", "merge", str(terminal.directory), "--kind", "controller-elected")
        assert "controller-elected: /controller was free" in merged


async def _has_stuck(terminal: Terminal, broker: int) -> int:
    """The internal topic has one replica, which cannot hand over its leadership."""
    seen = (await terminal.json("partitions", "list"))["partitions"]
    return int(any(entry["replicas"] == [broker] for entry in seen))


async def contexts_and_completion(terminal: Terminal, bootstrap: str) -> None:
    nothing: dict[str, str | None] = {"KLAMM_BOOTSTRAP_SERVER": None}
    assert (await terminal.run("context", "list", **nothing)).stderr == "no context: klamm context set NAME\n"
    await terminal.run("context", "set", "here", "--bootstrap-server", bootstrap, **nothing)
    assert "orders\n" in (await terminal.run("topics", "list", **nothing)).stdout
    await terminal.run("context", "set", "there", "--bootstrap-server", "127.0.0.1:1", **nothing)
    assert "no broker answers" in (await terminal.run("--context", "there", "topics", "list", code=1, **nothing)).stderr
    words = {"_KLAMM_COMPLETE": "complete_bash", "COMP_CWORD": "3", "COMP_WORDS": "klamm topics describe ord"}
    completed = await terminal.run(**nothing, **words)
    assert completed.stdout.split() == ["orders"]
    words |= {"COMP_WORDS": "klamm brokers describe ", "COMP_CWORD": "3"}
    assert (await terminal.run(**nothing, **words)).stdout.split() == ["1", "2"]
