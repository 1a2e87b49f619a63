"""Apache Kafka's own administration tools on three klamm brokers: they show whether the answers are right."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from klamm.testing.apache_kafka import ToolResult, run_tool
from klamm.testing.cluster import KlammCluster
from klamm.testing.waiting import wait_until

OLD, NEW = "2.5.1", "3.9.1"


def plan(path: Path, topic: str, replicas: list[list[int]]) -> Path:
    partitions = [{"topic": topic, "partition": p, "replicas": r} for p, r in enumerate(replicas)]
    path.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return path


async def until_complete(*arguments: str, version: str, tool: str) -> ToolResult:
    for _ in range(10):
        result = await run_tool(version, tool, *arguments, check=False)
        if "progress" not in result.output:
            break
        await asyncio.sleep(0.5)
    return result


def wait_for_replicas(cluster: KlammCluster, topic: str, wanted: list[list[int]]) -> None:
    """The brokers, which answer Metadata, hear of the end of a move after the tool."""

    def replicas() -> list[list[int]]:
        return [list(p.replica_nodes) for p in sorted(cluster.partitions(topic), key=lambda p: p.partition_index)]

    wait_until(lambda: f"{wanted} instead of {replicas()}", lambda: replicas() == wanted)


async def test_reassignment_and_elections(klamm_cluster: KlammCluster, tmp_path: Path) -> None:
    cluster = klamm_cluster
    one, two, three = cluster.broker_ids
    bootstrap = ("--bootstrap-server", cluster.bootstrap)
    cluster.create_topic("moving", partitions=2, replication_factor=2)

    # 3.9.1 sends AlterPartitionReassignments to the controller, then ListPartitionReassignments until it is done.
    tool = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
    wanted = [[three, one], [one, two]]
    file = plan(tmp_path / "first.json", "moving", wanted)
    common = (*bootstrap, "--reassignment-json-file", str(file))
    started = await run_tool(NEW, tool, *common, "--execute", check=False)
    assert "Successfully started partition reassignments" in started.output, started.output + started.errors
    done = await until_complete(*common, "--verify", "--preserve-throttles", version=NEW, tool=tool)
    assert done.output.count("is completed") == 2, done.output + done.errors
    wait_for_replicas(cluster, "moving", wanted)

    # 2.5.1 writes the znode, then reads it and the topic's znode.
    tool = "kafka.admin.ReassignPartitionsCommand"
    wanted = [[two, three], [three, one]]
    file = plan(tmp_path / "second.json", "moving", wanted)
    common = ("--zookeeper", cluster.zookeeper, "--reassignment-json-file", str(file))
    started = await run_tool(OLD, tool, *common, "--execute", check=False)
    assert "Successfully started reassignment" in started.output, started.output + started.errors
    done = await until_complete(*common, "--verify", version=OLD, tool=tool)
    assert done.output.count("completed successfully") == 2, done.output + done.errors
    wait_for_replicas(cluster, "moving", wanted)

    # Leadership stays where a leader remained assigned, until the tool moves it.
    elected = await run_tool(
        OLD,
        "kafka.admin.LeaderElectionCommand",
        *(*bootstrap, "--election-type", "preferred", "--all-topic-partitions"),
        check=False,
    )
    assert elected.code == 0, elected.output + elected.errors
    wait_until("the leaders", lambda: [cluster.leader_of("moving", p) for p in (0, 1)] == [two, three])
    again = await run_tool(
        OLD,
        "kafka.admin.LeaderElectionCommand",
        *(*bootstrap, "--election-type", "preferred", "--topic", "moving", "--partition", "0"),
        check=False,
    )
    assert "Valid replica already elected for partitions" in again.output, again.output + again.errors

    grown = await run_tool(
        OLD, "kafka.admin.TopicCommand", *bootstrap, "--alter", "--topic", "moving", "--partitions", "4", check=False
    )
    assert grown.code == 0, grown.output + grown.errors
    wait_until("four partitions", lambda: len(cluster.partitions("moving")) == 4)
