"""Spark's Kafka connector as a sink: a batch is written, and a stream copies it to another topic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, TopicPartition

from klamm.testing.cluster import KlammCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 300
PARTITIONS = 3


def contents(bootstrap: str, topic: str) -> list[tuple[str, str, str]]:
    """Key, value and header of every record, as librdkafka sees them."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
        }
    )
    found = []
    try:
        for partition in range(PARTITIONS):
            consumer.assign([TopicPartition(topic, partition, 0)])
            while (message := consumer.poll(30)) is not None and not message.error():
                header = dict(message.headers())["n"].decode()
                found.append((message.key().decode(), message.value().decode(), header))
            assert message is not None, f"no end of {topic}-{partition}"
    finally:
        consumer.close()
    return sorted(found)


def test_a_batch_and_a_stream(lake_spark: SparkSession, klamm_session_cluster: KlammCluster, tmp_path: Path) -> None:
    bootstrap = klamm_session_cluster.bootstrap
    for topic in ("spark-batch", "spark-stream"):
        klamm_session_cluster.create_topic(topic, PARTITIONS)
    records = lake_spark.range(COUNT).selectExpr(
        "concat('k', id) AS key",
        "concat('v', id) AS value",
        "array(struct('n' AS key, cast(concat('h', id) AS binary) AS value)) AS headers",
    )
    records.write.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", "spark-batch").save()
    expected = sorted((f"k{number}", f"v{number}", f"h{number}") for number in range(COUNT))
    assert contents(bootstrap, "spark-batch") == expected

    source = lake_spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    copied = source.option("subscribe", "spark-batch").option("startingOffsets", "earliest")
    copied = copied.option("includeHeaders", "true").load().select("key", "value", "headers")
    sink = copied.writeStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    sink = sink.option("topic", "spark-stream").option("checkpointLocation", str(tmp_path / "checkpoint"))
    stream = sink.trigger(availableNow=True).start()
    assert stream.awaitTermination(120), "the stream does not end"
    assert contents(bootstrap, "spark-stream") == expected
