"""Record batches of format v2 (KIP-98): the 61-byte header, its checks, and patches in place.

A batch stays opaque bytes on its way from producer to disk to consumer (design D6): only its header is read. Base
offset and leader epoch lie outside the checksum, so the leader assigns them without touching the rest; new timestamps
need a new checksum. `klamm.wire.records` handles the records inside. Formats 0 and 1 are refused: no client newer than
Kafka 0.10 writes them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ports import Buffer
from klamm.wire.checksums import crc32c

HEADER_BYTES: Final = 61
LOG_OVERHEAD_BYTES: Final = 12
"""The size of base offset and length, which `length` does not include."""
LENGTH_MIN_ANY_FORMAT: Final = 14
LENGTH_MIN: Final = HEADER_BYTES - LOG_OVERHEAD_BYTES
MAGIC_POSITION: Final = 16
CRC_POSITION: Final = 17
CRC_START: Final = 21
MAX_TIMESTAMP_POSITION: Final = 35
MAGIC: Final = 2
SEQUENCE_MODULUS: Final = 2**31
NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20

_HEADER = struct.Struct(">qiibIhiqqqhii")
_OFFSET_AND_LENGTH = struct.Struct(">qi")
_OFFSET_LENGTH_EPOCH = struct.Struct(">qii")
_CRC_AND_ATTRIBUTES = struct.Struct(">Ih")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_TIMESTAMP = struct.Struct(">q")


class BatchHeader(NamedTuple):
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not used
    """Number of records; after a compaction, fewer than the offsets that the batch covers."""

    @property
    def size_in_bytes(self) -> int:
        return self.length + LOG_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        """Computed from the offsets, not from the count: compaction removes records but not their sequence numbers."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return next_sequence(self.base_sequence, self.last_offset_delta)


def next_sequence(sequence: int, increment: int) -> int:
    """Sequence numbers wrap from 2**31 - 1 to 0, never to a negative number.

    >>> next_sequence(2**31 - 1, 1), next_sequence(2**31 - 2, 1)
    (0, 2147483647)
    """
    return (sequence + increment) % SEQUENCE_MODULUS


def corrupt(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, reason)


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`. Raises KafkaError if it is not a v2 header; does not look at the bytes after it."""
    if len(buffer) - position < HEADER_BYTES:
        _refuse_foreign_magic(buffer, position)
        raise corrupt(f"{len(buffer) - position} bytes are too few for a batch header")
    header = BatchHeader._make(_HEADER.unpack_from(buffer, position))
    if header.magic != MAGIC:
        raise _wrong_magic(header.magic)
    if header.length < LENGTH_MIN:
        raise corrupt(f"invalid batch length {header.length} at offset {header.base_offset}")
    return header


def iter_batches(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each whole batch. The iteration ends at a torn batch, which any bounded read may have at
    its end; a malformed one raises KafkaError (CORRUPT_MESSAGE)."""
    position, end = 0, len(buffer)
    while end - position >= LOG_OVERHEAD_BYTES:
        base_offset, length = _OFFSET_AND_LENGTH.unpack_from(buffer, position)
        if length < LENGTH_MIN_ANY_FORMAT:
            raise corrupt(f"invalid batch length {length} at offset {base_offset}")
        size = length + LOG_OVERHEAD_BYTES
        if size > end - position:
            _refuse_foreign_magic(buffer, position)
            return
        if size < HEADER_BYTES:
            _refuse_foreign_magic(buffer, position)
            raise corrupt(f"invalid batch length {length} at offset {base_offset}")
        yield position, read_header(buffer, position)
        position += size


def whole_batches_bytes(buffer: Buffer) -> int:
    """The number of leading bytes that are whole batches: what a follower may append from a bounded read."""
    end = 0
    for position, header in iter_batches(buffer):
        end = position + header.size_in_bytes
    return end


def has_valid_crc(buffer: Buffer, position: int, header: BatchHeader) -> bool:
    """Also False if the buffer ends inside the batch."""
    end = position + header.size_in_bytes
    return end <= len(buffer) and crc32c(memoryview(buffer)[position + CRC_START : end]) == header.crc


def check_crc(buffer: Buffer, position: int, header: BatchHeader) -> None:
    if not has_valid_crc(buffer, position, header):
        raise corrupt(f"the checksum of the batch at offset {header.base_offset} does not match")


def patch_offset_and_epoch(
    buffer: bytearray | memoryview, position: int, header: BatchHeader, *, base_offset: int, leader_epoch: int
) -> None:
    """Set what the leader assigns on append. Both fields are outside the checksum."""
    _OFFSET_LENGTH_EPOCH.pack_into(buffer, position, base_offset, header.length, leader_epoch)


def patch_max_timestamp(
    buffer: bytearray | memoryview, position: int, header: BatchHeader, max_timestamp: int, *, log_append_time: bool
) -> None:
    """Set the batch's largest timestamp, and whether it applies to every record (LogAppendTime); update the checksum.

    Base timestamp and deltas stay as the producer wrote them.
    """
    attributes = header.attributes | LOG_APPEND_TIME if log_append_time else header.attributes & ~LOG_APPEND_TIME
    _ATTRIBUTES.pack_into(buffer, position + CRC_START, attributes)
    _TIMESTAMP.pack_into(buffer, position + MAX_TIMESTAMP_POSITION, max_timestamp)
    checked = memoryview(buffer)[position + CRC_START : position + header.size_in_bytes]
    _CRC.pack_into(buffer, position + CRC_POSITION, crc32c(checked))


def pack_batch(header: BatchHeader, payload: Buffer) -> bytes:
    """Header and payload as bytes. `length`, `magic` and `crc` of the header are ignored and computed."""
    batch = bytearray(HEADER_BYTES + len(payload))
    complete = header._replace(length=LENGTH_MIN + len(payload), magic=MAGIC, crc=0)
    _HEADER.pack_into(batch, 0, *complete)
    batch[HEADER_BYTES:] = payload
    _CRC.pack_into(batch, CRC_POSITION, crc32c(memoryview(batch)[CRC_START:]))
    return bytes(batch)


def _refuse_foreign_magic(buffer: Buffer, position: int) -> None:
    if len(buffer) - position > MAGIC_POSITION and buffer[position + MAGIC_POSITION] != MAGIC:
        raise _wrong_magic(buffer[position + MAGIC_POSITION])


def _wrong_magic(magic: int) -> KafkaError:
    if magic in (0, 1):
        return KafkaError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, f"message format {magic} is not supported, only format {MAGIC}"
        )
    return corrupt(f"unknown message format {magic}")
