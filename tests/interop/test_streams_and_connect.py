"""Kafka Streams and Kafka Connect, exactly once, on three klamm brokers: they are killed, and so are their brokers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import clients
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from klamm.broker.coordinators.internal_topic import partition_for
from klamm.testing.cluster import KlammCluster, running_cluster
from klamm.testing.waiting import wait_until
from klamm.zookeeper.server.child import dying_with_us, release_port, reserve_port

FULL = os.environ.get("KLAMM_SCALE") == "full"
VERSIONS = list(zip(clients.STREAMS, ("exactly_once", "exactly_once_v2"), strict=True))
PARTITIONS = 3
INTERNAL_PARTITIONS = 5
WAIT_SECONDS = 150
JVM_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx256m")
PROPERTIES = {
    "offsets.topic.num.partitions": INTERNAL_PARTITIONS,
    "transaction.state.log.num.partitions": INTERNAL_PARTITIONS,
    "min.insync.replicas": 2,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KlammCluster]:
    with running_cluster(tmp_path_factory.mktemp("streams"), properties=PROPERTIES) as running:
        yield running


@contextmanager
def jvm(log: Path, class_path: str, *words: str) -> Iterator[None]:
    """A program that ends by kill -9."""
    command = dying_with_us(["java", *JVM_FLAGS, "-cp", class_path, *words])
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, process_group=0)
    try:
        yield
        assert process.poll() is None, log.read_text()[-3000:]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def produce(cluster: KlammCluster, topic: str, lines: Sequence[str]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 5})
    for number, line in enumerate(lines):
        producer.produce(topic, line, partition=number % PARTITIONS)
    assert producer.flush(60) == 0


def committed(cluster: KlammCluster, topic: str, partitions: int = PARTITIONS) -> list[tuple[bytes | None, str]]:
    """Keys and values that a read_committed consumer sees now."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    found = []
    try:
        for partition in range(partitions):
            consumer.assign([TopicPartition(topic, partition, 0)])
            while (message := consumer.poll(30)) is not None and not message.error():
                found.append((message.key(), message.value().decode()))
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize(("version", "guarantee"), VERSIONS if FULL else VERSIONS[-1:])
def test_words_are_counted_exactly_once(
    cluster: KlammCluster, tmp_path: Path, scaled: Callable[[int, int], int], version: str, guarantee: str
) -> None:
    """Every count from 1 to the number of a word's occurrences is written once, in order: no cache hides one. Each new
    instance restores its state from the changelog, because the old one's directory is lost with it."""
    application, words, counts = (f"{name}-{version}" for name in ("application", "words", "counts"))
    cluster.create_topic(words, PARTITIONS)
    cluster.create_topic(counts, PARTITIONS)
    group_home = partition_for(application, INTERNAL_PARTITIONS)
    log = tmp_path / "application.log"
    expected: Counter[str] = Counter()

    def total() -> int:
        return len(committed(cluster, counts))

    for number in range(scaled(2, 10)):
        state = tmp_path / f"state-{number}"
        program = ("WordCount", cluster.bootstrap, application, words, counts, str(state), guarantee)
        with jvm(log, clients.streams(version), *program):
            before = total()
            lines = [f"w{i % 7} w{i % 11}" for i in range(100)]
            expected.update(word for line in lines for word in line.split())
            produce(cluster, words, lines)
            wait_until("the first counts of this instance", lambda: total() > before, WAIT_SECONDS)  # noqa: B023
            coordinator = cluster.leader_of("__consumer_offsets", group_home)
            cluster.kill(coordinator)
        cluster.start(coordinator)
        cluster.wait_until_healthy()
    with jvm(log, clients.streams(version), *program[:5], str(tmp_path / "last-state"), guarantee):
        wait_until("every count", lambda: total() >= expected.total(), WAIT_SECONDS)
    seen = defaultdict(list)
    for key, value in committed(cluster, counts):
        assert key is not None
        seen[key.decode()].append(int(value))
    assert seen == {word: list(range(1, number + 1)) for word, number in expected.items()}


def as_properties(settings: Mapping[str, object]) -> str:
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def worker_properties(cluster: KlammCluster, port: int, **more: object) -> str:
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "offset.flush.interval.ms": 500,
        "listeners": f"http://127.0.0.1:{port}",
        **{key.replace("_", "."): value for key, value in more.items()},
    }
    return as_properties(settings)


def distributed_properties(cluster: KlammCluster, port: int) -> str:
    return worker_properties(
        cluster,
        port,
        group_id="connect",
        config_storage_topic="connect-configs",
        offset_storage_topic="connect-offsets",
        status_storage_topic="connect-status",
        offset_storage_partitions=PARTITIONS,
        status_storage_partitions=PARTITIONS,
        exactly_once_source_support="enabled",
        scheduled_rebalance_max_delay_ms=0,
        session_timeout_ms=6000,
        heartbeat_interval_ms=500,
    )


def file_connectors(topic: str, source: Path, sink: Path) -> dict[str, dict[str, str]]:
    package = "org.apache.kafka.connect.file.FileStream"
    return {
        "source": {"connector.class": f"{package}SourceConnector", "topic": topic, "file": str(source)},
        "sink": {"connector.class": f"{package}SinkConnector", "topics": topic, "file": str(sink)},
    }


def put_connector(port: int, name: str, configuration: Mapping[str, str]) -> bool:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/connectors/{name}/config",
        json.dumps(configuration).encode(),
        {"Content-Type": "application/json"},
        method="PUT",
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status in (200, 201)
    except OSError:
        return False  # it is starting, or its group rebalances


def test_connect_copies_a_file_exactly_once(cluster: KlammCluster, tmp_path: Path) -> None:
    """A distributed worker: file to topic in transactions, topic to file. It is killed, and another one resumes."""
    source, sink, log = (tmp_path / name for name in ("source.txt", "sink.txt", "connect.log"))
    cluster.create_topic("copied", 1)
    port = reserve_port()
    properties = tmp_path / "worker.properties"
    properties.write_text(distributed_properties(cluster, port))
    class_path = f"{clients.connect()}/*"
    lines: list[str] = []

    def append(count: int) -> None:
        new = [f"line {len(lines) + i}" for i in range(count)]
        lines.extend(new)
        with source.open("a") as file:
            file.write("".join(f"{line}\n" for line in new))

    def copied() -> set[str]:
        return set(sink.read_text().splitlines()) if sink.exists() else set()

    worker = ("org.apache.kafka.connect.cli.ConnectDistributed", str(properties))
    try:
        append(200)
        with jvm(log, class_path, *worker):
            for name, configuration in file_connectors("copied", source, sink).items():
                wait_until(name, lambda: put_connector(port, name, configuration), WAIT_SECONDS)  # noqa: B023
            wait_until("the first lines", lambda: copied() == set(lines), WAIT_SECONDS)
        append(200)
        with jvm(log, class_path, *worker):
            wait_until("the other lines", lambda: copied() == set(lines), WAIT_SECONDS)
    finally:
        release_port(port)
    assert [value for _, value in committed(cluster, "copied", 1)] == lines


def test_a_standalone_worker_copies_a_file(cluster: KlammCluster, tmp_path: Path) -> None:
    """It keeps its offsets in a file. Its consumer is a member of a group, as that of a distributed one."""
    source, sink, log = (tmp_path / name for name in ("source.txt", "sink.txt", "connect.log"))
    lines = [f"line {number}" for number in range(200)]
    source.write_text("".join(f"{line}\n" for line in lines))
    cluster.create_topic("copied-alone", 1)
    port = reserve_port()
    worker = tmp_path / "worker.properties"
    worker.write_text(worker_properties(cluster, port, offset_storage_file_filename=tmp_path / "offsets"))
    files = []
    for name, configuration in file_connectors("copied-alone", source, sink).items():
        files.append(tmp_path / f"{name}.properties")
        files[-1].write_text(as_properties({"name": f"alone-{name}", **configuration}))
    program = ("org.apache.kafka.connect.cli.ConnectStandalone", str(worker), *map(str, files))
    try:
        with jvm(log, f"{clients.connect()}/*", *program):
            wait_until("all lines", lambda: sink.exists() and sink.read_text() == source.read_text(), WAIT_SECONDS)
    finally:
        release_port(port)
    assert [value for _, value in committed(cluster, "copied-alone", 1)] == lines
