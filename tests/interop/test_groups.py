"""Consumer groups of real clients on klamm brokers: members come and go, offsets stay."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka import KafkaConsumer

from klamm.broker.coordinators.internal_topic import partition_for
from klamm.testing.apache_kafka import run_tool
from klamm.testing.cluster import KlammCluster, running_cluster
from klamm.testing.waiting import wait_until

PARTITIONS = 6
OFFSETS, OFFSETS_PARTITIONS = "__consumer_offsets", 4
SESSION_MS = 10_000
SHORT_SESSION_MS = 5000
"""For a member that dies. A shorter one ends also where a busy machine keeps a living member from its heartbeats."""
KAFKA = "2.5.1"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KlammCluster]:
    directory: Path = tmp_path_factory.mktemp("groups")
    properties = {"group.min.session.timeout.ms": "1000", "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS)}
    with running_cluster(directory, properties=properties) as cluster:
        yield cluster


def produce(cluster: KlammCluster, topic: str, values: range) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for value in values:
        producer.produce(topic, str(value).encode(), partition=value % PARTITIONS)
    assert producer.flush(30) == 0


class Member:
    """A consumer of librdkafka or of kafka-python, under one face."""

    def __init__(
        self, cluster: KlammCluster, library: str, group: str, topic: str, session_ms: int = SESSION_MS
    ) -> None:
        self.library = library
        if library == "librdkafka":
            self.rd = Consumer(
                {
                    "bootstrap.servers": cluster.bootstrap,
                    "group.id": group,
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                    "session.timeout.ms": session_ms,
                    "heartbeat.interval.ms": 500,
                }
            )
            self.rd.subscribe([topic])
        else:
            self.py = KafkaConsumer(
                topic,
                bootstrap_servers=cluster.bootstrap,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                session_timeout_ms=session_ms,
                heartbeat_interval_ms=500,
            )

    def poll(self) -> list[int]:
        if self.library == "librdkafka":
            return [int(m.value()) for m in self.rd.consume(500, timeout=0.3) if m.error() is None]
        return [int(r.value) for records in self.py.poll(timeout_ms=300).values() for r in records]

    def commit(self) -> None:
        if self.library == "librdkafka":
            self.rd.commit(asynchronous=False)
        else:
            self.py.commit()

    def assigned(self) -> int:
        return len(self.rd.assignment() if self.library == "librdkafka" else self.py.assignment())

    def close(self) -> None:
        (self.rd if self.library == "librdkafka" else self.py).close()


@pytest.mark.parametrize("library", ["librdkafka", "kafka-python"])
def test_commit_and_resume(cluster: KlammCluster, library: str) -> None:
    topic = f"resume-{library}"
    cluster.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
    produce(cluster, topic, range(100))
    first = Member(cluster, library, topic, topic)
    seen: list[int] = []
    end = time.monotonic() + 60
    while len(seen) < 100 and time.monotonic() < end:
        seen += first.poll()
    assert sorted(seen) == list(range(100))
    first.commit()
    first.close()
    produce(cluster, topic, range(100, 120))
    second = Member(cluster, library, topic, topic)
    resumed: list[int] = []
    end = time.monotonic() + 60
    while len(resumed) < 20 and time.monotonic() < end:
        resumed += second.poll()
    assert sorted(resumed) == list(range(100, 120)), "from the committed offsets on, and nothing twice"
    second.close()


MORTAL = """
import sys
from confluent_kafka import Consumer
bootstrap, group, topic, session = sys.argv[1:]
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "session.timeout.ms": int(session),
                     "heartbeat.interval.ms": 500, "enable.auto.commit": False})
consumer.subscribe([topic])
while True:
    consumer.poll(0.2)
    print(len(consumer.assignment()), flush=True)
"""


def test_three_members_one_is_killed(cluster: KlammCluster) -> None:
    topic = "three"
    cluster.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
    members = [Member(cluster, "librdkafka", topic, topic, SHORT_SESSION_MS) for _ in range(2)]
    mortal = subprocess.Popen(
        [sys.executable, "-c", MORTAL, cluster.bootstrap, topic, topic, str(SHORT_SESSION_MS)], stdout=subprocess.PIPE
    )
    seen: list[int] = []

    def shares(*wanted: int) -> Callable[[], bool]:
        def poll() -> bool:
            for member in members:
                seen.extend(member.poll())
            return sorted(member.assigned() for member in members) == sorted(wanted)

        return poll

    try:
        wait_until("two partitions for each of three members", shares(2, 2))
        assert mortal.stdout is not None
        wait_until("the third member has two", lambda: mortal.stdout.readline() == b"2\n")  # type: ignore[union-attr]
    finally:
        mortal.kill()
        mortal.wait()
        assert mortal.stdout is not None
        mortal.stdout.close()
    wait_until("the survivors take over", shares(3, 3))
    produce(cluster, topic, range(60))
    wait_until("every record", lambda: shares(3, 3)() and len(seen) >= 60)
    assert sorted(seen) == list(range(60))
    for member in members:
        member.close()


async def test_apache_kafkas_own_tools(cluster: KlammCluster) -> None:
    topic = "tools"
    cluster.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
    produce(cluster, topic, range(12))
    where = ("--bootstrap-server", cluster.bootstrap)
    consumed = await run_tool(
        KAFKA,
        "kafka.tools.ConsoleConsumer",
        *(*where, "--topic", topic, "--group", "java", "--from-beginning", "--max-messages", "12"),
        *("--timeout-ms", "30000"),
    )
    assert sorted(map(int, consumed.output.split())) == list(range(12)), consumed.errors
    described = await run_tool(
        KAFKA, "kafka.admin.ConsumerGroupCommand", *where, "--describe", "--group", "java", check=False
    )
    rows = [line.split() for line in described.output.splitlines() if line.startswith("java")]
    assert [(row[1], row[3], row[4], row[5]) for row in rows] == [(topic, "2", "2", "0")] * PARTITIONS, described
    reset = ("--reset-offsets", "--to-earliest", "--execute", "--topic", topic, "--group", "java")
    await run_tool(KAFKA, "kafka.admin.ConsumerGroupCommand", *where, *reset)
    deleted = await run_tool(KAFKA, "kafka.admin.ConsumerGroupCommand", *where, "--delete", "--group", "java")
    assert "successful" in deleted.output, deleted


class Committer:
    """Commits 1, 2, 3, ... without pause, whatever happens to the coordinator."""

    def __init__(self, cluster: KlammCluster, group: str, topic: str) -> None:
        self.acknowledged = 0
        self.failures = 0
        self._over = threading.Event()
        self._where = TopicPartition(topic, 0)
        self._settings = {"bootstrap.servers": cluster.bootstrap, "group.id": group, "socket.timeout.ms": 3000}
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Committer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        consumer, next_offset = Consumer(self._settings), 1
        while not self._over.is_set():
            try:
                where = TopicPartition(self._where.topic, 0, next_offset)
                (done,) = consumer.commit(offsets=[where], asynchronous=False)
                assert done.error is None
                self.acknowledged = next_offset
            except KafkaException:
                self.failures += 1
                time.sleep(0.05)
            next_offset += 1  # a commit that failed may be in the log, and a later one replaces it
        consumer.close()

    def committed(self) -> int:
        reader = Consumer(self._settings)
        try:
            while True:
                try:
                    (found,) = reader.committed([self._where], timeout=20)
                except KafkaException:
                    continue
                if found.error is None:
                    return int(found.offset)
        finally:
            reader.close()


@pytest.mark.timeout(1800)  # in full, thirty kills
def test_committed_offsets_never_go_back(cluster: KlammCluster, scaled: Callable[[int, int], int]) -> None:
    """kill -9 of the coordinator, each time with a commit outstanding."""
    group = topic = "kills"
    cluster.create_topic(topic, partitions=1, replication_factor=3)
    home = partition_for(group, OFFSETS_PARTITIONS)
    with Committer(cluster, group, topic) as committer:
        wait_until("the first commits", lambda: committer.acknowledged > 20)
        last_read = 0
        for _ in range(scaled(3, 30)):
            coordinator = cluster.leader_of(OFFSETS, home)
            cluster.kill(coordinator)
            acknowledged = committer.acknowledged
            read = committer.committed()
            assert read >= acknowledged, "an acknowledged commit is lost"
            assert read >= last_read, "a committed offset went back"
            last_read = read
            wait_until("commits go on", lambda: committer.acknowledged > acknowledged + 10)  # noqa: B023
            cluster.start(coordinator)
            cluster.wait_until_healthy()
    assert committer.committed() >= committer.acknowledged >= last_read


def test_a_corrupt_record_takes_no_other_group_with_it(cluster: KlammCluster) -> None:
    topic = "corrupt"
    cluster.create_topic(topic, partitions=1, replication_factor=3)
    names = [f"corrupt-{n}" for n in range(40)]
    home = partition_for(names[0], OFFSETS_PARTITIONS)
    here = [name for name in names if partition_for(name, OFFSETS_PARTITIONS) == home][:3]

    def commit(group: str, offset: int) -> None:
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
        consumer.close()

    for number, group in enumerate(here):
        commit(group, number + 1)
    junk = Producer({"bootstrap.servers": cluster.bootstrap, "client.id": "__admin_client"})
    junk.produce(OFFSETS, key=b"\x00\x01\x7f\xff", value=b"junk", partition=home)
    assert junk.flush(30) == 0
    before = cluster.leader_of(OFFSETS, home)
    cluster.stop(before)
    for number, group in enumerate(here):
        reader = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
        (found,) = reader.committed([TopicPartition(topic, 0)], timeout=30)
        assert found.offset == number + 1
        reader.close()
    successor = cluster.leader_of(OFFSETS, home)
    assert f"{OFFSETS}-{home}: left out what is at offset" in cluster.log_text(successor)
    cluster.start(before)
    cluster.wait_until_healthy()
