"""A dedicated klamm controller leads three Apache Kafka brokers through all its duties, driven by Kafka's own tools.

The controller is a klamm process without replicas. It starts first, so it is elected before a JVM broker can stand, and
stays controller until the last duty, which is to hand over and to take over again. The tools are those of both
releases: the older ones write znodes, the newer ones ask the controller. `make soak` does the same with brokers of
3.9.1, and with both releases in one cluster.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.model.ids import BrokerId
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.server.broker_process import BrokerProcess, KlammBroker
from klamm.testing.apache_kafka import ApacheKafkaBroker, MixedCluster, run_tool
from klamm.testing.history import anomalies, read_all, steady_producer
from klamm.testing.waiting import eventually
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.server.embedded import EmbeddedZooKeeper
from klamm.zookeeper.znodes import candidates

OLD, NEW = "2.5.1", "3.9.1"
CLUSTERS = [(OLD, OLD, OLD), (NEW, NEW, NEW), (OLD, NEW, OLD)]
CONTROLLER = 9
SETTINGS: dict[str, str | int] = {
    "zookeeper.session.timeout.ms": 8000,
    "replica.lag.time.max.ms": 2000,
    "replica.high.watermark.checkpoint.interval.ms": 500,  # the next write to a failed directory detects the failure
    "log.segment.delete.delay.ms": 500,
    "auto.create.topics.enable": "false",
    "auto.leader.rebalance.enable": "false",  # runs by a timer, so it would come at any time
}


class Led:
    """Three JVM brokers, a klamm controller, and their state in ZooKeeper."""

    def __init__(self, controller: BrokerProcess, cluster: MixedCluster, zk: ZooKeeperClient, path: Path) -> None:
        self.controller, self.cluster, self.zk, self.path = controller, cluster, zk, path
        self.seen: dict[str, str] = {}

    # --- inspection

    async def document(self, path: str) -> dict[str, Any]:
        (node,) = await self.zk.get_many([path])
        found: dict[str, Any] = json.loads(node.data) if node is not None and node.data else {}
        return found

    async def state(self, topic: str, partition: int = 0) -> dict[str, Any]:
        state = await self.document(f"/brokers/topics/{topic}/partitions/{partition}/state")
        return {**state, "isr": sorted(state.get("isr", ()))}  # a leader writes it in the order of a hash map

    async def becomes(self, topic: str, partition: int = 0, **expected: Any) -> dict[str, Any]:
        """Wait until the state of the partition is as expected."""
        state: dict[str, Any] = {}

        async def as_expected() -> bool:
            nonlocal state
            state = await self.state(topic, partition)
            return all(state.get(key) == value for key, value in expected.items())

        await eventually(lambda: f"{topic}-{partition} with {expected} instead of {state}", as_expected)
        return state

    async def told(self, topic: str, leaders: dict[int, int]) -> None:
        """Wait until every live JVM broker returns these leaders to clients."""
        clients = [AdminClient({"bootstrap.servers": self.cluster[n].address}) for n in self.cluster.alive]

        async def by_all() -> bool:
            for client in clients:
                found = (await asyncio.to_thread(client.list_topics, topic, 10)).topics[topic].partitions
                if {number: partition.leader for number, partition in found.items()} != leaders:
                    return False
            return True

        await eventually(f"leaders {leaders} of {topic} at every broker", by_all)

    async def led_by(self, *brokers: int) -> None:
        """Wait until one of them is the controller, and every JVM broker says so to clients."""
        clients = [AdminClient({"bootstrap.servers": self.cluster[n].address}) for n in self.cluster.alive]

        async def said_by_all() -> bool:
            named = {(await self.document("/controller")).get("brokerid", -1)}
            named |= {(await asyncio.to_thread(client.list_topics, timeout=10)).controller_id for client in clients}
            return len(named) == 1 and named <= set(brokers)

        await eventually(f"a controller among {brokers}", said_by_all)

    # --- actions

    async def create(self, topic: str, *replicas: Sequence[int]) -> None:
        assignment = [list(brokers) for brokers in replicas]
        wanted = NewTopic(topic, num_partitions=len(assignment), replica_assignment=assignment)
        await self._create(wanted)
        for number, brokers in enumerate(replicas):
            await self.becomes(topic, number, leader=brokers[0], leader_epoch=0, isr=sorted(brokers))

    async def create_placed(self, topic: str, partitions: int) -> None:
        """The controller chooses the replicas."""
        await self._create(NewTopic(topic, partitions, 3))

    async def _create(self, wanted: NewTopic) -> None:
        client = AdminClient({"bootstrap.servers": self.cluster.bootstrap})  # an old tool would ask an old controller
        await asyncio.to_thread(client.create_topics([wanted], operation_timeout=20)[wanted.topic].result, 30)

    async def tool(self, version: str, main_class: str, *arguments: str) -> str:
        """Add the addresses that the tool needs: ZooKeeper's if the arguments say so, else the brokers'."""
        address = () if "--zookeeper" in arguments else ("--bootstrap-server", self.cluster[1].address)
        ran = await run_tool(version, main_class, *address, *arguments, check=False)
        assert ran.code == 0 and "rror" not in ran.errors, f"{main_class} {arguments}:\n{ran.output}{ran.errors}"
        return ran.output

    def plan(self, topic: str, replicas: Sequence[int]) -> tuple[str, str]:
        wanted = [{"topic": topic, "partition": 0, "replicas": list(replicas)}]
        file = self.path / f"{topic}-{'-'.join(map(str, replicas))}.json"
        file.write_text(json.dumps({"version": 1, "partitions": wanted}))
        return "--reassignment-json-file", str(file)

    async def produce(self, topic: str, count: int, size: int) -> None:
        failed: list[object] = []

        def send() -> None:
            producer = Producer({"bootstrap.servers": self.cluster.bootstrap, "acks": "all"})
            for _ in range(count):
                producer.produce(topic, b"x" * size, on_delivery=lambda e, _: failed.append(e) if e else None)
            assert producer.flush(30) == 0

        await asyncio.to_thread(send)
        assert not failed, failed[:3]


@asynccontextmanager
async def led(connect: str, path: Path, versions: Sequence[str]) -> AsyncIterator[Led]:
    ours: dict[str, str | int] = {
        "klamm.controller.only": "true",
        "inter.broker.protocol.version": "2.5",
        "auto.leader.rebalance.enable": "false",
    }
    controller = KlammBroker(CONTROLLER, connect, path / str(CONTROLLER), ours)
    brokers = [
        ApacheKafkaBroker(
            version,
            number,
            connect,
            path / str(number),
            properties={**SETTINGS, "log.dirs": f"{path / str(number) / 'data'},{path / str(number) / 'more'}"},
        )
        for number, version in enumerate(versions, 1)
    ]
    async with (
        controller.running(),
        MixedCluster(brokers).running() as cluster,
        ZooKeeperClient(AsyncioNetwork(), SystemClock(), Random(1), connect, 30_000).running() as zk,
    ):
        yield Led(controller, cluster, zk, path)


# --- the duties: each acts and checks the result


async def topics(kafka: Led) -> str:
    tool = "kafka.admin.TopicCommand"
    await kafka.tool(OLD, tool, "--create", "--topic", "t", "--replica-assignment", "1:2:3,2:3:1")
    await kafka.becomes("t", 0, leader=1, leader_epoch=0, isr=[1, 2, 3])
    await kafka.told("t", {0: 1, 1: 2})
    await kafka.tool(
        OLD, tool, "--alter", "--topic", "t", "--partitions", "3", "--replica-assignment", "1:2:3,2:3:1,3:1:2"
    )
    await kafka.becomes("t", 2, leader=3, leader_epoch=0, isr=[1, 2, 3])
    await kafka.told("t", {0: 1, 1: 2, 2: 3})
    await kafka.create_placed("placed", 6)
    assignment = (await kafka.document("/brokers/topics/placed"))["partitions"]
    assert all(sorted(replicas) == [1, 2, 3] for replicas in assignment.values())
    return "created, grown from 2 to 3 partitions, told by every broker; none placed on the controller"


async def isr_changes(kafka: Led) -> str:
    await kafka.create("isr", [1, 3])
    await kafka.produce("isr", 10, 100)
    kafka.cluster[3].pause()
    try:
        feeding = asyncio.create_task(_feed(kafka, "isr"))
        shrunk = await kafka.becomes("isr", isr=[1])
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
    finally:
        kafka.cluster[3].resume()
    grown = await kafka.becomes("isr", isr=[1, 3])
    assert shrunk["leader_epoch"] == grown["leader_epoch"] == 0

    async def metadata() -> bool:
        return all([await _isr_told(kafka, broker, "isr") == [1, 3] for broker in kafka.cluster.alive])

    async def notifications_gone() -> bool:
        return not await kafka.zk.children("/isr_change_notification")

    await eventually("the ISR in every broker's metadata", metadata)
    await eventually("the notifications deleted", notifications_gone)
    return "follower stopped: 1,3 to 1; continued: back to 1,3; leader epoch 0; every broker told"


async def _feed(kafka: Led, topic: str) -> None:
    """A follower of an idle leader is never behind."""
    producer = Producer({"bootstrap.servers": kafka.cluster[1].address, "acks": 1})
    while True:
        producer.produce(topic, b"x")
        await asyncio.to_thread(producer.poll, 0.05)


async def _isr_told(kafka: Led, broker: int, topic: str) -> list[int]:
    client = AdminClient({"bootstrap.servers": kafka.cluster[broker].address})
    found = await asyncio.to_thread(client.list_topics, topic, 10)
    return sorted(found.topics[topic].partitions[0].isrs)


async def reassignment(kafka: Led) -> str:
    await kafka.create("moving", [1, 2])
    await kafka.produce("moving", 200, 10_000)
    asking = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
    started = await kafka.tool(NEW, asking, *kafka.plan("moving", [2, 3]), "--execute")
    assert "Successfully started partition reassignment" in started
    await kafka.becomes("moving", leader=2, isr=[2, 3])
    await eventually("the topic on 2 and 3", lambda: _is_on(kafka, "moving", [2, 3]))
    # The older tool, by znode, and so slow that it can be cancelled.
    writing, zookeeper = "kafka.admin.ReassignPartitionsCommand", ("--zookeeper", kafka.controller.zookeeper)
    plan = kafka.plan("moving", [1, 2])
    started = await kafka.tool(OLD, writing, *zookeeper, *plan, "--execute", "--throttle", "1000")
    assert "Successfully started reassignment" in started
    await eventually("the new replica's files", lambda: _is_directory(kafka, 1, "moving-0"))
    moving = await kafka.document("/brokers/topics/moving")
    assert (moving["adding_replicas"], moving["removing_replicas"]) == ({"0": [1]}, {"0": [3]})
    await kafka.tool(NEW, asking, *plan, "--cancel", "--preserve-throttles")
    await eventually("the topic on 2 and 3 again", lambda: _is_on(kafka, "moving", [2, 3]))
    await kafka.becomes("moving", isr=[2, 3])
    await eventually("the cancelled replica's files gone", lambda: _is_directory(kafka, 1, "moving-0", False))
    await eventually("the znode gone", lambda: _gone(kafka, "/admin/reassign_partitions"))
    return "by request 1,2 to 2,3; by znode towards 1,2, cancelled by request under a throttle: 2,3, files deleted"


def _directory(kafka: Led, broker: int, name: str) -> Path | None:
    home = kafka.cluster[broker].directory
    return next((home / data / name for data in ("data", "more") if (home / data / name).exists()), None)


async def _is_directory(kafka: Led, broker: int, name: str, there: bool = True) -> bool:
    return (_directory(kafka, broker, name) is not None) == there


async def _are_directories(kafka: Led, broker: int, names: Sequence[str]) -> bool:
    return all([await _is_directory(kafka, broker, name) for name in names])


async def _is_on(kafka: Led, topic: str, replicas: Sequence[int]) -> bool:
    found = await kafka.document(f"/brokers/topics/{topic}")
    return sorted(found["partitions"]["0"]) == sorted(replicas) and not found["adding_replicas"]


async def _gone(kafka: Led, *paths: str) -> bool:
    return await kafka.zk.get_many(list(paths)) == [None] * len(paths)


async def controlled_shutdown(kafka: Led) -> str:
    before = await kafka.state("t", 2)
    assert before["leader"] == 3
    code = await kafka.cluster[3].stop()
    after = await kafka.becomes("t", 2, leader=1, isr=[1, 2])
    assert after["leader_epoch"] == before["leader_epoch"] + 1
    said = kafka.cluster[3].log_text()
    assert re.search("Controlled shutdown (succeeded|request returned successfully)", said)  # 2.5, 3.x
    await kafka.told("t", {0: 1, 1: 2, 2: 1})
    await kafka.cluster[3].start()
    await kafka.becomes("t", 2, leader=1, isr=[1, 2, 3])
    return f"SIGTERM of broker 3: leadership handed over in one epoch, exit code {code}, in sync again after its start"


async def preferred_election(kafka: Led) -> str:
    tool, kind = "kafka.admin.LeaderElectionCommand", ("--election-type", "preferred")
    before = await kafka.state("t", 2)
    await kafka.tool(OLD, tool, *kind, "--topic", "t", "--partition", "2")
    after = await kafka.becomes("t", 2, leader=3, isr=[1, 2, 3])
    assert after["leader_epoch"] == before["leader_epoch"] + 1
    return "by LeaderElectionCommand: t-2 from 1 to 3, one epoch"


async def kills_and_unclean_election(kafka: Led) -> str:
    """2 dies, then 1: partitions that only they held have no leader. 2 returns without the last records of 1."""
    await kafka.create("load", [2, 1, 3], [1, 3, 2], [3, 2, 1])
    await kafka.create("unclean", [1, 2])
    bootstrap = kafka.cluster.bootstrap
    with steady_producer(bootstrap, "load", 3, 200) as history:
        await kafka.cluster[2].kill()
        await kafka.becomes("load", 0, leader=1, isr=[1, 3])
        await kafka.becomes("unclean", 0, leader=1, isr=[1])
        await kafka.cluster[1].kill()
        for partition in range(3):
            await kafka.becomes("load", partition, leader=3, isr=[3])
        alone = await kafka.becomes("unclean", leader=-1, isr=[1])
        await kafka.cluster[2].start()
        await kafka.becomes("load", 0, leader=3, isr=[2, 3])
        assert await kafka.state("unclean") == alone  # 2 is not in the ISR, so there is no leader
        tool, kind = "org.apache.kafka.tools.LeaderElectionCommand", ("--election-type", "unclean")
        arguments = ("--bootstrap-server", kafka.cluster[3].address, "--topic", "unclean", "--partition", "0")
        await run_tool(NEW, tool, *kind, *arguments)
        elected = await kafka.becomes("unclean", leader=2, isr=[2])
        assert elected["leader_epoch"] == alone["leader_epoch"] + 1
        await kafka.cluster[1].start()
        for partition in range(3):
            await kafka.becomes("load", partition, isr=[1, 2, 3])
        await kafka.becomes("unclean", leader=2, isr=[1, 2])
    found = await asyncio.to_thread(read_all, bootstrap, "load", 3)
    wrong = anomalies(history, found)
    assert not wrong, wrong[:5]
    assert history.count > 1000
    return f"2 and 1 killed: {history.count} acknowledged, all found; a leader outside the ISR only when asked for"


async def deletion(kafka: Led) -> str:
    await kafka.tool(OLD, "kafka.admin.TopicCommand", "--delete", "--topic", "t")
    paths = ("/brokers/topics/t", "/config/topics/t", "/admin/delete_topics/t")
    await eventually("deletion", lambda: _gone(kafka, *paths))
    assert [_directory(kafka, b, f"t-{p}") for b in (1, 2, 3) for p in range(3)] == [None] * 9  # at least renamed
    homes = [kafka.cluster[broker].directory for broker in (1, 2, 3)]

    async def no_files() -> bool:
        return not [found for home in homes for data in ("data", "more") for found in (home / data).glob("t-*")]

    await eventually("the files gone", no_files)
    return "by TopicCommand: znodes and every broker's directories gone"


async def failed_directory(kafka: Led) -> str:
    """Replace the directory by a file, into which no user, not even root, can write."""
    names = [f"disk-{partition}" for partition in range(4)]
    await kafka.create("disk", [3, 1], [3, 2], [3, 1], [3, 2])
    await eventually(f"files of {names} at broker 3", lambda: _are_directories(kafka, 3, names))
    places = {name: directory.parent for name in names if (directory := _directory(kafka, 3, name)) is not None}
    broken = places["disk-0"]
    broken.rename(broken.with_name("away"))
    broken.write_text("")
    lost = [number for number, name in enumerate(names) if places[name] == broken]
    for number in range(4):
        other = 1 if number % 2 == 0 else 2
        if number in lost:
            await kafka.becomes("disk", number, leader=other, leader_epoch=1, isr=[other])
        else:
            await kafka.becomes("disk", number, leader=3, leader_epoch=0, isr=sorted((3, other)))
    await kafka.told("disk", {n: (1 if n % 2 == 0 else 2) if n in lost else 3 for n in range(4)})
    assert kafka.cluster[3].alive
    await eventually("the notification deleted", lambda: _no_children(kafka, "/log_dir_event_notification"))
    return f"{len(lost)} of 4 partitions on it led by others, the rest still by broker 3, which lives"


async def _no_children(kafka: Led, path: str) -> bool:
    return not await kafka.zk.children(path)


async def the_office(kafka: Led) -> str:
    """From klamm to a JVM broker and back: each continues what the other left, and changes nothing that is right."""
    await kafka.controller.stop()
    await kafka.led_by(1, 2, 3)
    await kafka.create("theirs", [2, 1])
    names = [("load", 0), ("load", 1), ("load", 2), ("unclean", 0), ("theirs", 0)]
    before = [await kafka.state(*name) for name in names]
    await kafka.controller.start()
    await kafka.zk.ensure_path(
        candidates.path(BrokerId(CONTROLLER))
    )  # by order of the operator it takes over by itself
    await kafka.led_by(CONTROLLER)
    await kafka.create("ours", [1, 2])
    assert [await kafka.state(*name) for name in names] == before
    return (
        f"to a JVM broker, which creates a topic, and back: nothing rewritten; controller epoch {await _epoch(kafka)}"
    )


async def _epoch(kafka: Led) -> int:
    return int((await kafka.zk.get("/controller_epoch")).data or b"0")


DUTIES: list[tuple[str, Callable[[Led], Awaitable[str]]]] = [
    ("topics and growth", topics),
    ("ISR changes", isr_changes),
    ("reassignment with cancel", reassignment),
    ("controlled shutdown", controlled_shutdown),
    ("preferred election", preferred_election),
    ("kill -9 under load, unclean election", kills_and_unclean_election),
    ("deletion", deletion),
    ("a log directory that fails", failed_directory),
]


@pytest.mark.timeout(900)
@pytest.mark.case("DEL-01")
async def test_every_duty(
    tmp_path: Path,
    zookeeper: EmbeddedZooKeeper,
    scaled: Callable[[int, int], int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    for versions in CLUSTERS[: scaled(1, len(CLUSTERS))]:
        label = "-".join(versions)
        began = asyncio.get_running_loop().time()
        async with led(f"{zookeeper.connect_string}/{label}", tmp_path / label, versions) as kafka:
            for name, duty in DUTIES:
                kafka.seen[name] = await duty(kafka)
            await kafka.led_by(CONTROLLER)
            assert await _epoch(kafka) == 1  # throughout
            kafka.seen["the office"] = await the_office(kafka)
        with capsys.disabled():
            took = asyncio.get_running_loop().time() - began
            print(f"\nklamm leads Apache Kafka {', '.join(versions)} ({took:.0f} s)")
            for name, seen in kafka.seen.items():
                print(f"  {name:<38} {seen}")
