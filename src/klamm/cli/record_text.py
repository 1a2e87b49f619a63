"""Records as lines: text, JSON or hexadecimal, in both directions.

A JSON line has `key`, `value`, `headers`, `partition`, `offset` and `timestamp`. Bytes that are not UTF-8 are written
as {"base64": ...}; both forms are read back, so that `klamm consume --json` feeds `klamm produce --format json`.
"""

from __future__ import annotations

import base64
import binascii
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from klamm.model.errors import KlammError
from klamm.model.ids import TopicPartition

if TYPE_CHECKING:
    from klamm.wire.records import Record


class BadLine(KlammError):
    """A line that is not a record in the form that was asked for."""


class Form(StrEnum):
    TEXT = "text"
    JSON = "json"
    HEX = "hex"


class ParsedLine(NamedTuple):
    record: Record
    partition: int | None
    """Only a JSON line may name one."""


def parse(line: bytes, form: Form, separator: bytes, headers: tuple[tuple[str, bytes], ...], now_ms: int) -> ParsedLine:
    """Raises BadLine."""
    from klamm.wire.records import Record

    if form is Form.JSON:
        return _from_json(line, headers, now_ms)
    key, value = _split(line, separator)
    if form is Form.HEX:
        key, value = (None if key is None else _from_hex(key)), _from_hex(value)
    return ParsedLine(Record(key, value, now_ms, headers), None)


def _split(line: bytes, separator: bytes) -> tuple[bytes | None, bytes]:
    if not separator or separator not in line:
        return None, line
    key, _, value = line.partition(separator)
    return key, value


def _from_hex(text: bytes) -> bytes:
    try:
        return binascii.unhexlify(text.strip())
    except binascii.Error:
        raise BadLine(f"{text[:40].decode(errors='replace')!r} is not hexadecimal") from None


def _from_json(line: bytes, headers: tuple[tuple[str, bytes], ...], now_ms: int) -> ParsedLine:
    from klamm.wire.records import Record

    try:
        document = orjson.loads(line)
        own = tuple((str(name), _from_text(value)) for name, value in document.get("headers", {}).items())
        record = Record(
            _from_text(document.get("key")),
            _from_text(document.get("value")),
            int(document.get("timestamp", now_ms)),
            (*headers, *own),
        )
        partition = document.get("partition")
        return ParsedLine(record, None if partition is None else int(partition))
    except (orjson.JSONDecodeError, AttributeError, TypeError, ValueError) as error:
        shown = line[:60].decode(errors="replace")
        raise BadLine(f"{shown!r} is not a record in JSON ({error}): use {{'key': ..., 'value': ...}}") from None


def _from_text(value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, dict) and list(value) == ["base64"]:
        return base64.b64decode(value["base64"], validate=True)
    return value.encode() if isinstance(value, str) else orjson.dumps(value)


def line_of(place: TopicPartition, record: Record, form: Form, separator: bytes) -> bytes:
    """Without the line feed. `separator` also asks for keys in text and hexadecimal."""
    if form is Form.JSON:
        return orjson.dumps(
            {
                "partition": place.partition,
                "offset": record.offset,
                "timestamp": record.timestamp,
                "key": _text(record.key),
                "value": _text(record.value),
                "headers": {name: _text(value) for name, value in record.headers},
            }
        )
    key, value = record.key or b"", record.value or b""
    if form is Form.HEX:
        key, value = binascii.hexlify(key), binascii.hexlify(value)
    return key + separator + value if separator else value


def _text(data: bytes | None) -> str | dict[str, str] | None:
    """Text if the bytes are UTF-8, else base64."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
