"""Consume, transform, produce: each record exactly once, counted, while coordinators and leaders are killed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, Producer, TopicPartition

from klamm.broker.coordinators.internal_topic import partition_for
from klamm.testing.cluster import KlammCluster, running_cluster
from klamm.testing.waiting import wait_until

from .transaction_writer import again

PARTITIONS = 3
GROUP, CHAIN = "chain-group", "chain"
PATIENCE_S = 15
RECONNECT_MS = 1_000
"""librdkafka sends offsets to the group's coordinator that it remembers. If that one is dead, librdkafka looks for
another each time that it fails to connect, and its pauses between attempts grow to ten seconds by default."""
PROPERTIES = {
    "transaction.state.log.num.partitions": "3",
    "offsets.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "min.insync.replicas": "2",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KlammCluster]:
    with running_cluster(tmp_path_factory.mktemp("exactly-once"), properties=PROPERTIES) as running:
        running.create_topic("input", partitions=PARTITIONS)
        running.create_topic("output", partitions=PARTITIONS)
        yield running


class Chain:
    """One worker: takes records from `input`, and commits them to `output` together with the offsets of its group."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.transactions = 0
        self.restarts = 0
        self.ending = threading.Event()
        self._stop = threading.Event()
        self._failure: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Chain:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "the chain hangs"
        if self._failure:
            raise self._failure[0]

    def wait_for_an_end(self) -> None:
        self.ending.clear()
        assert self.ending.wait(90), "no transaction ends"
        if self._failure:
            raise self._failure[0]

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                consumer, producer = self._start()
                try:
                    while not self._stop.is_set():
                        self._step(consumer, producer)
                except KafkaException as error:
                    # Fenced by the timeout of a long fail-over, or the offsets were not taken in time. If librdkafka
                    # loses a question for the coordinator, it waits until any of its connections changes. A new
                    # producer asks again, and fences the old one.
                    assert error.args[0].fatal() or error.args[0].retriable(), error
                    self.restarts += 1
                finally:
                    consumer.close()
        except BaseException as error:
            self._failure.append(error)
            self.ending.set()

    def _start(self) -> tuple[Consumer, Producer]:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": GROUP,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 10_000,
                "reconnect.backoff.max.ms": RECONNECT_MS,
            }
        )
        consumer.subscribe(["input"])
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "transactional.id": CHAIN,
                "transaction.timeout.ms": 60_000,
                "reconnect.backoff.max.ms": RECONNECT_MS,
            }
        )
        again(lambda: producer.init_transactions(30))
        return consumer, producer

    def _step(self, consumer: Consumer, producer: Producer) -> None:
        # Enough to catch up with what came during a fail-over, and often enough that each kill meets a transaction.
        records = [message for message in consumer.consume(200, timeout=0.2) if not message.error()]
        if not records:
            return
        try:
            self._transact(consumer, producer, records)
            self.transactions += 1
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            again(lambda: producer.abort_transaction(30))
            rewind(consumer)

    def _transact(self, consumer: Consumer, producer: Producer, records: list[Message]) -> None:
        producer.begin_transaction()
        for record in records:
            producer.produce("output", record.value(), partition=record.partition())
        positions = consumer.position(consumer.assignment())
        group = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction(positions, group, PATIENCE_S)
        self.ending.set()
        again(lambda: producer.commit_transaction(30))


def rewind(consumer: Consumer) -> None:
    """Back to what the group has committed."""
    for position in consumer.committed(consumer.assignment(), timeout=60):
        offset = position.offset if position.offset >= 0 else OFFSET_BEGINNING
        consumer.seek(TopicPartition(position.topic, position.partition, offset))


class Source:
    """Writes numbered records to `input`, until it is stopped."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
        self.count = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Source:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        assert self._producer.flush(60) == 0

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            for partition in range(PARTITIONS):
                self._producer.produce("input", str(self.count).encode(), partition=partition)
                self.count += 1
            self._producer.poll(0)


def output(cluster: KlammCluster) -> list[int]:
    client = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "counting",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    found = []
    try:
        for partition in range(PARTITIONS):
            client.assign([TopicPartition("output", partition, 0)])
            while (message := client.poll(30)) is not None and not message.error():
                found.append(int(message.value()))
    finally:
        client.close()
    return found


def victims(cluster: KlammCluster, number: int) -> list[Callable[[], int]]:
    return [
        lambda: cluster.leader_of("__transaction_state", partition_for(CHAIN, 3)),
        lambda: cluster.leader_of("__consumer_offsets", partition_for(GROUP, 3)),
        lambda: cluster.leader_of("output", number % PARTITIONS),
    ]


@pytest.mark.case("TXN-35")
@pytest.mark.timeout(1800)  # in full, thirty kills
def test_a_chain_is_exactly_once(cluster: KlammCluster, scaled: Callable[[int, int], int]) -> None:
    with Chain(cluster.bootstrap) as chain:
        with Source(cluster.bootstrap) as source:
            chain.wait_for_an_end()
            for number in range(scaled(1, 10)):
                for victim in victims(cluster, number):
                    broker = victim()
                    chain.wait_for_an_end()
                    cluster.kill(broker)
                    chain.wait_for_an_end()
                    cluster.start(broker)
                    cluster.wait_until_healthy()
        wait_until("the whole input in the output", lambda: len(output(cluster)) >= source.count, timeout=120)
    assert sorted(output(cluster)) == list(range(source.count))
    committed = offsets_of(cluster)
    assert sum(committed) == source.count, "the group stands where the output ends"


def offsets_of(cluster: KlammCluster) -> list[int]:
    client = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": GROUP, "enable.auto.commit": False})
    try:
        asked = [TopicPartition("input", partition) for partition in range(PARTITIONS)]
        return [position.offset for position in client.committed(asked, timeout=30)]
    finally:
        client.close()
