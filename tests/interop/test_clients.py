"""Real clients on three klamm brokers: kafka-python, librdkafka, and Apache Kafka's own console tools."""

from __future__ import annotations

from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonTopicPartition

from klamm.testing.apache_kafka import run_tool
from klamm.testing.cluster import KlammCluster

VERSION = "2.5.1"


async def test_real_clients_produce_and_consume(klamm_cluster: KlammCluster) -> None:
    cluster = klamm_cluster
    cluster.create_topic("shared", partitions=1, replication_factor=3)
    expected = []

    for codec in (None, "gzip", "snappy", "lz4", "zstd"):
        python = KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all", compression_type=codec)
        value = f"kafka-python {codec}".encode()
        python.send("shared", value).get(timeout=30)
        python.close()
        rdkafka = Producer(
            {"bootstrap.servers": cluster.bootstrap, "compression.type": codec or "none", "enable.idempotence": True}
        )
        rdkafka.produce("shared", f"librdkafka {codec}".encode())
        assert rdkafka.flush(30) == 0
        expected += [value, f"librdkafka {codec}".encode()]

    sent = await run_tool(
        VERSION,
        "kafka.tools.ConsoleProducer",
        *("--broker-list", cluster.bootstrap, "--topic", "shared", "--request-required-acks", "all"),
        stdin="java one\njava two\n",
    )
    assert sent.code == 0, sent.errors
    expected += [b"java one", b"java two"]

    assert read_with_kafka_python(cluster, len(expected)) == expected
    assert read_with_librdkafka(cluster, len(expected)) == expected
    read = await run_tool(
        VERSION,
        "kafka.tools.ConsoleConsumer",
        *("--bootstrap-server", cluster.bootstrap, "--topic", "shared", "--partition", "0", "--offset", "earliest"),
        *("--max-messages", str(len(expected)), "--timeout-ms", "30000"),
    )
    assert read.output.encode().splitlines() == expected, read.errors

    leader = cluster.leader_of("shared", 0)
    segment = cluster.directory(leader) / "shared-0" / "00000000000000000000.log"
    dump = await run_tool(VERSION, "kafka.tools.DumpLogSegments", "--files", str(segment), "--print-data-log")
    assert "java two" in dump.output and "isvalid: true" in dump.output, dump.output + dump.errors
    assert "isvalid: false" not in dump.output


def read_with_kafka_python(cluster: KlammCluster, count: int) -> list[bytes]:
    consumer = KafkaConsumer(
        bootstrap_servers=cluster.bootstrap, group_id=None, auto_offset_reset="earliest", consumer_timeout_ms=30_000
    )
    consumer.assign([PythonTopicPartition("shared", 0)])
    try:
        return [record.value for record, _ in zip(consumer, range(count), strict=False)]
    finally:
        consumer.close()


def read_with_librdkafka(cluster: KlammCluster, count: int) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "unused", "enable.auto.commit": False, "check.crcs": True}
    )
    consumer.assign([TopicPartition("shared", 0, 0)])
    try:
        values = []
        for message in iter(lambda: consumer.poll(30), None):
            assert message.error() is None, message.error()
            values.append(message.value())
            if len(values) == count:
                break
        return values
    finally:
        consumer.close()
