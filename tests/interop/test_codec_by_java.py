"""klamm's tables and codec against the classes of Apache Kafka 2.5.1 and 3.9.1: every API, both directions.

A small Java program prints the layout of every message that its library knows, and writes again what it has read. So
each field is compared in name, type and version, and random messages byte by byte.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from klamm.testing.kafka_jars import VERSIONS, kafka_jars
from klamm.testing.random_messages import random_message
from klamm.wire.apis import APIS
from klamm.wire.messages import encode_request, request_class, response_class
from klamm.wire.schema import Field, Struct

EACH = 3
"""Random messages of each class and version."""
NAMED_AS_IN = "3.9.1"
"""Kafka renamed fields now and then. klamm has the newest names."""
JAVA_NAMES = {
    "authorized_operations": {"cluster_authorized_operations", "topic_authorized_operations"},
    "zk_version": {"partition_epoch"},
    "host": {"v0_host"},
    "port": {"v0_port"},
}
JAVA_TYPES = {
    "BOOLEAN": "bool",
    "FLOAT64": "float64",
    "STRING": "string",
    "BYTES": "bytes",
    "RECORDS": "?bytes",
    "NULLABLE_STRING": "?string",
    "NULLABLE_BYTES": "?bytes",
}


class Kind(NamedTuple):
    kind: str
    key: int
    version: int


class Judgement(NamedTuple):
    version: str
    layouts: dict[Kind, str]
    rewritten: list[tuple[Kind, str, str]]
    """What klamm wrote, and what Java wrote after reading it."""


def schemas() -> Iterator[tuple[str, int, Any]]:
    for key in APIS:
        yield "request", key, request_class(key)
        yield "response", key, response_class(key)


@pytest.fixture(scope="module", params=VERSIONS)
def judgement(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Judgement:
    directory = tmp_path_factory.mktemp("judge")
    path = f"{kafka_jars(request.param)}/*"
    source = Path(__file__).with_name("CodecJudge.java")
    subprocess.run(["javac", "-d", str(directory), "-cp", path, str(source)], check=True, timeout=120)
    rng = random.Random(13)
    messages = directory / "messages"
    with messages.open("w") as file:
        for kind, key, cls in schemas():
            for version in range(cls.schema.versions.last + 1):
                for _ in range(EACH):
                    body = encode_request(random_message(cls, version, rng), version)
                    file.write(f"{kind} {key} {version} {body.hex()}\n")
    command = ["java", "-cp", f"{directory}:{path}", "CodecJudge", str(messages)]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    layouts, rewritten = {}, []
    for line in ran.stdout.splitlines():
        what, kind, key, version, *rest = line.split(" ")
        name = Kind(kind, int(key), int(version))
        if what == "layout":
            layouts[name] = rest[0]
        else:
            rewritten.append((name, rest[0], rest[1]))
    return Judgement(request.param, layouts, [each for each in rewritten if each[0] in layouts])


def test_every_field_has_kafkas_name_type_and_version(judgement: Judgement) -> None:
    judged, wrong = 0, []
    for kind, key, cls in schemas():
        for version in range(cls.schema.versions.last + 1):
            theirs = judgement.layouts.get(Kind(kind, key, version))
            if theirs is not None:
                judged += 1
                ours = list(flat(cls.struct, version, tagged="#" in theirs))
                if named(judgement, ours) != named(judgement, java_flat(theirs)):
                    wrong.append(f"{cls.__name__} {version}: {ours} {java_flat(theirs)}")
    assert not wrong
    assert judged > 300


def test_java_reads_what_klamm_writes_and_writes_the_same(judgement: Judgement) -> None:
    assert len(judgement.rewritten) > 1000
    assert not [(name, theirs[:100]) for name, ours, theirs in judgement.rewritten if ours != theirs]


def flat(struct: Struct, version: int, tagged: bool) -> Iterator[tuple[str, str]]:
    """Name and type of each field, depth first; the fields of a struct stand between braces.

    Kafka added some tagged fields later, without a new version.
    """
    yield "", "{"
    for field in [*struct.fields(version), *(struct.tagged_fields(version) if tagged else ())]:
        tag = "" if field.tag is None else f"#{field.tag}:"
        yield tag + field.name, our_type(field, version)
        if field.struct is not None:
            yield from flat(field.struct, version, tagged)
    yield "", "}"


def our_type(field: Field, version: int) -> str:
    kind = "" if field.struct is not None else field.type.replace("records", "bytes")
    return ("?" if field.is_nullable(version) else "") + ("[]" if field.is_array else "") + kind


def java_flat(text: str) -> list[tuple[str, str]]:
    """The same, of `{name:TYPE;name:[]{...};}`."""
    found: list[tuple[str, str]] = []
    for piece in text.replace("{", "\0{\0").replace("}", "\0}\0").replace(";", "\0").split("\0"):
        if piece in ("{", "}"):
            found.append(("", piece))
        elif piece:
            name, _, kind = piece.rpartition(":")
            found.append((name, java_type(kind)))
    return found


def java_type(kind: str) -> str:
    *arrays, scalar = kind.rpartition("[]")
    scalar = scalar.removeprefix("COMPACT_")
    return "".join(arrays) + JAVA_TYPES.get(scalar, scalar.lower())


def named(judgement: Judgement, fields: list[tuple[str, str]]) -> list[tuple[str, str]]:
    if judgement.version != NAMED_AS_IN:
        return [("", kind) for _, kind in fields]
    known = {java: ours for ours, names in JAVA_NAMES.items() for java in names}
    return [(known.get(name, name), kind) for name, kind in fields]
