"""A klamm controller without replicas leads Apache Kafka brokers: the proof that shape and bytes are right.

It is registered as broker 9 with an endpoint that nobody listens on, stands first, and so is elected before the JVM
brokers start; they obey it for the rest of the test. Topics are made by Kafka's own tools.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from klamm.controller.controller import Controller
from klamm.model.brokers import Broker, Endpoint
from klamm.model.config import read_broker_config
from klamm.model.events import Decision, EventRecord
from klamm.model.ids import BrokerId
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.telemetry.metrics import MetricsRegistry
from klamm.testing.apache_kafka import ApacheKafkaBroker, MixedCluster, run_tool
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.server.embedded import EmbeddedZooKeeper
from klamm.zookeeper.znodes import broker_id, registration
from klamm.zookeeper.znodes.persistent import PERSISTENT_PATHS

VERSION = "2.5.1"


class Sink:
    def __init__(self) -> None:
        self.records: list[EventRecord] = []

    def emit(self, records: Iterable[EventRecord]) -> None:
        self.records.extend(records)

    def named(self, event: str) -> list[Decision]:
        return [r for r in self.records if isinstance(r, Decision) and r.event == event]


class Led:
    """ZooKeeper, our controller on it, and JVM brokers that obey it."""

    def __init__(
        self, zk: ZooKeeperClient, controller: Controller, cluster: MixedCluster, sink: Sink, connect: str
    ) -> None:
        self.zk, self.controller, self.cluster, self.sink, self.connect = zk, controller, cluster, sink, connect

    async def topic_tool(self, *arguments: str) -> str:
        tool = await run_tool(VERSION, "kafka.admin.TopicCommand", "--zookeeper", self.connect, *arguments)
        return tool.output

    async def state(self, topic: str, partition: int) -> dict[str, Any]:
        (node,) = await self.zk.get_many([f"/brokers/topics/{topic}/partitions/{partition}/state"])
        found: dict[str, Any] = json.loads(node.data) if node is not None and node.data else {}
        return found

    async def eventually(self, what: str, condition: Callable[[], Awaitable[bool]], timeout: float = 30) -> None:
        try:
            async with asyncio.timeout(timeout):
                while not await condition():
                    await asyncio.sleep(0.05)
        except TimeoutError:
            told = "\n".join(map(str, self.sink.records[-20:]))
            raise AssertionError(f"{what} did not happen within {timeout} s; last records:\n{told}") from None


@asynccontextmanager
async def led(path: Path, brokers: Iterable[int]) -> AsyncIterator[Led]:
    zookeeper = EmbeddedZooKeeper(path / "zookeeper", force_sync=False)
    await zookeeper.start()
    try:
        clock, network, sink = SystemClock(), AsyncioNetwork(), Sink()
        config, _ = read_broker_config(
            {
                "broker.id": "9",
                "zookeeper.connect": zookeeper.connect_string,
                "listeners": "CLIENT://127.0.0.1:1,INTERNAL://127.0.0.1:2",
                "listener.security.protocol.map": "CLIENT:PLAINTEXT,INTERNAL:PLAINTEXT",
                "inter.broker.listener.name": "INTERNAL",
                "inter.broker.protocol.version": "2.5",
            }
        )
        client = ZooKeeperClient(network, clock, Random(1), zookeeper.connect_string, 6_000)
        async with client.running():
            for persistent in PERSISTENT_PATHS:
                await client.ensure_path(persistent)
            us = Broker(BrokerId(9), (Endpoint("CLIENT", "127.0.0.1", 1), Endpoint("INTERNAL", "127.0.0.1", 2)))

            async def register() -> None:
                await registration.register(client, us.id, broker_id.encode(us, clock.wall_ms()))

            await register()
            controller = Controller(config, clock, Random(2), client, network, sink, MetricsRegistry(), register)
            jvms = [
                ApacheKafkaBroker(VERSION, number, zookeeper.connect_string, path / str(number)) for number in brokers
            ]
            async with controller.running():
                async with asyncio.timeout(10):
                    while not controller.is_active:
                        await asyncio.sleep(0.01)
                async with MixedCluster(jvms).running() as cluster:
                    yield Led(client, controller, cluster, sink, zookeeper.connect_string)
    finally:
        await zookeeper.kill()


@pytest.mark.case("CTL-08")
@pytest.mark.case("CTL-16")
@pytest.mark.case("CTL-20")
@pytest.mark.case("DEL-01")
async def test_topic_death_return_and_deletion(tmp_path: Path) -> None:
    async with led(tmp_path, (1, 2)) as kafka:
        # A topic of Kafka's own tool gets leaders, and the brokers say so to their clients.
        await kafka.topic_tool("--create", "--topic", "t", "--replica-assignment", "1:2,2:1")
        await kafka.topic_tool("--create", "--topic", "alone", "--replica-assignment", "1")
        await kafka.eventually("leader of t-0", lambda: has(kafka, "t", 0, leader=1, leader_epoch=0, isr=[1, 2]))
        await kafka.eventually("leader of t-1", lambda: has(kafka, "t", 1, leader=2, leader_epoch=0, isr=[1, 2]))

        await kafka.eventually("metadata", lambda: told(kafka, "t", {0: 1, 1: 2}))
        await asyncio.to_thread(produce, kafka.cluster[2].address, "t", 100)

        # A broker dies: its leadership moves, epochs grow by exactly one; alone it is kept as the last of the ISR.
        await kafka.cluster[1].kill()
        await kafka.eventually("t-0 moves", lambda: has(kafka, "t", 0, leader=2, leader_epoch=1, isr=[2]))
        await kafka.eventually("t-1 shrinks", lambda: has(kafka, "t", 1, leader=2, leader_epoch=1, isr=[2]))
        await kafka.eventually(
            "alone-0 goes offline", lambda: has(kafka, "alone", 0, leader=-1, leader_epoch=1, isr=[1])
        )

        await asyncio.to_thread(produce, kafka.cluster[2].address, "t", 100)

        # It comes back: it leads what only it had, and catches up with the rest.
        await kafka.cluster[1].start()
        await kafka.eventually("alone-0 is back", lambda: has(kafka, "alone", 0, leader=1, leader_epoch=2, isr=[1]))
        await kafka.eventually("ISR refills", lambda: has(kafka, "t", 0, leader=2, leader_epoch=1, isr=[1, 2]))
        await kafka.eventually("ISR refills", lambda: has(kafka, "t", 1, leader=2, leader_epoch=1, isr=[1, 2]))

        # Deletion: the brokers' directories go, then the znodes.
        await kafka.topic_tool("--delete", "--topic", "t")

        async def gone() -> bool:
            nodes = ["/brokers/topics/t", "/config/topics/t", "/admin/delete_topics/t"]
            return await kafka.zk.get_many(nodes) == [None, None, None]

        await kafka.eventually("deletion", gone)
        for broker in kafka.cluster.brokers.values():
            assert not [d.name for d in broker.data_directory.glob("t-*") if not d.name.endswith("-delete")]
        assert kafka.controller.statistics().counts.topics == 1
        assert not kafka.sink.named("controller-failed")


async def has(kafka: Led, topic: str, partition: int, **expected: Any) -> bool:
    state = await kafka.state(topic, partition)
    if "isr" in state:
        state["isr"].sort()  # a leader writes it in the order of a hash map
    return all(state.get(key) == value for key, value in expected.items())


async def told(kafka: Led, topic: str, leaders: dict[int, int]) -> bool:
    """Every JVM broker that lives gives its clients these leaders."""
    for broker in kafka.cluster.alive:
        client = AdminClient({"bootstrap.servers": kafka.cluster[broker].address})
        metadata = await asyncio.to_thread(client.list_topics, topic, 10)
        if {n: p.leader for n, p in metadata.topics[topic].partitions.items()} != leaders:
            return False
    return True


def produce(bootstrap: str, topic: str, count: int) -> None:
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "delivery.timeout.ms": 20_000})
    for number in range(count):
        producer.produce(
            topic, str(number), partition=number % 2, on_delivery=lambda e, _: failed.append(e) if e else None
        )
    assert producer.flush(25) == 0
    assert not failed, failed[:3]
