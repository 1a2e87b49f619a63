"""Produce, versions 0 to 8, packed by hand: record batches stay views into the frame, nothing is copied."""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable, Sequence
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple

from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.wire.batch import (
    CODEC_MASK,
    CRC_START,
    LENGTH_MIN_ANY_FORMAT,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_POSITION,
    TRANSACTIONAL,
    corrupt,
)
from klamm.wire.by_topic import by_topic
from klamm.wire.compression import Codec
from klamm.wire.cursor import INT32, INT64, Cursor, nullable_string, string
from klamm.wire.errors import ProtocolError
from klamm.wire.slices import finish

FIRST_WITH_TRANSACTIONAL_ID: Final = 3
FIRST_WITH_ZSTD: Final = 7
FIRST_WITH_RECORD_ERRORS: Final = 8
ATTRIBUTES_POSITION: Final = CRC_START + 1
"""The low byte of the attributes, which holds the codec."""

ENTRIES_PER_SLICE: Final = 2_000

_ACKS_TIMEOUT = struct.Struct(">hi")
_PARTITION = struct.Struct(">ihq")
_TOPIC_BYTES_MIN = 6
_PARTITION_BYTES_MIN = 8
_EMPTY_PARTITIONS_FREE = 1_000
_BYTES_PER_PARTITION = 64
"""The smallest allowed average size of a partition's entry beyond the first thousand: a batch has 61 bytes or more, and
millions of entries without one would cost memory."""


RECORD_ERRORS_MAX: Final = 1000
"""An answer lists at most this many invalid records of a partition: a batch may have a million, each with a reason."""


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    entries: list[tuple[TopicPartition, memoryview]]
    """Records as received, empty where the client sent null. If a partition is named twice, the last entry counts."""
    is_transactional: bool = False
    """Some batch belongs to a transaction."""


class ProduceResult(NamedTuple):
    partition: TopicPartition
    error: ErrorCode
    base_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1
    message: str | None = None
    record_errors: tuple[tuple[int, str], ...] = ()
    """(index in the batch, reason) of each invalid record. Clients see them from version 8 on."""


def decode_request(version: int, body: memoryview) -> ProduceRequest:
    return finish(decode_in_slices(version, body))


def decode_in_slices(version: int, body: memoryview) -> Generator[None, None, ProduceRequest]:
    """Yields after each slice of a wide request."""
    cursor = Cursor(body)
    transactional_id = cursor.nullable_string() if version >= FIRST_WITH_TRANSACTIONAL_ID else None
    acks, timeout_ms = cursor.unpack(_ACKS_TIMEOUT)
    entries: dict[TopicPartition, memoryview] = {}
    entries_max = _EMPTY_PARTITIONS_FREE + len(body) // _BYTES_PER_PARTITION
    seen, transactional = 0, False
    for _ in range(cursor.count(_TOPIC_BYTES_MIN)):
        if seen >= ENTRIES_PER_SLICE:  # topics without partitions count too
            seen = 0
            yield
        topic = cursor.string()
        for _ in range(cursor.count(_PARTITION_BYTES_MIN)):
            partition = cursor.int32()
            records = cursor.nullable_bytes()
            entries[TopicPartition(topic, partition)] = records if records is not None else body[:0]
            if records is not None and not transactional:
                transactional = yield from is_transactional(records)
            if len(entries) > entries_max:
                raise ProtocolError(f"more than {entries_max} partitions in {len(body)} bytes")
            seen += 1
            if seen >= ENTRIES_PER_SLICE:
                seen = 0
                yield
        seen += 1
    return ProduceRequest(transactional_id, acks, timeout_ms, list(entries.items()), transactional)


def is_transactional(records: memoryview) -> Generator[None, None, bool]:
    """Some batch of format 2 belongs to a transaction. Looks no further than the first batch that is torn. Yields after
    each slice: a frame may claim to hold millions of batches."""
    position = seen = 0
    while len(records) - position > ATTRIBUTES_POSITION:
        if records[position + MAGIC_POSITION] == MAGIC and records[position + ATTRIBUTES_POSITION] & TRANSACTIONAL:
            return True
        size = INT32.unpack_from(records, position + 8)[0] + LOG_OVERHEAD_BYTES
        if size <= LOG_OVERHEAD_BYTES:
            return False
        position += size
        seen += 1
        if seen % ENTRIES_PER_SLICE == 0:
            yield
    return False


def unfit(version: int, records: memoryview) -> KafkaError | None:
    """Why Kafka refuses a partition's records before it looks for the partition's log, or None. From version 3 they
    must be exactly one whole batch of format 2, and only from version 7 may it use zstd (KIP-110)."""
    if version < FIRST_WITH_TRANSACTIONAL_ID:
        return None
    end = len(records)
    size = _whole_batch(records, 0)
    if isinstance(size, KafkaError):
        return size
    magic = records[MAGIC_POSITION]
    if magic > MAGIC:
        return corrupt(f"unknown message format {magic}")
    if magic != MAGIC:
        return KafkaError(
            ErrorCode.INVALID_RECORD,
            f"Produce requests with version {version} may only contain batches of format 2, not {magic}",
        )
    if version < FIRST_WITH_ZSTD and records[ATTRIBUTES_POSITION] & CODEC_MASK == Codec.ZSTD:
        return KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"Produce requests with version {version} may not use zstd"
        )
    if size < end and not isinstance(_whole_batch(records, size), KafkaError):
        return KafkaError(ErrorCode.INVALID_RECORD, f"Produce requests with version {version} carry one batch each")
    return None


def _whole_batch(records: memoryview, position: int) -> int | KafkaError:
    """The size of a batch of any format, if all of it is there."""
    if len(records) - position > MAGIC_POSITION:
        size = INT32.unpack_from(records, position + 8)[0] + LOG_OVERHEAD_BYTES
        if size < LENGTH_MIN_ANY_FORMAT + LOG_OVERHEAD_BYTES:
            return corrupt(f"invalid batch size {size}")
        if size <= len(records) - position:
            return int(size)
    return KafkaError(ErrorCode.INVALID_RECORD, "no complete record batch")


def encode_response(version: int, results: Iterable[ProduceResult], throttle_ms: int = 0) -> list[bytes]:
    return finish(encode_in_slices(version, results, throttle_ms))


def encode_in_slices(
    version: int, results: Iterable[ProduceResult], throttle_ms: int = 0
) -> Generator[None, None, list[bytes]]:
    """Yields after each slice of a wide response."""
    topics = by_topic(results, attrgetter("partition"))
    chunks = [INT32.pack(len(topics))]
    seen = 0
    for topic, group in topics.items():
        chunks += [string(topic), INT32.pack(len(group))]
        for result in group:
            chunks.append(_encode_partition(version, result))
            seen += 1
            if seen % ENTRIES_PER_SLICE == 0:
                yield
    if version >= 1:
        chunks.append(INT32.pack(throttle_ms))
    return [b"".join(chunks)]


def _encode_partition(version: int, result: ProduceResult) -> bytes:
    error = result.error
    if error is ErrorCode.KAFKA_STORAGE_ERROR and version < 4:
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER  # older clients do not know it, and handle this one correctly
    entry = _PARTITION.pack(result.partition.partition, error, result.base_offset)
    if version >= 2:
        entry += INT64.pack(result.log_append_time)
    if version >= 5:
        entry += INT64.pack(result.log_start_offset)
    if version >= FIRST_WITH_RECORD_ERRORS:
        faults = result.record_errors[:RECORD_ERRORS_MAX]
        entry += INT32.pack(len(faults))
        for index, reason in faults:
            entry += INT32.pack(index) + nullable_string(reason)
        entry += nullable_string(result.message)
    return entry


def encode_request(
    version: int, *, acks: int, timeout_ms: int, entries: Sequence[tuple[TopicPartition, bytes]]
) -> list[bytes]:
    """The client's side, for benchmarks and tests."""
    chunks = [nullable_string(None)] if version >= FIRST_WITH_TRANSACTIONAL_ID else []
    topics = by_topic(entries, itemgetter(0))
    chunks += [_ACKS_TIMEOUT.pack(acks, timeout_ms), INT32.pack(len(topics))]
    for topic, group in topics.items():
        chunks += [string(topic), INT32.pack(len(group))]
        for partition, records in group:
            chunks += [INT32.pack(partition.partition), INT32.pack(len(records)), records]
    return chunks
