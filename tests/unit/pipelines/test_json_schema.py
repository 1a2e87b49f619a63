"""Schemas inferred from JSON values."""

from __future__ import annotations

import json

import pytest

from klamm.pipelines.json_schema import FIELDS_MAX, infer_schema


@pytest.mark.parametrize(
    ("documents", "schema"),
    [
        ([{"a": 1}, {"a": None}, {"b": True}], "`a` bigint, `b` boolean"),
        ([{"a": 1}, {"a": "x"}], "`a` string"),
        ([{"a": {"b": 1}}, {"a": {"c": "x"}}, {"a": None}], "`a` struct<`b`:bigint,`c`:string>"),
        ([{"a": {"b": 1}}, {"a": [1]}], "`a` string"),
        ([{"a": []}, {"a": [{"b": 1}, {"b": 2.5}]}], "`a` array<struct<`b`:double>>"),
        ([{"a": 2**70}], "`a` double"),
        ([{"a": {}}], "`a` string"),
        ([{"a": 1, "A": 2, "b c": 3, "": 4, "x`y": 5}], "`a` bigint"),
    ],
)
def test_the_type_of_a_field_fits_all_its_values(documents: list[object], schema: str) -> None:
    assert infer_schema([json.dumps(document).encode() for document in documents]) == schema


@pytest.mark.parametrize("value", [b"", None, b"broken", b"[1]", b"{}", b"\xff", b"[" * 100_000])
def test_values_that_are_no_objects_tell_nothing(value: bytes | None) -> None:
    assert infer_schema([value]) is None


def test_a_stranger_cannot_make_a_schema_without_bound() -> None:
    many = infer_schema([json.dumps({f"n{i}": 1 for i in range(5000)}).encode()])
    assert many is not None
    assert many.count("bigint") == FIELDS_MAX
    deep = infer_schema([b'{"a":' * 50 + b"1" + b"}" * 50])
    assert deep is not None
    assert deep.count("struct") == 10
