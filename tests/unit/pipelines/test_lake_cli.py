"""How `klamm lake` fails: exit code 2 for wrong usage, 1 and one line for what is missing, before Spark starts."""

from __future__ import annotations

import re
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from klamm.cli.lake import lake_app
from klamm.pipelines import jars
from klamm.pipelines.jars import JARS, cache_directory, require_spark, spark_jars
from klamm.pipelines.lake_state import LakeError
from klamm.pipelines.spark_session import one_line

INGEST = {"--bootstrap-server": "127.0.0.1:9092", "--topics": "orders", "--lake": "lake"}


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--topics", "a b", "not a topic name"),
        ("--topics", "orders,", "not a topic name"),
        ("--topics", "..", "not a topic name"),
        ("--topics", "orders,orders", "listed twice"),
        ("--topics", "orders,_klamm", "reserved"),
        ("--on-new-log", "guess", "fail or new-incarnation"),
        ("--conf", "spark.x", "not KEY=VALUE"),
        ("--pattern", "a.*", "--topics or a --pattern"),
        ("--partition-by", "week", "use date, or date,hour"),
        ("--decode", "xml", "raw, json or avro"),
        ("--decode", "avro", "needs a --schema"),
        ("--schema", "id long", "takes no --schema"),
        ("--registry", "http://registry:8081", "with --decode avro"),
        ("--trigger", "soon", "available-now"),
        ("--trigger", "0s", "available-now"),
        ("--bootstrap-server", "broker", "not HOST:PORT"),
        ("--bootstrap-server", "broker:0", "not HOST:PORT"),
        ("--lake", "ftp://host/lake", "not supported"),
        ("--name", "../x", "letters, digits"),
        ("--max-offsets-per-trigger", "0", "greater than or equal to 1"),
    ],
)
def test_wrong_usage_ends_with_2(option: str, value: str, says: str) -> None:
    options = {**INGEST, option: value}
    result = CliRunner().invoke(lake_app, ["ingest", *(word for pair in options.items() for word in pair)])
    assert result.exit_code == 2
    assert says in re.sub(r"[\s│]+", " ", result.stderr)


@pytest.mark.parametrize(("option", "value"), [("--from", "-1"), ("--from", "soon"), ("--to", "2026-99-01")])
def test_a_backfill_takes_offsets_and_times(option: str, value: str) -> None:
    options = {**INGEST, option: value}
    result = CliRunner().invoke(lake_app, ["backfill", *(word for pair in options.items() for word in pair)])
    assert result.exit_code == 2
    assert "use an offset, or a time" in re.sub(r"[\s│]+", " ", result.stderr)


def test_an_audit_of_no_table_says_so_in_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        lake_app, ["audit", "--lake", str(tmp_path), "--topics", "orders", "--bootstrap-server", "127.0.0.1:9"]
    )
    assert (result.exit_code, result.stderr) == (
        1,
        f"klamm: there is no table for topic orders at {tmp_path / 'orders'}\n",
    )


def test_the_audit_of_the_reserved_name_is_wrong_usage(tmp_path: Path) -> None:
    words = ["audit", "--lake", str(tmp_path), "--topics", "_klamm", "--bootstrap-server", "127.0.0.1:9"]
    assert CliRunner().invoke(lake_app, words).exit_code == 2


def test_without_pyspark_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(jars, "find_spec", nothing)
    result = CliRunner().invoke(lake_app, ["ingest", *(word for pair in INGEST.items() for word in pair)])
    assert (result.exit_code, result.stderr) == (
        1,
        "klamm: this command needs PySpark: pip install 'klamm[spark]'\n",
    )


def test_missing_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(LakeError, match="has no bin/java"):
        require_spark()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LakeError, match="no java on PATH"):
        require_spark()


def test_a_full_cache_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KLAMM_CACHE", str(tmp_path))
    cache_directory().mkdir()
    for name in JARS:
        (cache_directory() / name).touch()
    assert spark_jars() == [tmp_path / "spark-jars-4.0.0" / name for name in JARS]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "first\nReason: Partition t-0 offset was changed from 9 to 3.\nplan",
            "Reason: Partition t-0 offset was changed",
        ),
        (
            "An error occurred while calling o1.save.\n: java.io.IOException: disk full\n\tat x.y",
            "java.io.IOException: disk",
        ),
        ("[PATH_NOT_FOUND] no such path\nJVM stacktrace:", "[PATH_NOT_FOUND] no such path"),
        ("", "ValueError"),
    ],
)
def test_an_error_of_spark_becomes_one_line(text: str, line: str) -> None:
    assert one_line(ValueError(text)).startswith(line)
