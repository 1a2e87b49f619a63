"""A klamm controller in the process of the test, with Apache Kafka brokers, for tests that inspect it.

It is registered as broker 9 with an endpoint on which no process listens. The JVM brokers are created but not started,
so that klamm is elected first.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from confluent_kafka import Producer

from klamm.controller.controller import Controller
from klamm.model.brokers import Broker, Endpoint
from klamm.model.config import read_broker_config
from klamm.model.events import Decision, EventRecord
from klamm.model.ids import BrokerId
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.telemetry.metrics import MetricsRegistry
from klamm.testing.apache_kafka import ApacheKafkaBroker, MixedCluster, run_tool
from klamm.testing.waiting import eventually
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
    """ZooKeeper, a klamm controller on it, and JVM brokers that obey it."""

    def __init__(self, zk: ZooKeeperClient, cluster: MixedCluster, connect: str) -> None:
        self.zk, self.cluster, self.connect = zk, cluster, connect
        self.sink = Sink()

    async def register(self) -> None:
        us = Broker(BrokerId(9), (Endpoint("CLIENT", "127.0.0.1", 1), Endpoint("INTERNAL", "127.0.0.1", 2)))
        await registration.register(self.zk, us.id, broker_id.encode(us, SystemClock().wall_ms()))

    @asynccontextmanager
    async def controller(self, **properties: str) -> AsyncIterator[Controller]:
        """Start a new controller with these properties; `_` stands for `.`."""
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
        controller = Controller(
            config=config,
            clock=SystemClock(),
            network=AsyncioNetwork(),
            random=Random(2),
            zk=self.zk,
            events=self.sink,
            metrics=MetricsRegistry(),
            register_broker=self.register,
        )
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
        def described() -> str:
            return "\n".join((f"{what}; the last records:", *map(str, self.sink.records[-20:])))

        await eventually(described, condition, timeout)


@asynccontextmanager
async def kafka_with(path: Path, *brokers: ApacheKafkaBroker, zookeeper: EmbeddedZooKeeper) -> AsyncIterator[Led]:
    """The JVM brokers are created but not started, so that klamm is elected first."""
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


async def led_by(kafka: Led, *brokers: int) -> bool:
    return (await kafka.document("/controller")).get("brokerid") in brokers


async def has(kafka: Led, topic: str, partition: int, **expected: Any) -> bool:
    state = await kafka.state(topic, partition)
    if "isr" in state:
        state["isr"].sort()  # a leader writes it in the order of a hash map
    return all(state.get(key) == value for key, value in expected.items())


def produce(bootstrap: str, topic: str, count: int) -> None:
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "delivery.timeout.ms": 20_000})
    for number in range(count):
        producer.produce(
            topic, str(number), partition=number % 2, on_delivery=lambda e, _: failed.append(e) if e else None
        )
    assert producer.flush(25) == 0
    assert not failed, failed[:3]
