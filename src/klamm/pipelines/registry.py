"""Avro schemas from a registry as Confluent's: a value is a zero byte, its schema's id in four bytes, and the body.

Each schema is asked for once. An id that the registry does not know makes its records dead letters; a registry that
does not answer, or answers something else, stops the topic.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from klamm.pipelines.decode import UNKNOWN_SCHEMA, Decode
from klamm.pipelines.lake_state import LakeError

_SILENCE_SECONDS_MAX: Final = 10
_ANSWER_BYTES_MAX: Final = 4 << 20
_VERSIONS_MAX: Final = 50
"""The newest versions of a subject that are read at the start; older ones when a record needs them."""
_NOT_FOUND: Final = 404
_UNKNOWN: Final = re.compile(rf"{UNKNOWN_SCHEMA}(\d+)")


class NotInRegistry(LakeError):
    pass


class RegisteredSchema(NamedTuple):
    id: int
    schema: str


class SchemaRegistry:
    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def latest(self, subject: str) -> RegisteredSchema:
        return self._version(subject, "latest")

    def versions(self, subject: str) -> dict[int, str]:
        """The schemas of the newest versions by id."""
        numbers = self._ask(f"/subjects/{quote(subject, safe='')}/versions")
        if not isinstance(numbers, list):
            raise LakeError(f"the schema registry {self._url} lists no versions of {subject}: {str(numbers)[:100]}")
        return dict(self._version(subject, str(number)) for number in numbers[-_VERSIONS_MAX:])

    def by_id(self, number: int) -> str:
        return self._avro(self._ask(f"/schemas/ids/{number}"), f"schema {number}")

    def _version(self, subject: str, version: str) -> RegisteredSchema:
        answer = self._ask(f"/subjects/{quote(subject, safe='')}/versions/{version}")
        schema = self._avro(answer, f"version {version} of {subject}")
        try:
            return RegisteredSchema(int(answer["id"]), schema)
        except (KeyError, TypeError, ValueError) as e:
            raise LakeError(f"the schema registry {self._url} gives no id of version {version} of {subject}") from e

    def _avro(self, answer: Any, what: str) -> str:
        if not isinstance(answer, Mapping) or not isinstance(answer.get("schema"), str):
            raise LakeError(f"the schema registry {self._url} has no schema in its answer about {what}")
        kind = answer.get("schemaType", "AVRO")
        if kind != "AVRO":
            raise LakeError(f"{what} in the schema registry {self._url} is {kind}: only Avro can be decoded")
        if answer.get("references"):
            raise LakeError(f"{what} in the schema registry {self._url} refers to others, which is not supported")
        return str(answer["schema"])

    def _ask(self, path: str) -> Any:
        request = urllib.request.Request(
            self._url + path, headers={"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=_SILENCE_SECONDS_MAX) as answer:
                return json.loads(answer.read(_ANSWER_BYTES_MAX))
        except urllib.error.HTTPError as e:
            with e:
                told = NotInRegistry if e.code == _NOT_FOUND else LakeError
                raise told(f"the schema registry answers {e.code} to {self._url}{path}") from e
        except (OSError, ValueError) as e:
            raise LakeError(f"cannot read {self._url}{path}: {getattr(e, 'reason', None) or e}") from e


def subject_of(topic: str) -> str:
    """
    >>> subject_of("orders")
    'orders-value'
    """
    return f"{topic}-value"


def with_registered(decode: Decode, topic: str) -> Decode:
    """With the newest schema of the topic's subject, if none was given, and with those of its earlier versions."""
    if decode.registry is None:
        return decode
    registry = SchemaRegistry(decode.registry)
    subject = subject_of(topic)
    try:
        schema = decode.schema or registry.latest(subject).schema
        return replace(decode, schema=schema, writers={**registry.versions(subject), **decode.writers})
    except NotInRegistry as e:
        if decode.schema:
            return decode  # records may name schemas of other subjects
        raise LakeError(f"{e}: register a schema for {subject}, or name one with --schema") from e


def learned(decode: Decode, failure: str) -> Decode | None:
    """With the schemas whose ids a write failed for; None if it failed for another reason."""
    ids = {int(number) for number in _UNKNOWN.findall(failure)} - decode.writers.keys() - decode.unknown
    if decode.registry is None or not ids:
        return None
    registry = SchemaRegistry(decode.registry)
    found: dict[int, str] = {}
    for number in ids:
        try:
            found[number] = registry.by_id(number)
        except NotInRegistry:
            continue
    return replace(decode, writers={**decode.writers, **found}, unknown=decode.unknown | (ids - found.keys()))
