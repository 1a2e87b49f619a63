"""What is kept and told about JSON values that differ from their schema."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from klamm.pipelines.drift import BUCKETS, NAMES_MAX, TYPES_MAX, Drift, drift_from, metrics, read_drift, write_drift
from klamm.pipelines.ingest_options import TopicReport
from klamm.pipelines.lake_directory import LocalDirectory


def test_fields_of_one_bucket_are_counted_together() -> None:
    counts = {"new_1": 5, "first_1": "a", "last_1": "z", "new_2": 0, "first_2": None, "last_2": None, "unfit_1": 3}
    assert drift_from(counts, ["id", "name"]) == Drift({"a ... z": 5}, {"name": 3})


def test_names_of_strangers_are_bounded() -> None:
    many = Drift({f"n{i:03}": i for i in range(90)}) + Drift({f"m{i:03}": i for i in range(90)})
    assert len(many.unknown) == NAMES_MAX
    assert many.unknown["n089"] == 89
    assert len(metrics({f"f{i}": "bigint" for i in range(200)})) == 3 * BUCKETS + TYPES_MAX
    (name,) = drift_from({"new_0": 1, "first_0": "x" * 500, "last_0": "x" * 500}, []).unknown
    assert len(name) == 60


def test_counts_add_up_in_the_file_and_a_broken_file_is_begun_anew(tmp_path: Path) -> None:
    directory = LocalDirectory(tmp_path)
    assert not read_drift(directory)
    write_drift(directory, read_drift(directory) + Drift({"more": 2}, {"id": 1}))
    write_drift(directory, read_drift(directory) + Drift({"more": 1}))
    assert read_drift(directory) == Drift({"more": 3}, {"id": 1})
    (tmp_path / "drift.json").write_text('{"unknown": ')
    assert read_drift(directory) == Drift()
    (tmp_path / "drift.json").write_text("[]")
    assert read_drift(directory) == Drift()


def test_the_report_names_the_most_frequent_fields() -> None:
    report = TopicReport("t", drift=Drift({"a": 1, "b": 5}, {"id": 2}))
    assert report.line().endswith("fields that the schema lacks: b (5), a (1), fields of another type: id (2)")
    assert report.fields()["drift"] == {"unknown": {"a": 1, "b": 5}, "unfit": {"id": 2}}
    assert "schema" not in TopicReport("t").line()


@pytest.mark.parametrize("name", ["a'b", "a`b"])
def test_a_field_cannot_leave_its_literal(name: str) -> None:
    sql = metrics({name: "bigint"})["unfit_0"]
    literals = re.sub(r"'(\\'|[^'])*'", "", sql)
    column = "`" + name.replace("`", "``") + "`"
    assert literals.count(column) == 1
    assert "'" not in literals.replace(column, "")
