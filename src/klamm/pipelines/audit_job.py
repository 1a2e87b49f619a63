"""Runs the audit: reads commits from `_delta_log` and rows with Spark, and asks Kafka whether it is still the same log,
what its records say, and why offsets are missing.

The table is read at the version of the newest commit that was read, so an ingest may run at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from klamm.pipelines.anchors import compare_log, record_crc
from klamm.pipelines.audit import (
    AuditReport,
    Finding,
    check_commits,
    find_duplicates,
    find_edited,
    find_missing,
    find_other_log,
    find_outside,
    joined,
    judge,
)
from klamm.pipelines.columns import timestamp_error
from klamm.pipelines.delta_log import DeltaLog
from klamm.pipelines.kafka_topic import KafkaTopics
from klamm.pipelines.lake_directory import LakeDirectory
from klamm.pipelines.lake_location import for_lake, local_lake, open_lake
from klamm.pipelines.lake_state import FIRST_INCARNATION, LakeError, OffsetRange
from klamm.pipelines.maintenance import LogKey
from klamm.pipelines.offset_kinds import OffsetKind
from klamm.pipelines.spark_session import SparkOptions, one_line, spark_errors, spark_session
from klamm.pipelines.table_offsets import KEY, TableOffsets, offsets_of, with_incarnation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SAMPLES = 5
"""Rows of each partition whose contents are compared with the log."""


def audit_topics(lake: str, topics: Sequence[str], bootstrap_server: str, options: SparkOptions) -> list[AuditReport]:
    local = local_lake(lake)
    if local is not None:
        _check_tables(local, topics)
    with ExitStack() as stack:
        kafka = stack.enter_context(KafkaTopics(bootstrap_server))
        spark = stack.enter_context(spark_session(for_lake(lake, options), "klamm lake audit"))
        directory = open_lake(spark, lake)
        _check_tables(directory, topics)
        return [audit_table(spark, directory.child(topic), topic, kafka) for topic in topics]


def _check_tables(lake: LakeDirectory, topics: Sequence[str]) -> None:
    for topic in topics:
        if not DeltaLog(lake.child(topic)).exists():
            raise LakeError(f"there is no table for topic {topic} at {lake.child(topic)}")


def audit_table(spark: SparkSession, table: LakeDirectory, topic: str, kafka: KafkaTopics) -> AuditReport:
    log = DeltaLog(table)
    commits = list(log.commits())
    promised = check_commits(commits, topic)
    version = commits[-1].version
    offsets = _read_offsets(spark, table, version)
    newest = max((key.incarnation for key in promised.ranges), default=FIRST_INCARNATION)
    report = AuditReport(
        topic=topic,
        version=version,
        rows=offsets.rows,
        incarnation=newest,
        ends={key.partition: known[-1].end for key, known in sorted(promised.ranges.items()) if key[0] == newest},
        findings=[
            *promised.findings,
            *find_duplicates(offsets.repeated),
            *find_outside(joined(promised.ranges, promised.backfilled), offsets.present),
        ],
    )
    other = _compare_log(log, topic, kafka, report)
    for key, gaps in find_missing(promised, offsets.present).items():
        if key.incarnation < newest or key.partition in other:
            report.findings += [
                Finding("gap", "the log that was ingested is gone, so it cannot explain them", key[1], *gap, key[0])
                for gap in gaps
            ]
        else:
            _explain(report, key, gaps, kafka)
    samples = {key: _spread(runs) for key, runs in offsets.present.items() if key[0] == newest and key[1] not in other}
    seen = {key: [anchor.offset] for key, anchor in promised.anchors.items()}
    rows = _row_checksums(spark, {key: [*samples.get(key, ()), *seen.get(key, ())] for key in {**samples, **seen}})
    by_ingest = {key: {anchor.offset: anchor.record_crc} for key, anchor in promised.anchors.items()}
    by_log = _log_checksums(kafka, topic, samples)
    report.findings += find_edited(
        rows, {key: {**by_ingest.get(key, {}), **by_log.get(key, {})} for key in {**by_ingest, **by_log}}
    )
    return report


def _compare_log(log: DeltaLog, topic: str, kafka: KafkaTopics, report: AuditReport) -> set[int]:
    """Add what is wrong with the log; return the partitions that have another one."""
    try:
        state = log.state()
    except LakeError as e:
        report.findings.append(Finding("log-incomplete", str(e)))
        return set()
    if state is None:
        return set()
    changes = compare_log(state, kafka.log_facts(topic, state))
    report.findings += find_other_log(changes, state.incarnation)
    return {change.partition for change in changes if change.is_new_log}


def _explain(report: AuditReport, key: LogKey, gaps: Sequence[OffsetRange], kafka: KafkaTopics) -> None:
    spans = kafka.kinds_at(report.topic, key.partition, gaps)
    compacted = any(span.kind is OffsetKind.ABSENT for span in spans) and kafka.is_compacted(report.topic)
    for verdict in judge(key, spans, compacted=compacted):
        if isinstance(verdict, Finding):
            report.findings.append(verdict)
        else:
            report.explained.append(verdict)


def _spread(runs: Sequence[OffsetRange]) -> list[int]:
    """A few offsets of the runs, evenly apart, the first and the last among them.

    >>> _spread([OffsetRange(0, 3), OffsetRange(10, 12)])
    [0, 1, 2, 10, 11]
    """
    count = sum(run.end - run.start for run in runs)
    wanted = sorted({i * (count - 1) // max(1, _SAMPLES - 1) for i in range(_SAMPLES)})
    found, before = [], 0
    for run in runs:
        size = run.end - run.start
        found += [run.start + index - before for index in wanted if before <= index < before + size]
        before += size
    return found


def _row_checksums(spark: SparkSession, samples: Mapping[LogKey, Sequence[int]]) -> dict[LogKey, dict[int, int]]:
    picked = " OR ".join(
        f"(incarnation = {key.incarnation} AND `partition` = {key.partition} "
        f"AND `offset` IN ({', '.join(map(str, offsets))}))"
        for key, offsets in samples.items()
        if offsets
    )
    if not picked:
        return {}
    columns = f"{KEY}, `offset`, unix_millis(timestamp) AS ms, key, value"
    try:
        rows = spark.sql(f"SELECT {columns} FROM audited WHERE timestamp IS NOT NULL AND ({picked})").collect()
    except spark_errors() as e:
        raise LakeError(f"cannot read rows: {one_line(e)}") from e
    found: dict[LogKey, dict[int, int]] = {}
    for row in rows:
        key, value = (None if row[name] is None else bytes(row[name]) for name in ("key", "value"))
        checksums = found.setdefault(LogKey(row["incarnation"], row["partition"]), {})
        checksums[row["offset"]] = record_crc(row["ms"], key, value)
    return found


def _log_checksums(
    kafka: KafkaTopics, topic: str, samples: Mapping[LogKey, Sequence[int]]
) -> dict[LogKey, dict[int, int]]:
    bounds = kafka.log_bounds(topic)
    found: dict[LogKey, dict[int, int]] = {}
    for index in range(_SAMPLES):
        keys = {
            key.partition: key
            for key, offsets in samples.items()
            if index < len(offsets)
            and key.partition in bounds
            and bounds[key.partition].start <= offsets[index] < bounds[key.partition].end
        }
        offsets = {partition: samples[key][index] for partition, key in keys.items()}
        for partition, record in kafka.samples_at(topic, offsets).items():
            if timestamp_error(record.timestamp) is None:  # else a replay may have set another one
                checksum = record_crc(record.timestamp, record.key, record.value)
                found.setdefault(keys[partition], {})[record.offset] = checksum
    return found


def _read_offsets(spark: SparkSession, table: LakeDirectory, version: int) -> TableOffsets:
    try:
        rows = with_incarnation(spark.read.format("delta").option("versionAsOf", version).load(table.uri))
        rows.createOrReplaceTempView("audited")
        return offsets_of(spark, rows)
    except spark_errors() as e:
        raise LakeError(f"cannot read the table {table}: {one_line(e)}") from e
