"""Two Apache Kafka 2.5.1 brokers and one klamm broker form one cluster, whichever of them is the controller.

To move the controller to a chosen broker, the others are paused during the election, so that they cannot stand.
Replication is checked in the files: the log of a partition has the same bytes on every replica of either kind.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Producer

from klamm.model.errors import NoNode
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.server.broker_process import BrokerProcess, KlammBroker
from klamm.testing.apache_kafka import ApacheKafkaBroker, MixedCluster, run_tool
from klamm.testing.history import anomalies, read_all, steady_producer
from klamm.testing.waiting import eventually
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.server.embedded import EmbeddedZooKeeper

VERSION = "2.5.1"
JVM = (1, 2)
KLAMM = 3
ALL = (*JVM, KLAMM)
ASSIGNMENT = "3:1:2,1:3:2,2:1:3,3:2:1,1:2:3,2:3:1"
"""Every broker is the preferred leader of two partitions, with followers of either kind."""
PARTITIONS = 6
RECORDS_PER_SECOND = 500


class Mixed:
    """The brokers and their state in ZooKeeper."""

    def __init__(self, cluster: MixedCluster, zk: ZooKeeperClient) -> None:
        self.cluster = cluster
        self.zk = zk

    async def controller(self) -> int | None:
        try:
            node = await self.zk.get("/controller")
        except NoNode:
            return None
        return int(json.loads(node.data or b"{}")["brokerid"])

    async def move_controller(self, kind: Sequence[int]) -> int:
        """Make one of these brokers the controller, by an election during which only they are awake."""
        if (now := await self.controller()) is not None and now in kind:
            return now
        asleep = [self.cluster[broker] for broker in ALL if broker not in kind and self.cluster[broker].alive]
        for broker in asleep:
            broker.pause()
        try:
            await self.zk.delete("/controller")
            await eventually(f"a controller among {kind}", lambda: self._is_controller(kind))
        finally:
            for broker in asleep:
                broker.resume()
        elected = await self.controller()
        assert elected is not None and elected in kind
        return elected

    async def _is_controller(self, kind: Sequence[int]) -> bool:
        return await self.controller() in kind

    async def states(self, topic: str, partitions: int = PARTITIONS) -> list[dict[str, Any]]:
        paths = [f"/brokers/topics/{topic}/partitions/{number}/state" for number in range(partitions)]
        return [json.loads(node.data) if node and node.data else {} for node in await self.zk.get_many(paths)]

    async def leaders(self, topic: str, partitions: int = PARTITIONS) -> list[int]:
        return [state.get("leader", -1) for state in await self.states(topic, partitions)]

    async def wait_in_sync(self, topic: str, brokers: Sequence[int] = ALL, partitions: int = PARTITIONS) -> None:
        """Wait until every partition has a leader and exactly this ISR."""

        async def in_sync() -> bool:
            return all(
                state.get("leader", -1) in brokers and sorted(state["isr"]) == sorted(brokers)
                for state in await self.states(topic, partitions)
            )

        await eventually(f"ISR {brokers} for {topic}", in_sync)

    async def wait_equal_logs(self, topic: str, partitions: int = PARTITIONS, brokers: Sequence[int] = ALL) -> None:
        async def equal() -> bool:
            return all(
                len({log_bytes(self.cluster[broker], topic, partition) for broker in brokers}) == 1
                for partition in range(partitions)
            )

        await eventually(f"equal logs of {topic}", equal)

    async def wait_deleted(self, topic: str) -> None:
        """Wait until it is gone from ZooKeeper, and brokers have at most a directory that is scheduled for removal."""
        nodes = [f"/brokers/topics/{topic}", f"/config/topics/{topic}", f"/admin/delete_topics/{topic}"]

        async def gone() -> bool:
            return await self.zk.get_many(nodes) == [None] * len(nodes)

        await eventually(f"deletion of {topic}", gone)
        for broker in self.cluster.brokers.values():
            left = broker.data_directory.glob(f"{topic}-*")
            assert not [directory for directory in left if not directory.name.endswith("-delete")]

    async def wait_directory(self, broker: BrokerProcess, name: str, there: bool) -> None:
        """StopReplica arrives after the replica has left ZooKeeper."""

        async def as_wanted() -> bool:
            return (broker.data_directory / name).exists() == there

        await eventually(f"{name} {'there' if there else 'gone'}", as_wanted)

    async def create(self, topic: str, assignment: str, **configs: object) -> None:
        """Create a topic with Kafka's own tool, which asks the current controller."""
        arguments = ["--create", "--topic", topic, "--replica-assignment", assignment]
        for key, value in configs.items():
            arguments += ["--config", f"{key.replace('_', '.')}={value}"]
        await self.topic_tool(*arguments)

    async def reassign(self, topic: str, partition: int, replicas: Sequence[int], plan: Path) -> None:
        wanted = [{"topic": topic, "partition": partition, "replicas": replicas}]
        plan.write_text(json.dumps({"version": 1, "partitions": wanted}))
        reassignment = ("--reassignment-json-file", str(plan), "--execute")
        tool = "kafka.admin.ReassignPartitionsCommand"
        await run_tool(VERSION, tool, "--zookeeper", self.cluster[KLAMM].zookeeper, *reassignment)

        async def done() -> bool:
            isr = (await self.states(topic, partition + 1))[partition]["isr"]
            return sorted(isr) == sorted(replicas) and not await self.zk.exists("/admin/reassign_partitions")

        await eventually(f"{topic}-{partition} on {replicas}", done)

    async def topic_tool(self, *arguments: str) -> None:
        await run_tool(VERSION, "kafka.admin.TopicCommand", "--bootstrap-server", self.cluster.bootstrap, *arguments)


def log_bytes(broker: BrokerProcess, topic: str, partition: int) -> bytes:
    segments = sorted((broker.data_directory / f"{topic}-{partition}").glob("*.log"))
    return b"".join(segment.read_bytes() for segment in segments)


@asynccontextmanager
async def mixed(connect: str, path: Path, versions: tuple[str, str] = (VERSION, VERSION)) -> AsyncIterator[Mixed]:
    """The JVM brokers start first, so that one of them is the first controller."""
    settings: dict[str, str | int] = {"replica.lag.time.max.ms": 5000}
    brokers: list[BrokerProcess] = [
        ApacheKafkaBroker(version, number, connect, path / str(number), properties=settings)
        for number, version in zip(JVM, versions, strict=True)
    ]
    settings_of_klamm = {**settings, "inter.broker.protocol.version": "2.5"}
    brokers.append(KlammBroker(KLAMM, connect, path / str(KLAMM), settings_of_klamm))
    cluster = MixedCluster(brokers)
    client = ZooKeeperClient(AsyncioNetwork(), SystemClock(), Random(), connect, 30_000)
    try:
        async with client.running():
            async with asyncio.TaskGroup() as tasks:
                for number in JVM:
                    tasks.create_task(cluster[number].start())
            await cluster[KLAMM].start()
            yield Mixed(cluster, client)
    finally:
        await cluster.kill()
        for broker in cluster.brokers.values():
            broker.release_ports()


def produce(bootstrap: str, topic: str, partitions: int, count: int) -> None:
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "delivery.timeout.ms": 30_000})
    for number in range(count):
        for partition in range(partitions):
            producer.produce(
                topic, str(number), partition=partition, on_delivery=lambda e, _: failed.append(e) if e else None
            )
    assert producer.flush(35) == 0
    assert not failed, failed[:3]


async def test_a_klamm_broker_obeys_an_apache_kafka_controller(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> None:
    async with mixed(zookeeper.connect_string, tmp_path) as them:
        klamm, bootstrap = them.cluster[KLAMM], them.cluster.bootstrap
        assert await them.controller() in JVM

        # It leads and follows as told, and followers of both kinds copy the same bytes.
        await them.create("both", "3:1:2,1:3:2", min_insync_replicas=2)
        await them.wait_in_sync("both", partitions=2)
        assert await them.leaders("both", 2) == [3, 1]
        await asyncio.to_thread(produce, bootstrap, "both", 2, 200)
        await them.wait_equal_logs("both", 2)

        # SIGTERM: the controller moves the leadership away before the broker stops.
        assert await klamm.stop() == 0
        (first, _) = await them.states("both", 2)
        assert first["leader"] in JVM and KLAMM not in first["isr"], first
        assert not re.search(r"controlled shutdown(, attempt| did not)|refuses the shutdown", klamm.log_text())
        await asyncio.to_thread(produce, bootstrap, "both", 2, 200)
        await klamm.start()
        await them.wait_in_sync("both", partitions=2)
        await them.wait_equal_logs("both", 2)

        # kill -9 of a leader: then the tool restores its preferred leadership.
        elect = ("--bootstrap-server", bootstrap, "--election-type", "preferred", "--all-topic-partitions")
        await run_tool(VERSION, "kafka.admin.LeaderElectionCommand", *elect)
        assert await them.leaders("both", 2) == [3, 1]
        await klamm.kill()
        await them.wait_in_sync("both", JVM, partitions=2)
        await asyncio.to_thread(produce, bootstrap, "both", 2, 200)
        await klamm.start()
        await them.wait_in_sync("both", partitions=2)
        await them.wait_equal_logs("both", 2)
        found = await asyncio.to_thread(read_all, bootstrap, "both", 2)
        assert [[number for _, number in found[p]] for p in range(2)] == [list(range(200)) * 3] * 2

        # It is removed from a partition and added again.
        for replicas in ([1, 2], [3, 1, 2]):
            await them.reassign("both", 0, replicas, tmp_path / "plan.json")
            await them.wait_directory(klamm, "both-0", KLAMM in replicas)
        await them.wait_equal_logs("both", 2)

        # StopReplica with deletion.
        await them.topic_tool("--delete", "--topic", "both")

        await them.wait_deleted("both")


async def test_apache_kafka_3_9_obeys_and_leads(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> None:
    """2.5.1, 3.9.1 at protocol 2.5, and klamm: a broker that gets SIGTERM is answered by either controller."""
    older, newer = JVM
    async with mixed(zookeeper.connect_string, tmp_path, (VERSION, "3.9.1")) as them:
        bootstrap = them.cluster.bootstrap
        for controller, stopped in ((KLAMM, newer), (KLAMM, older), (newer, KLAMM)):
            topic = f"while-{controller}-leads-{stopped}-stops"
            await them.move_controller((controller,))
            await them.create(topic, ASSIGNMENT, min_insync_replicas=2)
            await them.wait_in_sync(topic)
            await asyncio.to_thread(produce, bootstrap, topic, PARTITIONS, 50)

            broker = them.cluster[stopped]
            await broker.stop()
            for state in await them.states(topic):
                assert state["leader"] not in (stopped, -1) and stopped not in state["isr"], state
            if stopped != KLAMM:
                assert re.search("Controlled shutdown (?:succeeded|request returned successfully)", broker.log_text())
            await asyncio.to_thread(produce, bootstrap, topic, PARTITIONS, 50)
            await broker.start()
            await them.wait_in_sync(topic)
            await them.wait_equal_logs(topic)
            assert await them.controller() == controller

            await them.topic_tool("--delete", "--topic", topic)
            await them.wait_deleted(topic)


async def test_what_only_a_dead_leader_had_is_cut_off(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> None:
    """A klamm leader dies with records that its Apache Kafka follower never received, then the other way round."""
    async with mixed(zookeeper.connect_string, tmp_path) as them:
        await them.move_controller((2,))
        await them.create("diverged", "3:1,1:3")
        await asyncio.to_thread(produce, them.cluster.bootstrap, "diverged", 2, 50)
        for partition, (leader, follower) in enumerate(((KLAMM, 1), (1, KLAMM))):
            dead, heir = them.cluster[leader], them.cluster[follower]
            await them.wait_in_sync("diverged", (1, KLAMM), 2)
            assert (await them.leaders("diverged", 2))[partition] == leader
            heir.pause()
            await asyncio.to_thread(send_with_acks_1, dead.address, partition, "answers the waiting fetch", 1)
            await asyncio.to_thread(send_with_acks_1, dead.address, partition, "never replicated", 100)
            await dead.kill()
            heir.resume()
            await them.wait_in_sync("diverged", (follower,), 2)
            await asyncio.to_thread(send_with_acks_1, heir.address, partition, "in its place", 30)
            assert b"never replicated" in log_bytes(dead, "diverged", partition)
            assert b"never replicated" not in log_bytes(heir, "diverged", partition)

            await dead.start()
            await them.wait_in_sync("diverged", (1, KLAMM), 2)
            await them.wait_equal_logs("diverged", 2, (1, KLAMM))
            assert b"in its place" in log_bytes(dead, "diverged", partition)


def send_with_acks_1(bootstrap: str, partition: int, value: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": 1, "delivery.timeout.ms": 5_000})
    failed: list[object] = []
    for number in range(count):
        producer.produce(
            "diverged",
            f"{value} {number}",
            partition=partition,
            on_delivery=lambda e, _: failed.append(e) if e else None,
        )
    assert producer.flush(6) == 0
    assert not failed, failed[:3]


async def kill_a_follower_of_the_controller(them: Mixed, victim: int, topics: Sequence[str]) -> None:
    """kill -9 and return: its leaderships move, its ISRs refill."""
    await them.cluster[victim].kill()
    others = [broker for broker in ALL if broker != victim]
    for topic in topics:
        await them.wait_in_sync(topic, others)
    await them.cluster[victim].start()
    for topic in topics:
        await them.wait_in_sync(topic)


@pytest.mark.timeout(900)
async def test_the_controller_moves_between_the_kinds_under_load(
    zookeeper: EmbeddedZooKeeper, tmp_path: Path, scaled: Callable[[int, int], int]
) -> None:
    moves = scaled(2, 4)
    async with mixed(zookeeper.connect_string, tmp_path) as them:
        await them.create("ledger", ASSIGNMENT, min_insync_replicas=2)
        await them.wait_in_sync("ledger")
        topics = ["ledger"]
        started = time.monotonic()
        with ExitStack() as load:
            history = load.enter_context(
                steady_producer(them.cluster.bootstrap, "ledger", PARTITIONS, RECORDS_PER_SECOND)
            )
            for move in range(moves):
                controller = await them.move_controller((KLAMM,) if move % 2 == 0 else JVM)
                topic = f"under-{controller}-{move}"
                await them.create(topic, ASSIGNMENT)
                await them.wait_in_sync(topic)
                assert await them.leaders(topic) == [3, 1, 2, 3, 1, 2]
                topics.append(topic)
                await asyncio.to_thread(produce, them.cluster.bootstrap, topic, PARTITIONS, 50)
                victim = next(broker for broker in JVM if broker != controller)
                await kill_a_follower_of_the_controller(them, victim, topics)
                assert await them.controller() == controller
                print(f"move {move}: controller {controller}, {history.count} acknowledged")
            await asyncio.to_thread(load.close)
        seconds = time.monotonic() - started
        for topic in topics:
            await them.wait_equal_logs(topic)
        found = await asyncio.to_thread(read_all, them.cluster.bootstrap, "ledger", PARTITIONS)
        print(f"{history.count} acknowledged, {history.failed} failed, {moves} moves and kills, {seconds:.0f} s")
        assert anomalies(history, found) == []
        assert history.count > 10 * RECORDS_PER_SECOND, "the load was there, however busy the machine is"


@pytest.mark.timeout(1800)
async def test_random_faults_lose_nothing(
    zookeeper: EmbeddedZooKeeper, tmp_path: Path, scaled: Callable[[int, int], int]
) -> None:
    """On any broker, one after the other: death, shutdown, a pause longer than the session, an open election."""
    random = Random(scaled(1, 2))
    async with mixed(zookeeper.connect_string, tmp_path) as them:
        await them.create("ledger", ASSIGNMENT, min_insync_replicas=2)
        await them.wait_in_sync("ledger")
        with ExitStack() as load:
            history = load.enter_context(
                steady_producer(them.cluster.bootstrap, "ledger", PARTITIONS, RECORDS_PER_SECOND)
            )
            for number in range(scaled(2, 30)):
                victim = KLAMM if number % 2 == 0 else random.choice(JVM)
                fault = random.choice((kill, stop, outlive_session, elect))
                controller = await them.controller()
                await fault(them, victim)
                await them.wait_in_sync("ledger")
                what = f"{fault.__name__} {victim}, controller {controller} -> {await them.controller()}"
                print(f"fault {number}: {what}, {history.count} acknowledged")
            await asyncio.to_thread(load.close)
        await them.wait_equal_logs("ledger")
        found = await asyncio.to_thread(read_all, them.cluster.bootstrap, "ledger", PARTITIONS)
        print(f"{history.count} acknowledged, {dict(history.failed)} failed")
        assert anomalies(history, found) == []


async def kill(them: Mixed, victim: int) -> None:
    await them.cluster[victim].kill()
    await them.wait_in_sync("ledger", [broker for broker in ALL if broker != victim])
    await them.cluster[victim].start()


async def stop(them: Mixed, victim: int) -> None:
    await them.cluster[victim].stop()
    await them.cluster[victim].start()


async def outlive_session(them: Mixed, victim: int) -> None:
    """It wakes up deposed, with requests in its sockets and followers that are gone."""
    them.cluster[victim].pause()
    try:
        await them.wait_in_sync("ledger", [broker for broker in ALL if broker != victim])
    finally:
        them.cluster[victim].resume()


async def elect(them: Mixed, _victim: int) -> None:
    before = (await them.zk.get("/controller")).stat.czxid
    await them.zk.delete("/controller")

    async def elected() -> bool:
        stat = await them.zk.exists("/controller")
        return stat is not None and stat.czxid != before

    await eventually("a new controller", elected)
