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
from klamm.model.ports import Delete
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

    def __init__(self, zk: ZooKeeperClient, cluster: MixedCluster, connect: str) -> None:
        self.zk, self.cluster, self.connect = zk, cluster, connect
        self.sink = Sink()

    async def register(self) -> None:
        us = Broker(BrokerId(9), (Endpoint("CLIENT", "127.0.0.1", 1), Endpoint("INTERNAL", "127.0.0.1", 2)))
        await registration.register(self.zk, us.id, broker_id.encode(us, SystemClock().wall_ms()))

    @asynccontextmanager
    async def controller(self, **properties: str) -> AsyncIterator[Controller]:
        """A new one, with these properties, `_` for `.`."""
        config, _ = read_broker_config(
            {
                "broker.id": "9",
                "zookeeper.connect": self.connect,
                "listeners": "CLIENT://127.0.0.1:1,INTERNAL://127.0.0.1:2",
                "listener.security.protocol.map": "CLIENT:PLAINTEXT,INTERNAL:PLAINTEXT",
                "inter.broker.listener.name": "INTERNAL",
                "inter.broker.protocol.version": "2.5",
                **{key.replace("_", "."): value for key, value in properties.items()},
            }
        )
        network, metrics = AsyncioNetwork(), MetricsRegistry()
        controller = Controller(config, SystemClock(), Random(2), self.zk, network, self.sink, metrics, self.register)
        async with controller.running():
            yield controller

    async def topic_tool(self, *arguments: str) -> str:
        tool = await run_tool(VERSION, "kafka.admin.TopicCommand", "--zookeeper", self.connect, *arguments)
        return tool.output

    async def document(self, path: str) -> dict[str, Any]:
        (node,) = await self.zk.get_many([path])
        found: dict[str, Any] = json.loads(node.data) if node is not None and node.data else {}
        return found

    async def state(self, topic: str, partition: int) -> dict[str, Any]:
        return await self.document(f"/brokers/topics/{topic}/partitions/{partition}/state")

    async def eventually(self, what: str, condition: Callable[[], Awaitable[bool]], timeout: float = 30) -> None:
        try:
            async with asyncio.timeout(timeout):
                while not await condition():
                    await asyncio.sleep(0.05)
        except TimeoutError:
            told = "\n".join(map(str, self.sink.records[-20:]))
            raise AssertionError(f"{what} did not happen within {timeout} s; last records:\n{told}") from None


@asynccontextmanager
async def kafka_with(path: Path, *brokers: ApacheKafkaBroker, zookeeper: EmbeddedZooKeeper) -> AsyncIterator[Led]:
    """The JVM brokers are made but not started: ours shall stand for election first."""
    await zookeeper.start()
    try:
        connect = zookeeper.connect_string
        client = ZooKeeperClient(AsyncioNetwork(), SystemClock(), Random(1), connect, 6_000)
        async with client.running():
            for persistent in PERSISTENT_PATHS:
                await client.ensure_path(persistent)
            for broker in brokers:
                broker.zookeeper = connect
            cluster = MixedCluster(brokers)
            led = Led(client, cluster, connect)
            await led.register()
            try:
                yield led
            finally:
                await cluster.kill()
                for broker in brokers:
                    broker.release_ports()
    finally:
        await zookeeper.kill()


def two_brokers(path: Path) -> tuple[ApacheKafkaBroker, ApacheKafkaBroker]:
    return (ApacheKafkaBroker(VERSION, 1, "", path / "1"), ApacheKafkaBroker(VERSION, 2, "", path / "2"))


async def active(controller: Controller) -> bool:
    return controller.is_active


@pytest.mark.case("CTL-08")
@pytest.mark.case("CTL-16")
@pytest.mark.case("CTL-20")
@pytest.mark.case("DEL-01")
async def test_topic_death_return_and_deletion(tmp_path: Path) -> None:
    zookeeper = EmbeddedZooKeeper(tmp_path / "zookeeper", force_sync=False)
    async with (
        kafka_with(tmp_path, *two_brokers(tmp_path), zookeeper=zookeeper) as kafka,
        kafka.controller() as controller,
    ):
        await kafka.eventually("our election", lambda: active(controller))
        await kafka.cluster.start()
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
        assert controller.statistics().counts.topics == 1
        assert not kafka.sink.named("controller-failed")


async def test_the_office_moves_between_klamm_and_kafka(tmp_path: Path) -> None:
    """klamm, then a JVM broker, then klamm again: each finds what the other left, epochs only grow."""
    zookeeper = EmbeddedZooKeeper(tmp_path / "zookeeper", force_sync=False)
    async with kafka_with(tmp_path, *two_brokers(tmp_path), zookeeper=zookeeper) as kafka:
        async with kafka.controller() as controller:
            await kafka.eventually("our election", lambda: active(controller))
            await kafka.cluster.start()
            await kafka.topic_tool("--create", "--topic", "ours", "--replica-assignment", "1:2")
            await kafka.eventually("ours-0", lambda: has(kafka, "ours", 0, leader=1, leader_epoch=0, isr=[1, 2]))

        # We go; one of them leads, and creates and moves leaders in its own way.
        await kafka.eventually("a JVM controller", lambda: led_by(kafka, 1, 2))
        await kafka.topic_tool("--create", "--topic", "theirs", "--replica-assignment", "2:1")
        await kafka.eventually("theirs-0", lambda: has(kafka, "theirs", 0, leader=2, leader_epoch=0, isr=[1, 2]))
        before = await kafka.state("ours", 0)

        # We come back while they lead, and take over when the office is free.
        async with kafka.controller() as controller:
            async with asyncio.timeout(60):
                while not controller.is_active:
                    await kafka.zk.write_many([Delete("/controller")])  # the operator's way to move it
                    await asyncio.sleep(0.5)
            assert await kafka.state("ours", 0) == before  # taking over changes nothing that is well
            await kafka.cluster[2].kill()
            await kafka.eventually("theirs-0 moves", lambda: has(kafka, "theirs", 0, leader=1, leader_epoch=1, isr=[1]))
            await kafka.eventually("ours-0 shrinks", lambda: has(kafka, "ours", 0, leader=1, isr=[1]))
            await asyncio.to_thread(produce_one, kafka.cluster[1].address, "theirs")
            await kafka.cluster[2].start()
            await kafka.eventually("ISR refills", lambda: has(kafka, "theirs", 0, leader=1, isr=[1, 2]))
            assert not kafka.sink.named("controller-failed")


async def led_by(kafka: Led, *brokers: int) -> bool:
    return (await kafka.document("/controller")).get("brokerid") in brokers


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


def produce_one(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, 1)


def produce(bootstrap: str, topic: str, count: int) -> None:
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "delivery.timeout.ms": 20_000})
    for number in range(count):
        producer.produce(
            topic, str(number), partition=number % 2, on_delivery=lambda e, _: failed.append(e) if e else None
        )
    assert producer.flush(25) == 0
    assert not failed, failed[:3]
