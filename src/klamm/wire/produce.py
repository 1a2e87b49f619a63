"""Produce, versions 0 to 8, hand-packed: record batches stay views into the frame, nothing is copied on the way in."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.wire.cursor import INT32, INT64, Cursor, nullable_string, string
from klamm.wire.errors import ProtocolError

FIRST_WITH_TRANSACTIONAL_ID: Final = 3
FIRST_WITH_RECORD_ERRORS: Final = 8

_ACKS_TIMEOUT = struct.Struct(">hi")
_PARTITION = struct.Struct(">ihq")
_TOPIC_BYTES_MIN = 6
_PARTITION_BYTES_MIN = 8
_EMPTY_PARTITIONS_FREE = 1_000
_BYTES_PER_PARTITION = 64
"""On average, beyond the first thousand: a batch has 61 bytes or more, and millions of partitions without one would
cost memory."""


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    entries: list[tuple[TopicPartition, memoryview]]
    """Records as they came: empty where the client sent null. A partition named twice: the last one counts."""


class ProduceResult(NamedTuple):
    partition: TopicPartition
    error: ErrorCode
    base_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1
    message: str | None = None


def decode_request(version: int, body: memoryview) -> ProduceRequest:
    cursor = Cursor(body)
    transactional_id = cursor.nullable_string() if version >= FIRST_WITH_TRANSACTIONAL_ID else None
    acks, timeout_ms = cursor.unpack(_ACKS_TIMEOUT)
    entries: dict[TopicPartition, memoryview] = {}
    entries_max = _EMPTY_PARTITIONS_FREE + len(body) // _BYTES_PER_PARTITION
    for _ in range(cursor.count(_TOPIC_BYTES_MIN)):
        topic = cursor.string()
        for _ in range(cursor.count(_PARTITION_BYTES_MIN)):
            partition = cursor.int32()
            records = cursor.nullable_bytes()
            entries[TopicPartition(topic, partition)] = records if records is not None else body[:0]
            if len(entries) > entries_max:
                raise ProtocolError(f"more than {entries_max} partitions in {len(body)} bytes")
    return ProduceRequest(transactional_id, acks, timeout_ms, list(entries.items()))


def encode_response(version: int, results: Iterable[ProduceResult], throttle_ms: int = 0) -> list[bytes]:
    topics = [(topic, list(group)) for topic, group in groupby(results, key=lambda result: result.partition.topic)]
    chunks = [INT32.pack(len(topics))]
    for topic, group in topics:
        chunks += [string(topic), INT32.pack(len(group))]
        chunks += [_encode_partition(version, result) for result in group]
    if version >= 1:
        chunks.append(INT32.pack(throttle_ms))
    return [b"".join(chunks)]


def _encode_partition(version: int, result: ProduceResult) -> bytes:
    error = result.error
    if error is ErrorCode.KAFKA_STORAGE_ERROR and version < 4:
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER  # older clients do not know it, and act right on this one
    entry = _PARTITION.pack(result.partition.partition, error, result.base_offset)
    if version >= 2:
        entry += INT64.pack(result.log_append_time)
    if version >= 5:
        entry += INT64.pack(result.log_start_offset)
    if version >= FIRST_WITH_RECORD_ERRORS:
        entry += INT32.pack(0) + nullable_string(result.message)
    return entry


def encode_request(
    version: int, *, acks: int, timeout_ms: int, entries: Sequence[tuple[TopicPartition, bytes]]
) -> list[bytes]:
    """A client's side, for benchmarks and tests: entries grouped by topic."""
    chunks = [nullable_string(None)] if version >= FIRST_WITH_TRANSACTIONAL_ID else []
    topics = [(topic, list(group)) for topic, group in groupby(entries, key=lambda entry: entry[0].topic)]
    chunks += [_ACKS_TIMEOUT.pack(acks, timeout_ms), INT32.pack(len(topics))]
    for topic, group in topics:
        chunks += [string(topic), INT32.pack(len(group))]
        for partition, records in group:
            chunks += [INT32.pack(partition.partition), INT32.pack(len(records)), records]
    return chunks
