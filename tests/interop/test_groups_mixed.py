"""Groups in a cluster of one Apache Kafka 2.5.1 broker and one klamm broker: each takes over the groups of the other.

`__consumer_offsets` has one partition on both. The coordinator stops, the other loads what it wrote, and the consumer
goes on from there; at the end Kafka's own decoder reads the log that both wrote.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.server.broker_process import BrokerProcess, KlammBroker
from klamm.testing.apache_kafka import ApacheKafkaBroker, MixedCluster, run_tool
from klamm.testing.waiting import eventually
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.server.embedded import EmbeddedZooKeeper

VERSION = "2.5.1"
JVM, KLAMM = 1, 2
TOPIC, OFFSETS = "mixed", "__consumer_offsets"
SETTINGS: dict[str, str | int] = {
    "offsets.topic.replication.factor": 2,
    "offsets.topic.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
    "auto.leader.rebalance.enable": "false",
    "replica.lag.time.max.ms": 5000,
    "inter.broker.protocol.version": "2.5",
}


class Reader:
    """A static member that reads and commits what it has read."""

    def __init__(self, bootstrap: str) -> None:
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "readers",
                "group.instance.id": "reader",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 45_000,
            }
        )
        self.consumer.subscribe([TOPIC])

    async def read(self, count: int) -> list[str]:
        values: list[str] = []

        async def enough() -> bool:
            found = await asyncio.to_thread(self.consumer.poll, 1.0)
            if found is not None and found.error() is None:
                values.append(found.value().decode())
            return len(values) >= count

        await eventually(f"{count} records", enough)
        await asyncio.to_thread(self.consumer.commit, asynchronous=False)
        return values


async def leader(zk: ZooKeeperClient) -> tuple[int, int]:
    """The coordinator, and how many replicas are in sync."""
    node = await zk.get(f"/brokers/topics/{OFFSETS}/partitions/0/state")
    state = json.loads(node.data or b"{}")
    return int(state["leader"]), len(state["isr"])


async def describe(cluster: MixedCluster) -> list[str]:
    tool = ("--bootstrap-server", cluster.bootstrap, "--describe", "--group", "readers", "--members", "--verbose")
    found = await run_tool(VERSION, "kafka.admin.ConsumerGroupCommand", *tool, check=False)
    return [line for line in found.output.splitlines() if line.startswith("readers")]


async def test_each_takes_over_the_groups_of_the_other(tmp_path: Path, zookeeper: EmbeddedZooKeeper) -> None:
    address = f"127.0.0.1:{zookeeper.port}"
    brokers: list[BrokerProcess] = [
        ApacheKafkaBroker(VERSION, JVM, address, tmp_path / "jvm", properties=SETTINGS),
        KlammBroker(KLAMM, address, tmp_path / "klamm", SETTINGS),
    ]
    zk = ZooKeeperClient(AsyncioNetwork(), SystemClock(), Random(), address, 30_000)
    async with MixedCluster(brokers).running() as cluster, zk.running():
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        for future in admin.create_topics([NewTopic(TOPIC, 1, 2)]).values():
            await asyncio.to_thread(future.result, 30)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
        reader = Reader(cluster.bootstrap)
        members = None
        takers = []
        for turn in range(3):
            for number in range(3):
                producer.produce(TOPIC, f"{turn}-{number}".encode())
            assert await asyncio.to_thread(producer.flush, 60) == 0
            assert await reader.read(3) == [f"{turn}-{number}" for number in range(3)], (
                "nothing twice, nothing left out"
            )
            described = await describe(cluster)
            assert len(described) == 1, described
            member = described[0].split()[1]
            assert members in (None, member), "the member kept its id: no rebalance"
            members = member
            before, _ = await leader(zk)
            takers.append(before)
            if turn == 2:
                break
            await cluster[before].stop()

            async def moved(gone: int = before) -> bool:
                return (await leader(zk))[0] not in (gone, -1)

            await eventually("the other coordinates", moved)
            committed = await asyncio.to_thread(reader.consumer.committed, [TopicPartition(TOPIC, 0)], 60)
            assert committed[0].offset == 3 * (turn + 1)
            await cluster[before].start()

            async def in_sync() -> bool:
                return (await leader(zk))[1] == 2

            await eventually("both are in sync", in_sync)
        assert takers[0] != takers[1] and takers[0] == takers[2], "each took over from the other"
        await asyncio.to_thread(reader.consumer.close)
        segment = tmp_path / "klamm" / "data" / f"{OFFSETS}-0" / f"{0:020}.log"
        dump = await run_tool(
            VERSION, "kafka.tools.DumpLogSegments", "--files", str(segment), "--offsets-decoder", "--print-data-log"
        )
        assert "readers" in dump.output and TOPIC in dump.output, dump.output
        assert "isvalid: false" not in dump.output
        theirs = tmp_path / "jvm" / "data" / f"{OFFSETS}-0" / f"{0:020}.log"

        async def same_bytes() -> bool:
            return segment.read_bytes() == theirs.read_bytes()

        await eventually("the same log on both", same_bytes)
