"""Fetch, versions 0 to 11, packed by hand in both directions: records leave as chunks of their own, never joined.

Consumers use all of these versions; followers use 11.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

from klamm.model.errors import ErrorCode
from klamm.model.ids import NO_EPOCH, TopicPartition
from klamm.model.ports import Buffer
from klamm.model.settings import INT_MAX
from klamm.wire.by_topic import by_topic
from klamm.wire.cursor import INT16, INT32, INT64, Cursor, string
from klamm.wire.errors import ProtocolError, error_of
from klamm.wire.slices import finish

FOLLOWER_VERSION: Final = 11
FIRST_WITH_BATCHES: Final = 4
"""Older versions carry message formats 0 and 1."""

_WAIT = struct.Struct(">iiii")
_OLD_WAIT = struct.Struct(">iii")
"""Below version 3, only partitions have a limit."""
_EPOCH_OFFSET = struct.Struct(">iq")
_PARTITION_HEAD = struct.Struct(">ihqq")
_OLD_PARTITION = struct.Struct(">ihqi")
"""Below version 4, with the size of the records."""
_ABORTED = struct.Struct(">qq")
_TOPIC_BYTES_MIN = 6
_PARTITION_LAYOUTS = (struct.Struct(">iqi"), struct.Struct(">iqqi"), struct.Struct(">iiqqi"))
"""Below version 5, below 9, and from 9 on."""

ENTRIES_PER_SLICE: Final = 2_000
GROUPED_PER_SLICE: Final = 20_000
ENTRIES_MAX: Final = 200_000
"""No broker has so many partitions, and each entry takes ten times its size when it is decoded."""


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
    forgotten: list[TopicPartition]
    """The partitions that leave the session (KIP-227)."""
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
    preferred_read_replica: int = -1
    """The broker that the consumer should read from instead (KIP-392)."""


def decode_request(version: int, body: memoryview) -> FetchRequest:
    return finish(decode_in_slices(version, body))


def decode_in_slices(version: int, body: memoryview) -> Generator[None, None, FetchRequest]:
    """Yields after each slice of a wide request. If a partition is named twice, the last entry counts."""
    cursor = Cursor(body)
    if version >= 3:
        replica_id, max_wait_ms, min_bytes, max_bytes = cursor.unpack(_WAIT)
    else:
        (replica_id, max_wait_ms, min_bytes), max_bytes = cursor.unpack(_OLD_WAIT), INT_MAX
    read_committed = version >= FIRST_WITH_BATCHES and bool(cursor.take(1)[0])
    session_id, session_epoch = (cursor.int32(), cursor.int32()) if version >= 7 else (0, -1)
    has_epoch, has_log_start = version >= 9, version >= 5
    layout = _PARTITION_LAYOUTS[has_log_start + has_epoch]
    partitions: dict[TopicPartition, FetchPartition] = {}
    seen = 0
    for _ in range(cursor.count(_TOPIC_BYTES_MIN)):
        if seen >= ENTRIES_PER_SLICE:  # topics without partitions count too
            seen = 0
            yield
        topic = cursor.string()
        count = cursor.count(layout.size)
        for start in range(0, count, ENTRIES_PER_SLICE):
            entries = min(ENTRIES_PER_SLICE, count - start)
            for fields in layout.iter_unpack(cursor.take(entries * layout.size)):
                name = TopicPartition(topic, fields[0])
                if has_epoch:
                    _, epoch, offset, log_start, size = fields
                elif has_log_start:
                    (_, offset, log_start, size), epoch = fields, NO_EPOCH
                else:
                    (_, offset, size), log_start, epoch = fields, -1, NO_EPOCH
                partitions[name] = FetchPartition(name, offset, size, epoch, log_start)
            seen += entries
            if seen >= ENTRIES_PER_SLICE:
                seen = 0
                if len(partitions) > ENTRIES_MAX:
                    raise ProtocolError(f"a fetch of more than {ENTRIES_MAX} partitions")
                yield
        seen += 1
    forgotten = (yield from _decode_forgotten(cursor)) if version >= 7 else []
    rack_id = cursor.string() if version >= 11 else ""
    return FetchRequest(
        replica_id,
        max_wait_ms,
        min_bytes,
        max_bytes,
        read_committed,
        session_id,
        session_epoch,
        list(partitions.values()),
        forgotten,
        rack_id,
    )


def _decode_forgotten(cursor: Cursor) -> Generator[None, None, list[TopicPartition]]:
    forgotten: list[TopicPartition] = []
    seen = 0
    for _ in range(cursor.count(_TOPIC_BYTES_MIN)):
        topic = cursor.string()
        left = cursor.count(INT32.size)
        if len(forgotten) + left > ENTRIES_MAX:
            raise ProtocolError(f"a fetch that forgets more than {ENTRIES_MAX} partitions")
        seen += 1
        while left or seen >= ENTRIES_PER_SLICE:
            some = min(left, ENTRIES_PER_SLICE)
            numbers = cursor.take(some * INT32.size)
            forgotten += [TopicPartition(topic, number) for (number,) in INT32.iter_unpack(numbers)]
            left -= some
            seen += some
            if seen >= ENTRIES_PER_SLICE:
                seen = 0
                yield
    return forgotten


def encode_response(
    version: int,
    results: Iterable[FetchResult],
    *,
    throttle_ms: int = 0,
    error: ErrorCode = ErrorCode.NONE,
    session_id: int = 0,
) -> list[Buffer]:
    """Session id 0 means no session."""
    head = encode_head(version, throttle_ms=throttle_ms, error=error, session_id=session_id)
    return [head, *finish(encode_in_slices(version, results))]


def encode_head(version: int, *, throttle_ms: int = 0, error: ErrorCode = ErrorCode.NONE, session_id: int = 0) -> bytes:
    head = INT32.pack(throttle_ms) if version >= 1 else b""
    if version >= 7:
        head += INT16.pack(error) + INT32.pack(session_id)
    return head


def encode_in_slices(version: int, results: Iterable[FetchResult]) -> Generator[None, None, list[Buffer]]:
    """All topics of a response. Yields after each slice of a wide one."""
    topics: dict[str, list[FetchResult]] = {}
    for number, result in enumerate(results, 1):
        topics.setdefault(result.partition.topic, []).append(result)
        if number % GROUPED_PER_SLICE == 0:
            yield
    chunks: list[Buffer] = []
    small = [INT32.pack(len(topics))]
    """What is to be joined with its neighbours."""
    seen = 0
    for topic, group in topics.items():
        small += (string(topic), INT32.pack(len(group)))
        for result in group:
            small.append(_encode_partition(version, result))
            if len(result.records):
                chunks += (b"".join(small), result.records)
                small = []
            seen += 1
            if seen >= ENTRIES_PER_SLICE:
                seen = 0
                yield
    if small:
        chunks.append(b"".join(small))
    return chunks


def _encode_partition(version: int, result: FetchResult) -> bytes:
    error = result.error
    if error is ErrorCode.KAFKA_STORAGE_ERROR and version < 6:
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    if version < FIRST_WITH_BATCHES:
        return _OLD_PARTITION.pack(result.partition.partition, error, result.high_watermark, len(result.records))
    entry = _PARTITION_HEAD.pack(result.partition.partition, error, result.high_watermark, result.last_stable_offset)
    if version >= 5:
        entry += INT64.pack(result.log_start_offset)
    if result.aborted is None:
        entry += INT32.pack(-1)
    else:
        entry += INT32.pack(len(result.aborted)) + b"".join([_ABORTED.pack(*pair) for pair in result.aborted])
    if version >= 11:
        entry += INT32.pack(result.preferred_read_replica)
    return entry + INT32.pack(len(result.records))


def encode_follower_request(
    *,
    replica_id: int,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    partitions: Sequence[FetchPartition],
    forgotten: Sequence[TopicPartition] = (),
    session_id: int = 0,
    session_epoch: int = -1,
) -> list[bytes]:
    """Version 11. The order is kept, so a topic may come up more than once."""
    topics = [(topic, list(group)) for topic, group in groupby(partitions, attrgetter("partition.topic"))]
    chunks = [
        _WAIT.pack(replica_id, max_wait_ms, min_bytes, max_bytes),
        b"\x00",  # read_uncommitted: a follower copies everything
        INT32.pack(session_id) + INT32.pack(session_epoch),
        INT32.pack(len(topics)),
    ]
    for topic, group in topics:
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
    gone = by_topic(forgotten, lambda name: name)
    chunks.append(INT32.pack(len(gone)))
    for topic, names in gone.items():
        chunks += [string(topic), INT32.pack(len(names)), *(INT32.pack(name.partition) for name in names)]
    chunks.append(string(""))
    return chunks


_FOLLOWER_PARTITION = struct.Struct(">iiqqi")


def decode_follower_response(body: memoryview) -> tuple[ErrorCode, int, list[FetchResult]]:
    """Version 11: the error of the whole request, the session, and each partition's answer, with records as views into
    the frame."""
    cursor = Cursor(body)
    cursor.int32()  # throttle
    error = error_of(cursor.int16())
    session_id = cursor.int32()
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
    return error, session_id, results
