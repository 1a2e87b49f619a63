"""Writes a batch that Spark's source cannot read: a record whose timestamp overflows fails the whole task.

The source cannot skip a record, so the ranges are split: the offsets from the first to the last bad record of a
partition are read in Python, the rest by Spark as before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from klamm.pipelines.columns import TIMESTAMP_MS_MAX, TopicRow, rows_of
from klamm.pipelines.kafka_source import read_ranges
from klamm.pipelines.kafka_topic import KafkaTopics
from klamm.pipelines.lake_state import LakeError, OffsetRange
from klamm.wire.records import iter_records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PYTHON_ROWS_MAX: Final = 200_000


def find_bad(kafka: KafkaTopics, topic: str, ranges: Mapping[int, OffsetRange]) -> dict[int, OffsetRange]:
    """From the first to the last record of each partition that Spark's source cannot read."""
    found: dict[int, OffsetRange] = {}
    for partition, planned in sorted(ranges.items()):
        for header, batch in kafka.scan(topic, partition, planned):
            # The latest timestamp decides: producers refuse negative ones.
            if max(abs(header.base_timestamp), abs(header.max_timestamp)) <= TIMESTAMP_MS_MAX:
                continue
            for record in iter_records(batch):
                if abs(record.timestamp) > TIMESTAMP_MS_MAX and planned.start <= record.offset < planned.end:
                    start = found[partition].start if partition in found else record.offset
                    found[partition] = OffsetRange(start, record.offset + 1)
    return found


def rows_around(
    spark: SparkSession, kafka: KafkaTopics, source: Mapping[str, str], topic: str,
    ranges: Mapping[int, OffsetRange], bad: Mapping[int, OffsetRange],
) -> DataFrame:  # fmt: skip
    """All rows of the ranges: those in `bad` by Python, the others by Spark."""
    count = sum(span.end - span.start for span in bad.values())
    if count > _PYTHON_ROWS_MAX:
        raise LakeError(
            f"topic {topic}: {count} offsets lie between records with impossible timestamps, and {_PYTHON_ROWS_MAX} "
            "can be read in one batch: use a smaller --max-offsets-per-trigger"
        )
    by_python = [row for p, span in sorted(bad.items()) for row in _read(kafka, topic, p, span)]
    rows = rows_of(spark, topic, by_python)
    for part in good_parts(ranges, bad):
        rows = rows.unionByName(read_ranges(spark, source, topic, part))
    return rows


def good_parts(ranges: Mapping[int, OffsetRange], bad: Mapping[int, OffsetRange]) -> list[dict[int, OffsetRange]]:
    """One range per partition and read: what is before the bad records (or all of a good partition), then the rest."""
    before = {p: OffsetRange(r.start, bad[p].start) if p in bad else r for p, r in ranges.items()}
    after = {p: OffsetRange(span.end, ranges[p].end) for p, span in bad.items()}
    parts = [{p: r for p, r in part.items() if r.end > r.start} for part in (before, after)]
    return [part for part in parts if part]


def _read(kafka: KafkaTopics, topic: str, partition: int, span: OffsetRange) -> list[TopicRow]:
    return [
        TopicRow(
            partition, record.offset, record.timestamp, int(header.is_log_append_time), record.key, record.value,
            record.headers,
        )
        for header, record in kafka.committed_records(topic, partition, span)
    ]  # fmt: skip
