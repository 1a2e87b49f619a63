"""Every length and count of every API and version is falsified: the decoders refuse it, and no lie makes
them allocate.

A writer makes the bodies from the tables and remembers where each length stands. They are read by the broker's own
decoders: the compiled readers, or those written by hand.
"""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from klamm.wire import fetch, produce
from klamm.wire.apis import APIS, ApiKey
from klamm.wire.control.decoders import decode_leader_and_isr, decode_update_metadata
from klamm.wire.errors import ProtocolError
from klamm.wire.messages import decode_request, request_class
from klamm.wire.schema import SIZES, Field, Struct
from klamm.wire.slices import finish
from klamm.wire.varint import uvarint

EVERY = [(key, version) for key, api in APIS.items() for version in range(api.min_version, api.max_version + 1)]
EDGES = [
    (key, version)
    for key, api in APIS.items()
    for version in sorted({api.min_version, min(api.flexible_from - 1, api.max_version), api.max_version})
    if api.serves(version)
]
"""The oldest version, the last one with plain lengths, and the newest."""
MANY = 200
MULTIPLE = 64
FREE_BYTES = 64 * 1024


class Length(NamedTuple):
    name: str
    position: int
    size: int
    """The bytes that it takes; a varint has one here."""
    is_compact: bool
    nullable: bool


class Writer:
    """Writes one element into each array, or `MANY` empty ones into the array `crowd`."""

    def __init__(self, version: int, flexible: bool, crowd: str = "") -> None:
        self._version = version
        self._flexible = flexible
        self._crowd = crowd
        self.body = bytearray()
        self.lengths: list[Length] = []
        self.arrays: list[str] = []

    def write_struct(self, struct: Struct, path: str = "") -> None:
        for field in struct.fields(self._version):
            self._write(field, f"{path}/{field.name}", field.is_nullable(self._version))
        if self._flexible:
            self.body.append(0)

    def _length(self, path: str, value: int, nullable: bool, size: int) -> None:
        self.lengths.append(Length(path, len(self.body), 1 if self._flexible else size, self._flexible, nullable))
        self.body += uvarint(value + 1) if self._flexible else value.to_bytes(size, "big")

    def _write(self, field: Field, path: str, nullable: bool) -> None:
        if not field.is_array:
            self._write_value(field.type, path, nullable)
            return
        self.arrays.append(path)
        count = MANY if path == self._crowd else 1
        self._length(path, count, nullable, 4)
        for _ in range(count):
            if field.struct is not None:
                self.write_struct(field.struct, path)
            else:
                self._write_value(field.type, f"{path}[]", False)

    def _write_value(self, kind: str, path: str, nullable: bool) -> None:
        if kind in SIZES:
            self.body += bytes(SIZES[kind])
            return
        text = b"" if self._crowd else b"abc"
        self._length(path, len(text), nullable, 2 if kind == "string" else 4)
        self.body += text


def written(key: ApiKey, version: int, crowd: str = "") -> Writer:
    writer = Writer(version, APIS[key].is_flexible(version), crowd)
    writer.write_struct(request_class(key).struct)
    return writer


def decode(key: ApiKey, version: int, body: bytes) -> Any:
    """Decodes as the broker does."""
    view = memoryview(body)
    match key:
        case ApiKey.PRODUCE:
            return produce.decode_request(version, view)
        case ApiKey.FETCH if version >= 4:
            return fetch.decode_request(version, view)
        case ApiKey.LEADER_AND_ISR:
            return finish(decode_leader_and_isr(version, view))
        case ApiKey.UPDATE_METADATA:
            return finish(decode_update_metadata(version, view))
    return decode_request(key, version, view)


def lies(length: Length, left: int) -> Iterator[tuple[str, bytes]]:
    if length.is_compact:
        if not length.nullable:
            yield "null", b"\x00"
        yield "more than there is", uvarint(left + 2)
        yield "two billion", b"\xff\xff\xff\xff\x07"
        yield "more than 32 bits", b"\xff\xff\xff\xff\x7f"
        yield "an endless varint", b"\xff" * 20
        return
    layout = struct.Struct(">h" if length.size == 2 else ">i")
    largest = 2 ** (8 * length.size - 1) - 1
    if not length.nullable:
        yield "null", layout.pack(-1)
    yield "below null", layout.pack(-2)
    yield "very negative", layout.pack(-largest - 1)
    yield "more than there is", layout.pack(min(largest, left + 1))
    yield "the largest", layout.pack(largest)


def told(body: bytes, length: Length, lie: bytes) -> bytes:
    return body[: length.position] + lie + body[length.position + length.size :]


@pytest.mark.parametrize(("key", "version"), EVERY)
def test_the_truth_is_understood(key: ApiKey, version: int) -> None:
    decode(key, version, bytes(written(key, version).body))


@pytest.mark.parametrize(("key", "version"), EVERY)
def test_every_lie_about_a_length_is_refused(key: ApiKey, version: int) -> None:
    writer = written(key, version)
    body = bytes(writer.body)
    for length in writer.lengths:
        for what, lie in lies(length, len(body) - length.position - length.size):
            with pytest.raises(ProtocolError):
                decode(key, version, told(body, length, lie))
                pytest.fail(f"{length.name}: {what}")


@pytest.mark.parametrize(("key", "version"), EVERY)
def test_every_cut_is_refused(key: ApiKey, version: int) -> None:
    body = bytes(written(key, version).body)
    for end in range(len(body)):
        with pytest.raises(ProtocolError):
            decode(key, version, body[:end])
            pytest.fail(f"cut after {end} of {len(body)} bytes")


@pytest.mark.parametrize(("key", "version"), EVERY)
def test_surplus_bytes_are_ignored(key: ApiKey, version: int) -> None:
    decode(key, version, bytes(written(key, version).body) + b"surplus")


def peak_bytes(key: ApiKey, version: int, body: bytes) -> int:
    tracemalloc.start()
    try:
        decode(key, version, body)
    except ProtocolError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak


@pytest.mark.parametrize(("key", "version"), EDGES)
def test_a_frame_allocates_no_more_than_a_small_multiple_of_itself(key: ApiKey, version: int) -> None:
    """With false counts, and with true counts of the smallest possible elements."""
    writer = written(key, version)
    body = bytes(writer.body)
    decode(key, version, body)  # codecs are compiled on first use
    for length in writer.lengths:
        for what, lie in lies(length, len(body) - length.position - length.size):
            assert peak_bytes(key, version, told(body, length, lie)) < FREE_BYTES, f"{length.name}: {what}"
    for array in writer.arrays:
        crowded = bytes(written(key, version, array).body)
        assert peak_bytes(key, version, crowded) < MULTIPLE * len(crowded) + FREE_BYTES, array


def test_producing_to_millions_of_partitions_without_a_record_is_refused() -> None:
    count = 100_000
    empty = b"".join(struct.pack(">ii", index, -1) for index in range(count))
    body = struct.pack(">hhii", -1, 1, 1000, 1) + b"\x00\x01t" + struct.pack(">i", count) + empty
    with pytest.raises(ProtocolError, match="partitions in"):
        produce.decode_request(3, memoryview(body))
    assert peak_bytes(ApiKey.PRODUCE, 3, body) < 8 * len(body)
