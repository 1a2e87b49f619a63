"""Throttled moves by Apache Kafka's own tool: it writes limits where Kafka's brokers read them, and klamm must obey.

The tool of 2.5.1 writes to ZooKeeper: rates into the configuration of brokers, replicas into that of topics, then the
plan.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient
from kazoo.client import KazooClient
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.testing.apache_kafka import ToolResult, run_tool
from klamm.testing.cluster import KlammCluster
from klamm.testing.waiting import wait_until

TOOL = "kafka.admin.ReassignPartitionsCommand"
RECORDS, RECORD_BYTES = 100, 10_000
SIZE = RECORDS * RECORD_BYTES
LEADERS, FOLLOWERS = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"
RATES = {"leader.replication.throttled.rate", "follower.replication.throttled.rate"}
QUIET = {
    "auto.leader.rebalance.enable": "false",
    "replica.fetch.backoff.ms": "100",
    "replica.fetch.max.bytes": str(
        2 * RECORD_BYTES
    ),  # otherwise one fetch takes everything before the first is counted
}


class World:
    def __init__(self, cluster: KlammCluster, zk: KazooClient, client: KafkaAdminClient, path: Path) -> None:
        self.cluster = cluster
        self.zk = zk
        self.client = client
        self._path = path

    def create(self, topic: str, *replicas: list[int], **configs: str) -> None:
        partitions = {str(number): ids for number, ids in enumerate(replicas)}
        overrides = {key.replace("_", "."): value for key, value in configs.items()}
        self.zk.create(f"/config/topics/{topic}", json.dumps({"version": 1, "config": overrides}).encode())
        self.zk.create(f"/brokers/topics/{topic}", json.dumps({"version": 1, "partitions": partitions}).encode())
        for number in range(len(replicas)):
            self.cluster.leader_of(topic, number)

    def fill(self, topic: str, partition: int = 0, records: int = RECORDS) -> None:
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap, "acks": "all", "batch.num.messages": 1})
        failed: list[object] = []
        for _ in range(records):
            producer.produce(
                topic,
                bytes(RECORD_BYTES),
                partition=partition,
                on_delivery=lambda e, _: failed.append(e) if e else None,
            )
        assert producer.flush(60) == 0
        assert not failed

    def count(self, topic: str, wanted: int) -> int:
        consumer = Consumer({"bootstrap.servers": self.cluster.bootstrap, "group.id": "nobody"})
        try:
            consumer.assign([ConfluentPartition(topic, 0, 0)])
            found, deadline = 0, time.monotonic() + 60
            while found < wanted and time.monotonic() < deadline:
                found += sum(message.error() is None for message in consumer.consume(500, 0.2))
            return found
        finally:
            consumer.close()

    def overrides(self, entity: str) -> dict[str, str]:
        found: dict[str, str] = json.loads(self.zk.get(f"/config/{entity}")[0])["config"]
        return found

    async def under_replicated(self, topic: str) -> list[Any]:
        at = ("--bootstrap-server", self.cluster.bootstrap)
        arguments = ["topics", "describe", topic, "--under-replicated", "--json", *at]
        described = await asyncio.to_thread(CliRunner().invoke, app, arguments)  # a command has a loop of its own
        partitions: list[Any] = json.loads(described.stdout)["partitions"]
        return partitions

    def moving(self) -> set[TopicPartition]:
        return set(self.client.list_partition_reassignments())

    def wait_until_done(self) -> None:
        deadline = time.monotonic() + 60
        while self.moving():
            assert time.monotonic() < deadline, "the moves did not end within 60 s"
            time.sleep(0.1)

    async def tool(self, plan: dict[tuple[str, int], list[int]], *arguments: str) -> ToolResult:
        partitions = [{"topic": t, "partition": p, "replicas": ids} for (t, p), ids in plan.items()]
        file = self._path / "plan.json"
        file.write_text(json.dumps({"version": 1, "partitions": partitions}))
        result = await run_tool(
            "2.5.1",
            TOOL,
            *("--zookeeper", self.cluster.zookeeper, "--reassignment-json-file", str(file), *arguments),
            check=False,
        )
        assert result.code == 0, result.output + result.errors
        return result


@contextmanager
def world(cluster: KlammCluster, path: Path) -> Iterator[World]:
    zk = KazooClient(cluster.zookeeper)
    zk.start()
    client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        yield World(cluster, zk, client, path)
    finally:
        client.close()
        zk.stop()
        zk.close()


def pairs(value: str) -> set[str]:
    return set(value.split(","))


@pytest.mark.case("RAS-17", "RAS-19", "RAS-21", "RAS-22")
@pytest.mark.klamm(brokers=3, properties=QUIET)
async def test_the_life_of_a_throttled_move(klamm_cluster: KlammCluster, tmp_path: Path) -> None:
    one, two, three = klamm_cluster.broker_ids
    with world(klamm_cluster, tmp_path) as w:
        w.create("heavy", [one, two], retention_ms="86400000")
        w.fill("heavy")
        kept = {"log.retention.ms": "86400000"}
        w.zk.create(f"/config/brokers/{one}", json.dumps({"version": 1, "config": kept}).encode())
        plan = {("heavy", 0): [two, three]}

        began = time.monotonic()
        await w.tool(plan, "--execute", "--throttle", "1000")
        topic = w.overrides("topics/heavy")
        assert pairs(topic[LEADERS]) == {f"0:{one}", f"0:{two}"}
        assert pairs(topic[FOLLOWERS]) == {f"0:{three}"}
        assert topic["retention.ms"] == "86400000"
        for broker in (one, two, three):
            assert {w.overrides(f"brokers/{broker}")[rate] for rate in RATES} == {"1000"}

        w.fill("heavy", records=50)  # other replicas are not throttled
        assert w.count("heavy", RECORDS + 50) == RECORDS + 50
        assert w.moving() == {TopicPartition("heavy", 0)}

        verified = await w.tool(plan, "--verify")
        assert "progress" in verified.output
        assert LEADERS in w.overrides("topics/heavy")

        rate = SIZE // 4
        await w.tool(plan, "--execute", "--throttle", str(rate))
        assert {w.overrides(f"brokers/{three}")[key] for key in RATES} == {str(rate)}
        w.wait_until_done()
        took = time.monotonic() - began
        assert took >= 0.9 * SIZE / rate, f"{SIZE} bytes in {took:.1f} s at {rate} bytes/s"
        assert w.cluster.isr_of("heavy") == sorted([two, three])

        verified = await w.tool(plan, "--verify")
        assert "completed successfully" in verified.output
        assert w.overrides("topics/heavy") == {"retention.ms": "86400000"}
        assert w.overrides(f"brokers/{one}") == kept
        for broker in (two, three):
            assert not RATES & w.overrides(f"brokers/{broker}").keys()


@pytest.mark.case("RAS-15", "RAS-20", "RAS-25")
@pytest.mark.klamm(brokers=6, properties=QUIET)
async def test_only_what_moves_is_throttled_and_listed(klamm_cluster: KlammCluster, tmp_path: Path) -> None:
    a, b, c, d, e, f = klamm_cluster.broker_ids
    with world(klamm_cluster, tmp_path) as w:
        w.create("x", [a, b], [b, c], [c, d])
        w.create("y", [a, b], [b, c], [c, d])
        w.create("z", [a])
        w.fill("z", records=20)
        for topic in ("x", "y"):
            for partition in range(3):
                w.fill(topic, partition, records=20)
        plan: dict[tuple[str, int], list[int]] = {
            ("x", 0): [a, e],
            ("x", 1): [b, f],
            ("y", 1): [b, e],
            ("y", 2): [c, f],
            ("z", 0): [f],
        }
        await w.tool(plan, "--execute", "--throttle", "1")
        assert pairs(w.overrides("topics/x")[LEADERS]) == {f"0:{a}", f"0:{b}", f"1:{b}", f"1:{c}"}
        assert pairs(w.overrides("topics/x")[FOLLOWERS]) == {f"0:{e}", f"1:{f}"}
        assert pairs(w.overrides("topics/y")[LEADERS]) == {f"1:{b}", f"1:{c}", f"2:{c}", f"2:{d}"}
        assert pairs(w.overrides("topics/y")[FOLLOWERS]) == {f"1:{e}", f"2:{f}"}
        assert w.moving() == {TopicPartition(*name) for name in plan}
        assert [await w.under_replicated(topic) for topic in ("x", "y", "z")] == [[], [], []]  # a move is no failure

        # A reassignment by call is listed with it, partition by partition, and ends when nothing is throttled.
        w.zk.set("/config/topics/x", _unthrottled(w.overrides("topics/x"), {LEADERS: "*", FOLLOWERS: "*"}))
        w.zk.create("/config/changes/config_change_", b'{"version":2,"entity_path":"topics/x"}', sequence=True)
        later = TopicPartition("x", 2)
        w.client.alter_partition_reassignments({later: [c, e]})
        assert w.moving() == {TopicPartition(*name) for name in plan} | {later}
        for broker in w.cluster.broker_ids:
            w.zk.set(f"/config/brokers/{broker}", _unthrottled(w.overrides(f"brokers/{broker}"), {}))
            data = f'{{"version":2,"entity_path":"brokers/{broker}"}}'.encode()
            w.zk.create("/config/changes/config_change_", data, sequence=True)
        w.wait_until_done()
        expected = {("x", 2): [c, e], ("y", 0): [a, b], **plan}

        def found() -> dict[tuple[str, int], list[int]]:
            return {(t, p.partition_index): list(p.replica_nodes) for t in "xyz" for p in w.cluster.partitions(t)}

        # The brokers, which answer Metadata, hear of the end of a move after the controller.
        wait_until(lambda: f"{expected} instead of {found()}", lambda: found() == expected)


def _unthrottled(before: dict[str, str], added: dict[str, str]) -> bytes:
    kept: dict[str, Any] = {key: value for key, value in before.items() if "throttled" not in key}
    return json.dumps({"version": 1, "config": {**kept, **added}}).encode()
