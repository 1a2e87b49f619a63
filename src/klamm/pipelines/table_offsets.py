"""Which offsets a table has: Spark reduces its rows to runs of neighbours, and to offsets that occur more than once.

The result grows with the number of gaps, not of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from klamm.pipelines.audit import RepeatedOffset
from klamm.pipelines.lake_state import FIRST_INCARNATION, OffsetRange
from klamm.pipelines.maintenance import LogKey

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEY: Final = "incarnation, `partition`"
_VIEW: Final = "klamm_offsets"
_COUNTED: Final = f"SELECT {KEY}, `offset`, count(*) AS n FROM {_VIEW} GROUP BY {KEY}, `offset`"
_REPEATED: Final = f"SELECT {KEY}, `offset`, n FROM ({_COUNTED}) WHERE n > 1"
_RUNS: Final = f"""
SELECT {KEY}, min(`offset`) AS start, max(`offset`) + 1 AS end, sum(n) AS row_count FROM (
  SELECT {KEY}, `offset`, n, `offset` - row_number() OVER (PARTITION BY {KEY} ORDER BY `offset`) AS island
  FROM ({_COUNTED})
) GROUP BY {KEY}, island"""


@dataclass(frozen=True, slots=True)
class TableOffsets:
    present: Mapping[LogKey, Sequence[OffsetRange]]
    repeated: Sequence[RepeatedOffset]
    rows: int


def with_incarnation(rows: DataFrame) -> DataFrame:
    """Rows of a table by an earlier klamm have none."""
    if "incarnation" not in rows.columns:
        rows = rows.selectExpr("*", "CAST(NULL AS INT) AS incarnation")
    return rows.na.fill(FIRST_INCARNATION, ["incarnation"])


def offsets_of(spark: SparkSession, rows: DataFrame) -> TableOffsets:
    """Raises what Spark raises."""
    rows.createOrReplaceTempView(_VIEW)
    runs = spark.sql(_RUNS).collect()
    repeated = spark.sql(_REPEATED).collect()
    present: dict[LogKey, list[OffsetRange]] = {}
    for row in sorted(runs, key=lambda row: (row["incarnation"], row["partition"], row["start"])):
        key = LogKey(row["incarnation"], row["partition"])
        present.setdefault(key, []).append(OffsetRange(row["start"], row["end"]))
    return TableOffsets(
        present,
        [RepeatedOffset(row["partition"], row["offset"], row["n"], row["incarnation"]) for row in repeated],
        sum(row["row_count"] for row in runs),
    )
