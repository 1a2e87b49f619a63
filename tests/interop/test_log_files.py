"""klamm's log files used by Apache Kafka, and Kafka's by klamm: its dump tool, and both brokers on one data directory.

Files must carry over more than records: offset and time indexes, sequences of producers (an idempotent producer
continues through every change of the broker), leader epochs, checkpoints and the marker of a clean shutdown.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import KafkaConsumer, TopicPartition
from kafka.admin import KafkaAdminClient

from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.server.broker_process import BrokerProcess, KlammBroker
from klamm.testing.apache_kafka import ApacheKafkaBroker, run_tool
from klamm.testing.cluster import KlammCluster
from klamm.testing.history import anomalies, read_all, steady_producer
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.server.embedded import EmbeddedZooKeeper

VERSION = "2.5.1"
SMALL_SEGMENTS = {"log.segment.bytes": "60000", "log.index.interval.bytes": "1000"}
PARTITIONS = 2
COMPLAINTS = re.compile(r"isvalid: false|mismatch|out of order|exception|error|not |larger|smaller", re.IGNORECASE)
RECOVERY = re.compile(r"^.*(?:Recovering unflushed|recovering it|rebuilding).*$", re.MULTILINE)
DISTRUST = re.compile(r"^.*(?:corrupt|rebuil|do not match|Could not find|Error|Exception).*$", re.MULTILINE)
"""Lines by which either kind rejects files of the other. Both write to one broker.log."""


async def dump(files: list[Path], *options: str) -> str:
    names = ",".join(map(str, files))
    tool = await run_tool(VERSION, "kafka.tools.DumpLogSegments", "--files", names, *options)
    return tool.output + tool.errors


@pytest.mark.klamm(properties=SMALL_SEGMENTS)
async def test_the_dump_tool_reads_every_file_without_complaint(klamm_cluster: KlammCluster) -> None:
    cluster = klamm_cluster
    await asyncio.to_thread(cluster.create_topic, "dumped", 1, 3)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        await asyncio.to_thread(produce, cluster.bootstrap, codec)
    await asyncio.to_thread(cluster.wait_until_healthy)
    for broker in cluster.broker_ids:
        await asyncio.to_thread(cluster.stop if broker != 2 else cluster.kill, broker)

    all_indexes: list[Path] = []
    for broker in cluster.broker_ids:
        directory = cluster.directory(broker) / "dumped-0"
        logs, indexes, times, snapshots = (
            sorted(directory.glob(f"*.{suffix}")) for suffix in ("log", "index", "timeindex", "snapshot")
        )
        assert len(logs) >= 3 and len(indexes) == len(times) == len(logs) and snapshots, sorted(directory.iterdir())
        text = await dump([*logs, *indexes, *times, *snapshots], "--deep-iteration")
        assert not COMPLAINTS.search(text), text
        assert len(re.findall(r"^\| offset: ", text, re.MULTILINE)) == 5 * 1000
        assert len(re.findall(r"^offset: \d+ position: ", text, re.MULTILINE)) > len(logs)
        assert len(re.findall(r"^timestamp: \d+ offset: ", text, re.MULTILINE)) > len(logs)
        assert re.search(r"^producerId: \d+ producerEpoch: 0 ", text, re.MULTILINE)
        all_indexes += [*indexes, *times]
    sane = await dump(all_indexes, "--index-sanity-check")
    assert sane.count("passed sanity check") == len(all_indexes), sane
    verified = await dump(all_indexes, "--verify-index-only")
    assert not COMPLAINTS.search(verified), verified


def produce(bootstrap: str, codec: str) -> None:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": codec, "linger.ms": 0}
    )
    for number in range(1000):
        producer.produce("dumped", key=f"{codec} {number}", value=str(number * number) * 10)
        if number % 50 == 0:
            producer.flush(30)
    assert producer.flush(30) == 0


@pytest.mark.timeout(600)
async def test_brokers_of_both_kinds_take_turns_on_one_directory(
    zookeeper: EmbeddedZooKeeper, tmp_path: Path, scaled: Callable[[int, int], int]
) -> None:
    """klamm and Apache Kafka in turn on one id and directory, stopped by SIGTERM or kill -9, always under load."""
    connect = zookeeper.connect_string
    klamm = KlammBroker(1, connect, tmp_path / "1", SMALL_SEGMENTS)
    jvm = ApacheKafkaBroker(VERSION, 1, connect, tmp_path / "1", properties=SMALL_SEGMENTS)
    await klamm.start()
    jvm.port, jvm.internal_port = klamm.port, klamm.internal_port
    brokers: list[BrokerProcess] = [klamm, jvm]
    try:
        await asyncio.to_thread(create_topic, klamm.address)
        with ExitStack() as load:
            history = load.enter_context(steady_producer(klamm.address, "handed", PARTITIONS, 500))
            for turn in range(scaled(4, 8)):
                now, after = brokers[turn % 2], brokers[(turn + 1) % 2]
                await acknowledged(history.count + 1500, lambda: history.count)
                clean = turn % 4 < 2
                if clean:
                    assert await now.stop() == (0 if now is klamm else 143)  # the exit code of a JVM that got SIGTERM
                else:
                    await now.kill()
                before, said = contents(tmp_path / "1" / "data"), len(after.log_text())
                await session_ended(connect)
                await after.start()
                recovered = RECOVERY.search(after.log_text()[said:])
                assert not (clean and recovered), f"turn {turn}: {recovered}"
                await acknowledged(history.count + 500, lambda: history.count)
                for name, content in contents(tmp_path / "1" / "data").items():
                    assert content.startswith(before.get(name, b"")), f"{name} changed in turn {turn}"
            await asyncio.to_thread(load.close)
        last = brokers[(turn + 1) % 2]
        found = await asyncio.to_thread(read_all, last.address, "handed", PARTITIONS)
        print(f"{history.count} acknowledged, {dict(history.failed)} failed, {turn + 1} turns")
        assert anomalies(history, found) == []
        assert not history.failed
        times = await asyncio.to_thread(offsets_by_time, last.address)
        await last.stop()
        await session_ended(connect)
        other = brokers[turn % 2]
        await other.start()
        assert await asyncio.to_thread(offsets_by_time, other.address) == times
        assert not DISTRUST.findall(other.log_text())
    finally:
        for broker in brokers:
            await broker.kill()
        klamm.release_ports()


def create_topic(bootstrap: str) -> None:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        client.create_topics({"handed": {"num_partitions": PARTITIONS, "replication_factor": 1}})
    finally:
        client.close()


async def acknowledged(count: int, now: Callable[[], int], timeout: float = 60) -> None:
    async with asyncio.timeout(timeout):
        while now() < count:
            await asyncio.sleep(0.02)


def contents(directory: Path) -> dict[str, bytes]:
    return {f"{file.parent.name}/{file.name}": file.read_bytes() for file in directory.glob("handed-*/*.log")}


async def session_ended(connect: str) -> None:
    """Wait for the end of a killed broker's session, because its id is registered until then."""
    client = ZooKeeperClient(AsyncioNetwork(), SystemClock(), Random(), connect, 10_000)
    async with client.running(), asyncio.timeout(30):
        while await client.exists("/brokers/ids/1") is not None:
            await asyncio.sleep(0.05)


def offsets_by_time(bootstrap: str) -> list[object]:
    """The offsets of 100 points in time, by the time indexes."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=None)
    places = [TopicPartition("handed", partition) for partition in range(PARTITIONS)]
    try:
        ends = {}
        for place in places:
            consumer.assign([place])
            consumer.seek_to_beginning(place)
            ends[place] = next(consumer).timestamp
        found: list[object] = []
        for second in range(100):
            asked = {place: start + 1000 * second for place, start in ends.items()}
            found.append(consumer.offsets_for_times(asked))
        return found
    finally:
        consumer.close()


COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "20000", "min.cleanable.dirty.ratio": "0.01"}
EAGER = {
    "log.cleaner.backoff.ms": "50",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}


@pytest.mark.timeout(300)
async def test_a_log_is_compacted_by_both_kinds_in_turn(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> None:
    """Each opens and reads what the other cleaned, without a complaint, and continues at the same checkpoint."""
    connect, data = zookeeper.connect_string, tmp_path / "1" / "data"
    klamm = KlammBroker(1, connect, tmp_path / "1", EAGER)
    jvm = ApacheKafkaBroker(VERSION, 1, connect, tmp_path / "1", properties=EAGER)
    await klamm.start()
    jvm.port, jvm.internal_port = klamm.port, klamm.internal_port
    expected: dict[str, str | None] = {}
    try:
        await asyncio.to_thread(create_compacted_topic, klamm.address)
        clean, now, after = 0, klamm, jvm
        for turn in range(3):
            await asyncio.to_thread(rewrite, now.address, turn, expected, transactional=now is jvm)
            clean = await cleaned_beyond(data, clean)
            assert await asyncio.to_thread(latest, now.address) == expected
            await now.stop()
            if now is klamm:  # Kafka's tool complains about Kafka's own cleaning: timestamps of empty batches
                text = await dump(sorted(path for path in (data / "compacted-0").iterdir() if is_dumped(path)))
                assert not COMPLAINTS.search(text), text
            await session_ended(connect)
            said = len(after.log_text())
            await after.start()
            assert await asyncio.to_thread(latest, after.address) == expected
            assert cleaner_checkpoint(data) >= clean
            assert not DISTRUST.findall(after.log_text()[said:])
            now, after = after, now
    finally:
        for broker in (klamm, jvm):
            await broker.kill()
        klamm.release_ports()


def create_compacted_topic(bootstrap: str) -> None:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        client.create_topics({"compacted": {"num_partitions": 1, "replication_factor": 1, "configs": COMPACTED}})
    finally:
        client.close()


def rewrite(bootstrap: str, turn: int, expected: dict[str, str | None], *, transactional: bool) -> None:
    """Two hundred keys, some deleted, with every codec, and aborted transactions where the client has transactions."""
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        options = {"transactional.id": f"t{turn}-{number}"} if transactional else {"enable.idempotence": True}
        producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 1, **options})
        if transactional:
            producer.init_transactions(60)
        for committed in (False, True) if transactional else (True,):
            if transactional:
                producer.begin_transaction()
            for key in range(200):
                value = None if (key + turn) % 7 == 0 else f"{turn} {codec} {key} {committed} " * 5
                producer.produce("compacted", value, key=str(key))
                if key % 20 == 0:
                    producer.flush(30)
                if committed:
                    expected[str(key)] = value
            if transactional:
                producer.commit_transaction(60) if committed else producer.abort_transaction(60)
        assert producer.flush(30) == 0


def latest(bootstrap: str) -> dict[str, str | None]:
    """Key -> value of the last committed record. Offsets must rise."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    found: dict[str, str | None] = {}
    last = -1
    try:
        consumer.assign([ConfluentPartition("compacted", 0, 0)])
        while True:
            message = consumer.poll(30)
            assert message is not None
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                return found
            assert message.offset() > last
            last = message.offset()
            value = message.value()
            found[message.key().decode()] = None if value is None else value.decode()
    finally:
        consumer.close()


def cleaner_checkpoint(data: Path) -> int:
    path = data / "cleaner-offset-checkpoint"
    found = re.search(r"^compacted 0 (\d+)$", path.read_text() if path.exists() else "", re.MULTILINE)
    return int(found[1]) if found else 0


async def cleaned_beyond(data: Path, offset: int) -> int:
    async with asyncio.timeout(60):
        while (now := cleaner_checkpoint(data)) <= offset:
            await asyncio.sleep(0.05)
    return now


def is_dumped(path: Path) -> bool:
    return path.suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
