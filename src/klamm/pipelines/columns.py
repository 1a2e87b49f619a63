"""The columns of a table, and what becomes of a record that does not fit them.

A bad record stays in the table, in its own commit and at its own offset: `error` has the reason, `key` and `value` its
bytes. So one commit holds every offset of a batch, the audit finds each in one place, and nothing has to be repeated
when the driver is killed between two tables. The dead letters of a topic are its rows with an `error`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS: Final = (
    ("topic", "STRING"),
    ("partition", "INT"),
    ("offset", "BIGINT"),
    ("timestamp", "TIMESTAMP"),
    ("timestamp_type", "INT"),
    ("key", "BINARY"),
    ("value", "BINARY"),
    ("headers", "ARRAY<STRUCT<key: STRING, value: BINARY>>"),
    ("incarnation", "INT"),
    ("error", "STRING"),
)
RAW: Final = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers", "error")
FROM_SOURCE: Final = (
    *("topic", "`partition`", "`offset`", "timestamp", "timestampType AS timestamp_type"),
    *("key", "value", "headers", "CAST(NULL AS STRING) AS error"),
)
"""The columns of Spark's Kafka source, in the order of RAW."""
_PYTHON_ROWS: Final = """topic STRING, `partition` INT, `offset` BIGINT, ms BIGINT, timestamp_type INT,
key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, error STRING"""
TIMESTAMP_MS_MAX: Final = (2**63 - 1) // 1000
"""Spark keeps microseconds."""


class PartitionBy(StrEnum):
    """The directories of a table. A late record goes to the hour of its own timestamp."""

    NONE = "none"
    DATE = "date"
    HOUR = "date,hour"

    @property
    def columns(self) -> dict[str, tuple[str, str]]:
        """The type of each column, and the SQL that computes it."""
        found = {"date": ("DATE", "CAST(timestamp AS DATE)"), "hour": ("INT", "hour(timestamp)")}
        return {name: found[name] for name in self.value.split(",") if name in found}


def shaped(rows: DataFrame, incarnation: int, partition_by: PartitionBy) -> DataFrame:
    """Rows of the source with the columns that the table adds to them."""
    placed = (f"{sql} AS `{name}`" for name, (_, sql) in partition_by.columns.items())
    return rows.selectExpr("*", f"CAST({incarnation} AS INT) AS incarnation", *placed)


def table_schema(columns: Sequence[tuple[str, str]]) -> str:
    """As CREATE TABLE takes it.

    >>> table_schema([("topic", "STRING"), ("partition", "INT")])
    '`topic` STRING, `partition` INT'
    """
    return ", ".join(f"`{name}` {kind}" for name, kind in columns)


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A record that Python read, because Spark's source fails on it or beside it."""

    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


def timestamp_error(timestamp: int) -> str | None:
    """
    >>> timestamp_error(1_760_000_000_000_000_000)
    'impossible timestamp: 1760000000000000000 ms'
    """
    return f"impossible timestamp: {timestamp} ms" if abs(timestamp) > TIMESTAMP_MS_MAX else None


def rows_of(spark: SparkSession, topic: str, rows: Sequence[TopicRow]) -> DataFrame:
    """The rows as the source would have given them, with a null timestamp where it is impossible."""
    data = []
    for row in rows:
        error = timestamp_error(row.timestamp)
        ms = None if error else row.timestamp
        headers = list(row.headers) or None
        data.append((topic, row.partition, row.offset, ms, row.timestamp_type, row.key, row.value, headers, error))
    return spark.createDataFrame(data, _PYTHON_ROWS).selectExpr(
        *(f"timestamp_millis(ms) AS {name}" if name == "timestamp" else f"`{name}`" for name in RAW)
    )
