"""Batches of format 2 for old consumers, read by kafka-python."""

from __future__ import annotations

import gzip
import struct
from typing import Any

import pytest
from kafka.record import MemoryRecords

from klamm.model.errors import ErrorCode, KafkaError
from klamm.wire.compression import Codec
from klamm.wire.down_conversion import down_converted
from klamm.wire.records import (
    ControlType,
    EndTransactionMarker,
    Record,
    build_batch,
    build_end_transaction_marker,
)

RECORDS = [
    Record(b"k1", b"v1", 1_000, offset=10),
    Record(None, b"", 1_003, (("dropped", b"h"),), 11),
    Record(b"k3", None, 1_001, offset=14),
]
"""With the gap that compaction leaves."""
OLD_CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)


def batch(codec: Codec = Codec.NONE, **fields: Any) -> bytes:
    return build_batch(RECORDS, base_offset=10, codec=codec, **fields)


def converted(data: bytes, magic: int, fetch_offset: int = 0, **limits: int) -> bytes:
    return down_converted(memoryview(data), magic, fetch_offset, **limits)


def read(data: bytes) -> list[tuple[Any, ...]]:
    """(offset, timestamp, key, value) as kafka-python reads them. It checks every checksum."""
    records = MemoryRecords(data)
    found = []
    while (one := records.next_batch()) is not None:
        assert one.validate_crc()
        found += [(record.offset, record.timestamp, record.key, record.value) for record in one]
    assert records.size_in_bytes() == len(data)
    return found


@pytest.mark.parametrize("codec", OLD_CODECS)
def test_format_1(codec: Codec) -> None:
    assert read(converted(batch(codec) + batch(codec), 1)) == 2 * [
        (10, 1_000, b"k1", b"v1"),
        (11, 1_003, None, b""),
        (14, 1_001, b"k3", None),
    ]


@pytest.mark.parametrize("codec", OLD_CODECS)
def test_format_0_has_no_times(codec: Codec) -> None:
    data = converted(batch(codec), 0)
    assert read(data) == [(10, None, b"k1", b"v1"), (11, None, None, b""), (14, None, b"k3", None)]
    codec_of_set = data[17] & 0x07
    assert codec_of_set == (Codec.GZIP if codec is Codec.LZ4 else codec), "lz4 of format 0 is broken by definition"


@pytest.mark.parametrize(("magic", "offsets"), [(0, [10, 11, 14]), (1, [0, 1, 4])])
def test_offsets_inside_a_compressed_set(magic: int, offsets: list[int]) -> None:
    """Relative in format 1. kafka-python would read absolute ones too."""
    data = converted(batch(Codec.GZIP), magic)
    inner = gzip.decompress(data[data.index(b"\x1f\x8b") :])
    found, position = [], 0
    while position < len(inner):
        offset, size = struct.unpack_from(">qi", inner, position)
        found.append(offset)
        position += 12 + size
    assert found == offsets


@pytest.mark.parametrize(
    ("codec", "offsets"),
    [(Codec.NONE, [11, 14]), (Codec.GZIP, [10, 11, 14])],
    ids=["plain", "compressed: the consumer skips"],
)
def test_records_before_the_fetch_offset(codec: Codec, offsets: list[int]) -> None:
    assert [offset for offset, *_ in read(converted(batch(codec), 1, 11))] == offsets


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY])
def test_time_of_the_append(codec: Codec) -> None:
    data = converted(batch(codec, log_append_time=7_777), 1)
    assert {timestamp for _, timestamp, *_ in read(data)} == {7_777}
    assert {record.timestamp_type for record in MemoryRecords(data).next_batch()} == {1}


@pytest.mark.parametrize("magic", [0, 1])
def test_markers_are_left_out(magic: int) -> None:
    marker = build_end_transaction_marker(
        EndTransactionMarker(ControlType.COMMIT, 0), timestamp=5, producer_id=1, producer_epoch=0, base_offset=15
    )
    assert [offset for offset, *_ in read(converted(batch() + marker, magic))] == [10, 11, 14]
    assert converted(marker, magic) == b""


@pytest.mark.parametrize("codec", OLD_CODECS)
def test_a_batch_that_compaction_emptied(codec: Codec) -> None:
    empty = build_batch([], base_offset=4, codec=codec, last_offset=9)
    assert converted(empty, 1) == b""


def test_zstd_is_refused_where_the_consumer_reaches_it() -> None:
    assert [offset for offset, *_ in read(converted(batch() + batch(Codec.ZSTD), 1))] == [10, 11, 14]
    with pytest.raises(KafkaError) as refused:
        converted(batch(Codec.ZSTD) + batch(), 1)
    assert refused.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_a_timestamp_beyond_64_bits() -> None:
    """A base and a delta that fit can have a sum that does not."""
    records = [Record(None, b"a", (1 << 63) - 1, offset=0), Record(None, b"b", 1 << 63, offset=1)]
    data = build_batch(records, log_append_time=5)  # the attribute goes: then the records' own times count
    stored = bytearray(data)
    stored[22] &= ~0x08
    with pytest.raises(KafkaError) as refused:
        converted(bytes(stored), 1)
    assert refused.value.code is ErrorCode.INVALID_TIMESTAMP


def test_what_a_batch_decompresses_to_is_limited() -> None:
    bomb = build_batch([Record(None, bytes(100_000))], codec=Codec.GZIP)
    with pytest.raises(KafkaError) as refused:
        converted(bomb, 1, max_bytes=50_000)
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
