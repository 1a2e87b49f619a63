"""What the lake asks of a schema registry, and what it makes of the answers."""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.request
from email.message import Message
from typing import Any

import pytest

from klamm.pipelines.decode import UNKNOWN_SCHEMA, Decode, Format
from klamm.pipelines.lake_state import LakeError
from klamm.pipelines.registry import SchemaRegistry, learned, with_registered

URL = "http://registry:8081"
DECODE = Decode(Format.AVRO, registry=URL)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """By path: a document, an HTTP status, or an exception."""
    found: dict[str, Any] = {}

    def opened(request: urllib.request.Request, timeout: float) -> io.BytesIO:
        answer = found.get(request.full_url.removeprefix(URL), 404)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            raise urllib.error.HTTPError(request.full_url, answer, "", Message(), io.BytesIO())
        return io.BytesIO(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

    monkeypatch.setattr(urllib.request, "urlopen", opened)
    return found


def test_the_newest_schema_reads_and_all_versions_are_known(answers: dict[str, Any]) -> None:
    answers["/subjects/t-value/versions"] = [1, 3]
    answers["/subjects/t-value/versions/1"] = {"id": 7, "schema": '"int"'}
    answers["/subjects/t-value/versions/3"] = {"id": 9, "schema": '"long"'}
    answers["/subjects/t-value/versions/latest"] = answers["/subjects/t-value/versions/3"]
    decode = with_registered(DECODE, "t")
    assert (decode.schema, dict(decode.writers)) == ('"long"', {7: '"int"', 9: '"long"'})
    given = with_registered(Decode(Format.AVRO, '"double"', registry=URL), "t")
    assert given.schema == '"double"'
    assert with_registered(Decode(Format.JSON, "id long"), "t") == Decode(Format.JSON, "id long")


def test_a_subject_without_a_schema_needs_one_by_option(answers: dict[str, Any]) -> None:
    with pytest.raises(LakeError, match=r"answers 404 to .*: register a schema for t-value, or name one with --schema"):
        with_registered(DECODE, "t")
    assert with_registered(Decode(Format.AVRO, '"int"', registry=URL), "t").writers == {}


def test_a_schema_is_learned_from_the_failure_of_a_write(answers: dict[str, Any]) -> None:
    answers["/schemas/ids/7"] = {"schema": '"int"'}
    failure = f"Job aborted ... {UNKNOWN_SCHEMA}7 SQLSTATE ... {UNKNOWN_SCHEMA}8 SQLSTATE"
    decode = learned(DECODE, failure)
    assert decode is not None
    assert (dict(decode.writers), decode.unknown) == ({7: '"int"'}, {8})
    assert learned(decode, failure) is None, "each is asked for once"
    assert learned(DECODE, "disk full") is None
    assert learned(Decode(Format.AVRO, "{}"), failure) is None


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (500, "the schema registry answers 500 to http://registry:8081/schemas/ids/7"),
        (401, "answers 401"),
        (urllib.error.URLError("refused"), "cannot read http://registry:8081/schemas/ids/7: refused"),
        (TimeoutError("timed out"), "timed out"),
        (b"<html>", "cannot read"),
        ({"id": 7}, "no schema in its answer about schema 7"),
        ([], "no schema in its answer"),
        ({"schema": "x", "schemaType": "PROTOBUF"}, "is PROTOBUF: only Avro"),
        ({"schema": "x", "references": [{}]}, "refers to others"),
    ],
)
def test_a_failing_registry_is_told_in_one_line(answers: dict[str, Any], answer: Any, says: str) -> None:
    answers["/schemas/ids/7"] = answer
    with pytest.raises(LakeError, match=says.replace("/", ".")) as failed:
        learned(DECODE, f"{UNKNOWN_SCHEMA}7")
    assert "\n" not in str(failed.value)


def test_the_name_of_a_subject_cannot_change_the_request(answers: dict[str, Any]) -> None:
    answers["/subjects/a%2F..%3Fx/versions/latest"] = {"id": 1, "schema": '"int"'}
    assert SchemaRegistry(URL + "/").latest("a/..?x") == (1, '"int"')


def test_each_known_schema_has_its_branch_and_an_unknown_id_stops_the_write() -> None:
    decode = Decode(Format.AVRO, '"long"', registry=URL, writers={7: '"int"'}, unknown=frozenset({8}))
    sql = str(decode.data)
    assert "= '7' THEN from_avro(substring(value, 6), '\"int\"'" in sql
    assert "IN ('8') THEN NULL ELSE raise_error" in sql
    assert "the registry has no schema" in decode.reason
    assert "it names no schema" in decode.reason
