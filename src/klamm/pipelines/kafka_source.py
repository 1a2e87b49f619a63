"""Spark's Kafka source as every reader of a topic here uses it: its options, and a batch read of given offsets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from klamm.pipelines.columns import FROM_SOURCE
from klamm.pipelines.lake_state import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def source_options(bootstrap_server: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": bootstrap_server,
        "kafka.isolation.level": "read_committed",
        "kafka.max.poll.records": "10000",
        "kafka.max.partition.fetch.bytes": str(8 << 20),
        "kafka.fetch.max.bytes": str(64 << 20),
        "kafka.receive.buffer.bytes": str(1 << 20),
        "failOnDataLoss": "true",
        "includeHeaders": "true",
    }


def read_ranges(
    spark: SparkSession, source: Mapping[str, str], topic: str, ranges: Mapping[int, OffsetRange]
) -> DataFrame:
    """The committed records of one range of each partition."""
    return (
        spark.read.format("kafka")
        .options(**source)
        .option("assign", json.dumps({topic: sorted(ranges)}))
        .option("startingOffsets", json.dumps({topic: {str(p): r.start for p, r in ranges.items()}}))
        .option("endingOffsets", json.dumps({topic: {str(p): r.end for p, r in ranges.items()}}))
        .load()
        .selectExpr(*FROM_SOURCE)
    )
