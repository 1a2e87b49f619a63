"""Behaviour cases that need a whole cluster of processes. kazoo writes the topics as Kafka's tools do."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient
from kazoo.client import KazooClient

from klamm.admin.placement import PlacementBroker, place
from klamm.model.ids import BrokerId
from klamm.testing.async_cluster import ClusterError
from klamm.testing.cluster import KlammCluster, running_cluster
from klamm.testing.waiting import WAIT_SECONDS, wait_until

QUIET = {"auto.leader.rebalance.enable": "false"}


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KlammCluster]:
    """Four brokers for tests that leave the cluster as they found it."""
    eager = {"log.cleaner.backoff.ms": "20"}
    with running_cluster(tmp_path_factory.mktemp("four"), brokers=4, properties=QUIET | eager) as cluster:
        yield cluster


@contextmanager
def zookeeper(cluster: KlammCluster) -> Iterator[KazooClient]:
    client = KazooClient(cluster.zookeeper)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


@contextmanager
def admin(cluster: KlammCluster) -> Iterator[KafkaAdminClient]:
    alive = cluster.alive  # kafka-python leaves a socket open for each address that refuses
    client = KafkaAdminClient(bootstrap_servers=[cluster.bootstrap.split(",")[broker - 1] for broker in alive])
    try:
        yield client
    finally:
        client.close()


def create(cluster: KlammCluster, topic: str, *replicas: Sequence[int], **configs: str) -> None:
    partitions = {str(number): list(ids) for number, ids in enumerate(replicas)}
    overrides = {key.replace("_", "."): value for key, value in configs.items()}
    with zookeeper(cluster) as zk:
        zk.create(f"/config/topics/{topic}", json.dumps({"version": 1, "config": overrides}).encode())
        zk.create(f"/brokers/topics/{topic}", json.dumps({"version": 1, "partitions": partitions}).encode())
    for number in range(len(replicas)):
        cluster.leader_of(topic, number)


def state(cluster: KlammCluster, topic: str, partition: int = 0) -> dict[str, Any]:
    with zookeeper(cluster) as zk:
        found: dict[str, Any] = json.loads(zk.get(f"/brokers/topics/{topic}/partitions/{partition}/state")[0])
        return found


def entry(
    cluster: KlammCluster, broker: int, topic: str, partition: int = 0
) -> tuple[int, list[int], list[int]] | None:
    """Leader, ISR and offline replicas in the metadata of one broker."""
    for known in cluster.partitions(topic, seen_by=broker):
        if known.partition_index == partition:
            return known.leader_id, sorted(known.isr_nodes), sorted(known.offline_replicas)
    return None


def replicas(cluster: KlammCluster, topic: str) -> list[list[int]]:
    return [list(p.replica_nodes) for p in sorted(cluster.partitions(topic), key=lambda p: p.partition_index)]


def wait_for_replicas(cluster: KlammCluster, topic: str, *wanted: Sequence[int]) -> None:
    """The controller ends a move before the brokers, which answer Metadata, hear of its end."""
    wait_until(
        lambda: f"{wanted} instead of {replicas(cluster, topic)}",
        lambda: replicas(cluster, topic) == [list(ids) for ids in wanted],
    )


def hosts(cluster: KlammCluster, topic: str, partition: int = 0) -> list[int]:
    """Brokers that have a directory of the partition."""
    return [b for b in cluster.broker_ids if (cluster.directory(b) / f"{topic}-{partition}").exists()]


def send(cluster: KlammCluster, topic: str, value: str, *, timeout: float = WAIT_SECONDS) -> bool:
    """Return True if the record was acknowledged."""
    outcome: list[bool] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "message.timeout.ms": timeout * 1000})
    producer.produce(topic, value, partition=0, on_delivery=lambda error, _: outcome.append(error is None))
    producer.flush(timeout + 10)
    return outcome == [True]


def read(cluster: KlammCluster, topic: str, count: int) -> list[str]:
    """The first records; none if there is no leader."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "nobody", "enable.auto.commit": False})
    try:
        consumer.assign([ConfluentPartition(topic, 0, 0)])
        found: list[str] = []
        deadline = time.monotonic() + (WAIT_SECONDS if state(cluster, topic)["leader"] >= 0 else 2)
        while len(found) < count and time.monotonic() < deadline:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                found.append((message.value() or b"").decode())
        return found
    finally:
        consumer.close()


# --- compaction ---


@pytest.mark.case("DEL-06")
def test_a_topic_is_deleted_while_it_is_being_compacted(four: KlammCluster) -> None:
    compacted = {"cleanup_policy": "compact", "segment_bytes": "200000", "min_cleanable_dirty_ratio": "0.01"}
    create(four, "cleaned", [1, 2, 3], **compacted)
    send_keys(four, "cleaned", 15_000)
    wait_until("the first cleaning", lambda: all("cleaned-0" in cleaner_offsets(four, broker) for broker in (1, 2, 3)))

    def being_cleaned() -> bool:
        """A cleaning is visible only while it lasts, so write and clean more until a check catches one."""
        send_keys(four, "cleaned", 20_000)
        directories = [four.directory(broker) / "cleaned-0" for broker in (1, 2, 3)]
        return any(any(directory.glob("*.cleaned")) for _ in range(200) for directory in directories)

    with admin(four) as client:
        wait_until("a running cleaning", being_cleaned)
        client.delete_topics(["cleaned"])
    with zookeeper(four) as zk:
        wait_until("the deletion", lambda: not zk.exists("/brokers/topics/cleaned"))
    assert hosts(four, "cleaned") == []
    assert not any("cleaned-0" in cleaner_offsets(four, broker) for broker in four.broker_ids)
    create(four, "cleaned", [1, 2, 3], **compacted)
    assert not send(four, "cleaned", "without a key", timeout=5)
    send_keys(four, "cleaned", 10)
    assert read(four, "cleaned", 10) == [f"value {number}" for number in range(10)]
    for broker in (1, 2, 3):
        assert len(list((four.directory(broker) / "cleaned-0").glob("*.log"))) == 1
        assert not re.search(r"cannot be cleaned|is offline", four.log_text(broker))
    with admin(four) as client:
        client.delete_topics(["cleaned"])


def send_keys(cluster: KlammCluster, topic: str, count: int) -> None:
    """Records with a thousand keys, in batches that fit into the segments."""
    bounds = {"batch.size": 50_000, "queue.buffering.max.messages": 100_000}
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", **bounds})
    failed: list[object] = []
    for number in range(count):
        producer.produce(
            topic,
            f"value {number}",
            key=f"key {number % 1000}",
            partition=0,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        producer.poll(0)
    assert (producer.flush(WAIT_SECONDS), failed[:3]) == (0, [])


def cleaner_offsets(cluster: KlammCluster, broker: int) -> dict[str, int]:
    path = cluster.directory(broker) / "cleaner-offset-checkpoint"
    lines = path.read_text().splitlines()[2:] if path.exists() else []
    return {f"{topic}-{partition}": int(offset) for topic, partition, offset in map(str.split, lines)}


# --- the controller, end to end ---


@pytest.mark.case("CTL-05", "CTL-06")
def test_everybody_hears_who_is_offline_and_who_is_back(four: KlammCluster) -> None:
    leader, other, gone = [b for b in (*four.broker_ids, *four.broker_ids) if b != four.controller][:3]
    create(four, "heard", [leader, gone], [leader, other])
    four.stop(gone)
    for broker in four.alive:
        wait_until("the loss", lambda broker=broker: entry(four, broker, "heard") == (leader, [leader], [gone]))
        assert entry(four, broker, "heard", 1) == (leader, sorted([leader, other]), [])
    assert replicas(four, "heard") == [[leader, gone], [leader, other]]
    four.start(gone)
    full = (leader, sorted([leader, gone]), [])
    for broker in four.broker_ids:
        wait_until("the return", lambda broker=broker: entry(four, broker, "heard") == full)
        assert entry(four, broker, "heard", 1) == (leader, sorted([leader, other]), [])


@pytest.mark.case("CTL-15")
@pytest.mark.klamm(brokers=2, properties={"leader.imbalance.check.interval.seconds": "1"})
def test_leadership_goes_home_by_itself(klamm_cluster: KlammCluster) -> None:
    cluster = klamm_cluster
    away = next(b for b in cluster.broker_ids if b != cluster.controller)
    create(cluster, "home", [away, cluster.controller])
    cluster.stop(away)
    wait_until("the other leader", lambda: state(cluster, "home")["leader"] == cluster.controller)
    assert state(cluster, "home")["leader_epoch"] == 1
    cluster.start(away)
    wait_until("the preferred leader again", lambda: state(cluster, "home")["leader"] == away)
    assert state(cluster, "home")["leader_epoch"] == 2


# --- reassignment ---


def reassign(cluster: KlammCluster, topic: str, targets: dict[int, Sequence[int]]) -> None:
    with admin(cluster) as client:
        wanted = {TopicPartition(topic, number): list(ids) for number, ids in targets.items()}
        refused = {name: error for name, error in client.alter_partition_reassignments(wanted).items() if error}
        assert not refused
        wait_until(f"the end of the moves of {topic}", lambda: not client.list_partition_reassignments())


MOVES = {
    "leader stays": ([0, 1, 2], [0, 2, 3]),
    "leader leaves": ([0, 1, 2], [1, 2, 3]),
    "no replica stays": ([0, 1], [2, 3]),
    "more replicas": ([0], [1, 2]),
}


@pytest.mark.case("RAS-06", "RAS-07", "RAS-08", "RAS-09")
@pytest.mark.parametrize("move", MOVES)
def test_moves_with_data(four: KlammCluster, move: str) -> None:
    before, after = ([four.broker_ids[i] for i in side] for side in MOVES[move])
    topic = move.replace(" ", "-")
    create(four, topic, before, before)
    assert send(four, topic, "kept")
    reassign(four, topic, {0: after})
    wait_for_replicas(four, topic, after, before)  # the partition that was not mentioned is unchanged
    found = state(four, topic)
    assert (sorted(found["isr"]), found["leader"] in after) == (sorted(after), True)
    if before[0] in after:
        assert found["leader"] == before[0]
    wait_until("directories on the target brokers alone", lambda: hosts(four, topic) == sorted(after))
    assert hosts(four, topic, 1) == sorted(before)
    assert read(four, topic, 1) == ["kept"]


@pytest.mark.case("RAS-04", "RAS-05")
def test_over_more_brokers_over_fewer_and_only_what_is_listed(four: KlammCluster) -> None:
    one, two, three, _ = four.broker_ids
    create(four, "spread", [one, two], [two, one], [one, two])
    create(four, "aside", [one, two], [two, one], [one, two])

    def plan(*ids: int) -> dict[int, Sequence[int]]:
        return dict(place([PlacementBroker(BrokerId(b), None) for b in ids], range(3), 2, start=0, shift=0))

    wider = plan(one, two, three)
    assert {b for ids in wider.values() for b in ids} == {one, two, three}
    narrower = plan(one, two)
    for wanted in (wider, narrower):
        reassign(four, "spread", wanted)
        wait_for_replicas(four, "spread", *(wanted[n] for n in range(3)))
    reassign(four, "spread", {0: wider[0], 1: wider[1], 2: wider[2]})
    reassign(four, "aside", {1: [three, one]})
    wait_for_replicas(four, "spread", *(wider[n] for n in range(3)))  # in the requested order
    wait_for_replicas(four, "aside", [one, two], [three, one], [one, two])


# --- unclean election ---


@pytest.mark.case("ULE-01", "ULE-02", "ULE-03")
@pytest.mark.parametrize("everywhere", [True, False], ids=["on", "off"])
def test_unclean_election_by_the_cluster_and_by_the_topic(tmp_path: Path, everywhere: bool) -> None:
    """Two topics with the same history: one has the setting of the cluster, the other the opposite."""
    properties = {**QUIET, "unclean.leader.election.enable": str(everywhere).lower()}
    with running_cluster(tmp_path, brokers=3, properties=properties) as cluster:
        follower, leader, _ = sorted(cluster.broker_ids, key=lambda b: b == cluster.controller)
        create(cluster, "as-all", [leader, follower])
        create(cluster, "other", [leader, follower], unclean_leader_election_enable=str(not everywhere).lower())
        unclean, clean = ("as-all", "other") if everywhere else ("other", "as-all")
        both = (unclean, clean)
        assert all(send(cluster, topic, "first") for topic in both)
        cluster.stop(follower)
        assert all(send(cluster, topic, "second") for topic in both)
        cluster.stop(leader)
        cluster.start(follower)

        assert cluster.leader_of(unclean) == follower
        assert send(cluster, unclean, "third")
        assert read(cluster, unclean, 2) == ["first", "third"]

        assert (state(cluster, clean)["leader"], state(cluster, clean)["isr"]) == (-1, [leader])
        assert not send(cluster, clean, "never", timeout=3)
        assert read(cluster, clean, 1) == []
        cluster.start(leader)
        assert cluster.leader_of(clean) == leader
        assert send(cluster, clean, "third")
        wait_until("the follower in sync", lambda: sorted(state(cluster, clean)["isr"]) == sorted([leader, follower]))
        cluster.stop(leader)
        wait_until("the follower to lead", lambda: state(cluster, clean)["leader"] == follower)
        assert read(cluster, clean, 3) == ["first", "second", "third"]


@pytest.mark.case("ULE-04")
def test_an_unclean_switch_that_is_no_switch(four: KlammCluster) -> None:
    with pytest.raises(ClusterError, match=r"unclean\.leader\.election\.enable"):
        four.create_topic("perhaps", unclean_leader_election_enable="perhaps")


# --- a partition without any live replica ---


@pytest.mark.case("CTL-07")
@pytest.mark.klamm(brokers=3, properties=QUIET)
def test_a_controller_alone_tells_of_a_partition_whose_broker_is_down(klamm_cluster: KlammCluster) -> None:
    cluster = klamm_cluster
    controller = cluster.controller
    home, third = [b for b in cluster.broker_ids if b != controller]
    create(cluster, "lonely", [home])
    for broker in (home, third, controller):
        cluster.stop(broker)
    for broker in (controller, third):
        cluster.start(broker)
        wait_until(
            "metadata of the partition", lambda broker=broker: entry(cluster, broker, "lonely") == (-1, [home], [home])
        )
    assert replicas(cluster, "lonely") == [[home]]


@pytest.mark.case("FRQ-08")
def test_large_records(four: KlammCluster) -> None:
    """A batch above max.message.bytes is refused; one above the size of a follower's fetch is replicated."""
    four.create_topic("large", replication_factor=3, max_message_bytes=3_000_000)
    four.create_topic("small", replication_factor=3, max_message_bytes=1_000)
    large, vast = b"x" * 2_000_000, b"x" * 5_000
    config = {"bootstrap.servers": four.bootstrap, "message.max.bytes": 10_000_000, "message.timeout.ms": 20_000}
    errors: dict[str, Any] = {}
    for acks, topic, value in (("all", "large", large), ("1", "small", vast), ("0", "small", vast)):
        producer = Producer(config | {"acks": acks})
        producer.produce(topic, value, on_delivery=lambda error, _, acks=acks: errors.setdefault(acks, error))
        assert producer.flush(WAIT_SECONDS) == 0
    assert errors["all"] is None, "more than replica.fetch.max.bytes, and in the whole ISR"
    assert errors["1"].code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert errors["0"] is None, "the client hears nothing"
    assert len(four.isr_of("large")) == 3
    assert send(four, "small", "fits")
    assert read(four, "small", 1) == ["fits"]


@pytest.mark.case("MDC-05", "MDC-06", "MDC-08")
@pytest.mark.klamm(brokers=3, properties=QUIET)
def test_metadata_follows_brokers_and_controllers(klamm_cluster: KlammCluster) -> None:
    cluster = klamm_cluster

    def ask(broker: int, topics: list[str] | None) -> Any:
        return cluster._call(cluster._cluster._local.metadata(broker, topics))

    def brokers(seen_by: int, topics: list[str] | None) -> list[int]:
        metadata = ask(seen_by, topics)
        return sorted(broker.node_id for broker in metadata.brokers) if metadata is not None else []

    first = cluster.controller
    others = [broker for broker in cluster.broker_ids if broker != first]
    create(cluster, "alone", [first])
    cluster.kill(first)
    wait_until("a new controller", lambda: cluster.controller in others)
    assert all(ask(broker, []).controller_id == cluster.controller for broker in others)
    moved = "controller-moved"
    wait_until("the fast fail-over", lambda: [event for event in cluster.events if event.get("event") == moved])
    for broker in others:
        wait_until("the dead broker to leave", lambda broker=broker: brokers(broker, []) == others)
        wait_until("no leader", lambda broker=broker: entry(cluster, broker, "alone")[0] == -1)  # type: ignore[index]
        known = cluster.partitions("alone", seen_by=broker)[0]
        assert (known.error_code, list(known.replica_nodes)) == (5, [first])
    cluster.start(first)
    for broker in cluster.broker_ids:
        for topics in ([], None):
            wait_until("all brokers", lambda b=broker, t=topics: brokers(b, t) == cluster.broker_ids)
        wait_until("the leader is back", lambda b=broker: entry(cluster, b, "alone") == (first, [first], []))
