"""klamm's own client against Apache Kafka and klamm: administration, producing and reading."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from klamm.client.addresses import addresses
from klamm.client.admin import BROKER, BROKER_LOGGER, DELETE, SET, TOPIC, Admin, NewTopic
from klamm.client.cluster import ClusterClient
from klamm.client.groups import GroupAdmin
from klamm.client.producer import Producer
from klamm.client.reader import EARLIEST, LATEST, Reader, offsets_at
from klamm.model.config_levels import Source
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.server.local_cluster import LocalCluster
from klamm.testing.apache_kafka import ApacheKafkaBroker, MixedCluster
from klamm.wire.records import Codec, Record
from klamm.zookeeper.server.memory import MemoryZooKeeper

KINDS = ("2.5.1", "3.9.1", "klamm")
SMALL = {"offsets.topic.num.partitions": "1", "offsets.topic.replication.factor": "1"}


@asynccontextmanager
async def running(kind: str, path: Path) -> AsyncIterator[str]:
    """The bootstrap address of a cluster with one broker."""
    if kind == "klamm":
        local = LocalCluster(path, brokers=1, zookeeper="memory", properties=SMALL)
        async with local.running():
            yield local.bootstrap
        return
    zookeeper = MemoryZooKeeper(AsyncioNetwork(), SystemClock(), Random(1))
    async with zookeeper.running():
        broker = ApacheKafkaBroker(kind, 1, zookeeper.address, path / "1", properties=SMALL)
        async with MixedCluster([broker]).running() as cluster:
            yield cluster.bootstrap


@pytest.mark.parametrize("kind", KINDS)
async def test_administration_and_records(kind: str, tmp_path: Path) -> None:
    async with running(kind, tmp_path) as bootstrap, ClusterClient(addresses(bootstrap)).running() as client:
        admin = Admin(client)
        (broker,) = await admin.brokers()
        await topics(admin, broker)
        await configurations(admin)
        await records(client)
        await leaders_and_directories(admin, broker)
        await groups(client)
        assert await admin.delete_topics(["t"]) == {"t": None}
        assert "t" not in await admin.topic_names()


async def topics(admin: Admin, broker: int) -> None:
    assert await admin.create_topics({"t": NewTopic(2, 1, configs={"retention.ms": "86400000"})}) == {"t": None}
    again = (await admin.create_topics({"t": NewTopic(assignments={0: [broker]})}))["t"]
    assert again is not None and again.code is ErrorCode.TOPIC_ALREADY_EXISTS
    assert await admin.create_partitions({"t": 3}) == {"t": None}
    (described,) = await admin.describe_topics(["t"])
    found = sorted((entry.partition_index, entry.replica_nodes) for entry in described.partitions)
    assert found == [(index, [broker]) for index in range(3)]
    assert "t" in await admin.topic_names()
    (unknown,) = await admin.describe_topics(["nothing"])
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "nothing" not in await admin.topic_names()


async def configurations(admin: Admin) -> None:
    await admin.alter_configs(TOPIC, "t", {"retention.ms": (DELETE, None), "max.message.bytes": (SET, "2000000")})
    found = await admin.describe_configs(TOPIC, "t", ["retention.ms", "max.message.bytes", "cleanup.policy"])
    assert found == {"retention.ms": "604800000", "max.message.bytes": "2000000", "cleanup.policy": "delete"}
    entries = await admin.config_entries(TOPIC, "t", ["max.message.bytes", "cleanup.policy"])
    assert entries["max.message.bytes"].source is Source.TOPIC
    assert entries["cleanup.policy"].source in (Source.BUILT_IN, Source.FILE)
    (broker,) = await admin.brokers()
    loggers = await admin.config_entries(BROKER_LOGGER, str(broker))
    assert loggers["root"].source is Source.LOGGER
    assert (await admin.describe_configs(BROKER, str(broker), ["broker.id"])) == {"broker.id": str(broker)}
    with pytest.raises(KafkaError):
        await admin.alter_configs(TOPIC, "t", {"retention.ms": (SET, "soon")})


async def records(client: ClusterClient) -> None:
    now = int(time.time() * 1000)
    sent: list[Record] = []
    for number, codec in enumerate(Codec):
        producer = Producer(client, codec=codec)
        batch = [Record(b"key", b"%d-%d" % (codec, n), now + number, (("h", None), ("i", b"v"))) for n in range(3)]
        offsets = await producer.send("t", {0: batch})
        assert offsets == {0: list(range(len(sent), len(sent) + 3))}
        sent += batch
    await Producer(client, acks=1).send("t", {1: [Record(None, b"one", now)]})
    await Producer(client, acks=0).send("t", {2: [Record(None, b"zero", now)]})
    places = [TopicPartition("t", index) for index in range(3)]
    reader = Reader(client, await offsets_at(client, places, EARLIEST))
    found: dict[TopicPartition, list[Record]] = {place: [] for place in places}
    while sum(map(len, found.values())) < len(sent) + 2:
        for place, record in await reader.poll():
            found[place].append(record)
    await reader.close()
    assert [record._replace(offset=-1) for record in found[places[0]]] == sent
    assert [record.value for place in places[1:] for record in found[place]] == [b"one", b"zero"]
    assert await offsets_at(client, places[:1], LATEST) == {places[0]: len(sent)}
    assert await offsets_at(client, places[:1], now + 2) == {places[0]: 6}
    assert await offsets_at(client, places[:1], now + 1000) == {places[0]: -1}


async def leaders_and_directories(admin: Admin, broker: int) -> None:
    place = TopicPartition("t", 0)
    needed_none = (await admin.elect_leaders(0, [place]))[place]
    assert needed_none is not None and needed_none.code is ErrorCode.ELECTION_NOT_NEEDED
    assert await admin.reassignments() == {}
    cancelled = (await admin.alter_reassignments({place: None}))[place]
    assert cancelled is not None and cancelled.code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    (directory,) = await admin.log_dirs(broker)
    assert {entry.name for entry in directory.topics} >= {"t"}
    assert await admin.alter_log_dirs(broker, {place: directory.log_dir}) == {place: None}


async def groups(client: ClusterClient) -> None:
    admin, place = GroupAdmin(client), TopicPartition("t", 0)
    assert await admin.list_all() == []
    assert await admin.offsets("nobody") == {}
    assert (await admin.describe("nobody")).state == "Dead"
    with pytest.raises(KafkaError, match="GROUP_ID_NOT_FOUND"):
        await admin.delete("nobody")
    assert await admin.commit("readers", {place: 3}) == {place: None}
    assert await admin.offsets("readers") == {place: 3}
    assert [(group.name, group.coordinator) for group in await admin.list_all()] == [("readers", 1)]
    assert (await admin.describe("readers"))[1:] == ("Empty", "", "", ())
    ranges = await admin.log_ranges([place, TopicPartition("gone", 0)])
    assert ranges == {place: (0, 15)}
    assert await admin.delete_offsets("readers", [place]) == {place: None}
    assert await admin.offsets("readers") == {}
    await admin.commit("readers", {place: 3})
    await admin.delete("readers")
    assert await admin.list_all() == []
