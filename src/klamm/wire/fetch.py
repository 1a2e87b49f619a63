"""Fetch, versions 4 to 11, packed by hand in both directions: records leave as chunks of their own, never joined.

Consumers use all of these versions; followers use 11. A broker may decline fetch sessions (KIP-227): the answer's
session id is 0, and every request is a full one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from klamm.model.errors import ErrorCode
from klamm.model.ids import NO_EPOCH, TopicPartition
from klamm.model.ports import Buffer
from klamm.wire.by_topic import by_topic
from klamm.wire.cursor import INT16, INT32, INT64, Cursor, string
from klamm.wire.errors import error_of

FOLLOWER_VERSION: Final = 11

_WAIT = struct.Struct(">iiii")
_EPOCH_OFFSET = struct.Struct(">iq")
_PARTITION_HEAD = struct.Struct(">ihqq")
_ABORTED = struct.Struct(">qq")
_TOPIC_BYTES_MIN = 6
_PARTITION_BYTES_MIN = 16


class FetchPartition(NamedTuple):
    """One partition of a request."""

    partition: TopicPartition
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = NO_EPOCH
    log_start_offset: int = -1
    """The follower's; -1 from consumers."""


class FetchRequest(NamedTuple):
    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    read_committed: bool
    session_id: int
    session_epoch: int
    partitions: list[FetchPartition]
    rack_id: str


class FetchResult(NamedTuple):
    """One partition of an answer."""

    partition: TopicPartition
    error: ErrorCode
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None
    """(producer id, first offset) of aborted transactions. None unless the reader asked for committed records only; an
    empty list means that there are none."""
    records: Buffer = b""


def decode_request(version: int, body: memoryview) -> FetchRequest:
    cursor = Cursor(body)
    replica_id, max_wait_ms, min_bytes, max_bytes = cursor.unpack(_WAIT)
    read_committed = bool(cursor.take(1)[0])
    session_id, session_epoch = (cursor.int32(), cursor.int32()) if version >= 7 else (0, -1)
    partitions: list[FetchPartition] = []
    for _ in range(cursor.count(_TOPIC_BYTES_MIN)):
        topic = cursor.string()
        for _ in range(cursor.count(_PARTITION_BYTES_MIN)):
            partition = TopicPartition(topic, cursor.int32())
            epoch = cursor.int32() if version >= 9 else NO_EPOCH
            offset = cursor.int64()
            log_start = cursor.int64() if version >= 5 else -1
            partitions.append(FetchPartition(partition, offset, cursor.int32(), epoch, log_start))
    if version >= 7:
        _skip_forgotten(cursor)
    rack_id = cursor.string() if version >= 11 else ""
    return FetchRequest(
        replica_id, max_wait_ms, min_bytes, max_bytes, read_committed, session_id, session_epoch, partitions, rack_id
    )


def _skip_forgotten(cursor: Cursor) -> None:
    """Skips the partitions that leave a session: this broker has no sessions."""
    for _ in range(cursor.count(_TOPIC_BYTES_MIN)):
        cursor.string()
        cursor.take(INT32.size * cursor.count(INT32.size))


def encode_response(
    version: int, results: Iterable[FetchResult], *, throttle_ms: int = 0, error: ErrorCode = ErrorCode.NONE
) -> list[Buffer]:
    topics = by_topic(results, attrgetter("partition"))
    head = INT32.pack(throttle_ms)
    if version >= 7:
        head += INT16.pack(error) + INT32.pack(0)  # session id 0: no session
    chunks: list[Buffer] = []
    head += INT32.pack(len(topics))
    for topic, group in topics.items():
        head += string(topic) + INT32.pack(len(group))
        for result in group:
            head += _encode_partition(version, result)
            if len(result.records):
                chunks += [head, result.records]
                head = b""
    return [*chunks, head] if head else chunks


def _encode_partition(version: int, result: FetchResult) -> bytes:
    error = result.error
    if error is ErrorCode.KAFKA_STORAGE_ERROR and version < 6:
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    entry = _PARTITION_HEAD.pack(result.partition.partition, error, result.high_watermark, result.last_stable_offset)
    if version >= 5:
        entry += INT64.pack(result.log_start_offset)
    if result.aborted is None:
        entry += INT32.pack(-1)
    else:
        entry += INT32.pack(len(result.aborted)) + b"".join([_ABORTED.pack(*pair) for pair in result.aborted])
    if version >= 11:
        entry += INT32.pack(-1)  # no preferred read replica
    return entry + INT32.pack(len(result.records))


def encode_follower_request(
    *, replica_id: int, max_wait_ms: int, min_bytes: int, max_bytes: int, partitions: Sequence[FetchPartition]
) -> list[bytes]:
    """Version 11, without a session."""
    topics = by_topic(partitions, attrgetter("partition"))
    chunks = [
        _WAIT.pack(replica_id, max_wait_ms, min_bytes, max_bytes),
        b"\x00",  # read_uncommitted: a follower copies everything
        _EPOCHLESS_SESSION,
        INT32.pack(len(topics)),
    ]
    for topic, group in topics.items():
        chunks += [string(topic), INT32.pack(len(group))]
        chunks += [
            _FOLLOWER_PARTITION.pack(
                entry.partition.partition,
                entry.current_leader_epoch,
                entry.fetch_offset,
                entry.log_start_offset,
                entry.max_bytes,
            )
            for entry in group
        ]
    chunks += [INT32.pack(0), string("")]
    return chunks


_EPOCHLESS_SESSION: Final = INT32.pack(0) + INT32.pack(-1)
_FOLLOWER_PARTITION = struct.Struct(">iiqqi")


def decode_follower_response(body: memoryview) -> tuple[ErrorCode, list[FetchResult]]:
    """Version 11: the error of the whole request and each partition's answer, with records as views into the frame."""
    cursor = Cursor(body)
    cursor.int32()  # throttle
    error = error_of(cursor.int16())
    cursor.int32()  # session
    results: list[FetchResult] = []
    for _ in range(cursor.count(_TOPIC_BYTES_MIN)):
        topic = cursor.string()
        for _ in range(cursor.count(_PARTITION_HEAD.size)):
            index, code, high_watermark, last_stable = cursor.unpack(_PARTITION_HEAD)
            log_start = cursor.int64()
            aborted = cursor.int32()
            if aborted > 0:
                cursor.take(_ABORTED.size * aborted)
            cursor.int32()  # preferred read replica
            records = cursor.nullable_bytes()
            results.append(
                FetchResult(
                    TopicPartition(topic, index),
                    error_of(code),
                    high_watermark,
                    last_stable,
                    log_start,
                    None,
                    records if records is not None else b"",
                )
            )
    return error, results
