"""Transactions of real clients (librdkafka, Java) on three klamm brokers: what consumers see, and fencing."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator

import pytest
from click.testing import Result
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from typer.testing import CliRunner

from klamm.broker.coordinators.internal_topic import partition_for
from klamm.cli.app import app
from klamm.net.client import BrokerConnection
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.testing.apache_kafka import run_tool
from klamm.testing.cluster import KlammCluster, running_cluster
from klamm.testing.waiting import wait_until
from klamm.wire.apis import ApiKey
from klamm.wire.messages import decode_response, encode_request, request_class
from klamm.wire.records import Record, build_batch

from .transaction_writer import TransactionWriter

PROPERTIES = {
    "transaction.state.log.num.partitions": "3",
    "offsets.topic.num.partitions": "3",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KlammCluster]:
    with running_cluster(tmp_path_factory.mktemp("transactions"), properties=PROPERTIES) as running:
        yield running


def producer(cluster: KlammCluster, transactional_id: str, **settings: object) -> Producer:
    client = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "transactional.id": transactional_id,
            "linger.ms": 0,
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
    )
    client.init_transactions(30)
    return client


def transact(client: Producer, topic: str, values: list[str], *, commit: bool, partition: int = 0) -> None:
    client.begin_transaction()
    for value in values:
        client.produce(topic, value.encode(), partition=partition)
    client.flush(30)
    if commit:
        client.commit_transaction(30)
    else:
        client.abort_transaction(30)


def consumer(cluster: KlammCluster, isolation: str, group: str = "unused") -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "check.crcs": True,
            "enable.partition.eof": True,
        }
    )


def visible(
    cluster: KlammCluster, topic: str, isolation: str = "read_committed", *, partitions: int = 1, partition: int = 0
) -> list[str]:
    """Everything that a consumer of this isolation level can read now, partition by partition from `partition` on."""
    client = consumer(cluster, isolation)
    values: list[str] = []
    try:
        for number in range(partition, partition + partitions):
            client.assign([TopicPartition(topic, number, 0)])
            while (message := client.poll(30)) is not None:
                if message.error():
                    break  # the end of the partition
                values.append(message.value().decode())
    finally:
        client.close()
    return values


def end_offset(cluster: KlammCluster, topic: str, isolation: str) -> int:
    client = consumer(cluster, isolation)
    try:
        return int(client.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)[1])
    finally:
        client.close()


def test_aborted_records_are_hidden_from_read_committed_consumers(cluster: KlammCluster) -> None:
    cluster.create_topic("outcomes")
    client = producer(cluster, "outcomes")
    for number in range(6):
        values = [f"{number}-{i}" for i in range(3)]
        transact(client, "outcomes", values, commit=number % 2 == 0)
    kept = [f"{number}-{i}" for number in (0, 2, 4) for i in range(3)]
    everything = [f"{number}-{i}" for number in range(6) for i in range(3)]
    wait_until("the last transaction to be visible", lambda: visible(cluster, "outcomes") == kept)
    assert visible(cluster, "outcomes", "read_uncommitted") == everything


@pytest.mark.case("TXN-32")
def test_a_second_producer_fences_the_first(cluster: KlammCluster) -> None:
    cluster.create_topic("fencing")
    first = producer(cluster, "fencing")
    first.begin_transaction()
    first.produce("fencing", b"first")
    first.flush(30)
    second = producer(cluster, "fencing")
    transact(second, "fencing", ["second"], commit=True)
    assert is_fenced(lambda: first.commit_transaction(30))
    again = producer(cluster, "fencing")
    assert is_fenced(lambda: transact(second, "fencing", ["late"], commit=True))
    transact(again, "fencing", ["third"], commit=True)
    wait_until("the third to be visible", lambda: visible(cluster, "fencing") == ["second", "third"])
    assert visible(cluster, "fencing", "read_uncommitted")[:2] == ["first", "second"]


@pytest.mark.case("TXN-33")
def test_a_transaction_of_a_dead_client_ends_by_its_timeout(cluster: KlammCluster) -> None:
    cluster.create_topic("timeouts")
    client = producer(cluster, "timeouts", transaction_timeout_ms=5000)  # longer than the two looks before it ends
    client.begin_transaction()
    client.produce("timeouts", b"abandoned")
    client.flush(30)
    assert visible(cluster, "timeouts") == []
    assert end_offset(cluster, "timeouts", "read_committed") == 0
    wait_until("the abort", lambda: end_offset(cluster, "timeouts", "read_committed") == 2, timeout=30)
    assert is_fenced(lambda: client.commit_transaction(30))
    assert visible(cluster, "timeouts") == []
    assert visible(cluster, "timeouts", "read_uncommitted") == ["abandoned"]


@pytest.mark.case("TXN-34")
def test_a_transaction_over_many_partitions(cluster: KlammCluster) -> None:
    cluster.create_topic("wide", partitions=20)
    client = producer(cluster, "wide")
    for outcome in ("aborted", "committed"):
        client.begin_transaction()
        for partition in range(20):
            client.produce("wide", f"{outcome} {partition}".encode(), partition=partition)
        client.flush(30)
        if outcome == "committed":
            client.commit_transaction(30)
        else:
            client.abort_transaction(30)
    expected = [f"committed {partition}" for partition in range(20)]
    wait_until("all markers", lambda: visible(cluster, "wide", partitions=20) == expected)


@pytest.mark.timeout(1800)  # in full, thirty kills
@pytest.mark.parametrize("victim", ["coordinator", "leader"])
def test_kills_change_no_outcome(cluster: KlammCluster, scaled: Callable[[int, int], int], victim: str) -> None:
    """Each kill comes while the end of a transaction is outstanding."""
    topic = f"kills-of-the-{victim}"
    cluster.create_topic(topic, partitions=3, min_insync_replicas=2)
    state = partition_for(topic, int(PROPERTIES["transaction.state.log.num.partitions"]))
    with TransactionWriter(cluster.bootstrap, topic, topic, 3) as writer:
        for number in range(scaled(2 if victim == "coordinator" else 1, 30)):
            writer.wait_for_an_end()
            name, partition = (topic, number % 3) if victim == "leader" else ("__transaction_state", state)
            broker = cluster.leader_of(name, partition)
            cluster.kill(broker)
            writer.wait_for_an_end()
            cluster.start(broker)
            cluster.wait_until_healthy()
        wait_until("ten transactions", lambda: len(writer.committed) > 10)  # a broker is back after very few

    def numbers() -> list[list[int]]:
        return [[int(value) for value in visible(cluster, topic, partition=partition)] for partition in range(3)]

    wait_until("the last markers", lambda: all(set(writer.committed) <= set(found) for found in numbers()))
    found = numbers()
    assert found[0] == found[1] == found[2], "a transaction is visible in a part of its partitions"
    assert set(found[0]) - set(writer.unknown) == set(writer.committed)
    assert sorted(set(found[0])) == found[0]
    everything = {int(value) for value in visible(cluster, topic, "read_uncommitted")}
    assert everything >= set(writer.committed)


@pytest.mark.parametrize("version", ["2.5.1", "3.9.1"])
def test_java_producers(cluster: KlammCluster, version: str) -> None:
    topic = f"java-{version}"
    cluster.create_topic(topic, partitions=3)
    arguments = ("--topic", topic, "--num-records", "2000", "--record-size", "100", "--throughput", "-1")
    transactional = ("--transactional-id", topic, "--transaction-duration-ms", "100")
    properties = ("--producer-props", f"bootstrap.servers={cluster.bootstrap}")
    tool = "org.apache.kafka.tools.ProducerPerformance"
    result = asyncio.run(run_tool(version, tool, *arguments, *transactional, *properties))
    assert "2000 records sent" in result.output, result.output + result.errors
    wait_until("the last transaction", lambda: len(visible(cluster, topic, partitions=3)) == 2000)


def test_a_hanging_transaction_is_found_and_ended(cluster: KlammCluster) -> None:
    cluster.create_topic("hanging")
    transact(producer(cluster, "healthy"), "hanging", ["before"], commit=True)
    # A commit returns before its markers are written; the late batch must come after them.
    wait_until("the markers", lambda: visible(cluster, "hanging") == ["before"])
    leader = cluster.leader_of("hanging")
    asyncio.run(write_late_batch(cluster.internal_port(leader), TopicPartition("hanging", 0)))
    plain = Producer({"bootstrap.servers": cluster.bootstrap})
    plain.produce("hanging", b"after")
    assert plain.flush(30) == 0
    assert visible(cluster, "hanging") == ["before"]

    at = ("--bootstrap-server", cluster.bootstrap)
    listed = json.loads(klamm("transactions", "list", "--json", *at).stdout)["transactions"]
    assert "healthy" in [entry["transactional_id"] for entry in listed]

    def healthy() -> tuple[str, list[str]]:
        described = json.loads(klamm("transactions", "describe", "healthy", "--json", *at).stdout)
        return described["state"], described["partitions"]

    wait_until(lambda: f"the end of the commit instead of {healthy()}", lambda: healthy() == ("CompleteCommit", []))
    unknown = klamm("transactions", "describe", "nobody", *at)
    assert unknown.exit_code == 1 and "TRANSACTIONAL_ID_NOT_FOUND" in unknown.output

    young = klamm("transactions", "hanging", "--topic", "hanging", *at)
    assert young.stdout == "no transaction hangs on hanging\n"
    old = ("transactions", "hanging", "--topic", "hanging", "--older-than", "0", "--json", *at)
    [found] = json.loads(klamm(*old).stdout)["hanging"]
    assert (found["partition"], found["producer_id"], found["start_offset"]) == ("hanging-0", 987654, 2)

    abort = ("transactions", "abort", "--topic", "hanging", "--partition", "0", "--start-offset", "2")
    assert klamm(*abort, *at).exit_code == 1
    refused = klamm(*abort, "--yes", *at)
    assert refused.exit_code == 1 and "CLUSTER_AUTHORIZATION_FAILED" in refused.output
    inside = ("--bootstrap-server", f"127.0.0.1:{cluster.internal_port(leader)}")
    assert klamm(*abort, "--yes", *inside).exit_code == 0
    assert klamm(*abort, "--yes", *inside).exit_code == 1
    assert visible(cluster, "hanging") == ["before", "after"]


def klamm(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


async def write_late_batch(port: int, name: TopicPartition) -> None:
    """A transactional batch of a producer that no coordinator knows."""
    batch = build_batch(
        [Record(None, b"late", int(time.time() * 1000) - 5_000)],
        producer_id=987654,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    cls = request_class(ApiKey.PRODUCE)
    data = cls.TopicProduceData(
        name=name.topic,
        partition_data=[cls.TopicProduceData.PartitionProduceData(index=name.partition, records=batch)],
    )
    request = cls(transactional_id="late", acks=-1, timeout_ms=10_000, topic_data=[data])
    connection = BrokerConnection(AsyncioNetwork(), "127.0.0.1", port, "late", SystemClock())
    await connection.connect()
    try:
        body = await connection.request(ApiKey.PRODUCE, 8, [encode_request(request, 8)], timeout=30)
    finally:
        await connection.close()
    assert decode_response(ApiKey.PRODUCE, 8, body).responses[0].partition_responses[0].error_code == 0


def is_fenced(call: Callable[[], object]) -> bool:
    """librdkafka says so in one of two ways, depending on the request that found it out."""
    try:
        call()
    except KafkaException as error:
        found = error.args[0]
        assert found.fatal() or found.txn_requires_abort(), found
        return found.code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH) or found.fatal()
    return False
