"""Writes rows of a topic, again after a failure whose cause can be taken away.

Two causes can: a value names a schema that the registry has not been asked for, or the rows have a record that Spark's
source cannot read. A failed write leaves no row behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from klamm.pipelines.bad_records import find_bad, rows_around
from klamm.pipelines.decode import Decode
from klamm.pipelines.kafka_source import source_options
from klamm.pipelines.kafka_topic import KafkaTopics
from klamm.pipelines.lake_state import LakeError, OffsetRange
from klamm.pipelines.registry import learned

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class WriteFailed(LakeError):
    """Spark could not write the rows, maybe because of one of them. The cause is Spark's own error."""


def write_rows(
    rows: DataFrame,
    decode: Decode,
    write: Callable[[DataFrame, Decode], None],
    read_otherwise: Callable[[], DataFrame | None],
) -> Decode:
    """Returns the decoding with all schemas that the rows needed. `read_otherwise` gives the rows that Spark's source
    fails on, or None if it reads them all. Raises LakeError."""
    otherwise = False
    while True:
        try:
            write(rows, decode)
            return decode
        except WriteFailed as failure:
            more = learned(decode, str(failure.__cause__))
            if more is not None:
                decode = more
                continue
            readable = None if otherwise else read_otherwise()
            if readable is None:
                raise LakeError(str(failure)) from failure
            rows, otherwise = readable, True


def read_around_bad(
    spark: SparkSession, kafka: KafkaTopics, bootstrap_server: str, topic: str, ranges: Mapping[int, OffsetRange]
) -> DataFrame | None:
    bad = find_bad(kafka, topic, ranges)
    return rows_around(spark, kafka, source_options(bootstrap_server), topic, ranges, bad) if bad else None
