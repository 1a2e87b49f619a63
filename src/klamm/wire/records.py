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
    "MalformedRecord",
    "Record",
    "build_batch",
    "build_end_transaction_marker",
    "check_crc",
    "check_records",
    "end_transaction_of",
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
_NULL: Final = 1
"""A length of -1 in zigzag."""
_TWO_BYTES: Final = 1 << 14
"""Numbers below it take at most two bytes."""
_CONTINUED: Final = bytes(range(0x80, 0x100))
"""The bytes of a varint that are not its last."""
_SHORT_DELTAS: Final = bytes(range(0, 0x80, 2))
_LONG_DELTAS: Final = (
    bytes(index << 1 & 0x7F | 0x80 for index in range(_TWO_BYTES >> 1)),
    bytes(index >> 6 for index in range(_TWO_BYTES >> 1)),
)
"""The bytes of the offset delta by the index of a record, in one byte or in two."""
ALIKE_MIN: Final = 8
"""Fewer records are stepped over one by one."""
STEPS_BETWEEN_LOOKS: Final = 64
"""Records of different sizes are stepped over, this many before the next look for alike ones."""
_ONE_BYTE: Final[tuple[int | None, ...]] = (*((byte >> 1) ^ -(byte & 1) for byte in range(0x80)), *[None] * 0x80)
"""The number that a byte is; None if more bytes follow."""
_BEFORE_DELTA_MAX: Final = 12
"""Bytes of size, attributes and timestamp, if none of them is too long."""

Headers = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    key: bytes | None
    value: bytes | None
    timestamp: int = NO_TIMESTAMP
    headers: Headers = ()
    offset: int = NEXT_OFFSET


class MalformedRecord(KafkaError):
    """One record of a batch cannot be read, or is not where it must be."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, reason)
        self.index = index


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
    data = _payload(batch, header, max_bytes)
    position = 0
    for index in range(header.count):
        try:
            record, position = _read_record(data, position, header)
        except (IndexError, ValueError) as error:
            raise _malformed(index, position, error) from error
        yield record
    if position != len(data):
        raise _invalid(f"{len(data) - position} bytes after the last record")


def check_records(batch: Buffer, header: BatchHeader, *, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> None:
    """Raise unless `iter_records` can read the whole batch and its offsets rise by one from the base offset.

    Every batch of every client passes here, so records of the common form (no headers, lengths of two bytes at most)
    are stepped over in place, and those of one size all at once. All others are read.
    """
    data = _payload(batch, header, max_bytes)
    start = index = 0
    try:
        while index < header.count:
            before = index
            start, index = _step_over_alike(data, start, index, header.count)
            if index > before:
                continue
            until = min(index + STEPS_BETWEEN_LOOKS, header.count)
            start, index = _step_over(data, start, index, until)
            if index < until:
                start = _read_in_order(data, start, header, index)
                index += 1
    except (IndexError, ValueError) as error:
        raise _malformed(index, start, error) from error
    if start != len(data):
        raise _invalid(f"{len(data) - start} bytes after the last record")


def _step_over_alike(data: bytes, start: int, first: int, count: int) -> tuple[int, int]:
    """Step over neighbours that have the size and the lengths of the first one: compare columns of bytes, not records.

    Many producers send records of one size, and a column costs as much as a record. Returns as `_step_over`, with the
    index `first` if the neighbours differ.
    """
    if count - first < ALIKE_MIN:
        return start, first
    end, index = _step_over(data, start, first, first + 1)
    stride = end - start
    if index == first or data[end : end + 2] != data[start : start + 2]:
        return start, first
    timestamp_at = _end_of_varint(data, start) + 1
    delta_at = _end_of_varint(data, timestamp_at)
    key_at = _end_of_varint(data, delta_at)
    key_end = _end_of_varint(data, key_at)
    value_at = key_end + _length(data, key_at, key_end)
    value_end = _end_of_varint(data, value_at)
    fixed = (*range(start, timestamp_at - 1), *range(key_at, key_end), *range(value_at, value_end), end - 1)
    is_short = key_at - delta_at == 1
    deltas = (_SHORT_DELTAS,) if is_short else _LONG_DELTAS
    number = min(count - first, (len(data) - start) // stride, len(deltas[0]) - first)
    while number >= ALIKE_MIN:
        stop = start + number * stride
        if (
            all(data[at:stop:stride] == data[at : at + 1] * number for at in fixed)
            and all(
                data[delta_at + place : stop : stride] == column[first : first + number]
                for place, column in enumerate(deltas)
            )
            and data[delta_at - 1 : stop : stride].isascii()
            and not any(data[at:stop:stride].translate(None, _CONTINUED) for at in range(timestamp_at, delta_at - 1))
        ):
            return stop, first + number
        number //= 2
    return start, first


def _end_of_varint(data: bytes, at: int) -> int:
    while data[at] > 0x7F:
        at += 1
    return at + 1


def _length(data: bytes, at: int, end: int) -> int:
    """The number in a varint of one or two bytes, as a length: null has none."""
    zigzag = data[at] if end - at == 1 else data[at] & 0x7F | data[at + 1] << 7
    return 0 if zigzag == _NULL else zigzag >> 1


def _step_over(data: bytes, start: int, first: int, count: int) -> tuple[int, int]:
    """Step over records of the common form, from the one with index `first`, which begins at `start`. Returns where the
    next one begins, and its index."""
    index = first
    try:
        for index in range(first, count):
            size = data[start]
            at = start + 2
            if size > 0x7F:
                size = size & 0x7F | data[at - 1] << 7
                at += 1
            end = at - 1 + (size >> 1)
            while data[at] > 0x7F:  # the timestamp
                at += 1
            delta_at = at + 1
            delta = data[delta_at]
            at += 2
            if delta > 0x7F:
                delta = delta & 0x7F | data[at] << 7
                at += 1
            key = data[at]
            at += 1
            if key != _NULL:
                if key > 0x7F:
                    key = key & 0x7F | data[at] << 7
                    at += 1
                at += key >> 1
            value = data[at]
            at += 1
            if value != _NULL:
                if value > 0x7F:
                    value = value & 0x7F | data[at] << 7
                    at += 1
                at += value >> 1
            if not (
                at + 1 == end <= len(data)
                and delta == index << 1
                and data[at] == 0  # no headers
                and not size & 1  # it is not negative
                and size < _TWO_BYTES > delta
                and (key == _NULL or (not key & 1 and key < _TWO_BYTES))
                and (value == _NULL or (not value & 1 and value < _TWO_BYTES))
                and delta_at - start < _BEFORE_DELTA_MAX
            ):
                return start, index
            start = end
    except IndexError:  # it ends here, or has a length of three bytes
        return start, index
    return start, count


def _read_in_order(data: bytes, position: int, header: BatchHeader, index: int) -> int:
    record, end = _read_record(data, position, header)
    if record.offset != header.base_offset + index:
        raise ValueError(f"offset delta {record.offset - header.base_offset} instead of {index}")
    return end


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
    if record is None:
        raise _invalid("a control batch without a control record")
    return end_transaction_of(record)


def end_transaction_of(record: Record) -> EndTransactionMarker:
    """The marker in the record of a control batch."""
    if record.key is None or record.value is None:
        raise _invalid("a control record without a key or value")
    try:
        _, type_id = _TYPE_KEY.unpack_from(record.key)
        _, coordinator_epoch = _END_VALUE.unpack_from(record.value)
    except struct.error as error:
        raise _invalid(f"a malformed control record: {error}") from error
    known = type_id in (ControlType.ABORT, ControlType.COMMIT)
    return EndTransactionMarker(ControlType(type_id) if known else None, coordinator_epoch)


def _invalid(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, reason)


def _malformed(index: int, position: int, error: Exception) -> MalformedRecord:
    return MalformedRecord(index, f"record {index}, at byte {position}, is malformed: {error}")


def _payload(batch: Buffer, header: BatchHeader, max_bytes: int) -> bytes:
    data = decompress(header.codec, memoryview(batch)[HEADER_BYTES : header.size_in_bytes], max_bytes)
    return data if isinstance(data, bytes) else bytes(data)  # indexing bytes is faster than indexing a view


def _read_record(data: bytes, position: int, header: BatchHeader) -> tuple[Record, int]:
    """Most numbers take one byte, so they are looked up instead of calling `read_varint`."""
    size = _ONE_BYTE[data[position]]
    position += 1
    if size is None:
        size, position = read_varint(data, position - 1)
    end = position + size
    if size < 0 or end > len(data):
        raise ValueError(f"{size} bytes announced, but {len(data) - position} are left")
    timestamp_delta = _ONE_BYTE[data[position + 1]]  # after the attributes: none are defined
    position += 2
    if timestamp_delta is None:
        timestamp_delta, position = read_varint(data, position - 1)
    offset_delta = _ONE_BYTE[data[position]]
    position += 1
    if offset_delta is None:
        offset_delta, position = read_varint(data, position - 1)
        if not _INT32_MIN <= offset_delta <= _INT32_MAX:
            raise ValueError(f"invalid offset delta {offset_delta}")
    key, position = _read_bytes(data, position, end)
    value, position = _read_bytes(data, position, end)
    headers: Headers = ()
    if data[position]:
        headers, position = _read_headers(data, position, end)
    else:
        position += 1
    if position != end:
        raise ValueError(f"its length is off by {end - position} bytes")
    timestamp = header.max_timestamp if header.is_log_append_time else header.base_timestamp + timestamp_delta
    return Record(key, value, timestamp, headers, header.base_offset + offset_delta), end


def _read_headers(data: bytes, position: int, end: int) -> tuple[Headers, int]:
    count, position = read_varint(data, position)
    if not 0 <= count <= end - position:  # each takes two bytes or more
        raise ValueError(f"{count} headers in {end - position} bytes")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, position = _read_bytes(data, position, end)
        if name is None:
            raise ValueError("a header without a key")
        value, position = _read_bytes(data, position, end)
        headers.append((name.decode("utf-8", "surrogateescape"), value))
    return tuple(headers), position


def _read_bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length = _ONE_BYTE[data[position]]
    position += 1
    if length is None:
        length, position = read_varint(data, position - 1)
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
