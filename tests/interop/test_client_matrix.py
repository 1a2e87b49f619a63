"""Clients of the last ten years, as they are, on three klamm brokers: each client with each scenario.

The scenarios wait most of the time, for rebalances and timeouts; therefore four run at once. Those that change the
configuration of a broker run one after another, beside the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, ResourceType

from klamm.testing.cluster import KlammCluster, running_cluster
from klamm.testing.waiting import wait_until

from .matrix import CLIENTS, PARTITIONS, Client, Member, Seen, member

AT_ONCE = 4
GROWN = 6
PROPERTIES = {
    "offsets.topic.num.partitions": 5,
    "transaction.state.log.num.partitions": 5,
    "min.insync.replicas": 2,
}


def admin(cluster: KlammCluster, client: Client, topic: str) -> None:
    """Create a topic, and delete another one."""
    old = f"{topic}-old"
    cluster.create_topic(old)
    client.run("create", cluster.bootstrap, topic, old)
    wait_for_partitions(cluster, topic, PARTITIONS)
    assert cluster.isr_of(topic, PARTITIONS - 1) == [1, 2, 3]
    wait_until("the end of the old topic", lambda: not cluster.partitions(old, seen_by=1))


def wait_for_partitions(cluster: KlammCluster, topic: str, count: int) -> None:
    """As in Kafka, the answer comes when the controller's broker knows of it, and the others hear of it later."""
    for broker in cluster.broker_ids:
        wait_until("the partitions", lambda: len(cluster.partitions(topic, seen_by=broker)) == count)  # noqa: B023


def configs(cluster: KlammCluster, client: Client, topic: str) -> None:
    """Describe a topic and grow it, describe and alter its configuration and that of a broker."""
    cluster.create_topic(topic, PARTITIONS)
    wait_for_partitions(cluster, topic, PARTITIONS)
    backoff = str(20_000 + CLIENTS.index(client))  # another value than the client before it has set
    said = client.run("configure", cluster.bootstrap, topic, backoff).splitlines()
    assert said == [f"partitions {PARTITIONS}", "broker 1073741824", "topic 100000 200000"]
    wait_for_partitions(cluster, topic, GROWN)
    assert changed(cluster, ResourceType.TOPIC, topic) == {"retention.ms": "100000", "max.message.bytes": "200000"}
    if client.has("broker-configs"):
        expected = {"log.cleaner.backoff.ms": backoff}
        wait_until("the broker's new value", lambda: changed(cluster, ResourceType.BROKER, "1") == expected)


def writing(cluster: KlammCluster, client: Client, topic: str) -> None:
    """Every compression that the client has, read by librdkafka and by the client."""
    cluster.create_topic(topic, PARTITIONS)
    for number, codec in enumerate(client.codecs):
        client.run("produce", cluster.bootstrap, topic, codec, str(number * 50), "50")
    expected = records(client, range(50 * len(client.codecs)))
    assert contents(cluster, topic, with_headers=client.has("headers")) == expected
    with member(client, cluster.bootstrap, topic, topic) as reader:
        reader.wait("all records", lambda: len(reader.seen) >= len(expected))
        assert content(reader.seen) == expected


def reading(cluster: KlammCluster, client: Client, topic: str) -> None:
    """Three members share a topic; one dies; the others take over; a later one resumes at the committed offsets."""
    cluster.create_topic(topic, PARTITIONS)

    def produce(first: int, count: int) -> None:
        client.run("produce", cluster.bootstrap, topic, "none", str(first), str(count))

    def seen() -> set[Seen]:
        return {record for one in members for record in one.seen}

    def shares(*sharing: Member) -> list[int]:
        """How many partitions each holds, if they hold all partitions without overlap."""
        held = [partition for one in sharing for partition in one.held]
        return sorted(len(one.held) for one in sharing) if sorted(held) == list(range(PARTITIONS)) else []

    produce(0, 100)
    with ExitStack() as stack:
        members = [stack.enter_context(member(client, cluster.bootstrap, topic, topic)) for _ in range(3)]
        one, two, three = members
        one.wait("a share for each member", lambda: shares(*members) == [1, 1, 2])
        produce(100, 100)
        one.wait("200 records", lambda: len(seen()) == 200)
        three.kill()
        one.wait("the partitions of the dead member", lambda: shares(one, two) == [2, 2])
        produce(200, 100)
        one.wait("300 records", lambda: len(seen()) == 300)
        one.stop()
        two.stop()
    assert content([*seen()]) == records(client, range(300))
    produce(300, 20)
    with member(client, cluster.bootstrap, topic, topic) as later:
        later.wait("20 records", lambda: len(later.seen) >= 20)
        later.kill()
    assert content(later.seen) == records(client, range(300, 320))


def transactions(cluster: KlammCluster, client: Client, topic: str) -> None:
    """One is aborted and one committed; the client's consumer sees only the second."""
    cluster.create_topic(topic, PARTITIONS)
    client.run("transact", cluster.bootstrap, topic, topic)
    expected = records(client, range(10, 20))
    with member(client, cluster.bootstrap, topic, topic, "read_committed") as reader:
        reader.wait("ten records", lambda: len(reader.seen) >= 10)
        reader.kill()
    assert content(reader.seen) == expected
    assert contents(cluster, topic, isolation="read_committed") == expected
    assert contents(cluster, topic) == records(client, range(20))


SCENARIOS: dict[str, Callable[[KlammCluster, Client, str], None]] = {
    "admin": admin,
    "configs": configs,
    "writing": writing,
    "reading": reading,
    "transactions": transactions,
}
NEEDED = {"configs": "admin"}
"""Scenario -> what a client must have for it, if that has another name."""
PAIRS = [
    pytest.param(scenario, client, id=f"{scenario}-{client.name}")
    for scenario in SCENARIOS
    for client in CLIENTS
    if client.has(NEEDED.get(scenario, scenario))
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KlammCluster]:
    with running_cluster(tmp_path_factory.mktemp("matrix"), properties=PROPERTIES) as running:
        yield running


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, cluster: KlammCluster) -> Iterator[dict[tuple[str, str], Future[None]]]:
    """What was selected of this module, running."""
    with ThreadPoolExecutor(AT_ONCE) as pool, ThreadPoolExecutor(1) as one_by_one:
        started = {}
        for item in request.session.items:
            if isinstance(item, pytest.Function) and item.module is request.module:
                scenario, client = item.callspec.params["scenario"], item.callspec.params["client"]
                topic = f"{scenario}-{client.name}".replace(" ", "-")
                chosen = one_by_one if scenario == "configs" else pool
                started[scenario, client.name] = chosen.submit(SCENARIOS[scenario], cluster, client, topic)
        yield started
        pool.shutdown(cancel_futures=True)
        one_by_one.shutdown(cancel_futures=True)


@pytest.mark.parametrize(("scenario", "client"), PAIRS)
def test_matrix(scenario: str, client: Client, outcomes: dict[tuple[str, str], Future[None]]) -> None:
    outcomes[scenario, client.name].result()


def records(client: Client, numbers: range) -> list[tuple[str, str, str]]:
    return sorted((f"k{i}", f"v{i}", f"h{i}" if client.has("headers") else "-") for i in numbers)


def changed(cluster: KlammCluster, kind: ResourceType, name: str) -> dict[str, str]:
    """The overrides of a topic or a broker, as librdkafka sees them."""
    overrides = {
        ResourceType.TOPIC: ConfigSource.DYNAMIC_TOPIC_CONFIG,
        ResourceType.BROKER: ConfigSource.DYNAMIC_BROKER_CONFIG,
    }
    resource = ConfigResource(kind, name)
    asked = AdminClient({"bootstrap.servers": cluster.bootstrap})
    found = asked.describe_configs([resource])[resource].result(30)
    return {key: entry.value for key, entry in found.items() if entry.source == overrides[kind].value}


def content(seen: list[Seen]) -> list[tuple[str, str, str]]:
    return sorted(record[2:] for record in seen)


def contents(
    cluster: KlammCluster, topic: str, *, isolation: str = "read_uncommitted", with_headers: bool = True
) -> list[tuple[str, str, str]]:
    """The records as librdkafka sees them, which checks their checksums."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "check.crcs": True,
        }
    )
    found = []
    try:
        for partition in range(PARTITIONS):
            consumer.assign([TopicPartition(topic, partition, 0)])
            while (message := consumer.poll(30)) is not None and not message.error():
                header = dict(message.headers())["n"].decode() if with_headers else "-"
                found.append((message.key().decode(), message.value().decode(), header))
            assert message is not None, f"no end of {topic}-{partition}"
    finally:
        consumer.close()
    return sorted(found)
