"""Maintenance of tables by klamm itself: replay dead letters after a fix, forget a key, compact small files.

Each is one commit whose metadata says what it was, so that the audit knows it and the ingest goes on. On a local lake
a second process must not commit beside a running ingest (see `driver_lock`), so these take its lock; on other stores
Delta keeps the commits apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from klamm.pipelines.decode import UNDECODABLE, Decode
from klamm.pipelines.delta_log import DeltaLog
from klamm.pipelines.driver_lock import driver_lock
from klamm.pipelines.lake_directory import LakeDirectory, LocalDirectory
from klamm.pipelines.lake_location import for_lake, open_lake
from klamm.pipelines.lake_state import FIRST_INCARNATION, IngestState, LakeError, OffsetRange
from klamm.pipelines.maintenance import COMPACT, FORGET, REPLAY, LogKey, Maintenance
from klamm.pipelines.spark_session import SparkOptions, one_line, spark_errors, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_NANOSECONDS_IN = r"regexp_extract(error, 'impossible timestamp: (-?[0-9]+) ms', 1)"


@dataclass(frozen=True, slots=True)
class MaintenanceReport:
    topic: str
    operation: str
    rows: int
    """Repaired by a replay, erased by forgetting; files removed by compacting."""

    def fields(self) -> dict[str, object]:
        """As a JSON document."""
        return {"topic": self.topic, "operation": self.operation, "rows": self.rows}

    def line(self) -> str:
        """As text."""
        what = {REPLAY: "dead letters repaired", FORGET: "rows erased", COMPACT: "files removed"}[self.operation]
        return f"{self.topic}: {self.rows} {what}"


class TableMaintenance:
    """The operations on the table of one topic."""

    def __init__(self, spark: SparkSession, lake: LakeDirectory, topic: str) -> None:
        self._spark = spark
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
        count = self._count(where)
        if count:
            self._change(
                f"UPDATE {self._name} SET {changes} WHERE {where}", Maintenance(self._app(), self._topic, REPLAY)
            )
        return MaintenanceReport(self._topic, REPLAY, count)

    def forget(self, key: bytes) -> MaintenanceReport:
        """Erase the rows with this key. The commit has their offsets. Old files stay until VACUUM removes them."""
        where = f"key = X'{key.hex()}'"
        rows = self._query(
            f"SELECT coalesce(incarnation, {FIRST_INCARNATION}) AS n, `partition`, `offset` "
            f"FROM {self._name} WHERE {where}"
        )
        if rows:
            offsets: dict[LogKey, list[OffsetRange]] = {}
            for number, partition, offset in sorted(rows):
                known = offsets.setdefault(LogKey(number, partition), [])
                if known and known[-1].end == offset:
                    known[-1] = OffsetRange(known[-1].start, offset + 1)
                else:
                    known.append(OffsetRange(offset, offset + 1))
            self._change(
                f"DELETE FROM {self._name} WHERE {where}", Maintenance(self._app(), self._topic, FORGET, offsets)
            )
        return MaintenanceReport(self._topic, FORGET, len(rows))

    def compact(self) -> MaintenanceReport:
        """Join small files. Rows stay as they are."""
        (row,) = self._change(f"OPTIMIZE {self._name}", Maintenance(self._app(), self._topic, COMPACT))
        return MaintenanceReport(self._topic, COMPACT, int(row["metrics"]["numFilesRemoved"]))

    def _count(self, where: str) -> int:
        return int(self._query(f"SELECT count(*) FROM {self._name} WHERE {where}")[0][0])

    def _change(self, sql: str, said: Maintenance) -> list[Any]:
        self._spark.conf.set(_USER_METADATA, said.to_json())
        try:
            return self._query(sql)
        finally:
            self._spark.conf.unset(_USER_METADATA)

    def _query(self, sql: str) -> list[Any]:
        try:
            return list(self._spark.sql(sql).collect())
        except spark_errors() as e:
            raise LakeError(f"{self._table}: {one_line(e)}") from e

    def _app(self) -> str:
        state: IngestState | None = DeltaLog(self._table).state()
        if state is None:
            raise LakeError(f"there is no table for topic {self._topic} at {self._table}")
        return state.app


@contextmanager
def maintained(lake: str, topics: Sequence[str], options: SparkOptions) -> Iterator[list[TableMaintenance]]:
    with ExitStack() as stack:
        spark = stack.enter_context(spark_session(for_lake(lake, options), "klamm lake maintenance"))
        directory = open_lake(spark, lake)
        for topic in topics:
            if not DeltaLog(directory.child(topic)).exists():
                raise LakeError(f"there is no table for topic {topic} at {directory.child(topic)}")
        if isinstance(directory, LocalDirectory):
            stack.enter_context(driver_lock(spark, directory, topics, wait=False))
        yield [TableMaintenance(spark, directory, topic) for topic in topics]
