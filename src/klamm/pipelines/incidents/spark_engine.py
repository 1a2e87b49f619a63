"""The Spark engine: the same chunks, read by the same function on the executors of any master.

Each task reads its chunks itself, so the files must have the same paths on all workers (a shared file system), and
klamm must be installed there. Spark folds what the chunks of a file gave; the driver gets what is left, which grows
with the number of state changes and not with the size of the logs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from klamm.pipelines.incidents.reading import ChunkResult, read_chunk
from klamm.pipelines.incidents.record import Record, occasion
from klamm.pipelines.incidents.sources import Chunk, LogFile, chunks_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RECORD: Final = (
    "t long, broker long, kind string, epoch long, topic string, partition long, leader long, leader_epoch long, "
    "version long, brokers array<long>, replicas array<long>, other long, number long, text string, times long"
)
_ROW: Final = f"path string, occasion long, {_RECORD}"
_READ: Final = "chunk.read"
"""The kind of the row that says how a chunk was read."""

Row = tuple[Any, ...]


def read_with_spark(files: Sequence[LogFile], master: str) -> list[ChunkResult]:
    from klamm.pipelines.spark_session import SparkOptions, spark_session

    with spark_session(SparkOptions(master), "klamm incidents") as spark:
        return read_in_session(spark, files)


def read_in_session(spark: SparkSession, files: Sequence[LogFile]) -> list[ChunkResult]:
    chunks = chunks_of(files)
    rows = folded(parsed(spark, chunks)).collect() if chunks else []
    return [result_of(tuple(row)) for row in rows]


def parsed(spark: SparkSession, chunks: Sequence[Chunk]) -> DataFrame:
    """One row per record, one task per chunk."""
    described = spark.sparkContext.parallelize([tuple(chunk) for chunk in chunks], len(chunks))
    return spark.createDataFrame(described.flatMap(read_rows), _ROW, verifySchema=False)


def folded(rows: DataFrame) -> DataFrame:
    """Rows of one file that differ only in their time, within one occasion, become one."""
    from pyspark.sql import functions

    values = [column for column in rows.columns if column not in ("t", "times")]
    times = (functions.min("t").alias("t"), functions.sum("times").alias("times"))
    return rows.groupBy(*values).agg(*times).select(*rows.columns)


def read_rows(chunk: tuple[Any, ...]) -> Iterator[Row]:
    """Runs on the workers."""
    result = read_chunk(Chunk(*chunk))
    for record in result.records:
        yield (result.path, occasion(record.kind, record.t), *record)
    read = Record(
        result.first or 0,
        None,
        _READ,
        leader=result.start,
        leader_epoch=result.checksum,
        version=result.last,
        other=result.ignored,
        number=result.entries,
        text=result.problem,
    )
    yield (result.path, chunk[3], *read)


def result_of(row: Row) -> ChunkResult:
    """A row of Spark, in which tuples have become lists."""
    path, _, *values = row
    record = Record._make(tuple(value) if isinstance(value, list) else value for value in values)
    if record.kind == _READ:
        entries, ignored = record.number or 0, record.other or 0
        return ChunkResult(
            path,
            [],
            entries,
            ignored,
            record.t or None,
            record.version,
            record.text or "",
            record.leader or 0,
            record.leader_epoch or 0,
        )
    return ChunkResult(path, [record], 0, 0, None, None)
