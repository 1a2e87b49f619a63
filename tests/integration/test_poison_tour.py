"""A tour of poison: one znode after another is corrupted, under load, in a cluster of three klamm brokers.

After each corruption there is one controller, every healthy partition is led, and a report names the bad path. Then the
znode is repaired, and the next one follows. A healthy partition is one whose topic and state are not the bad znode.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kafka import KafkaProducer

from klamm.controller.controller import Controller
from klamm.controller.recorder import Recorder
from klamm.model.config import read_broker_config
from klamm.model.errors import ZNodeError
from klamm.model.ports import Acl
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.server.broker_server import BrokerServer
from klamm.server.runtime import real_ports
from klamm.simulation.healed import name_of_state
from klamm.simulation.tree_access import TreeAccess
from klamm.zookeeper.server.memory import MemoryZooKeeper
from klamm.zookeeper.server.rules import SetAcl
from klamm.zookeeper.znodes import controller, controller_epoch, partition_state
from klamm.zookeeper.znodes import topic as topic_znode

BROKERS = (1, 2, 3)
TOPICS, PARTITIONS = 5, 3
LOAD = "load"
SECONDS_MAX = 20.0
BAD_JSON = (b"", b"not json", b"[]", b"null", b"\xff\xfe{", b'{"version":1', b"7")
WRONG_TYPES = (
    b'{"version":"one","partitions":7}',
    b'{"version":1,"partitions":{"x":[1]},"leader":"1","isr":{},"endpoints":[1],"brokerid":"x"}',
    b'{"version":1,"partitions":{"0":[99999999999]},"leader":99999999999,"leader_epoch":0,"isr":[1],'
    b'"controller_epoch":1,"endpoints":["PLAINTEXT://a..b:9092"],"jmx_port":-1,"brokerid":99999999999,'
    b'"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"}}',
)
HUGE = json.dumps({"version": 1, "junk": ["x" * 1000] * 900}).encode()


class Poison(NamedTuple):
    path: str
    kind: str
    cure: Callable[[], None]
    must_be_named: bool


class Cluster:
    def __init__(self, zookeeper: MemoryZooKeeper, seed: int) -> None:
        self.tree = TreeAccess(zookeeper.service)
        self.random = random.Random(seed)
        self.controllers: list[Controller] = []
        self.servers: list[BrokerServer] = []
        self.reports: list[str] = []
        self.acknowledged = 0

    # --- what is poisoned ---

    def poison(self) -> Poison:
        topics = [f"{topic_znode.PARENT}/{name}" for name in self.tree.children(topic_znode.PARENT) if name != LOAD]
        states = [path for path in self.tree.nodes if (name := name_of_state(path)) and name.topic != LOAD]
        registrations = [f"/brokers/ids/{broker}" for broker in BROKERS]
        documents = [*topics, *sorted(states), *registrations, controller.PATH, controller_epoch.PATH]
        kind = self.random.choice(("json", "types", "huge", "unreadable", "read only", "deleted", "copy", "foreign"))
        if kind in ("json", "types", "huge"):
            path = self.random.choice(documents)
            data = {"json": self.random.choice(BAD_JSON), "types": self.random.choice(WRONG_TYPES), "huge": HUGE}[kind]
            return Poison(path, kind, self._overwrite(path, data), must_be_named=True)
        if kind == "unreadable":
            path = self.random.choice([*topics, *sorted(states)])
            return Poison(path, kind, self._protect(path, ()), must_be_named=True)
        if kind == "read only":
            path = self.random.choice([*topics, *sorted(states)])
            return Poison(path, kind, self._protect(path, (Acl(1, "world", "anyone"),)), must_be_named=False)
        if kind == "deleted":
            path = self.random.choice([*sorted(states), "/isr_change_notification", "/admin/delete_topics"])
            return Poison(path, kind, self._delete(path), must_be_named=path in states)
        if kind == "copy":
            path = self.random.choice([*topics, *registrations])
            name = "copy" if path.startswith(topic_znode.PARENT) else "41"
            copy = f"{path.rpartition('/')[0]}/{name}"
            return Poison(copy, kind, self._add(copy, self.tree.read(path)), must_be_named=False)
        parents = ("/brokers/ids", "/admin/delete_topics", "/config/extension/candidates", *topics)
        path = f"{self.random.choice(parents)}/foreign"
        return Poison(path, kind, self._add(path, b"junk"), path.startswith(("/brokers/ids", "/config")))

    def _overwrite(self, path: str, data: bytes) -> Callable[[], None]:
        node = self.tree.nodes[path]
        before, czxid = node.data, node.czxid
        self.tree.put(path, data)

        def cure() -> None:
            found = self.tree.nodes.get(path)
            if found is not None and found.czxid == czxid and found.data == data:
                self.tree.put(path, before)

        return cure

    def _protect(self, path: str, acl: tuple[Acl, ...]) -> Callable[[], None]:
        self.tree.protect(path)
        own = self.tree.nodes[path].acl[-1]
        self.tree._write(SetAcl(path, (*acl, own), -1))
        return lambda: self.tree.unprotect(path) if path in self.tree.nodes else None

    def _delete(self, path: str) -> Callable[[], None]:
        self.tree.remove(path)
        return lambda: None

    def _add(self, path: str, data: bytes | None) -> Callable[[], None]:
        self.tree.put(path, data)
        return lambda: self.tree.remove(path)

    # --- what must hold ---

    def problem(self, poisoned: Poison | None) -> str | None:
        acting = [number for number, each in enumerate(self.controllers, 1) if each.is_active]
        if len(acting) != 1 or controller.PATH not in self.tree.nodes:
            return f"brokers {acting} act as controller"
        for name in self.tree.children(topic_znode.PARENT):
            for number in range(PARTITIONS):
                path = f"{topic_znode.PARENT}/{name}/partitions/{number}/state"
                if poisoned is not None and path.startswith(poisoned.path):
                    continue
                try:
                    state = partition_state.decode(path, self.tree.read(path))
                except ZNodeError as error:
                    return str(error)
                if state.leader not in BROKERS:
                    return f"{name}-{number} has no leader: {state}"
        if poisoned is not None and poisoned.must_be_named and not self.names(poisoned.path):
            return f"no report names {poisoned.path}"
        return None

    def names(self, path: str) -> bool:
        name = name_of_state(path)
        return any(path in report or (name is not None and str(name) in report) for report in self.reports)

    async def recovers(self, poisoned: Poison | None) -> None:
        try:
            async with asyncio.timeout(SECONDS_MAX):
                while self.problem(poisoned) is not None:
                    await asyncio.sleep(0.01)
        except TimeoutError:
            pytest.fail(f"{poisoned}: {self.problem(poisoned)}")


@asynccontextmanager
async def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> AsyncIterator[Cluster]:
    network, clock = AsyncioNetwork(), SystemClock()
    async with AsyncExitStack() as stack:
        zookeeper = await stack.enter_async_context(MemoryZooKeeper(network, clock, random.Random(seed)).running())
        cluster = Cluster(zookeeper, seed)
        made, decision = Controller.__init__, Recorder.decision

        def remember(self: Controller, **options: Any) -> None:
            made(self, **options)
            cluster.controllers.append(self)

        def report(self: Recorder, event: str, cause: str, **more: Any) -> None:
            cluster.reports.append(f"{event} {cause} {more.get('detail', '')}")
            decision(self, event, cause, **more)

        monkeypatch.setattr(Controller, "__init__", remember)
        monkeypatch.setattr(Recorder, "decision", report)
        for broker in BROKERS:
            settings = {
                "broker.id": str(broker),
                "zookeeper.connect": f"127.0.0.1:{zookeeper.port}",
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "log.dirs": str(tmp_path / str(broker) / "logs"),
                "controlled.shutdown.enable": "false",
                "klamm.controller.settle.ms": "200",
            }
            server = BrokerServer(read_broker_config(settings)[0], real_ports())
            cluster.servers.append(await stack.enter_async_context(server.running()))
        for topic in (LOAD, *(f"t{n}" for n in range(TOPICS))):
            replicas = {str(n): [(n + i) % 3 + 1 for i in range(3)] for n in range(PARTITIONS)}
            document = json.dumps({"version": 1, "partitions": replicas}).encode()
            cluster.tree.put(topic_znode.path(topic), document)
        await cluster.recovers(None)
        yield cluster


def _produce(cluster: Cluster, port: int, stop: threading.Event) -> None:
    producer = KafkaProducer(bootstrap_servers=f"127.0.0.1:{port}", acks="all", retries=50, retry_backoff_ms=50)
    try:
        while not stop.wait(0.02):
            producer.send(LOAD, b"record").get(timeout=60)
            cluster.acknowledged += 1
    finally:
        producer.close()


@asynccontextmanager
async def load(cluster: Cluster) -> AsyncIterator[None]:
    """Records with acks=all, as long as this lasts."""
    stop = threading.Event()
    work = asyncio.create_task(asyncio.to_thread(_produce, cluster, cluster.servers[0].endpoints[0].port, stop))
    try:
        yield
    finally:
        stop.set()
        await work


@pytest.mark.timeout(3600)
async def test_one_bad_znode_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scaled: Callable[[int, int], int]
) -> None:
    count = scaled(40, 2_000)
    async with running(tmp_path, monkeypatch, seed=1) as cluster, load(cluster):
        for number in range(count):
            cluster.reports.clear()
            before = cluster.acknowledged
            poisoned = cluster.poison()
            if poisoned.path != controller.PATH:
                cluster.tree.remove(controller.PATH)  # the next controller reads everything
            await cluster.recovers(poisoned)
            poisoned.cure()
            cluster.tree.remove(controller.PATH)
            await cluster.recovers(None)
            if number % 10 == 0:
                async with asyncio.timeout(SECONDS_MAX):
                    while cluster.acknowledged == before:
                        await asyncio.sleep(0.01)
