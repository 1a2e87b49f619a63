"""Message formats 0 and 1, written here by hand, become batches of format 2."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest

from klamm.model.errors import ErrorCode, KafkaError
from klamm.wire import old_formats
from klamm.wire.batch import check_crc, iter_batches
from klamm.wire.compression import Codec, compress
from klamm.wire.old_formats import is_old, up_converted
from klamm.wire.records import Record, build_batch, iter_records


def message(
    value: bytes | None,
    key: bytes | None = None,
    *,
    magic: int = 1,
    attributes: int = 0,
    time: int = 5,
    offset: int = 0,
) -> bytes:
    def field(data: bytes | None) -> bytes:
        return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data

    body = (
        struct.pack(">bb", magic, attributes) + (struct.pack(">q", time) if magic else b"") + field(key) + field(value)
    )
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def compressed(codec: Codec, inner: bytes, magic: int = 1) -> bytes:
    return message(compress(codec, inner), magic=magic, attributes=int(codec))


def converted(records: bytes) -> tuple[list[tuple[Any, ...]], list[int]]:
    """(timestamp, key, value) of all records, and the codec of each batch."""
    data = memoryview(up_converted(memoryview(records)))
    found, codecs = [], []
    for position, header in iter_batches(data):
        check_crc(data, position, header)
        codecs.append(header.codec)
        batch = data[position : position + header.size_in_bytes]
        found += [(record.timestamp, record.key, record.value) for record in iter_records(batch)]
    return found, codecs


def test_format_1() -> None:
    data = message(b"a", b"k", time=7) + message(None, b"k2", time=9) + message(b"", None, time=8)
    assert converted(data) == ([(7, b"k", b"a"), (9, b"k2", None), (8, None, b"")], [Codec.NONE])


def test_format_0_has_no_times() -> None:
    assert converted(message(b"a", magic=0)) == ([(-1, None, b"a")], [Codec.NONE])


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
@pytest.mark.parametrize("magic", [0, 1])
def test_compressed_sets(codec: Codec, magic: int) -> None:
    data = compressed(codec, message(b"a", magic=magic) + message(b"b", magic=magic), magic)
    if codec is Codec.LZ4 and magic == 0:
        with pytest.raises(KafkaError) as refused:
            converted(data)
        assert refused.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        return
    time = 5 if magic else -1
    assert converted(data) == ([(time, None, b"a"), (time, None, b"b")], [codec])


def test_a_torn_message_at_the_end_is_dropped() -> None:
    whole = message(b"a")
    for cut in range(len(whole)):
        assert converted(whole + whole[:cut])[0] == [(5, None, b"a")]


def test_large_sets_become_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_formats, "RECORDS_PER_BATCH", 2)
    found, codecs = converted(b"".join(message(b"%d" % number) for number in range(5)))
    assert [value for _, _, value in found] == [b"0", b"1", b"2", b"3", b"4"]
    assert len(codecs) == 3


GOOD = message(b"value", b"key")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (GOOD[:20], ErrorCode.INVALID_RECORD),
        (GOOD[:-1] + b"X", ErrorCode.CORRUPT_MESSAGE),
        (message(b"a") + build_batch([Record(key=None, value=b"v", timestamp=1)]), ErrorCode.INVALID_RECORD),
        (compressed(Codec.GZIP, compressed(Codec.GZIP, GOOD)), ErrorCode.INVALID_RECORD),
        (compressed(Codec.GZIP, message(b"a", magic=0)), ErrorCode.INVALID_RECORD),
        (compressed(Codec.ZSTD, GOOD), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (message(b"no gzip", attributes=1), ErrorCode.CORRUPT_MESSAGE),
        (message(None, attributes=1), ErrorCode.CORRUPT_MESSAGE),
        (message(b"a", attributes=8), ErrorCode.INVALID_TIMESTAMP),
        (struct.pack(">qiIbb", 0, 3, 0, 1, 0), ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_what_is_refused(data: bytes, code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as refused:
        converted(data)
    assert refused.value.code is code


def test_lengths_inside_a_message_are_not_trusted() -> None:
    body = struct.pack(">bbq", 1, 0, 5) + struct.pack(">i", 1 << 30) + b"k"
    data = struct.pack(">qiI", 0, len(body) + 4, zlib.crc32(body)) + body
    for hostile in (data, data.replace(struct.pack(">i", 1 << 30), struct.pack(">i", -2))):
        with pytest.raises(KafkaError) as refused:
            converted(hostile)
        assert refused.value.code is ErrorCode.CORRUPT_MESSAGE


def test_which_records_are_old() -> None:
    new = build_batch([Record(key=None, value=b"v", timestamp=1)])
    assert [is_old(memoryview(data)) for data in (b"", GOOD, message(b"a", magic=0), new)] == [False, True, True, False]
