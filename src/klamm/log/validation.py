"""What a leader accepts from a client, a follower from its leader, and what both store (Kafka's LogValidator).

The leader checks in Kafka's order, because clients act on the error code: the size before anything expensive, then the
checksum, then the header, then that the records can be read. It builds the records only if the topic requires something
of them: a key (compaction), a bounded timestamp, another codec. Otherwise the producer's largest timestamp is trusted.
Base offset and leader epoch are written into a copy of the header; the records are never copied.

Batches are checked and prepared without the log, so that costly ones can be prepared off the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from itertools import islice
from typing import Final, NamedTuple

from klamm.log.log_results import UnexpectedAppendOffset
from klamm.log.segments.log_segment import LogSegment
from klamm.model.config import TopicConfig
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.model.ports import Buffer, Staged
from klamm.model.settings import LONG_MAX
from klamm.wire.batch import (
    CODEC_MASK,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    check_crc,
    iter_batches,
    patch_max_timestamp,
    patch_offset_and_epoch,
    read_header,
)
from klamm.wire.compression import Codec
from klamm.wire.produce import RECORD_ERRORS_MAX
from klamm.wire.records import (
    MalformedRecord,
    Record,
    build_batch,
    check_records,
    iter_records,
    read_end_transaction_marker,
)

ATTRIBUTES_POSITION: Final = 22
"""The low byte of the attributes."""
_CODECS: Final = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


DECOMPRESSION_FACTOR: Final = 16
"""A batch may decompress to this many times max.message.bytes. A few kilobytes can claim to be gigabytes; honest
batches are smaller than that limit before they are compressed."""
BATCHES_MAX: Final = 2_000
"""Batches of one append by a client. Each costs microseconds in the loop, and an append is one step."""
_COSTLY_TO_BUILD: Final = 32 * 1024
_COSTLY_TO_DECOMPRESS: Final = 128 * 1024
_COSTLY: Final = 1 << 20
"""Bytes from which a batch takes milliseconds: if its records are built, if they are decompressed, in any case."""
_COSTLY_RECORDS_TO_BUILD: Final = 1_000
_COSTLY_RECORDS: Final = 5_000
"""The same as numbers of records, which a compressed batch can hold in a few bytes."""
STAGED_BYTES_MIN: Final = 4 << 20
"""The page cache takes so much in a few milliseconds."""
_COUNT_POSITION: Final = HEADER_BYTES - 4


class AppendOrigin(Enum):
    """The source of an append. Clients must not write control batches; coordinators may, without sequence numbers."""

    CLIENT = "client"
    COORDINATOR = "coordinator"


class InvalidRecords(KafkaError):
    """A batch is refused because of some of its records; Produce v8 lists them as `record_errors`."""

    def __init__(self, code: ErrorCode, record_errors: Sequence[tuple[int, str]]) -> None:
        super().__init__(code, record_errors[0][1])
        self.record_errors = tuple(record_errors)
        """(index in the batch, reason)"""


class Prepared(NamedTuple):
    """A batch that was checked and converted; only its place in the log is missing."""

    batch: memoryview
    header: BatchHeader


class StagedBatch(NamedTuple):
    segment: LogSegment
    bytes: Staged
    drop: Callable[[], None]
    """Its log knows what to do if the disk fails."""


class PreparedAppend(NamedTuple):
    """An append that was prepared off the loop."""

    records: memoryview
    """As received."""
    batches: list[tuple[int, BatchHeader]]
    prepared: list[Prepared]
    now_ms: int
    staged: StagedBatch | None = None
    """The batch is so large that it was written off the loop, too."""

    @property
    def is_large(self) -> bool:
        """One batch that the loop must not write."""
        return len(self.prepared) == 1 and len(self.prepared[0].batch) >= STAGED_BYTES_MIN

    def drop(self) -> None:
        """It is appended, or will not be: nothing of it may stay beyond the end of the file."""
        if self.staged is not None:
            self.staged.drop()


class StoredBatch(NamedTuple):
    """A batch as it is written to disk."""

    header: BatchHeader
    chunks: tuple[Buffer, ...]

    @property
    def size(self) -> int:
        return self.header.size_in_bytes


def check_batches(records: memoryview, config: TopicConfig, origin: AppendOrigin) -> list[tuple[int, BatchHeader]]:
    """Position and header of each batch. A torn batch at the end is ignored, as in Kafka."""
    batches = list(islice(iter_batches(records), BATCHES_MAX + 1))
    if not batches:
        raise KafkaError(ErrorCode.INVALID_RECORD, "no complete record batch")
    if len(batches) > BATCHES_MAX:
        raise KafkaError(ErrorCode.RECORD_LIST_TOO_LARGE, f"more than {BATCHES_MAX} batches in one append")
    for position, header in batches:
        if header.base_offset != 0 and origin is AppendOrigin.CLIENT:
            raise _invalid(f"base offset {header.base_offset} instead of 0")
        if header.size_in_bytes > config.max_message_bytes:
            raise _too_large(header.size_in_bytes, config)
        check_crc(records, position, header)
        if header.codec > Codec.ZSTD:
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression codec {header.codec}")
        _check_header(header, origin)
    return batches


def _check_header(header: BatchHeader, origin: AppendOrigin) -> None:
    if header.last_offset_delta < 0 or header.count <= 0 or header.count != header.last_offset_delta + 1:
        raise _invalid(f"{header.count} records with last offset delta {header.last_offset_delta}")
    if origin is AppendOrigin.CLIENT:
        if header.is_control:
            raise _invalid("a control batch from a client")
        if header.has_producer_id and header.base_sequence < 0:
            raise _invalid(f"producer {header.producer_id} sent sequence {header.base_sequence}")
        if header.is_log_append_time:
            raise KafkaError(ErrorCode.INVALID_TIMESTAMP, "only the broker may set the timestamp type LogAppendTime")


def check_continues(
    batches: Sequence[tuple[int, BatchHeader]],
    partition: TopicPartition,
    log_end_offset: int,
    *,
    is_empty: bool,
) -> None:
    """What a follower checks: the batches continue its log, and their offsets rise.

    Only an empty log may begin below its end: it starts inside a batch if the leader deleted records up to there, and
    the leader sends whole batches.
    """
    first = batches[0][1]
    if first.base_offset < log_end_offset and (not is_empty or first.last_offset < log_end_offset):
        raise UnexpectedAppendOffset(partition, first.base_offset, log_end_offset)
    expected = first.base_offset
    for _, header in batches:
        if header.base_offset < expected or header.last_offset_delta < 0:
            raise UnexpectedAppendOffset(partition, header.base_offset, expected)
        expected = header.next_offset


def check_replicated(records: memoryview, batches: Sequence[tuple[int, BatchHeader]]) -> None:
    """The checksums are right; and the records of a control batch are read after the write, so they must be readable.
    Raises CORRUPT_MESSAGE or INVALID_RECORD."""
    for position, header in batches:
        check_crc(records, position, header)
        if header.is_control and header.count:
            read_end_transaction_marker(records[position:])


def may_be_costly(records: Buffer) -> bool:
    """Whether some topic's configuration would make it costly. Asked for every batch, so it must be cheap."""
    return len(records) >= _COSTLY_TO_BUILD or _announced(records) >= _COSTLY_RECORDS_TO_BUILD


def is_costly(records: Buffer, config: TopicConfig) -> bool:
    """Whether checking and preparing the batch would hold the loop for milliseconds. Judged by its first bytes, which
    may be anything."""
    if not may_be_costly(records):
        return False
    size, count = len(records), _announced(records)
    codec = records[ATTRIBUTES_POSITION] & CODEC_MASK
    if _CODECS.get(config.compression_type, codec) != codec or _asks_about_records(config):
        return True
    has_more = int.from_bytes(records[8:LOG_OVERHEAD_BYTES], "big") + LOG_OVERHEAD_BYTES < size
    is_large = size >= (_COSTLY if codec == Codec.NONE else _COSTLY_TO_DECOMPRESS)
    return is_large or has_more or count >= _COSTLY_RECORDS


def _announced(records: Buffer) -> int:
    """How many records the first batch claims to hold: no more are read."""
    return int.from_bytes(records[_COUNT_POSITION:HEADER_BYTES], "big", signed=True)


def prepare(
    records: memoryview,
    batches: Sequence[tuple[int, BatchHeader]],
    config: TopicConfig,
    now_ms: int,
    origin: AppendOrigin,
) -> list[Prepared]:
    """The batches as they will be stored, except for offsets and leader epoch; raises for invalid records."""
    return [
        _prepare(records[position : position + header.size_in_bytes], header, config, now_ms, origin)
        for position, header in batches
    ]


def _prepare(
    batch: memoryview, header: BatchHeader, config: TopicConfig, now_ms: int, origin: AppendOrigin
) -> Prepared:
    """Apply the topic's timestamp type and codec."""
    log_append_time = config.message_timestamp_type == "LogAppendTime"
    codec = header.codec if header.is_control else _CODECS.get(config.compression_type, header.codec)
    max_timestamp = header.max_timestamp
    limit = DECOMPRESSION_FACTOR * config.max_message_bytes
    try:
        if codec != header.codec or (_asks_about_records(config) and not header.is_control):
            records = _checked(iter_records(batch, max_bytes=limit), header, config, now_ms)
            max_timestamp = max(record.timestamp for record in records)
            if codec != header.codec:
                batch = memoryview(_recompress(records, header, codec))
                header = read_header(batch)
                if header.size_in_bytes > config.max_message_bytes:
                    raise _too_large(header.size_in_bytes, config)
        elif origin is AppendOrigin.CLIENT:
            check_records(batch, header, max_bytes=limit)
    except MalformedRecord as error:
        raise InvalidRecords(error.code, [(error.index, error.message or "")]) from error
    if log_append_time or max_timestamp != header.max_timestamp:
        patched = bytearray(batch)
        time = now_ms if log_append_time else max_timestamp
        patch_max_timestamp(patched, 0, header, time, log_append_time=log_append_time)
        batch, header = memoryview(patched), read_header(patched)
    return Prepared(batch, header)


def assign_offsets(batches: Sequence[Prepared], *, next_offset: int, leader_epoch: int) -> list[StoredBatch]:
    """The batches as a leader stores them, from `next_offset` on."""
    stored: list[StoredBatch] = []
    for batch, header in batches:
        head = bytearray(batch[:HEADER_BYTES])
        patch_offset_and_epoch(head, 0, header, base_offset=next_offset, leader_epoch=leader_epoch)
        assigned = header._replace(base_offset=next_offset, leader_epoch=leader_epoch)
        stored.append(StoredBatch(assigned, (head, batch[HEADER_BYTES:])))
        next_offset += header.last_offset_delta + 1
    return stored


def _asks_about_records(config: TopicConfig) -> bool:
    bounded_time = config.message_timestamp_type == "CreateTime" and (
        config.message_timestamp_difference_max_ms < LONG_MAX
    )
    return bounded_time or "compact" in config.cleanup_policy


def _checked(records: Iterable[Record], header: BatchHeader, config: TopicConfig, now_ms: int) -> list[Record]:
    """All records, if they are valid. Reports the faults of a batch together, without keeping its records; one bad
    timestamp makes the error code INVALID_TIMESTAMP."""
    valid: list[Record] = []
    faults: list[tuple[int, str]] = []
    code = ErrorCode.INVALID_RECORD
    compacted = "compact" in config.cleanup_policy
    limit = LONG_MAX
    if config.message_timestamp_type == "CreateTime":
        limit = config.message_timestamp_difference_max_ms
    for index, record in enumerate(records):
        if record.offset != header.base_offset + index:
            faults.append((index, f"record {index} has offset delta {record.offset - header.base_offset}"))
        elif compacted and record.key is None:
            faults.append((index, "a compacted topic does not accept a record without a key"))
        elif record.timestamp != NO_TIMESTAMP and abs(record.timestamp - now_ms) > limit:
            faults.append((index, f"timestamp {record.timestamp} is more than {limit} ms away from {now_ms}"))
            code = ErrorCode.INVALID_TIMESTAMP
        elif not faults:
            valid.append(record)
        if len(faults) == RECORD_ERRORS_MAX:
            break  # a batch of 160 bytes can hold millions
    if faults:
        raise InvalidRecords(code, faults)
    return valid


def _recompress(records: Sequence[Record], header: BatchHeader, codec: int) -> bytes:
    return build_batch(
        records,
        base_offset=header.base_offset,
        codec=codec,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
    )


def _invalid(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, reason)


def _too_large(size: int, config: TopicConfig) -> KafkaError:
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"a batch of {size} bytes is larger than max.message.bytes={config.max_message_bytes}",
    )
