"""One topic into one table, exactly once: the steps a to i of docs/lake.md.

a. read the state from the newest commits of the table, and compare it with Kafka: is it the log that was ingested, and
   does it still continue where the table ends?
b. claim the table by an empty commit with the next epoch: only this process can write now;
c. read and compare again;
d. start the query at the table's positions, with a fresh checkpoint named after the epoch;
e. per batch, read the planned ranges from that checkpoint;
f. read the state again and decide (`check_batch`): write, skip or stop; look whether the log is still the same one, and
   remember the newest record of each range;
g. write once, with ranges and anchors in the same commit and a transaction version that a fenced writer cannot reach;
h. read back: Delta silently skips a stale transaction version, so only the commit itself proves the write;
i. commit the positions to a consumer group, for display only.
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, assert_never

from klamm.pipelines.anchors import UNKNOWN, compare_log, record_crc
from klamm.pipelines.batch_ranges import planned_ranges
from klamm.pipelines.columns import COLUMNS, FROM_SOURCE, shaped, table_schema
from klamm.pipelines.decode import DataType, Decode, Format, data_type, decoded, table_schema_of_data
from klamm.pipelines.delta_log import DeltaLog
from klamm.pipelines.drift import Drift, DriftMeter, read_drift, write_drift
from klamm.pipelines.driver_lock import commit_lock
from klamm.pipelines.ingest_options import IngestOptions, OnNewLog, TopicReport
from klamm.pipelines.json_schema import infer_schema
from klamm.pipelines.kafka_source import source_options
from klamm.pipelines.kafka_topic import KafkaTopics
from klamm.pipelines.lake_directory import WORK, LakeDirectory
from klamm.pipelines.lake_state import (
    FIRST_INCARNATION,
    AlreadyCommitted,
    Anchor,
    BatchRefused,
    Fenced,
    IngestState,
    LakeCommit,
    LakeError,
    LakeRefusal,
    OffsetRange,
    WriteBatch,
    app_id,
    check_batch,
    txn_version,
)
from klamm.pipelines.maintenance_job import commit_metadata
from klamm.pipelines.quick_audit import quick_audit
from klamm.pipelines.registry import with_registered
from klamm.pipelines.spark_session import one_line, spark_errors
from klamm.pipelines.table_rules import (
    LOG_RETENTION,
    RETENTION_PROPERTY,
    check_log,
    check_partitioning,
    check_place,
    check_retention,
)
from klamm.pipelines.write_attempts import WriteFailed, read_around_bad, write_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

EARLIEST = -2
_QUICK_COMMITS = 50
"""Commits that each start proves from the log."""
_OFFSETS_MIN = 1000
_SAMPLED, _SAMPLED_PARTITIONS = 1000, 10
"""Records from which the schema of JSON is inferred."""
_CONFLICTS = (
    *("io.delta.exceptions.Concurrent", "DELTA_CONCURRENT", "DELTA_METADATA_CHANGED", "DELTA_PROTOCOL_CHANGED"),
    *("DELTA_TABLE_ALREADY_EXISTS", "TABLE_OR_VIEW_ALREADY_EXISTS"),
)
"""How Delta names a commit of another writer; from the third on, if both create the table."""
_ROWS_BACK = 100
"""How far below the end of an old table its newest row may lie, behind transaction markers."""


def starting_offsets(topic: str, ends: Mapping[int, int], partitions: Sequence[int]) -> str:
    """Spark wants an offset for every partition. A partition that is new to a table with positions starts at 0, so that
    a missing head is an error; a new table starts with the earliest records.

    >>> starting_offsets("orders", {0: 12}, [0, 1])
    '{"orders": {"0": 12, "1": 0}}'
    >>> starting_offsets("orders", {}, [0])
    '{"orders": {"0": -2}}'
    """
    new = 0 if ends else EARLIEST
    return json.dumps({topic: {str(partition): ends.get(partition, new) for partition in partitions}})


def batch_limit(max_bytes: int, record_bytes: float) -> int:
    """Offsets of a batch, so that it has about so many bytes. Each batch costs a second, so none is tiny.

    >>> batch_limit(1 << 30, 200.0), batch_limit(1 << 20, 1 << 20)
    (5368709, 1000)
    """
    return max(_OFFSETS_MIN, int(max_bytes / max(1.0, record_bytes)))


class TableMetadata(NamedTuple):
    properties: Mapping[str, str]
    partition_columns: Sequence[str]


class TopicIngest:
    def __init__(
        self, spark: SparkSession, options: IngestOptions, topic: str, lake: LakeDirectory, kafka: KafkaTopics
    ) -> None:
        self._spark = spark
        self._options = options
        self._topic = topic
        self._kafka = kafka
        self._app = app_id(options.name, topic)
        self._writer = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._lake = lake
        self._table = lake.child(topic)
        self._log = DeltaLog(self._table)
        self._checkpoints = lake.child(WORK, options.name, topic)
        self._epoch = 0
        self._incarnation = FIRST_INCARNATION
        self._adopted: dict[int, Anchor] = {}
        self._decode = options.decode
        self._data: DataType | None = None
        self.report = TopicReport(topic)
        self.failure: LakeError | None = None

    # --- before the first batch

    def check(self) -> IngestState | None:
        """Steps a and c, without a trace in the table. Raises LakeRefusal if the ingest must not go on."""
        state = self._log.state()
        if state is not None and state.app != self._app:
            raise LakeRefusal(f"{self._table} belongs to the ingest {state.app}, but this one is {self._app}")
        self._check_foreign()
        self._check_newest_commits()
        if self._data is None:
            self._decode = self._inferred(with_registered(self._decode, self._topic))
            self._data = data_type(self._spark, self._decode)
        if self._log.exists():
            metadata = self._metadata()
            check_retention(self._table.uri, metadata.properties)
            check_partitioning(self._table.uri, metadata.partition_columns, self._options.partition_by)
        else:
            check_place(self._table.uri, self._table.names())
        if state is None:
            self._kafka.log_bounds(self._topic)  # the topic must exist
            return None
        self._incarnation = state.incarnation
        state = self._with_adopted_anchors(state)
        changes = compare_log(state, self._kafka.log_facts(self._topic, state))
        if check_log(self._topic, changes, self._options.on_new_log):
            self._incarnation = state.incarnation + 1
        return state

    def _inferred(self, decode: Decode) -> Decode:
        """JSON without a schema has that of the table, or of the newest records if there is no table yet."""
        if decode.format is not Format.JSON or decode.schema:
            return decode
        try:
            schema = table_schema_of_data(self._spark, self._table.uri) if self._log.exists() else None
        except spark_errors() as e:
            raise LakeError(f"cannot read the table {self._table}: {one_line(e)}") from e
        schema = schema or infer_schema(self._kafka.newest_values(self._topic, _SAMPLED, _SAMPLED_PARTITIONS))
        if schema is None:
            raise LakeError(f"topic {self._topic}: no schema can be inferred from its newest records: use --schema")
        return replace(decode, schema=schema)

    def _check_foreign(self) -> None:
        foreign = [c for c in self._log.foreign_changes() if c.version > self._options.accept_version]
        if foreign:
            versions = ", ".join(f"{commit.version} ({commit.operation})" for commit in foreign[:5])
            raise LakeRefusal(
                f"{self._table}: another program changed rows after the last batch, in version {versions}: "
                f"run klamm lake audit; --accept-version {foreign[-1].version} goes on"
            )

    def _check_newest_commits(self) -> None:
        newest = [c for c in self._log.newest(_QUICK_COMMITS) if c.version > self._options.accept_version]
        findings = quick_audit(newest, self._topic)
        if findings:
            more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
            raise LakeRefusal(f"{self._table}: {findings[0].line()}{more}: run klamm lake audit")

    def _metadata(self) -> TableMetadata:
        """The metadata of the table. Spark's own command for it takes half a second."""
        try:
            jvm: Any = self._spark._jvm
            log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self._spark._jsparkSession, self._table.uri)
            metadata = log.update(False, jvm.scala.Option.empty(), jvm.scala.Option.empty()).metadata()
            properties = dict(jvm.scala.jdk.javaapi.CollectionConverters.asJava(metadata.configuration()))
            columns = str(metadata.partitionColumns().mkString(","))
            return TableMetadata(properties, columns.split(",") if columns else [])
        except spark_errors() as e:
            raise LakeError(f"cannot read the table {self._table}: {one_line(e)}") from e

    def _with_adopted_anchors(self, state: IngestState) -> IngestState:
        """A table of an earlier klamm has no anchors: its newest rows serve instead, once."""
        bare = {p: end for p, end in state.ends.items() if end > 0 and p not in state.anchors}
        if bare and not self._adopted:
            self._adopted = self._newest_rows(bare)
        return replace(state, anchors={**self._adopted, **state.anchors})

    def _newest_rows(self, ends: Mapping[int, int]) -> dict[int, Anchor]:
        near = " OR ".join(
            f"(`partition` = {p} AND `offset` < {end} AND `offset` >= {end - _ROWS_BACK})" for p, end in ends.items()
        )
        newest = "max_by(struct(`offset`, unix_millis(timestamp) AS ms, key, value), `offset`) AS row"
        try:
            table = self._spark.read.format("delta").load(self._table.uri)
            rows = table.where(near).groupBy("partition").agg(_expression(newest)).collect()
        except spark_errors() as e:
            raise LakeError(f"cannot read the table {self._table}: {one_line(e)}") from e
        return {
            row["partition"]: Anchor(
                newest["offset"],
                UNKNOWN,
                UNKNOWN,
                record_crc(newest["ms"], _bytes(newest["key"]), _bytes(newest["value"])),
            )
            for row in rows
            for newest in (row["row"],)
        }

    def claim(self) -> None:
        """Step b. The first claim creates the table."""
        before = self._log.state()
        places = {name: kind for name, (kind, _) in self._options.partition_by.columns.items()}
        columns = (*COLUMNS, *places.items(), *([("data", self._data.type)] if self._data else []))
        self._epoch = before.epoch + 1 if before else 1
        same = before is not None and before.incarnation == self._incarnation
        floor = self._with_adopted_anchors(before) if before is not None and same else None
        commit = LakeCommit(
            *(self._app, self._topic, self._epoch, 0, self._writer, None, {}),
            floor.ends if floor else {},
            floor.anchors if floor else {},
            floor.origins if floor else {},
            self._incarnation,
            before.dead_letters if before else 0,
        )
        if self._log.exists():
            nulls = (f"CAST(NULL AS {kind}) AS `{name}`" for name, kind in columns)
            self._append(self._spark.range(0).selectExpr(*nulls), commit)
        else:
            self._create(columns, list(places), commit)
        state = self._log.state()
        if state is None or (state.writer, state.epoch) != (self._writer, self._epoch):
            raise LakeRefusal(f"{self._table}: another ingest claimed it at the same time: {state and state.writer}")
        self.report.epoch, self.report.incarnation, self.report.ends = self._epoch, self._incarnation, state.ends

    def _create(self, columns: Sequence[tuple[str, str]], partition_by: Sequence[str], commit: LakeCommit) -> None:
        """The commit of a new table can say what a claim does, and takes half of the time of an empty append. No older
        process can write to the table, so it needs no transaction version."""
        quoted = self._table.uri.replace("`", "``")
        partitioned = f"PARTITIONED BY ({', '.join(partition_by)}) " if partition_by else ""
        with self._committing(commit), commit_metadata(self._spark, commit.to_json()):
            self._spark.sql(
                f"CREATE TABLE delta.`{quoted}` ({table_schema(columns)}) USING DELTA "
                f"{partitioned}TBLPROPERTIES ('{RETENTION_PROPERTY}' = '{LOG_RETENTION}')"
            )

    def start(self, state: IngestState) -> StreamingQuery:
        """Step d."""
        checkpoint = self._checkpoints.child(str(self._epoch))
        checkpoint.remove()  # it exists if the table was removed by hand, because the epochs then start again
        bounds = self._kafka.log_bounds(self._topic)
        limit = self._options.max_offsets_per_trigger or batch_limit(
            self._options.max_bytes, self._kafka.mean_record_bytes(self._topic, bounds)
        )
        source = (
            self._spark.readStream.format("kafka")
            .options(**source_options(self._options.bootstrap_server))
            .option("subscribe", self._topic)
            .option("startingOffsets", starting_offsets(self._topic, state.ends, sorted(bounds)))
            .option("maxOffsetsPerTrigger", limit)
            .load()
            .selectExpr(*FROM_SOURCE)
        )
        writer = source.writeStream.queryName(self._app).option("checkpointLocation", checkpoint.uri)
        if self._options.interval_seconds is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{self._options.interval_seconds} seconds")
        return writer.foreachBatch(self._on_batch).start()

    # --- a batch

    def _on_batch(self, rows: DataFrame, batch: int) -> None:
        try:
            self._write_batch(rows, batch)
        except LakeError as e:
            self.failure = e  # Spark wraps what is raised here in pages of text
            raise

    def _write_batch(self, rows: DataFrame, batch: int) -> None:
        """Steps e and f."""
        ranges = planned_ranges(self._checkpoints.child(str(self._epoch)), batch, self._topic)
        state = self._log.state()
        decision = check_batch(state, ranges, self._writer)
        match decision:
            case WriteBatch():
                assert state is not None
                state = self._with_adopted_anchors(state)
                self._check_running(state, [p for p, r in ranges.items() if r.end > r.start])
                commit = self._next_commit(state, batch, ranges, decision)
                self._commit(rows, commit)
                self._check_read(commit)
            case AlreadyCommitted():
                pass
            case Fenced():
                raise LakeRefusal(f"{self._table}: another ingest took over: {decision.by}")
            case BatchRefused():
                raise LakeRefusal(f"{self._table}: batch {batch} refused: {decision.reason}")
            case _:
                assert_never(decision)

    def _check_running(self, state: IngestState, moving: Collection[int]) -> None:
        self._check_foreign()
        changes = compare_log(state, self._kafka.log_facts(self._topic, state, moving), moving)
        if check_log(self._topic, changes, self._options.on_new_log):
            raise LakeError(f"{self._topic}-{changes[0].partition}: {changes[0].detail}")  # the restart begins anew

    def _check_read(self, commit: LakeCommit) -> None:
        """The log may have been replaced while Spark read the batch. Then its rows may be of either log."""
        moving = [p for p, r in commit.ranges.items() if r.end > r.start]
        state = IngestState(
            *(commit.app, commit.epoch, commit.seq, commit.writer, commit.ends, commit.anchors, commit.origins)
        )
        changes = compare_log(state, self._kafka.log_facts(self._topic, state, moving), moving)
        replaced = [change for change in changes if change.is_new_log]
        if replaced:
            first = replaced[0]
            told = (
                f"{self._topic}-{first.partition}: {first.detail}, while batch {commit.batch} was read: its rows "
                f"{commit.ranges[first.partition].start}..{commit.ranges[first.partition].end - 1} may be of either "
                "log; run klamm lake audit"
            )
            raise (LakeRefusal if self._options.on_new_log is OnNewLog.FAIL else LakeError)(told)

    def _next_commit(
        self, state: IngestState, batch: int, ranges: Mapping[int, OffsetRange], write: WriteBatch
    ) -> LakeCommit:
        firsts = {p: r.start for p, r in ranges.items() if p not in state.origins and r.end > r.start}
        return LakeCommit(
            *(self._app, self._topic, self._epoch, write.seq, self._writer, batch, ranges, write.ends),
            anchors={**state.anchors, **self._kafka.newest_records(self._topic, ranges)},
            origins={**self._kafka.records_at(self._topic, firsts), **state.origins},
            incarnation=self._incarnation,
            dead_letters=state.dead_letters,
        )

    def _commit(self, rows: DataFrame, commit: LakeCommit) -> None:
        """Steps g to i."""
        self._options.at_point("before-write", self._topic)
        meter = self._write(rows, commit)
        self._options.at_point("after-commit", self._topic)
        after = self._log.state()
        if not _is_by(commit, after):
            raise LakeRefusal(
                f"{self._table}: another ingest took over while batch {commit.batch} was written; "
                "the batch was not committed"
            )
        self.report.batches += 1
        self.report.offsets += sum(planned.end - planned.start for planned in commit.ranges.values())
        self.report.ends = commit.ends
        assert after is not None
        dead = after.dead_letters - commit.dead_letters
        self.report.dead_letters += dead
        if meter is not None:
            self._report_drift(meter.drift())
        if self.report.batches == 1:
            self._remove_older_checkpoints()
        self._commit_group(commit)
        limit = self._options.max_dead_letters
        if dead and limit is not None and self.report.dead_letters > limit:
            raise LakeRefusal(
                f"{self._table}: {self.report.dead_letters} dead letters in this run, more than the {limit} allowed; "
                "they are in the table, with the reason in the column error"
            )

    def _write(self, rows: DataFrame, commit: LakeCommit) -> DriftMeter | None:
        """Step g."""
        meter: DriftMeter | None = None

        def write(rows: DataFrame, decode: Decode) -> None:
            nonlocal meter
            ready = decoded(shaped(rows, self._incarnation, self._options.partition_by), decode)
            if decode.format is Format.JSON and self._data is not None:
                meter = DriftMeter(self._data.fields, f"drift of {self._topic}, epoch {commit.epoch}, {commit.seq}")
                ready = meter.measured(ready)
            self._append(ready, commit)

        self._decode = write_rows(
            rows,
            self._decode,
            write,
            lambda: read_around_bad(
                self._spark, self._kafka, self._options.bootstrap_server, self._topic, commit.ranges
            ),
        )
        return meter

    def _report_drift(self, drift: Drift) -> None:
        """A display like the group: what cannot be written is in the report of this run."""
        if drift:
            self.report.drift += drift
            with suppress(LakeError):
                write_drift(self._checkpoints, read_drift(self._checkpoints) + drift)

    def _commit_group(self, commit: LakeCommit) -> None:
        """Step i. The group is a display, so a failure is told and forgotten."""
        if self._options.group is None:
            return
        try:
            self._kafka.commit_group(self._options.group, self._topic, commit.ends)
            self.report.group_failure = None
        except LakeError as e:
            self.report.group_failure = str(e)
        self._options.at_point("after-group-commit", self._topic)

    def _append(self, rows: DataFrame, commit: LakeCommit) -> None:
        writer = (
            rows.write.format("delta")
            .mode("append")
            .option("txnAppId", commit.app)
            .option("txnVersion", txn_version(commit.epoch, commit.seq))
            .option("userMetadata", commit.to_json())
            .option("mergeSchema", str(commit.is_claim).lower())  # a table of an earlier klamm lacks columns
        )
        with self._committing(commit):
            writer.save(self._table.uri)

    @contextmanager
    def _committing(self, commit: LakeCommit) -> Iterator[None]:
        """Raises LakeRefusal for a commit of another writer, and WriteFailed."""
        try:
            with commit_lock(self._spark, self._lake, self._topic):
                yield
        except spark_errors() as e:
            if self._has(commit):
                return  # the store took it, but its answer was lost: Delta then finds its own commit in the way
            if any(mark in str(e) for mark in _CONFLICTS):
                raise LakeRefusal(f"{self._table}: another ingest wrote at the same time") from e
            raise WriteFailed(f"{self._table}: cannot write: {one_line(e)}") from e

    def _has(self, commit: LakeCommit) -> bool:
        try:
            return _is_by(commit, self._log.state())
        except LakeError:
            return False  # the failure to write is told

    def _remove_older_checkpoints(self) -> None:
        for name in self._checkpoints.names():
            if name.isdigit() and int(name) < self._epoch:
                self._checkpoints.child(name).remove()


def _is_by(commit: LakeCommit, state: IngestState | None) -> bool:
    """The newest commit of the table is this one."""
    return state is not None and (state.writer, state.epoch, state.seq) == (commit.writer, commit.epoch, commit.seq)


def _expression(text: str) -> Any:
    from pyspark.sql import functions

    return functions.expr(text)


def _bytes(data: bytearray | None) -> bytes | None:
    return None if data is None else bytes(data)
