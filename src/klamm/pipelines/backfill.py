"""Reads a range of a topic again, and adds the rows that its table lacks.

It repairs what another program erased or a RESTORE took away, as long as Kafka still has the records. The positions of
the ingest stay as they are: nothing at or above them is read, so an ingest may run at the same time. Rows that exist
stay, and rows that were forgotten on purpose stay away. The insertion is one MERGE: Delta refuses the second of two
backfills that overlap, so none adds a row twice. Its commit names the offsets, and the audit expects them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.pipelines.anchors import compare_log
from klamm.pipelines.audit import check_commits, subtract
from klamm.pipelines.columns import PartitionBy, shaped
from klamm.pipelines.decode import Decode, Format, decoded, table_schema_of_data
from klamm.pipelines.delta_log import DeltaLog
from klamm.pipelines.driver_lock import commit_lock
from klamm.pipelines.ingest_options import OnNewLog
from klamm.pipelines.kafka_source import read_ranges, source_options
from klamm.pipelines.kafka_topic import KafkaTopics
from klamm.pipelines.lake_directory import LakeDirectory
from klamm.pipelines.lake_state import FIRST_INCARNATION, IngestState, LakeError, OffsetRange
from klamm.pipelines.maintenance import BACKFILL, LogKey, Maintenance
from klamm.pipelines.maintenance_job import MaintenanceReport, commit_metadata, open_tables, table_state
from klamm.pipelines.offset_kinds import LogBounds
from klamm.pipelines.registry import with_registered
from klamm.pipelines.spark_session import SparkOptions, one_line, spark_errors
from klamm.pipelines.table_offsets import offsets_of, with_incarnation
from klamm.pipelines.table_rules import check_log
from klamm.pipelines.write_attempts import WriteFailed, read_around_bad, write_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Bound(NamedTuple):
    """Where a backfill begins or ends, in each partition: an offset, or a time in milliseconds."""

    value: int
    is_time: bool = False


def parse_bound(text: str) -> Bound:
    """An offset, or a time of ISO 8601, which is UTC without a zone. Raises ValueError.

    >>> parse_bound("1200"), parse_bound("1970-01-02T00:00:01")
    (Bound(value=1200, is_time=False), Bound(value=86401000, is_time=True))
    """
    if text.isdecimal():
        return Bound(int(text))
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return Bound(int(moment.timestamp() * 1000), is_time=True)


@dataclass(frozen=True, slots=True)
class BackfillPlan:
    ranges: Mapping[int, OffsetRange]
    expired: int
    """Offsets that were asked for and that the log no longer has."""


def plan(
    ends: Mapping[int, int], log: Mapping[int, LogBounds], first: Mapping[int, int], last: Mapping[int, int]
) -> BackfillPlan:
    """The offsets to read: from `first` to `last`, as far as the table's positions and the log reach.

    A partition that is not in `first` or `last` is read from its log start or to the table's position.
    """
    ranges: dict[int, OffsetRange] = {}
    expired = 0
    for partition, end in sorted(ends.items()):
        if partition not in log:
            continue
        asked = OffsetRange(first.get(partition, log[partition].start), min(end, last.get(partition, end)))
        expired += max(0, min(asked.end, log[partition].start) - asked.start)
        start = max(asked.start, log[partition].start)
        if start < asked.end:
            ranges[partition] = OffsetRange(start, asked.end)
    return BackfillPlan(ranges, expired)


class Backfill:
    """Fills the table of one topic."""

    def __init__(
        self, spark: SparkSession, lake: LakeDirectory, topic: str, kafka: KafkaTopics, bootstrap_server: str,
        decode: Decode,
    ) -> None:  # fmt: skip
        self._spark = spark
        self._lake = lake
        self._topic = topic
        self._kafka = kafka
        self._bootstrap_server = bootstrap_server
        self._decode = decode
        self._table = lake.child(topic)
        self._log = DeltaLog(self._table)

    def run(self, first: Bound | None, last: Bound | None) -> MaintenanceReport:
        state = table_state(self._table, self._topic)
        self._decode = self._as_the_table(with_registered(self._decode, self._topic))
        changes = compare_log(state, self._kafka.log_facts(self._topic, state))
        check_log(self._topic, [change for change in changes if change.is_new_log], OnNewLog.FAIL)
        log = self._kafka.stable_bounds(self._topic)
        planned = plan(state.ends, log, self._offsets(first, log), self._offsets(last, log))
        added = 0
        try:
            with commit_lock(self._spark, self._lake, self._topic):
                missing = self._missing(state, planned.ranges)
                if missing:
                    added = self._add(state, missing)
        except spark_errors() as e:
            raise LakeError(f"{self._table}: cannot backfill: {one_line(e)}") from e
        return MaintenanceReport(self._topic, BACKFILL, added, planned.expired)

    def _as_the_table(self, decode: Decode) -> Decode:
        """JSON without a schema has that of the table."""
        if decode.format is not Format.JSON or decode.schema:
            return decode
        try:
            schema = table_schema_of_data(self._spark, self._table.uri)
        except spark_errors() as e:
            raise LakeError(f"cannot read the table {self._table}: {one_line(e)}") from e
        if schema is None:
            raise LakeError(f"{self._table} has no decoded values: use no --decode")
        return replace(decode, schema=schema)

    def _offsets(self, bound: Bound | None, log: Mapping[int, LogBounds]) -> dict[int, int]:
        if bound is None:
            return {}
        if not bound.is_time:
            return dict.fromkeys(log, bound.value)
        return self._kafka.offsets_at_time(self._topic, bound.value)

    def _missing(self, state: IngestState, ranges: Mapping[int, OffsetRange]) -> dict[int, OffsetRange]:
        """From the first to the last offset of each partition that has no row and was not forgotten.

        The markers of transactions count as missing, because only the log tells them from records.
        """
        if not ranges:
            return {}
        rows = with_incarnation(self._spark.read.format("delta").load(self._table.uri))
        rows = rows.where(f"incarnation = {state.incarnation} AND ({_within(ranges)})")
        present = offsets_of(self._spark, rows).present
        forgotten = self._forgotten(state)
        missing = {}
        for partition, whole in ranges.items():
            there = present.get(LogKey(state.incarnation, partition), ())
            gaps = subtract(whole, (*there, *forgotten.get(partition, ())))
            if gaps:
                missing[partition] = OffsetRange(gaps[0].start, gaps[-1].end)
        return missing

    def _forgotten(self, state: IngestState) -> dict[int, Sequence[OffsetRange]]:
        found = check_commits(self._log.commits(), self._topic).forgotten
        return {key.partition: ranges for key, ranges in found.items() if key.incarnation == state.incarnation}

    def _add(self, state: IngestState, missing: Mapping[int, OffsetRange]) -> int:
        before = self._log.newest_version() or 0
        read_again = {LogKey(state.incarnation, partition): [span] for partition, span in missing.items()}
        said = Maintenance(state.app, self._topic, BACKFILL, backfilled=read_again).to_json()
        with commit_metadata(self._spark, said):
            self._decode = write_rows(
                read_ranges(self._spark, source_options(self._bootstrap_server), self._topic, missing),
                self._decode,
                lambda rows, decode: self._merge(rows, decode, state, missing),
                lambda: read_around_bad(self._spark, self._kafka, self._bootstrap_server, self._topic, missing),
            )
        newer = (commit for commit in self._log.newest_first() if commit.version > before)
        return next((commit.output_rows or 0 for commit in newer if commit.user_metadata == said), 0)

    def _merge(self, rows: DataFrame, decode: Decode, state: IngestState, missing: Mapping[int, OffsetRange]) -> None:
        from delta import DeltaTable

        table = DeltaTable.forPath(self._spark, self._table.uri)
        columns = table.toDF().columns
        self._check_columns(columns)
        kept = self._not_forgotten(rows, state)
        source = decoded(shaped(kept, state.incarnation, partitioning(columns)), decode)
        same = "t.`partition` = s.`partition` AND t.`offset` = s.`offset`"
        ours = f"coalesce(t.incarnation, {FIRST_INCARNATION}) = {state.incarnation} AND ({_within(missing, 't.')})"
        merge: Any = table.alias("t").merge(source.alias("s"), f"{same} AND {ours}")
        merge = merge.whenNotMatchedInsert(values={f"`{name}`": f"s.`{name}`" for name in source.columns})
        try:
            merge.execute()
        except spark_errors() as e:
            if "DELTA_CONCURRENT" in str(e) or "io.delta.exceptions.Concurrent" in str(e):
                raise LakeError(f"{self._table}: another program changed rows at the same time: try again") from e
            raise WriteFailed(f"{self._table}: cannot backfill: {one_line(e)}") from e

    def _not_forgotten(self, rows: DataFrame, state: IngestState) -> DataFrame:
        erased = [(p, *span) for p, spans in self._forgotten(state).items() for span in spans]
        if not erased:
            return rows
        ranges = self._spark.createDataFrame(erased, "p INT, first BIGINT, last BIGINT")
        return rows.join(ranges.hint("broadcast"), _inside(), "left_anti")

    def _check_columns(self, columns: Sequence[str]) -> None:
        if "incarnation" not in columns:
            raise LakeError(f"{self._table} is of an earlier klamm: run the ingest once before a backfill")
        if ("data" in columns) != (self._decode.data is not None):
            need = "has decoded values: use the --decode and --schema of the ingest" if "data" in columns else (
                "has no decoded values: use no --decode"
            )  # fmt: skip
            raise LakeError(f"{self._table} {need}")


def partitioning(columns: Sequence[str]) -> PartitionBy:
    """By the columns of the table.

    >>> partitioning(["topic", "date"])
    <PartitionBy.DATE: 'date'>
    """
    if "hour" in columns:
        return PartitionBy.HOUR
    return PartitionBy.DATE if "date" in columns else PartitionBy.NONE


def _within(ranges: Mapping[int, OffsetRange], prefix: str = "") -> str:
    """SQL for the rows in these ranges."""
    return " OR ".join(
        f"({prefix}`partition` = {p} AND {prefix}`offset` >= {r.start} AND {prefix}`offset` < {r.end})"
        for p, r in sorted(ranges.items())
    )


def _inside() -> Any:
    from pyspark.sql import functions

    return functions.expr("`partition` = p AND `offset` >= first AND `offset` < last")


def backfill_topics(
    lake: str, topics: Sequence[str], bootstrap_server: str, options: SparkOptions, decode: Decode,
    first: Bound | None, last: Bound | None,
) -> list[MaintenanceReport]:  # fmt: skip
    with ExitStack() as stack:
        kafka = stack.enter_context(KafkaTopics(bootstrap_server))
        spark, directory = stack.enter_context(open_tables(lake, topics, options))
        return [Backfill(spark, directory, t, kafka, bootstrap_server, decode).run(first, last) for t in topics]
