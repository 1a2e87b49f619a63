"""Log directories of a real broker: one that is dead at the start, all that die, and one that is not ours yet."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka.admin import KafkaAdminClient
from kafka.structs import TopicPartitionReplica

from klamm.testing.cluster import KlammCluster, running_cluster
from klamm.testing.waiting import wait_until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KlammCluster]:
    with running_cluster(tmp_path_factory.mktemp("directories"), brokers=1) as started:
        yield started


def test_a_refused_registration_leaves_no_meta_properties(cluster: KlammCluster, tmp_path: Path) -> None:
    (broker,) = cluster.broker_ids
    file = tmp_path / "server.properties"
    settings = {
        "broker.id": broker,
        "zookeeper.connect": cluster.zookeeper,
        "zookeeper.session.timeout.ms": 1000,
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": tmp_path / "data",
    }
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    command = [sys.executable, "-m", "klamm", "broker", str(file)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 1, finished.stderr
    assert (tmp_path / "data").is_dir()
    assert not (tmp_path / "data" / "meta.properties").exists()
    assert (cluster.directory(broker) / "meta.properties").exists()


def test_a_dead_directory_is_named_and_the_death_of_all_halts_the_broker(cluster: KlammCluster) -> None:
    (broker,) = cluster.broker_ids
    cluster.stop(broker)
    base = cluster.directory(broker)
    (base / "dead").write_text("not a directory")
    every = {"replica.high.watermark.checkpoint.interval.ms": "300"}
    cluster.start(broker, {"log.dirs": f"{base}/alive,{base}/dead", **every})
    assert f"log directory {base}/dead cannot be used and is offline" in cluster.log_text(broker)
    cluster.create_topic("t", 1, 1)
    (base / "alive").rename(base / "away")  # at once: the broker writes into it while files are being deleted
    (base / "alive").write_text("not a directory any more")
    wait_until("the end of the broker", lambda: broker not in cluster.alive, timeout=30)
    assert f"halting broker {broker}: all log directories have failed" in cluster.log_text(broker)
    assert cluster.exit_code(broker) == 1


@pytest.mark.case("LDF-06")
@pytest.mark.klamm(brokers=2, properties={"log.dirs": "{directory}/first,{directory}/second"})
def test_a_producer_without_retries_notices_no_move(klamm_cluster: KlammCluster) -> None:
    cluster, moves = klamm_cluster, 3
    cluster.create_topic("t", 1, 2, segment_bytes=100_000)
    acknowledged: list[str] = []
    failed: list[object] = []
    stop = threading.Event()

    def delivered(error: object, message: Message) -> None:
        if error:
            failed.append(error)
        else:
            acknowledged.append((message.value() or b"").decode()[:8])

    def produce() -> None:
        producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "acks": "all", "retries": 0, "linger.ms": 1, "batch.size": 20_000}
        )
        number = 0
        while not stop.is_set():
            producer.produce("t", f"{number:08}" + "x" * 500, partition=0, on_delivery=delivered)
            number += 1
            producer.poll(0.001)
        producer.flush(60)

    producing = threading.Thread(target=produce)
    producing.start()
    try:
        with closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap)) as client:
            for broker in cluster.broker_ids:
                for _ in range(moves):
                    move(cluster, client, broker, acknowledged)
    finally:
        stop.set()
        producing.join()
    assert failed == []
    assert acknowledged == [f"{number:08}" for number in range(len(acknowledged))]
    assert values(cluster, len(acknowledged)) == acknowledged


def home(cluster: KlammCluster, broker: int) -> Path:
    """The log directory in which the broker has the partition. During the exchange there may be two, or none."""
    while True:
        found = [path for path in cluster.directory(broker).parent.glob("*/t-0") if path.is_dir()]
        if len(found) == 1:
            return found[0].parent


def move(cluster: KlammCluster, client: KafkaAdminClient, broker: int, acknowledged: list[str]) -> None:
    """Move the replica to the other directory. Records are acknowledged before and afterwards."""
    before, written = home(cluster, broker), len(acknowledged)
    target = before.parent / {"first": "second", "second": "first"}[before.name]
    wait_until("records before the move", lambda: len(acknowledged) > written + 100)
    client.alter_replica_log_dirs({TopicPartitionReplica("t", 0, broker): str(target)})
    wait_until(f"the move to {target}", lambda: home(cluster, broker) == target)
    moved = len(acknowledged)
    wait_until("records after the move", lambda: len(acknowledged) > moved + 100)


def values(cluster: KlammCluster, count: int) -> list[str]:
    with closing(Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "nobody"})) as consumer:
        consumer.assign([ConfluentPartition("t", 0, 0)])
        found: list[str] = []
        while len(found) < count:
            messages = consumer.consume(500, 30)
            assert messages, f"only {len(found)} of {count} records"
            assert not any(message.error() for message in messages)
            found += [(message.value() or b"").decode()[:8] for message in messages]
        return found
