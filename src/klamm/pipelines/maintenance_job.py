"""Maintenance of tables by klamm itself: replay dead letters after a fix, forget a key, compact small files.

Each is one commit whose metadata says what it was, so that the audit knows it and the ingest goes on. It may run at the
same time: on a local lake it waits while maintenance commits (see `driver_lock`), on other stores Delta keeps the
commits apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from klamm.pipelines.audit import merged
from klamm.pipelines.decode import UNDECODABLE, Decode
from klamm.pipelines.delta_log import DeltaLog
from klamm.pipelines.driver_lock import commit_lock
from klamm.pipelines.lake_directory import LakeDirectory
from klamm.pipelines.lake_location import for_lake, open_lake
from klamm.pipelines.lake_state import FIRST_INCARNATION, IngestState, LakeError, OffsetRange
from klamm.pipelines.maintenance import BACKFILL, COMPACT, FORGET, REPLAY, LogKey, Maintenance
from klamm.pipelines.spark_session import SparkOptions, one_line, spark_errors, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_NANOSECONDS_IN = r"regexp_extract(error, 'impossible timestamp: (-?[0-9]+) ms', 1)"

_COUNTED = {
    REPLAY: "dead letters repaired",
    FORGET: "rows erased",
    COMPACT: "files removed",
    BACKFILL: "missing rows added",
}


@dataclass(frozen=True, slots=True)
class MaintenanceReport:
    topic: str
    operation: str
    rows: int
    """Repaired by a replay, erased by forgetting, added by a backfill; files removed by compacting."""
    expired: int = 0
    """Offsets that a backfill was asked for and that the log no longer has."""

    def fields(self) -> dict[str, object]:
        """As a JSON document."""
        return asdict(self)

    def line(self) -> str:
        """As text."""
        expired = f", {self.expired} offsets are below the log start" if self.expired else ""
        return f"{self.topic}: {self.rows} {_COUNTED[self.operation]}{expired}"


class TableMaintenance:
    """The operations on the table of one topic."""

    def __init__(self, spark: SparkSession, lake: LakeDirectory, topic: str) -> None:
        self._spark = spark
        self._lake = lake
        self._topic = topic
        self._table = lake.child(topic)
        self._name = f"delta.`{self._table.uri.replace('`', '``')}`"

    def replay_timestamps(self) -> MaintenanceReport:
        """Dead letters whose producer sent nanoseconds get their timestamps."""
        where = "error LIKE 'impossible timestamp%'"
        seconds = f"timestamp_micros(CAST({_NANOSECONDS_IN} AS BIGINT) DIV 1000)"
        return self._replay(where, f"timestamp = {seconds}, error = NULL")

    def replay_values(self, decode: Decode) -> MaintenanceReport:
        """Dead letters that this schema can decode get their data."""
        assert decode.data is not None
        reason = decode.reason.replace("_data", f"({decode.data})")
        return self._replay(
            f"error LIKE '{UNDECODABLE}%' AND ({reason}) IS NULL", f"data = {decode.good_data}, error = NULL"
        )

    def _replay(self, where: str, changes: str) -> MaintenanceReport:
        with commit_lock(self._spark, self._lake, self._topic):
            count = self._count(where)
            if count:
                self._change(
                    f"UPDATE {self._name} SET {changes} WHERE {where}", Maintenance(self._app(), self._topic, REPLAY)
                )
        return MaintenanceReport(self._topic, REPLAY, count)

    def forget(self, key: bytes) -> MaintenanceReport:
        """Erase the rows with this key. The commit has their offsets. Old files stay until VACUUM removes them.

        Rows that an ingest adds meanwhile stay: the commit could not name their offsets.
        """
        with commit_lock(self._spark, self._lake, self._topic):
            where = f"key = X'{key.hex()}' AND {_below(self._state())}"
            rows = self._query(
                f"SELECT coalesce(incarnation, {FIRST_INCARNATION}) AS n, `partition`, `offset` "
                f"FROM {self._name} WHERE {where}"
            )
            if rows:
                offsets: dict[LogKey, list[OffsetRange]] = {}
                for number, partition, offset in rows:
                    offsets.setdefault(LogKey(number, partition), []).append(OffsetRange(offset, offset + 1))
                erased = {log: merged(ranges) for log, ranges in offsets.items()}
                self._change(
                    f"DELETE FROM {self._name} WHERE {where}", Maintenance(self._app(), self._topic, FORGET, erased)
                )
        return MaintenanceReport(self._topic, FORGET, len(rows))

    def compact(self) -> MaintenanceReport:
        """Join small files. Rows stay as they are."""
        with commit_lock(self._spark, self._lake, self._topic):
            (row,) = self._change(f"OPTIMIZE {self._name}", Maintenance(self._app(), self._topic, COMPACT))
        return MaintenanceReport(self._topic, COMPACT, int(row["metrics"]["numFilesRemoved"]))

    def _count(self, where: str) -> int:
        return int(self._query(f"SELECT count(*) FROM {self._name} WHERE {where}")[0][0])

    def _change(self, sql: str, said: Maintenance) -> list[Any]:
        with commit_metadata(self._spark, said.to_json()):
            return self._query(sql)

    def _query(self, sql: str) -> list[Any]:
        try:
            return list(self._spark.sql(sql).collect())
        except spark_errors() as e:
            raise LakeError(f"{self._table}: {one_line(e)}") from e

    def _app(self) -> str:
        return self._state().app

    def _state(self) -> IngestState:
        return table_state(self._table, self._topic)


def table_state(table: LakeDirectory, topic: str) -> IngestState:
    state = DeltaLog(table).state()
    if state is None:
        raise LakeError(f"there is no table for topic {topic} at {table}")
    return state


@contextmanager
def commit_metadata(spark: SparkSession, said: str) -> Iterator[None]:
    """The commits of this session say this while the block runs."""
    spark.conf.set(_USER_METADATA, said)
    try:
        yield
    finally:
        spark.conf.unset(_USER_METADATA)


def _below(state: IngestState) -> str:
    """SQL for the rows below the table's positions, and those of earlier incarnations."""
    number = f"coalesce(incarnation, {FIRST_INCARNATION})"
    below = [f"(`partition` = {p} AND `offset` < {end})" for p, end in sorted(state.ends.items())]
    return f"({' OR '.join((f'{number} < {state.incarnation}', *below))})"


@contextmanager
def open_tables(
    lake: str, topics: Sequence[str], options: SparkOptions
) -> Iterator[tuple[SparkSession, LakeDirectory]]:
    """The lake, in a session of its own. Raises LakeError if a topic has no table."""
    with ExitStack() as stack:
        spark = stack.enter_context(spark_session(for_lake(lake, options), "klamm lake maintenance"))
        directory = open_lake(spark, lake)
        for topic in topics:
            if not DeltaLog(directory.child(topic)).exists():
                raise LakeError(f"there is no table for topic {topic} at {directory.child(topic)}")
        yield spark, directory


@contextmanager
def maintained(lake: str, topics: Sequence[str], options: SparkOptions) -> Iterator[list[TableMaintenance]]:
    with open_tables(lake, topics, options) as (spark, directory):
        yield [TableMaintenance(spark, directory, topic) for topic in topics]
