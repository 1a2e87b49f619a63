"""Decoding of values by option: the SQL that turns `value` into a column `data`, and into the reason why it cannot.

A value that cannot be decoded is a dead letter: `data` is null, `error` says why, and `value` keeps the bytes. JSON is
strict about types and drops unknown fields, which `drift` counts. Avro has no checksum, so a wrong body can decode into
something else. With a registry, each value names the schema that it was written with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.pipelines.lake_state import LakeError
from klamm.pipelines.spark_session import one_line, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType as SparkType
    from pyspark.sql.types import StructField

BAD_FIELD: Final = "_klamm_bad"
UNDECODABLE: Final = "undecodable"
UNKNOWN_SCHEMA: Final = "klamm-unknown-schema:"
"""A write fails with this and an id, so that the registry is asked for it."""
_FRAMED: Final = "(length(value) >= 5 AND hex(substring(value, 1, 1)) = '00')"
_SCHEMA_ID: Final = "conv(hex(substring(value, 2, 4)), 16, 10)"


class Format(StrEnum):
    RAW = "raw"
    JSON = "json"
    AVRO = "avro"


@dataclass(frozen=True, slots=True)
class Decode:
    format: Format = Format.RAW
    schema: str = ""
    """Spark's DDL for JSON, such as `id long, name string`; the schema's JSON for Avro. Empty: to be found out."""
    max_value_bytes: int | None = None
    """Larger values are dead letters."""
    registry: str | None = None
    """URL of a schema registry."""
    writers: Mapping[int, str] = field(default_factory=dict)
    """The registry's schemas by id, as far as they are known."""
    unknown: frozenset[int] = frozenset()
    """Ids that the registry does not know."""

    @property
    def data(self) -> str | None:
        """SQL for the decoded value, with a marker field in JSON; None if values stay raw."""
        match self.format:
            case Format.RAW:
                return None
            case Format.JSON:
                schema = quoted(f"{self.schema}, {BAD_FIELD} string")
                return f"from_json(CAST(value AS STRING), {schema}, map('columnNameOfCorruptRecord', '{BAD_FIELD}'))"
            case Format.AVRO if self.registry is not None:
                return self._by_schema_id()
            case Format.AVRO:
                return f"from_avro(value, {quoted(self.schema)}, map('mode', 'PERMISSIVE'))"

    def _by_schema_id(self) -> str:
        options = f"map('mode', 'PERMISSIVE', 'avroSchema', {quoted(self.schema)})"
        known = (
            f"WHEN {_SCHEMA_ID} = '{number}' THEN from_avro(substring(value, 6), {quoted(schema)}, {options})"
            for number, schema in sorted(self.writers.items())
        )
        none = f"from_avro(CAST(NULL AS BINARY), {quoted(self.schema)})"
        unknown = f"WHEN {_SCHEMA_ID} IN ({self._unknown()}) THEN NULL" if self.unknown else ""
        missing = f"raise_error(concat('{UNKNOWN_SCHEMA}', {_SCHEMA_ID}))"
        return f"CASE WHEN value IS NULL OR NOT {_FRAMED} THEN {none} {' '.join(known)} {unknown} ELSE {missing} END"

    def _unknown(self) -> str:
        return ", ".join(f"'{number}'" for number in sorted(self.unknown))

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
        if self.format is Format.AVRO and self.registry is not None:
            cases.append(f"WHEN value IS NOT NULL AND NOT {_FRAMED} THEN '{UNDECODABLE} Avro: it names no schema'")
            if self.unknown:
                reason = f"concat('{UNDECODABLE} Avro: the registry has no schema ', {_SCHEMA_ID})"
                cases.append(f"WHEN {_SCHEMA_ID} IN ({self._unknown()}) THEN {reason}")
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


class DataType(NamedTuple):
    """The column `data`, in Spark's words."""

    type: str
    fields: Mapping[str, str]
    """The types of its fields; empty if it is no struct."""


def data_type(spark: SparkSession, decode: Decode) -> DataType | None:
    """None if values stay raw. Raises LakeError for a schema that Spark does not take."""
    if decode.data is None:
        return None
    if decode.format is Format.AVRO:
        try:
            json.loads(decode.schema)
        except ValueError as e:
            raise LakeError(f"the Avro schema is not JSON: {e}") from e
    try:
        empty = spark.range(0).selectExpr("CAST(NULL AS BINARY) AS value", "CAST(NULL AS STRING) AS error")
        found = decoded(empty, decode).schema["data"].dataType
        return DataType(found.simpleString(), {part.name: part.dataType.simpleString() for part in _parts(found)})
    except spark_errors() as e:
        raise LakeError(f"the {decode.format} schema does not fit: {one_line(e)}") from e


def table_schema_of_data(spark: SparkSession, table: str) -> str | None:
    """The fields of the column `data` of a table, as DDL; None if it has none."""
    columns = spark.read.format("delta").load(table).schema
    if "data" not in columns.fieldNames():
        return None
    return (
        ", ".join(f"`{part.name}` {part.dataType.simpleString()}" for part in _parts(columns["data"].dataType)) or None
    )


def _parts(kind: SparkType) -> Sequence[StructField]:
    from pyspark.sql.types import StructType

    return kind.fields if isinstance(kind, StructType) else ()
