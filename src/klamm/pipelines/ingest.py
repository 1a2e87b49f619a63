"""Writes a topic to a Delta table exactly once: the table stores its positions, and refuses batches that leave a gap.

For each topic (letters as in docs/lake.md):

a. read the state from the newest commits of the table;
b. claim the table by an empty commit with the next epoch, and read the state again: only this process can write now;
c. compare it with Kafka: a log start above a position, or a log end below it, means loss, and stops the ingest;
d. start the query at the table's positions, with a fresh checkpoint named after the epoch;
e. per batch, read the planned ranges from that checkpoint;
f. read the state again and decide (`check_batch`): write, skip or stop;
g. write once, with the ranges in the same commit and a transaction version that a fenced writer cannot reach;
h. read back: Delta silently skips a stale transaction version, so only the commit itself proves the write.

The driver may be killed at any moment: before the commit nothing has happened, and after it the next start continues
from there.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from klamm.pipelines.batch_ranges import planned_ranges
from klamm.pipelines.delta_log import DeltaLog
from klamm.pipelines.jars import require_spark
from klamm.pipelines.kafka_topic import KafkaTopics
from klamm.pipelines.lake_state import (
    AlreadyCommitted,
    BatchRefused,
    Fenced,
    IngestState,
    LakeCommit,
    LakeError,
    OffsetRange,
    WriteBatch,
    app_id,
    check_batch,
    txn_version,
)
from klamm.pipelines.offset_kinds import LogBounds
from klamm.pipelines.spark_session import one_line, spark_errors, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

EARLIEST = -2
_WORK = "_klamm"
"""Directory in the lake for checkpoints."""
_COLUMNS = """topic STRING, `partition` INT, `offset` BIGINT, timestamp TIMESTAMP, timestamp_type INT,
key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"""
_LOG_RETENTION = "interval 3650 days"  # the log has the ranges; by default Delta removes it after 30 days
_POLL_SECONDS = 1


@dataclass(frozen=True, slots=True)
class IngestOptions:
    bootstrap_server: str
    topics: Sequence[str]
    lake: Path
    interval_seconds: float | None
    """Seconds between batches; None means to ingest what is there now and then exit."""
    master: str
    max_offsets_per_trigger: int
    name: str


@dataclass(slots=True)
class TopicReport:
    topic: str
    epoch: int = 0
    batches: int = 0
    offsets: int = 0
    ends: Mapping[int, int] = field(default_factory=dict)

    def fields(self) -> dict[str, object]:
        """As a JSON document."""
        return asdict(self)

    def line(self) -> str:
        """As text."""
        return f"{self.topic}: {self.offsets} offsets in {self.batches} batches, epoch {self.epoch}"


def check_position(topic: str, ends: Mapping[int, int], bounds: Mapping[int, LogBounds]) -> None:
    """Step c: the log must still continue where the table ends."""
    for partition, end in sorted(ends.items()):
        log = bounds.get(partition)
        if log is None:
            raise LakeError(
                f"{topic}-{partition} does not exist, but the table has it up to offset {end}: the topic was recreated"
            )
        if log.start > end:
            raise LakeError(
                f"{topic}-{partition}: offsets {end}..{log.start - 1} are lost: the log starts at {log.start}, "
                f"but the table ends at {end} (because of retention or DeleteRecords)"
            )
        if log.end < end:
            raise LakeError(
                f"{topic}-{partition}: the log ends at {log.end}, but the table ends at {end}: "
                "the log was truncated or the topic recreated"
            )


def starting_offsets(topic: str, ends: Mapping[int, int], partitions: Sequence[int]) -> str:
    """Spark wants an offset for every partition; one that is new to the table starts at the earliest offset.

    >>> starting_offsets("orders", {0: 12}, [0, 1])
    '{"orders": {"0": 12, "1": -2}}'
    """
    return json.dumps({topic: {str(partition): ends.get(partition, EARLIEST) for partition in partitions}})


class TopicIngest:
    """One topic into one table."""

    def __init__(self, spark: SparkSession, options: IngestOptions, topic: str) -> None:
        self._spark = spark
        self._options = options
        self._topic = topic
        self._app = app_id(options.name, topic)
        self._writer = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._table = options.lake / topic
        self._log = DeltaLog(self._table)
        self._checkpoints = options.lake / _WORK / options.name / topic
        self._epoch = 0
        self.report = TopicReport(topic)
        self.failure: LakeError | None = None

    def claim(self) -> IngestState:
        """Steps a and b."""
        try:
            quoted = str(self._table).replace("`", "``")
            self._spark.sql(
                f"CREATE TABLE IF NOT EXISTS delta.`{quoted}` ({_COLUMNS}) USING DELTA "
                f"TBLPROPERTIES ('delta.logRetentionDuration' = '{_LOG_RETENTION}')"
            )
            before = self._log.state()
            if before is not None and before.app != self._app:
                raise LakeError(f"{self._table} belongs to the ingest {before.app}, but this one is {self._app}")
            self._epoch = before.epoch + 1 if before else 1
            nothing = self._spark.read.format("delta").load(str(self._table)).limit(0)
            self._append(nothing, LakeCommit(self._app, self._topic, self._epoch, 0, self._writer, None, {}, {}))
        except spark_errors() as e:
            raise LakeError(f"cannot claim the table {self._table}: {one_line(e)}") from e
        state = self._log.state()
        if state is None or state.writer != self._writer:
            raise LakeError(f"{self._table}: another ingest claimed it at the same time: {state and state.writer}")
        self.report.epoch, self.report.ends = self._epoch, state.ends
        return state

    def start(self, state: IngestState, partitions: Sequence[int]) -> StreamingQuery:
        """Step d."""
        checkpoint = self._checkpoints / str(self._epoch)
        # It exists if the table was removed by hand, because the epochs then start again.
        shutil.rmtree(checkpoint, ignore_errors=True)
        source = (
            self._spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self._options.bootstrap_server)
            .option("kafka.isolation.level", "read_committed")
            .option("subscribe", self._topic)
            .option("startingOffsets", starting_offsets(self._topic, state.ends, partitions))
            .option("maxOffsetsPerTrigger", self._options.max_offsets_per_trigger)
            .option("failOnDataLoss", "true")
            .option("includeHeaders", "true")
            .load()
            .selectExpr(
                *("topic", "`partition`", "`offset`", "timestamp", "timestampType AS timestamp_type"),
                *("key", "value", "headers"),
            )
        )
        writer = source.writeStream.queryName(self._app).option("checkpointLocation", str(checkpoint))
        if self._options.interval_seconds is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{self._options.interval_seconds} seconds")
        return writer.foreachBatch(self._on_batch).start()

    def _on_batch(self, rows: DataFrame, batch: int) -> None:
        try:
            self._write_batch(rows, batch)
        except LakeError as e:
            self.failure = e  # Spark wraps what is raised here in pages of text
            raise

    def _write_batch(self, rows: DataFrame, batch: int) -> None:
        """Steps e to h."""
        ranges = planned_ranges(self._checkpoints / str(self._epoch), batch, self._topic)
        decision = check_batch(self._log.state(), ranges, self._writer)
        match decision:
            case WriteBatch():
                self._commit(rows, batch, ranges, decision)
            case AlreadyCommitted():
                pass
            case Fenced():
                raise LakeError(f"{self._table}: another ingest took over: {decision.by}")
            case BatchRefused():
                raise LakeError(f"{self._table}: batch {batch} refused: {decision.reason}")
            case _:
                assert_never(decision)

    def _commit(self, rows: DataFrame, batch: int, ranges: Mapping[int, OffsetRange], write: WriteBatch) -> None:
        self._append(
            rows,
            LakeCommit(self._app, self._topic, self._epoch, write.seq, self._writer, batch, ranges, write.ends),
        )
        after = self._log.state()
        if after is None or (after.writer, after.seq) != (self._writer, write.seq):
            raise LakeError(
                f"{self._table}: another ingest took over while batch {batch} was written; the batch was not committed"
            )
        self.report.batches += 1
        self.report.offsets += sum(planned.end - planned.start for planned in ranges.values())
        self.report.ends = write.ends
        if self.report.batches == 1:
            self._remove_older_checkpoints()

    def _append(self, rows: DataFrame, commit: LakeCommit) -> None:
        try:
            (
                rows.write.format("delta")
                .mode("append")
                .option("txnAppId", commit.app)
                .option("txnVersion", txn_version(commit.epoch, commit.seq))
                .option("userMetadata", commit.to_json())
                .save(str(self._table))
            )
        except spark_errors() as e:
            if "io.delta.exceptions.Concurrent" in str(e) or "DELTA_CONCURRENT" in str(e):
                raise LakeError(f"{self._table}: another ingest wrote at the same time") from e
            raise LakeError(f"{self._table}: cannot write: {one_line(e)}") from e

    def _remove_older_checkpoints(self) -> None:
        for entry in self._checkpoints.iterdir():
            if entry.name.isdigit() and int(entry.name) < self._epoch:
                shutil.rmtree(entry, ignore_errors=True)


def run_ingest(options: IngestOptions) -> list[TopicReport]:
    require_spark()
    try:
        (options.lake / _WORK).mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise LakeError(f"cannot write to the lake {options.lake}: {e.strerror}") from e
    with KafkaTopics(options.bootstrap_server) as kafka:
        for topic in options.topics:
            # Reports an unknown topic or a silent broker before Spark starts, which takes seconds.
            kafka.log_bounds(topic)
        with spark_session(options.master, f"klamm lake ingest {options.name}") as spark:
            ingests = [TopicIngest(spark, options, topic) for topic in options.topics]
            queries: list[StreamingQuery] = []
            for topic, ingest in zip(options.topics, ingests, strict=True):
                state = ingest.claim()
                bounds = kafka.log_bounds(topic)
                check_position(topic, state.ends, bounds)
                queries.append(ingest.start(state, sorted(bounds)))
            _await_all(ingests, queries)  # a query that fails ends the session, and with it the others
    return [ingest.report for ingest in ingests]


def _await_all(ingests: Sequence[TopicIngest], queries: Sequence[StreamingQuery]) -> None:
    """Wait until all have ended or one has failed."""
    from pyspark.errors import StreamingQueryException

    running = list(zip(ingests, queries, strict=True))
    while running:
        for ingest, query in list(running):
            try:
                if query.awaitTermination(_POLL_SECONDS):
                    running.remove((ingest, query))
            except StreamingQueryException as e:
                raise ingest.failure or LakeError(f"{query.name}: {one_line(e)}") from e
