"""Reads records of one partition for a page: from an offset, with or without a key, within bounds.

Records are hostile input: their number, size and content are limited here, and the templates escape what is shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

import orjson

from klamm.client.cluster import ClusterClient
from klamm.client.errors import ClientError
from klamm.client.reader import EARLIEST, LATEST, fetch, offsets_at, records_of
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.wire.errors import error_of
from klamm.wire.records import Record

RECORDS_MAX: Final = 100
SCANNED_MAX: Final = 20_000
SCANNED_BYTES_MAX: Final = 16 << 20
SECONDS_MAX: Final = 5.0
SHOWN_CHARACTERS: Final = 1_000
WHOLE_CHARACTERS: Final = 200_000
FORMATS: Final = ("text", "json", "hex")


class Browsed(NamedTuple):
    records: Sequence[Record]
    first: int
    """Where reading began."""
    next: int
    """Where the next page begins."""
    start: int
    end: int
    scanned: int
    is_complete: bool
    """False if a bound ended the search for a key."""


async def browse(
    cluster: ClusterClient, name: TopicPartition, first: int, limit: int, key: bytes | None = None
) -> Browsed:
    """Up to `limit` records from `first` on. An offset outside the log becomes its start or end. Raises KafkaError or
    ClientError."""
    start = (await offsets_at(cluster, [name], EARLIEST))[name]
    end = (await offsets_at(cluster, [name], LATEST))[name]
    position = first = min(max(first, start), end)
    found: list[Record] = []
    scanned = size = 0
    deadline = asyncio.get_running_loop().time() + SECONDS_MAX
    while position < end and len(found) < limit:
        if scanned >= SCANNED_MAX or size >= SCANNED_BYTES_MAX or asyncio.get_running_loop().time() > deadline:
            return Browsed(found, first, position, start, end, scanned, False)
        data = await _fetched(cluster, name, position)
        size += len(data)
        records, after = await asyncio.to_thread(records_of, data, position)
        if after == position:
            break  # the rest is not readable yet
        position = after
        for record in records:
            scanned += 1
            if key is None or record.key == key:
                found.append(record)
                if len(found) == limit:
                    position = record.offset + 1
                    break
    return Browsed(found, first, position, start, end, scanned, True)


async def _fetched(cluster: ClusterClient, name: TopicPartition, position: int) -> bytes:
    async def attempt() -> bytes:
        leader = await cluster.leader_of(*name)
        entry = (await fetch(cluster, leader, {name: position}))[name]
        if entry.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise ClientError(f"{name} has no offset {position}: its records expired meanwhile")
        if entry.error_code != ErrorCode.NONE:
            raise KafkaError(error_of(entry.error_code), str(name))
        return bytes(entry.records or b"")

    return await cluster.repeating(f"Fetch of {name}", attempt)


class Shown(NamedTuple):
    text: str
    note: str
    """What the text does not tell: it was cut, or is in another format than asked for."""


def shown(data: bytes | None, form: str, characters: int = SHOWN_CHARACTERS) -> Shown:
    """A key or value in one of FORMATS, cut to a length. What is not in the format is shown in the next plainer one.

    >>> shown(b'{"b":1}', "json")
    Shown(text='{\\n  "b": 1\\n}', note='')
    >>> shown(b"\\xff\\x00ab", "text")
    Shown(text='ff 00 61 62', note='not UTF-8')
    >>> shown(b"plain", "json").note, shown(None, "text").text, shown(b"abcdef", "text", 3)
    ('not JSON', 'null', Shown(text='abc', note='cut, 6 bytes in all'))
    """
    if data is None:
        return Shown("null", "")
    notes: list[str] = []
    text = None
    if form == "json":
        try:
            text = orjson.dumps(orjson.loads(data), option=orjson.OPT_INDENT_2).decode()
        except orjson.JSONDecodeError:
            notes.append("not JSON")
    if form != "hex" and text is None:
        try:
            text = _printable(data.decode())
        except UnicodeDecodeError:
            notes.append("not UTF-8")
    if text is None:
        text = data[:characters].hex(" ")
    if len(text) > characters:
        text = text[:characters]
        notes.append(f"cut, {len(data)} bytes in all")
    return Shown(text, ", ".join(notes))


def _printable(text: str) -> str:
    """Control characters as signs, so that they can be seen and do nothing."""
    return "".join(c if c in "\n\t" or c >= " " else chr(0x2400 + ord(c)) for c in text)


def key_of(text: str) -> bytes:
    """A key as a visitor writes it: text, or 0x and hex.

    >>> key_of("a"), key_of("0x6162"), key_of("0xz")
    (b'a', b'ab', b'0xz')
    """
    if text.startswith("0x"):
        try:
            return bytes.fromhex(text[2:])
        except ValueError:
            pass
    return text.encode()
