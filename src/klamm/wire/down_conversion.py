"""Batches of format 2 as message sets of formats 0 and 1, for consumers older than Kafka 0.11 (Fetch 0 to 3).

As in Kafka, control batches are left out and headers are lost. A compressed batch becomes one message whose value is
the compressed set, with the offset of its last record. Of a plain batch, only records from the fetch offset on are
sent. Format 0 has no timestamps, and needs absolute offsets inside a compressed set; format 1 needs relative ones.

zstd is refused, because these formats do not have it. lz4 in format 0 has a checksum that no library writes
(KAFKA-3160), so such batches are compressed by gzip instead: every consumer reads that.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from klamm.model.errors import ErrorCode, KafkaError
from klamm.wire.batch import BatchHeader, iter_batches
from klamm.wire.compression import DECOMPRESSED_BYTES_MAX, Codec, compress
from klamm.wire.records import Record, iter_records

_HEAD = struct.Struct(">qiI")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_CRC_BYTES: Final = 4
_LOG_APPEND_TIME: Final = 0x08
_NULL: Final = _I32.pack(-1)


def down_converted(
    records: memoryview, magic: int, fetch_offset: int, max_bytes: int = DECOMPRESSED_BYTES_MAX
) -> bytes:
    """The messages of all batches before the first that cannot be converted. `max_bytes` limits what a batch may
    decompress to. Takes long, so it belongs in the pool. Raises KafkaError if it is the first one."""
    chunks: list[bytes] = []
    for position, header in iter_batches(records):
        if header.is_control or not header.count:  # compaction may have emptied it
            continue
        try:
            chunks.append(_converted(records[position:], header, magic, fetch_offset, max_bytes))
        except KafkaError:
            if any(chunks):
                break
            raise
    return b"".join(chunks)


def _converted(batch: memoryview, header: BatchHeader, magic: int, fetch_offset: int, max_bytes: int) -> bytes:
    if header.codec == Codec.ZSTD:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"message format {magic} does not have zstd")
    records = list(iter_records(batch, max_bytes=max_bytes))
    attributes = _LOG_APPEND_TIME if magic and header.is_log_append_time else 0
    if header.codec == Codec.NONE:
        return b"".join(
            _message(record.offset, magic, attributes, record.timestamp, record.key, record.value)
            for record in records
            if record.offset >= fetch_offset
        )
    codec = Codec.GZIP if magic == 0 and header.codec == Codec.LZ4 else header.codec
    value = compress(codec, _inner_set(records, magic, attributes))
    newest = max(record.timestamp for record in records)
    return _message(records[-1].offset, magic, attributes | codec, newest, None, value)


def _inner_set(records: list[Record], magic: int, attributes: int) -> bytes:
    base = records[0].offset if magic else 0
    return b"".join(
        _message(record.offset - base, magic, attributes, record.timestamp, record.key, record.value)
        for record in records
    )


def _message(offset: int, magic: int, attributes: int, timestamp: int, key: bytes | None, value: bytes | None) -> bytes:
    try:
        time = _I64.pack(timestamp) if magic else b""
    except struct.error:
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, f"no message can have the timestamp {timestamp}") from None
    body = b"".join((bytes((magic, attributes)), time, *_nullable(key), *_nullable(value)))
    return _HEAD.pack(offset, _CRC_BYTES + len(body), zlib.crc32(body)) + body


def _nullable(data: bytes | None) -> tuple[bytes, ...]:
    return (_NULL,) if data is None else (_I32.pack(len(data)), data)
