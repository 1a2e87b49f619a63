"""Start and end of a broker process on klamm's ZooKeeper server: identities, ports, and what remains afterwards."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from klamm.client.addresses import addresses
from klamm.client.admin import Admin, NewTopic
from klamm.client.cluster import ClusterClient
from klamm.client.producer import Producer
from klamm.client.reader import Reader
from klamm.model.config import read_broker_config
from klamm.model.errors import ConfigError
from klamm.model.ids import BrokerEpoch, TopicPartition
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.server.broker_server import BrokerServer
from klamm.server.generated_id import with_id
from klamm.server.registration import Registration
from klamm.server.runtime import real_ports
from klamm.wire.records import Record
from klamm.zookeeper.server.memory import MemoryZooKeeper

STARTING, RUNNING = 1, 3


@pytest.fixture
async def zookeeper() -> AsyncIterator[MemoryZooKeeper]:
    async with MemoryZooKeeper(AsyncioNetwork(), SystemClock(), random.Random(1)).running() as server:
        yield server


async def server(zookeeper: str, *directories: Path, **settings: object) -> BrokerServer:
    """Keys have underscores."""
    properties = {
        "broker.id": "1",
        "zookeeper.connect": zookeeper,
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": ",".join(map(str, directories)),
        "controlled.shutdown.enable": "false",
    } | {key.replace("_", "."): str(value) for key, value in settings.items()}
    config, ports = read_broker_config(properties)[0], real_ports()
    return BrokerServer(await with_id(config, ports), ports)


@asynccontextmanager
async def running(zookeeper: str, *directories: Path, **settings: object) -> AsyncIterator[BrokerServer]:
    async with (await server(zookeeper, *directories, **settings)).running() as started:
        yield started


@asynccontextmanager
async def client(broker: BrokerServer) -> AsyncIterator[ClusterClient]:
    async with ClusterClient(addresses(f"127.0.0.1:{broker.endpoints[0].port}")).running() as connected:
        yield connected


def nodes(zookeeper: MemoryZooKeeper) -> dict[str, Any]:
    return zookeeper.service.database.tree.nodes


def document(zookeeper: MemoryZooKeeper, path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(nodes(zookeeper)[path].data)
    return found


def meta(directory: Path) -> dict[str, str]:
    lines = (directory / "meta.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


async def refused(zookeeper: str, *directories: Path, match: str, **settings: object) -> None:
    """The start fails with one clear message, and nothing goes on running."""
    before = asyncio.all_tasks()
    with pytest.raises(ConfigError, match=match):
        async with asyncio.timeout(10), running(zookeeper, *directories, **settings):
            pass
    assert asyncio.all_tasks() <= before


# --- the end ---


async def write(broker: BrokerServer, value: bytes) -> None:
    async with client(broker) as connected:
        for partition in range(4):
            await Producer(connected).send("t", {partition: [Record(None, value, 0)]})


async def read(broker: BrokerServer, count: int) -> list[bytes | None]:
    """The values of partition 0."""
    async with client(broker) as connected:
        reader, found = Reader(connected, {TopicPartition("t", 0): 0}), []
        async with asyncio.timeout(10):
            while len(found) < count:
                found += [read.record.value for read in await reader.poll()]
        await reader.close()
        return found


@pytest.mark.case("SHU-01")
async def test_a_clean_stop_and_what_a_restart_finds(zookeeper: MemoryZooKeeper, tmp_path: Path) -> None:
    directories = tmp_path / "one", tmp_path / "two"
    before = asyncio.all_tasks()
    async with running(zookeeper.address, *directories) as broker:
        async with client(broker) as connected:
            assert await Admin(connected).create_topics({"t": NewTopic(4, 1)}) == {"t": None}
        await write(broker, b"old")
    assert asyncio.all_tasks() <= before
    for directory in directories:
        _, count, *lines = (directory / "recovery-point-offset-checkpoint").read_text().splitlines()
        assert len(lines) == int(count) == 2
        assert {line.split()[2] for line in lines} == {"1"}, "everything is flushed"
        assert (directory / ".kafka_cleanshutdown").exists()
    async with running(zookeeper.address, *directories) as broker:
        assert await read(broker, 1) == [b"old"]
        await write(broker, b"new")
        assert await read(broker, 2) == [b"old", b"new"]


@pytest.mark.case("SHU-02")
async def test_without_zookeeper_the_start_fails(zookeeper: MemoryZooKeeper, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        await refused(address, tmp_path, match=rf"zookeeper\.connect={address}", zookeeper_connection_timeout_ms=200)
    async with running(zookeeper.address, tmp_path):
        assert "/brokers/ids/1" in nodes(zookeeper)


@pytest.mark.case("SHU-02")
async def test_what_is_closed_twice_stays_closed(zookeeper: MemoryZooKeeper, tmp_path: Path) -> None:
    async with running(zookeeper.address, tmp_path) as broker:
        core = broker._core
        assert core is not None and core.broker is not None and core.zk is not None
        logs = core.broker.replicas.logs
        await logs.close()
        await core.zk.close()
    await logs.close()
    await core.zk.close()
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    assert "/brokers/ids/1" not in nodes(zookeeper)


# --- the start ---


@pytest.mark.case("SHU-03")
async def test_a_chroot_is_created(zookeeper: MemoryZooKeeper, tmp_path: Path) -> None:
    async with running(f"{zookeeper.address}/kafka/east", tmp_path):
        assert "/kafka/east/brokers/ids/1" in nodes(zookeeper)
        assert "/brokers" not in nodes(zookeeper)


@pytest.mark.case("SHU-04")
async def test_a_port_that_is_taken(zookeeper: MemoryZooKeeper, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listener = f"PLAINTEXT://127.0.0.1:{taken.getsockname()[1]}"
        await refused(
            zookeeper.address,
            tmp_path,
            listeners=listener,
            match="listeners: cannot listen on .*Address already in use",
        )
    assert "/brokers/ids/1" not in nodes(zookeeper)
    async with running(zookeeper.address, tmp_path, listeners=listener):
        assert "/brokers/ids/1" in nodes(zookeeper)


@pytest.mark.case("SHU-05")
async def test_a_broker_runs_when_it_is_registered(
    zookeeper: MemoryZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, reached, may_register = Registration.first, asyncio.Event(), asyncio.Event()

    async def held(self: Registration) -> BrokerEpoch:
        reached.set()
        await may_register.wait()
        return await first(self)

    def state() -> float:
        return broker.metrics.value("kafka.server", "KafkaServer", "BrokerState")

    async def register_later() -> None:
        await reached.wait()
        seen.append(("/brokers/ids/1" in nodes(zookeeper), state()))
        may_register.set()

    monkeypatch.setattr(Registration, "first", held)
    broker, seen = await server(zookeeper.address, tmp_path), []
    registering = asyncio.create_task(register_later())
    async with broker.running():
        seen.append(("/brokers/ids/1" in nodes(zookeeper), state()))
    await registering
    assert seen == [(False, STARTING), (True, RUNNING)]


@pytest.mark.case("SHU-05")
async def test_a_broker_lists_itself(zookeeper: MemoryZooKeeper, tmp_path: Path) -> None:
    async with running(zookeeper.address, tmp_path) as broker, client(broker) as connected:
        port = broker.endpoints[0].port
        async with asyncio.timeout(10):
            while [(b.node_id, b.port) for b in (await connected.metadata([])).brokers] != [(1, port)]:
                await asyncio.sleep(0.01)


# --- identity ---


@pytest.mark.case("SHU-06")
async def test_generated_ids(zookeeper: MemoryZooKeeper, tmp_path: Path) -> None:
    one, two, later, other = (tmp_path / name for name in ("one", "two", "later", "other"))
    async with running(zookeeper.address, one, two, broker_id=-1) as first:
        async with running(zookeeper.address, other, broker_id=-1) as second:
            assert (first.id, second.id) == (1001, 1002)
            assert {"/brokers/ids/1001", "/brokers/ids/1002"} <= nodes(zookeeper).keys()
        assert [meta(directory)["broker.id"] for directory in (one, two, other)] == ["1001", "1001", "1002"]
    async with running(zookeeper.address, one, two, later, broker_id=-1) as again:
        assert (again.id, meta(later)["broker.id"]) == (1001, "1001")
    async with running(zookeeper.address, tmp_path / "third", broker_id=-1, reserved_broker_max_id=7) as third:
        assert third.id == 7 + 3, "the sequence is that of the cluster"


@pytest.mark.case("SHU-06")
async def test_ids_of_files_and_generated_ids_do_not_meet(zookeeper: MemoryZooKeeper, tmp_path: Path) -> None:
    await refused(zookeeper.address, tmp_path, broker_id=1001, match=r"broker\.id=1001 may be generated")
    off = {"broker_id_generation_enable": "false"}
    await refused(zookeeper.address, tmp_path, broker_id=-1, match=r"broker\.id is missing", **off)
    async with running(zookeeper.address, tmp_path, broker_id=1001, **off) as broker:
        assert (broker.id, meta(tmp_path)["broker.id"]) == (1001, "1001")
    async with running(zookeeper.address, tmp_path / "other", broker_id=1000) as highest:
        assert highest.id == 1000


@pytest.mark.case("SHU-07")
async def test_an_id_that_differs_from_the_stored_one(zookeeper: MemoryZooKeeper, tmp_path: Path) -> None:
    async with running(zookeeper.address, tmp_path):
        assert meta(tmp_path)["broker.id"] == "1"
    await refused(zookeeper.address, tmp_path, broker_id=2, match=r"belongs to broker 1, but broker\.id is 2")
    assert nodes(zookeeper).keys().isdisjoint({"/brokers/ids/1", "/brokers/ids/2"})
    assert meta(tmp_path)["broker.id"] == "1"


@pytest.mark.case("SHU-08")
async def test_the_cluster_id_is_shared(zookeeper: MemoryZooKeeper, tmp_path: Path) -> None:
    ids = (1, 2, 3)
    for _ in range(2):
        brokers = [running(zookeeper.address, tmp_path / str(number), broker_id=number) for number in ids]
        await asyncio.gather(*(broker.__aenter__() for broker in brokers))
        try:
            cluster_id = document(zookeeper, "/cluster/id")["id"]
            assert len(cluster_id) == 22
            assert [meta(tmp_path / str(number))["cluster.id"] for number in ids] == [cluster_id] * 3
        finally:
            await asyncio.gather(*(broker.__aexit__(None, None, None) for broker in brokers))
    async with running(zookeeper.address, tmp_path / "later", broker_id=4):
        assert meta(tmp_path / "later")["cluster.id"] == cluster_id


@pytest.mark.case("SHU-08")
async def test_directories_of_other_clusters_or_brokers(zookeeper: MemoryZooKeeper, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    async with running(zookeeper.address, one, two):
        cluster_id = meta(one)["cluster.id"]
    found = (two / "meta.properties").read_text()
    for wrong, match in (("broker.id=1", "different brokers"), (cluster_id, "different .*clusters")):
        (two / "meta.properties").write_text(found.replace(wrong, wrong[:-1] + "9"))
        await refused(zookeeper.address, one, two, match=match)
    (one / "meta.properties").write_text(found.replace(cluster_id, "another-cluster-------"))
    await refused(zookeeper.address, one, match=f"belongs to cluster another-cluster.* leads to cluster {cluster_id}")
    assert "/brokers/ids/1" not in nodes(zookeeper)


@pytest.mark.case("SHU-09")
async def test_the_registration_has_what_is_advertised(zookeeper: MemoryZooKeeper, tmp_path: Path) -> None:
    settings = {
        "listeners": "OUTSIDE://127.0.0.1:0,INSIDE://127.0.0.1:0",
        "advertised_listeners": "OUTSIDE://kafka.example.org:19092,INSIDE://10.0.0.7:19093",
        "listener_security_protocol_map": "OUTSIDE:PLAINTEXT,INSIDE:PLAINTEXT",
        "inter_broker_listener_name": "INSIDE",
    }
    async with running(zookeeper.address, tmp_path, **settings):
        registered = document(zookeeper, "/brokers/ids/1")
    assert registered["endpoints"] == ["OUTSIDE://kafka.example.org:19092", "INSIDE://10.0.0.7:19093"]
    assert registered["listener_security_protocol_map"] == {"OUTSIDE": "PLAINTEXT", "INSIDE": "PLAINTEXT"}
    assert (registered["host"], registered["port"]) == ("kafka.example.org", 19092)


# --- log directories ---


@pytest.mark.case("LDF-01")
async def test_a_directory_that_is_unusable_at_the_start(zookeeper: MemoryZooKeeper, tmp_path: Path) -> None:
    good, bad, worse = tmp_path / "good", tmp_path / "bad", tmp_path / "worse"
    for file in (bad, worse):
        file.write_text("not a directory")
    for old in ("0.11.0", "0.11", "0.10.2-IV0"):
        await refused(
            zookeeper.address,
            good,
            bad,
            inter_broker_protocol_version=old,
            match=r"inter\.broker\.protocol\.version=0.* is not supported: it must be one of 2\.4",
        )
    assert not good.exists()
    for version in ("2.4", "2.6"):
        async with running(zookeeper.address, good, bad, inter_broker_protocol_version=version) as broker:
            assert broker._core is not None and broker._core.broker is not None
            assert broker._core.broker.replicas.logs.directories.offline() == [str(bad)]
    await refused(zookeeper.address, bad, worse, match=r"bad: File exists; .*worse: File exists")
    assert "/brokers/ids/1" not in nodes(zookeeper)
