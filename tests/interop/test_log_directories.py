"""Replicas in the directories that an operator chooses, by Apache Kafka's own reassignment tool."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from confluent_kafka import Producer

from klamm.testing.apache_kafka import ToolResult, run_tool
from klamm.testing.cluster import KlammCluster

TOOL = "kafka.admin.ReassignPartitionsCommand"
DIRECTORIES = ("first", "second")


def home_of(cluster: KlammCluster, broker: int, partition: str) -> list[str]:
    """The directories of the broker, out of two, that have the partition."""
    parent = cluster.directory(broker).parent
    return [name for name in DIRECTORIES if (parent / name / partition).is_dir()]


@pytest.mark.case("RAS-01", "RAS-03")
@pytest.mark.klamm(
    brokers=2, properties={"log.dirs": "{directory}/first,{directory}/second", "auto.leader.rebalance.enable": "false"}
)
async def test_between_brokers_and_within_one(klamm_cluster: KlammCluster, tmp_path: Path) -> None:
    cluster = klamm_cluster
    one, two = cluster.broker_ids
    cluster.create_topic("t", partitions=1, replication_factor=1)
    source = cluster.leader_of("t")
    target = two if source == one else one
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for number in range(200):
        producer.produce("t", f"record {number} ".encode() * 50, partition=0)
    assert producer.flush(60) == 0

    async def execute(replicas: list[int], directories: list[Path]) -> None:
        plan = tmp_path / "plan.json"
        entry = {"topic": "t", "partition": 0, "replicas": replicas, "log_dirs": list(map(str, directories))}
        plan.write_text(json.dumps({"version": 1, "partitions": [entry]}))
        common = ("--zookeeper", cluster.zookeeper, "--bootstrap-server", cluster.bootstrap)
        common += ("--reassignment-json-file", str(plan))
        started = await run_tool("2.5.1", TOOL, *common, "--execute", check=False)
        assert "Successfully started reassignment" in started.output, started.output + started.errors
        verified: ToolResult | None = None
        for _ in range(20):
            verified = await run_tool("2.5.1", TOOL, *common, "--verify", check=False)
            if "still in progress" not in verified.output:
                break
            await asyncio.sleep(0.5)
        assert verified is not None
        assert "failed" not in verified.output, verified.output + verified.errors
        assert "completed successfully" in verified.output, verified.output + verified.errors

    # To another broker, into the directory that was chosen there.
    wanted = cluster.directory(target).parent / "second"
    await execute([target], [wanted])
    assert home_of(cluster, target, "t-0") == ["second"]
    (entry,) = cluster.partitions("t")
    assert list(entry.replica_nodes) == [target]

    # Into the other directory of the same broker, and into the one where it already is.
    for _ in range(2):
        await execute([target], [cluster.directory(target).parent / "first"])
        assert home_of(cluster, target, "t-0") == ["first"]
    cluster.stop(target)
    cluster.start(target)
    assert cluster.leader_of("t") == target
    assert home_of(cluster, target, "t-0") == ["first"]
    segment = next((cluster.directory(target).parent / "first" / "t-0").glob("*.log"))
    assert b"record 199 " in segment.read_bytes()
