"""Decoding of values by option: the SQL that turns `value` into a column `data`, and into the reason why it cannot.

A value that cannot be decoded is a dead letter: `data` is null, `error` says why, and `value` keeps the bytes. JSON is
strict about types and silent about unknown fields, as Spark is. Avro has no checksum, so a wrong body can decode into
something else.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from klamm.pipelines.lake_state import LakeError
from klamm.pipelines.spark_session import one_line, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BAD_FIELD: Final = "_klamm_bad"
UNDECODABLE: Final = "undecodable"


class Format(StrEnum):
    RAW = "raw"
    JSON = "json"
    AVRO = "avro"


@dataclass(frozen=True, slots=True)
class Decode:
    format: Format = Format.RAW
    schema: str = ""
    """Spark's DDL for JSON, such as `id long, name string`; the schema's JSON for Avro."""
    max_value_bytes: int | None = None
    """Larger values are dead letters."""

    @property
    def data(self) -> str | None:
        """SQL for the decoded value, with a marker field in JSON; None if values stay raw."""
        match self.format:
            case Format.RAW:
                return None
            case Format.JSON:
                schema = quoted(f"{self.schema}, {BAD_FIELD} string")
                return f"from_json(CAST(value AS STRING), {schema}, map('columnNameOfCorruptRecord', '{BAD_FIELD}'))"
            case Format.AVRO:
                return f"from_avro(value, {quoted(self.schema)}, map('mode', 'PERMISSIVE'))"

    @property
    def reason(self) -> str:
        """SQL for the reason why a value with the decoded `_data` is bad; NULL if it is not."""
        cases = []
        if self.max_value_bytes is not None:
            oversized = f"length(value) > {self.max_value_bytes}"
            cases.append(f"WHEN {oversized} THEN concat('oversized: ', length(value), ' bytes')")
        if self.format is Format.JSON:
            bad = f"_data IS NULL OR _data.{BAD_FIELD} IS NOT NULL"
            cases.append(f"WHEN value IS NOT NULL AND ({bad}) THEN '{UNDECODABLE} JSON'")
        if self.format is Format.AVRO:
            cases.append(f"WHEN value IS NOT NULL AND _data IS NULL THEN '{UNDECODABLE} Avro'")
        return f"CASE {' '.join(cases)} END" if cases else "CAST(NULL AS STRING)"

    @property
    def good_data(self) -> str | None:
        """SQL for the decoded value without the marker."""
        if self.format is Format.JSON:
            return f"from_json(CAST(value AS STRING), {quoted(self.schema)})"
        return self.data


def quoted(text: str) -> str:
    """As a string literal of SQL.

    >>> print(quoted("a'b"))
    'a\\'b'
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def decoded(rows: DataFrame, decode: Decode) -> DataFrame:
    """Rows with the reason in `error` where there is none yet, and with `data` if values are decoded."""
    from pyspark.sql import functions

    if decode.data is None:
        return rows.withColumn("error", functions.expr(f"coalesce(error, {decode.reason})"))
    data = functions.col("_data")
    if decode.format is Format.JSON:
        data = data.dropFields(BAD_FIELD)
    return (
        rows.withColumn("_data", functions.expr(decode.data))
        .withColumn("error", functions.expr(f"coalesce(error, {decode.reason})"))
        .withColumn("data", functions.when(functions.isnull("error"), data))
        .drop("_data")
    )


def data_type(spark: SparkSession, decode: Decode) -> str | None:
    """The SQL type of the column `data`. Raises LakeError for a schema that Spark does not take."""
    if decode.data is None:
        return None
    if decode.format is Format.AVRO:
        try:
            json.loads(decode.schema)
        except ValueError as e:
            raise LakeError(f"the Avro schema is not JSON: {e}") from e
    try:
        empty = spark.range(0).selectExpr("CAST(NULL AS BINARY) AS value", "CAST(NULL AS STRING) AS error")
        return decoded(empty, decode).schema["data"].dataType.simpleString()
    except spark_errors() as e:
        raise LakeError(f"the {decode.format} schema does not fit: {one_line(e)}") from e
