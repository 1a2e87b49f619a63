"""Two controllers at once, in real processes: no broker obeys the old one.

A dedicated klamm controller leads a klamm broker and an Apache Kafka 2.5.1 broker through relays. An operator marks
topics for deletion, one by one, while the network holds back the first StopReplica that deletes, so that more than a
hundred requests queue up behind it. Then SIGSTOP stops the controller, the operator cancels the deletions, the session
ends, and another controller is elected and obeyed. Then the old one continues.

- *By time*: the session expires by its timeout. The old controller knows from its own clock that it may no longer be
  the controller (design D1) and drops its queue. Brokers refuse what was already in the network.
- *Unnoticed*: the session is ended early, and the news does not reach the old controller. It sends its whole queue, and
  brokers refuse each request.

In both cases every topic survives with every record, and no file is touched.
"""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Producer

from klamm.model.errors import ErrorCode
from klamm.model.ids import BrokerId
from klamm.model.partition import Assignment
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.server.broker_process import BrokerProcess, KlammBroker
from klamm.testing.apache_kafka import ApacheKafkaBroker
from klamm.testing.history import read_all
from klamm.testing.relay import HOST, Relay
from klamm.testing.waiting import eventually
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.server.child import reserve_port
from klamm.zookeeper.server.memory import MemoryZooKeeper
from klamm.zookeeper.znodes import candidates, delete_topics, partition_state
from klamm.zookeeper.znodes import config as config_znode
from klamm.zookeeper.znodes import controller as controller_znode
from klamm.zookeeper.znodes import topic as topic_znode

from .control_relay import ControlRelay, ControlRequest

KAFKA = "2.5.1"
KLAMM_BROKER, JVM_BROKER = 1, 2
OLD, NEXT = 101, 102
TOPICS = [f"kept-{number:02d}" for number in range(20)]
RECORDS = 10
QUEUED_LEAST = 100
SESSION_TIMEOUT_MS = 6_000
LONG_SESSION_TIMEOUT_MS = 120_000
"""Long enough that after a short stop the old controller has no reason to doubt its session."""


class Overlap:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stack = AsyncExitStack()
        self.server = MemoryZooKeeper(
            AsyncioNetwork(), SystemClock(), Random(1), session_timeout_ms_max=LONG_SESSION_TIMEOUT_MS
        )
        self.zk: ZooKeeperClient
        self.way_to_zookeeper: Relay
        """Between the old controller and ZooKeeper."""
        self.relays: dict[int, ControlRelay] = {}
        self.brokers: dict[int, BrokerProcess] = {}
        self.old: BrokerProcess
        self.next: BrokerProcess
        self._metrics_port = 0

    @asynccontextmanager
    async def running(self, session_timeout_ms: int) -> AsyncIterator[Overlap]:
        async with self._stack as stack:
            await stack.enter_async_context(self.server.running())
            self.zk = ZooKeeperClient(AsyncioNetwork(), SystemClock(), Random(2), self.server.address, 10_000)
            await stack.enter_async_context(self.zk.running())
            for candidate in (OLD, NEXT):  # it stands at once, and takes over if the JVM broker was elected first
                await self.zk.ensure_path(candidates.path(BrokerId(candidate)))
            self.way_to_zookeeper = await stack.enter_async_context(Relay(self.server.port).running())
            self._metrics_port = reserve_port()
            old: dict[str, str | int] = {
                "zookeeper.session.timeout.ms": session_timeout_ms,
                "request.timeout.ms": 240_000,  # it must wait for the request that is held back, not send it again
                "klamm.http.listener": f"{HOST}:{self._metrics_port}",
            }
            self.old = self._controller(OLD, f"{HOST}:{self.way_to_zookeeper.port}", old)
            await self._start(self.old)
            await eventually("the first controller", self._is_controller(OLD))
            self.next = self._controller(NEXT, self.server.address, {})
            await asyncio.gather(
                self._start(self.next), self._start_broker(KLAMM_BROKER), self._start_broker(JVM_BROKER)
            )
            yield self

    def _controller(self, number: int, zookeeper: str, properties: dict[str, str | int]) -> BrokerProcess:
        dedicated = {"klamm.controller.only": "true", "inter.broker.protocol.version": "2.5", **properties}
        return KlammBroker(number, zookeeper, self._directory / str(number), dedicated)

    async def _start_broker(self, number: int) -> None:
        directory, zookeeper = self._directory / str(number), self.server.address
        broker: BrokerProcess
        if number == JVM_BROKER:
            broker = ApacheKafkaBroker(KAFKA, number, zookeeper, directory)
        else:
            broker = KlammBroker(number, zookeeper, directory, {"inter.broker.protocol.version": "2.5"})
        broker.port, broker.internal_port = reserve_port(), reserve_port()
        relay = ControlRelay(broker.internal_port)
        await self._stack.enter_async_context(relay.running())
        broker.properties["advertised.listeners"] = f"CLIENT://{HOST}:{broker.port},INTERNAL://{HOST}:{relay.port}"
        self.brokers[number], self.relays[number] = broker, relay
        await self._start(broker)

    async def _start(self, process: BrokerProcess) -> None:
        self._stack.callback(process.release_ports)
        self._stack.push_async_callback(process.kill)
        await process.start()

    # --- inspection ---

    def _is_controller(self, number: int) -> Callable[[], Awaitable[bool]]:
        async def check() -> bool:
            (node,) = await self.zk.get_many([controller_znode.PATH])
            return node is not None and controller_znode.decode(controller_znode.PATH, node.data) == number

        return check

    async def everybody_leads(self) -> bool:
        """Every topic has a leader and both replicas in sync."""
        paths = [f"{partition_state.partitions_path(topic)}/0/state" for topic in TOPICS]
        for path, node in zip(paths, await self.zk.get_many(paths), strict=True):
            if node is None or len(partition_state.decode(path, node.data).isr) != 2:
                return False
        return True

    async def queued(self) -> int:
        """Requests in the queue of the old controller, by its own metrics."""
        url = f"http://{HOST}:{self._metrics_port}/metrics"
        text = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=10).read().decode())
        found = re.search(r"(?im)^[^#\n]*total_?queue_?size\S* ([\d.e+]+)$", text)
        assert found is not None, text[:2000]
        return int(float(found[1]))

    def requests(self) -> list[ControlRequest]:
        """Requests of the old controller that reached the relays."""
        return [r for relay in self.relays.values() for r in relay.requests if r.sender == str(OLD)]

    async def old_has_resigned(self) -> bool:
        return "controller-resigned" in self.old.log_text()

    def refusals(self, number: int) -> int:
        """Lines of a broker's log that refuse a request of the old controller."""
        if number == KLAMM_BROKER:
            return len(re.findall(rf"refused a request of controller {OLD}: its", self.brokers[number].log_text()))
        jvm = self.brokers[number]
        assert isinstance(jvm, ApacheKafkaBroker)
        told = r"(Ignoring (LeaderAndIsr|StopReplica) request.* since its controller epoch|from an old controller)"
        return len(re.findall(told, jvm.state_change_log()))

    def files(self) -> dict[str, bytes]:
        """The content of all segments of the topics and the names of their directories, on both brokers."""
        found: dict[str, bytes] = {}
        for number, broker in self.brokers.items():
            for directory in sorted(broker.data_directory.glob("kept-*")):
                found[f"{number}/{directory.name}"] = b""
                for segment in sorted(directory.glob("*.log")):
                    found[f"{number}/{directory.name}/{segment.name}"] = segment.read_bytes()
        return found

    # --- actions ---

    async def create_topics(self) -> None:
        for number, topic in enumerate(TOPICS):
            replicas = (BrokerId(1 + number % 2), BrokerId(2 - number % 2))
            await self.zk.create(config_znode.topic_path(topic), config_znode.encode({}))
            await self.zk.create(topic_znode.path(topic), topic_znode.encode({0: Assignment(replicas)}))
        await eventually("leaders of all topics", self.everybody_leads)
        await asyncio.to_thread(self._produce)

    def _produce(self) -> None:
        failed: list[Any] = []
        bootstrap = ",".join(broker.address for broker in self.brokers.values())
        producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "delivery.timeout.ms": 60_000})
        for number in range(RECORDS):
            for topic in TOPICS:
                producer.produce(topic, str(number), on_delivery=lambda e, _: failed.append(e) if e else None)
        assert producer.flush(60) == 0
        assert not failed, failed[:3]

    async def delete_topics_into_the_queue(self) -> int:
        """Delete topics one by one, because together they would share a request, until this many requests wait."""
        for relay in self.relays.values():
            relay.arm(str(OLD))
        for topic in TOPICS:
            await self.zk.create(delete_topics.path(topic))
            path = f"{partition_state.partitions_path(topic)}/0/state"

            async def has_begun(path: str = path) -> bool:
                return partition_state.decode(path, (await self.zk.get(path)).data).leader == -1

            await eventually(f"the deletion of {topic} to begin", has_begun)

        async def enough() -> bool:
            return await self.queued() >= QUEUED_LEAST and all(relay.held for relay in self.relays.values())

        await eventually(f"{QUEUED_LEAST} requests in the queue", enough)
        return await self.queued()

    async def take_deletions_back(self) -> None:
        for topic in TOPICS:
            await self.zk.delete(delete_topics.path(topic))

    async def wait_for_the_next(self) -> None:
        """Wait until it is elected and both brokers have obeyed it."""
        await eventually("the next controller", self._is_controller(NEXT))

        async def heard() -> bool:
            return all(
                any(r.sender == str(NEXT) and r.answer is ErrorCode.NONE for r in relay.requests)
                for relay in self.relays.values()
            )

        await eventually("answers of both brokers to it", heard)


@pytest.mark.parametrize("is_unnoticed", [False, True], ids=["by time", "unnoticed"])
async def test_the_old_controller_is_obeyed_by_nobody(tmp_path: Path, is_unnoticed: bool) -> None:
    timeout_ms = LONG_SESSION_TIMEOUT_MS if is_unnoticed else SESSION_TIMEOUT_MS
    async with Overlap(tmp_path).running(timeout_ms) as overlap:
        await overlap.create_topics()
        before = overlap.files()
        queued = await overlap.delete_topics_into_the_queue()
        session = (await overlap.zk.get(controller_znode.PATH)).stat.ephemeral_owner
        overlap.old.pause()
        if is_unnoticed:
            overlap.way_to_zookeeper.silence()
        await overlap.take_deletions_back()
        if is_unnoticed:
            overlap.server.expire(session)
        await overlap.wait_for_the_next()

        held = [request for relay in overlap.relays.values() for request in relay.held]
        assert len(held) == len(overlap.relays)  # one in flight to each broker
        assert all(request.deletes for request in held)
        in_time = [request for request in overlap.requests() if request not in held]
        for relay in overlap.relays.values():
            relay.release()

        async def held_are_answered() -> bool:
            return all(request.answer is not None for request in held)

        # Before it runs again: a controller that finds its session gone closes its connections.
        await eventually("answers to the requests that were held", held_are_answered)
        overlap.old.resume()

        def late() -> list[ControlRequest]:
            return [request for request in overlap.requests() if request not in in_time]

        async def answered() -> bool:
            """All of them: when the old one resigns, it closes its connections, and later answers are lost."""
            if is_unnoticed and (len(late()) < queued or await overlap.queued()):
                return False
            return len(late()) >= len(held) and all(request.answer is not None for request in late())

        await eventually("answers to all requests of the old one", answered)
        overlap.way_to_zookeeper.speak()
        await eventually("the resignation of the old one", overlap.old_has_resigned)
        await eventually("leaders of all topics", overlap.everybody_leads)

        refused = [request for request in late() if request.answer is ErrorCode.STALE_CONTROLLER_EPOCH]
        in_logs = {number: overlap.refusals(number) for number in overlap.brokers}
        deleting = sum(request.deletes for request in refused)
        print(
            f"\n{queued} requests queued, {len(held)} of them in the network. Afterwards {len(late())} arrived:"
            f" {len(refused)} refused, {deleting} of them StopReplica with delete; {queued - len(late())} dropped by"
            f" the old controller itself. Refusals in the brokers' logs: {in_logs}"
        )
        assert len(refused) == len(late())
        assert sum(in_logs.values()) == len(refused)
        if is_unnoticed:
            assert len(refused) >= QUEUED_LEAST
            assert deleting >= len(TOPICS)
        else:
            assert refused == held
        assert overlap.files() == before
        for topic in TOPICS:
            found = await asyncio.to_thread(read_all, overlap.brokers[JVM_BROKER].address, topic, 1)
            assert [number for _, number in found[0]] == list(range(RECORDS))
