"""Runs the audit: reads commits from `_delta_log` and offsets of rows with Spark, and asks Kafka about missing offsets.

The table is read at the version of the newest commit that was read, so an ingest may run at the same time. Spark
reduces the rows to runs of neighbouring offsets: the result grows with the number of gaps, not of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from klamm.pipelines.audit import (
    AuditReport,
    Finding,
    RepeatedOffset,
    check_commits,
    find_duplicates,
    find_missing,
    find_outside,
    judge,
)
from klamm.pipelines.delta_log import DeltaLog
from klamm.pipelines.kafka_topic import KafkaTopics
from klamm.pipelines.lake_state import LakeError, OffsetRange
from klamm.pipelines.offset_kinds import OffsetKind
from klamm.pipelines.spark_session import one_line, spark_errors, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COUNTED = "SELECT `partition`, `offset`, count(*) AS n FROM audited GROUP BY `partition`, `offset`"
_REPEATED = f"SELECT `partition`, `offset`, n FROM ({_COUNTED}) WHERE n > 1"
_RUNS = f"""
SELECT `partition`, min(`offset`) AS start, max(`offset`) + 1 AS end, sum(n) AS row_count FROM (
  SELECT `partition`, `offset`, n, `offset` - row_number() OVER (PARTITION BY `partition` ORDER BY `offset`) AS island
  FROM ({_COUNTED})
) GROUP BY `partition`, island"""


@dataclass(frozen=True, slots=True)
class TableOffsets:
    present: Mapping[int, Sequence[OffsetRange]]
    repeated: Sequence[RepeatedOffset]
    rows: int


def audit_topics(lake: Path, topics: Sequence[str], bootstrap_server: str | None, master: str) -> list[AuditReport]:
    for topic in topics:
        if not DeltaLog(lake / topic).exists():
            raise LakeError(f"there is no table for topic {topic} at {lake / topic}")
    with ExitStack() as stack:
        kafka = stack.enter_context(KafkaTopics(bootstrap_server)) if bootstrap_server else None
        spark = stack.enter_context(spark_session(master, "klamm lake audit"))
        return [_audit(spark, lake / topic, topic, kafka) for topic in topics]


def _audit(spark: SparkSession, table: Path, topic: str, kafka: KafkaTopics | None) -> AuditReport:
    commits = list(DeltaLog(table).commits())
    promised = check_commits(commits, topic)
    offsets = _read_offsets(spark, table, commits[-1].version)
    report = AuditReport(
        topic=topic,
        version=commits[-1].version,
        rows=offsets.rows,
        ends={partition: known[-1].end for partition, known in sorted(promised.ranges.items())},
        findings=[
            *promised.findings,
            *find_duplicates(offsets.repeated),
            *find_outside(promised.ranges, offsets.present),
        ],
    )
    for partition, gap in find_missing(promised.ranges, offsets.present):
        _explain(report, partition, gap, kafka)
    return report


def _explain(report: AuditReport, partition: int, gap: OffsetRange, kafka: KafkaTopics | None) -> None:
    if kafka is None:
        report.findings.append(
            Finding("gap", "not in the table (add --bootstrap-server to find out why)", partition, *gap)
        )
        return
    spans = kafka.kinds_at(report.topic, partition, *gap)
    compacted = any(span.kind is OffsetKind.ABSENT for span in spans) and kafka.is_compacted(report.topic)
    for verdict in judge(partition, spans, compacted=compacted):
        if isinstance(verdict, Finding):
            report.findings.append(verdict)
        else:
            report.explained.append(verdict)


def _read_offsets(spark: SparkSession, table: Path, version: int) -> TableOffsets:
    try:
        spark.read.format("delta").option("versionAsOf", version).load(str(table)).createOrReplaceTempView("audited")
        runs = spark.sql(_RUNS).collect()
        repeated = spark.sql(_REPEATED).collect()
    except spark_errors() as e:
        raise LakeError(f"cannot read the table {table}: {one_line(e)}") from e
    present: dict[int, list[OffsetRange]] = {}
    for row in sorted(runs, key=lambda row: (row["partition"], row["start"])):
        present.setdefault(row["partition"], []).append(OffsetRange(row["start"], row["end"]))
    return TableOffsets(
        present,
        [RepeatedOffset(row["partition"], row["offset"], row["n"]) for row in repeated],
        sum(row["row_count"] for row in runs),
    )
