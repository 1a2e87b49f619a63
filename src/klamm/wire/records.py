"""The records inside a batch: iterating over them, building batches, and the markers that end a transaction.

Decoding is strict, as in Kafka: a record that does not fill its length, a negative count, or bytes after the last
record make the whole batch invalid (INVALID_RECORD). The decompressed size is limited. Code that handles records also
handles batches, so this module exports the names of `klamm.wire.batch` too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ports import Buffer
from klamm.wire.batch import (
    CONTROL,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    BatchHeader,
    check_crc,
    corrupt,
    has_valid_crc,
    iter_batches,
    next_sequence,
    pack_batch,
    patch_max_timestamp,
    patch_offset_and_epoch,
    read_header,
    whole_batches_bytes,
)
from klamm.wire.compression import DECOMPRESSED_BYTES_MAX, Codec, compress, decompress
from klamm.wire.varint import read_varint, varint

__all__ = [
    "HEADER_BYTES",
    "NEXT_OFFSET",
    "NO_PRODUCER_EPOCH",
    "NO_PRODUCER_ID",
    "NO_SEQUENCE",
    "NO_TIMESTAMP",
    "BatchHeader",
    "Codec",
    "ControlType",
    "EndTransactionMarker",
    "Record",
    "build_batch",
    "build_end_transaction_marker",
    "check_crc",
    "has_valid_crc",
    "iter_batches",
    "iter_records",
    "next_sequence",
    "patch_max_timestamp",
    "patch_offset_and_epoch",
    "read_end_transaction_marker",
    "read_header",
    "whole_batches_bytes",
]

NEXT_OFFSET: Final = -1
"""The offset after the previous record's, for a record to be built."""
_TYPE_KEY = struct.Struct(">hh")
_END_VALUE = struct.Struct(">hi")
_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1

Headers = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    key: bytes | None
    value: bytes | None
    timestamp: int = NO_TIMESTAMP
    headers: Headers = ()
    offset: int = NEXT_OFFSET


class ControlType(IntEnum):
    ABORT = 0
    COMMIT = 1


class EndTransactionMarker(NamedTuple):
    type: ControlType | None
    """None for an unknown type, which readers skip."""
    coordinator_epoch: int


def iter_records(batch: Buffer, *, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> Iterator[Record]:
    """The records of the batch at the start of `batch`, with absolute offsets and timestamps."""
    header = read_header(batch)
    if header.size_in_bytes > len(batch):
        raise corrupt(f"a batch of {header.size_in_bytes} bytes, but only {len(batch)} are there")
    if header.count < 0:
        raise _invalid(f"invalid record count {header.count}")
    data = decompress(header.codec, memoryview(batch)[HEADER_BYTES : header.size_in_bytes], max_bytes)
    data = data if isinstance(data, bytes) else bytes(data)  # indexing bytes is faster than indexing a view
    position = 0
    for _ in range(header.count):
        try:
            record, position = _read_record(data, position, header)
        except (IndexError, ValueError) as error:
            raise _invalid(f"a record at byte {position} is malformed: {error}") from error
        yield record
    if position != len(data):
        raise _invalid(f"{len(data) - position} bytes after the last record")


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    codec: int = Codec.NONE,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    log_append_time: int | None = None,
    last_offset: int | None = None,
) -> bytes:
    """One batch. A record without an offset follows the previous one; gaps are kept, which compaction needs.

    `last_offset` is the last offset that the batch covers, if its record is gone. `log_append_time`, if given, is the
    timestamp of every record.
    """
    base_timestamp = records[0].timestamp if records else NO_TIMESTAMP
    payload = bytearray()
    delta = -1
    for record in records:
        delta = delta + 1 if record.offset == NEXT_OFFSET else record.offset - base_offset
        payload += _encode_record(record, record.timestamp - base_timestamp, delta)
    attributes = int(codec) | (TRANSACTIONAL if transactional else 0) | (CONTROL if control else 0)
    if log_append_time is not None:
        attributes |= LOG_APPEND_TIME
        max_timestamp = log_append_time
    else:
        max_timestamp = max((record.timestamp for record in records), default=NO_TIMESTAMP)
    header = BatchHeader(
        base_offset=base_offset,
        length=0,
        leader_epoch=leader_epoch,
        magic=0,
        crc=0,
        attributes=attributes,
        last_offset_delta=max(delta, 0) if last_offset is None else last_offset - base_offset,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        count=len(records),
    )
    return pack_batch(header, compress(codec, payload) if records else b"")


def build_end_transaction_marker(
    marker: EndTransactionMarker,
    *,
    timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """A control batch of one record: 78 bytes, never compressed, without a sequence number."""
    assert marker.type is not None
    record = Record(_TYPE_KEY.pack(0, marker.type), _END_VALUE.pack(0, marker.coordinator_epoch), timestamp)
    return build_batch(
        [record],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def read_end_transaction_marker(batch: Buffer) -> EndTransactionMarker:
    """The marker in a control batch. Longer keys and values are accepted, because later versions may write them."""
    record = next(iter_records(batch), None)
    if record is None or record.key is None or record.value is None:
        raise _invalid("a control batch without a control record")
    try:
        _, type_id = _TYPE_KEY.unpack_from(record.key)
        _, coordinator_epoch = _END_VALUE.unpack_from(record.value)
    except struct.error as error:
        raise _invalid(f"a malformed control record: {error}") from error
    known = type_id in (ControlType.ABORT, ControlType.COMMIT)
    return EndTransactionMarker(ControlType(type_id) if known else None, coordinator_epoch)


def _invalid(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, reason)


def _read_record(data: bytes, position: int, header: BatchHeader) -> tuple[Record, int]:
    size, position = read_varint(data, position)
    end = position + size
    if size < 0 or end > len(data):
        raise ValueError(f"{size} bytes announced, but {len(data) - position} are left")
    position += 1  # attributes: none are defined
    timestamp_delta, position = read_varint(data, position)
    offset_delta, position = read_varint(data, position)
    if not _INT32_MIN <= offset_delta <= _INT32_MAX:
        raise ValueError(f"invalid offset delta {offset_delta}")
    key, position = _read_bytes(data, position, end)
    value, position = _read_bytes(data, position, end)
    header_count, position = read_varint(data, position)
    if not 0 <= header_count <= end - position:  # each takes two bytes or more
        raise ValueError(f"{header_count} headers in {end - position} bytes")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(header_count):
        name, position = _read_bytes(data, position, end)
        if name is None:
            raise ValueError("a header without a key")
        header_value, position = _read_bytes(data, position, end)
        headers.append((name.decode("utf-8", "surrogateescape"), header_value))
    if position != end:
        raise ValueError(f"its length is off by {end - position} bytes")
    timestamp = header.max_timestamp if header.is_log_append_time else header.base_timestamp + timestamp_delta
    return Record(key, value, timestamp, tuple(headers), header.base_offset + offset_delta), end


def _read_bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_varint(data, position)
    if length < 0:
        if length != -1:
            raise ValueError(f"invalid length {length}")
        return None, position
    stop = position + length
    if stop > end:
        raise ValueError(f"{length} bytes announced, but {end - position} are left")
    return data[position:stop], stop


def _encode_record(record: Record, timestamp_delta: int, offset_delta: int) -> bytes:
    body = bytearray(1)
    body += varint(timestamp_delta)
    body += varint(offset_delta)
    _append_bytes(body, record.key)
    _append_bytes(body, record.value)
    body += varint(len(record.headers))
    for name, value in record.headers:
        _append_bytes(body, name.encode("utf-8", "surrogateescape"))
        _append_bytes(body, value)
    return varint(len(body)) + bytes(body)


def _append_bytes(body: bytearray, value: bytes | None) -> None:
    if value is None:
        body += varint(-1)
    else:
        body += varint(len(value))
        body += value
