"""Message formats 0 and 1, which Produce versions 0 to 2 carry: they are rebuilt as batches of format 2.

A message has an offset, a size, a CRC-32, a key and a value; format 1 adds a timestamp. A compressed set is one
message whose value is the set. A batch of the new format holds at most a thousand records. `down_conversion` is the way
back, for old consumers.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from klamm.model.errors import ErrorCode, KafkaError
from klamm.wire.batch import MAGIC, MAGIC_POSITION, NO_TIMESTAMP, corrupt
from klamm.wire.compression import DECOMPRESSED_BYTES_MAX, Codec, decompress, unknown_codec
from klamm.wire.records import Record, build_batch

RECORDS_PER_BATCH: Final = 1_000
_ENTRY = struct.Struct(">qiIbb")
_HEAD_BYTES: Final = 12
_CRC_END: Final = 16
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_CODEC_MASK: Final = 0x07
_LOG_APPEND_TIME: Final = 0x08


class _Message(NamedTuple):
    magic: int
    codec: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def is_old(records: memoryview) -> bool:
    return len(records) > MAGIC_POSITION and records[MAGIC_POSITION] in range(MAGIC)


def up_converted(records: memoryview, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """The same records as batches of format 2, with the codec of the first compressed set. `max_bytes` limits what
    compressed sets may decompress to. Takes long, so it belongs in the pool. Raises KafkaError."""
    chunks = []
    codec = Codec.NONE
    pending: list[Record] = []
    for message in _flattened(records, max_bytes):
        codec = codec or Codec(message.codec)
        pending.append(Record(message.key, message.value, message.timestamp))
        if len(pending) == RECORDS_PER_BATCH:
            chunks.append(build_batch(pending, codec=codec))
            pending = []
    if pending:
        chunks.append(build_batch(pending, codec=codec))
    if not chunks:
        raise KafkaError(ErrorCode.INVALID_RECORD, "no complete message")
    return b"".join(chunks)


def _flattened(records: memoryview, left: int) -> Iterator[_Message]:
    """The messages, those of compressed sets included; each has the codec of the set that it came from."""
    for message in _messages(records):
        if message.codec == Codec.NONE:
            yield message
            continue
        if message.codec not in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4):
            raise unknown_codec(message.codec)
        if message.codec == Codec.LZ4 and message.magic == 0:
            # Its frames have a wrong checksum, which no library accepts (KAFKA-3160).
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "lz4 in message format 0 is not supported")
        if message.value is None:
            raise corrupt("a compressed set without a value")
        inner = memoryview(decompress(message.codec, message.value, left))
        left -= len(inner)
        for one in _messages(inner):
            if one.codec != Codec.NONE or one.magic != message.magic:
                raise KafkaError(ErrorCode.INVALID_RECORD, "a compressed set inside a compressed set")
            yield one._replace(codec=message.codec)


def _messages(data: memoryview) -> Iterator[_Message]:
    """The complete messages: a torn one at the end is dropped, as in Kafka."""
    position = 0
    while len(data) - position >= _ENTRY.size:
        _, size, crc, magic, attributes = _ENTRY.unpack_from(data, position)
        end = position + _HEAD_BYTES + size
        if size < _ENTRY.size - _HEAD_BYTES:
            raise corrupt(f"invalid message size {size}")
        if end > len(data):
            return
        if magic not in (0, 1):
            raise KafkaError(ErrorCode.INVALID_RECORD, f"message format {magic} in a set of an older one")
        if zlib.crc32(data[position + _CRC_END : end]) != crc:
            raise corrupt("the checksum of a message is wrong")
        if magic and attributes & _LOG_APPEND_TIME:
            raise KafkaError(ErrorCode.INVALID_TIMESTAMP, "a producer cannot set the time of the append")
        yield _body(data, position + _ENTRY.size, end, magic, attributes & _CODEC_MASK)
        position = end


def _body(data: memoryview, position: int, end: int, magic: int, codec: int) -> _Message:
    timestamp = NO_TIMESTAMP
    try:
        if magic:
            timestamp = _I64.unpack_from(data, position)[0]
            position += _I64.size
        key, position = _nullable(data, position, end)
        value, position = _nullable(data, position, end)
    except struct.error:
        raise corrupt("a message ends inside a field") from None
    if position != end:
        raise corrupt("a message has surplus bytes")
    return _Message(magic, codec, timestamp, key, value)


def _nullable(data: memoryview, position: int, end: int) -> tuple[bytes | None, int]:
    size = _I32.unpack_from(data, position)[0]
    position += _I32.size
    if size == -1:
        return None, position
    if size < 0 or position + size > end:
        raise corrupt(f"invalid field size {size}")
    return bytes(data[position : position + size]), position + size
