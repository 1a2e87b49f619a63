"""Which records of a batch survive a compaction, and the batch that carries them: the rules of Kafka's Cleaner.

    record with a key                 kept if it is the last one with its key and has a value; tombstones for a while
    record without a key              never kept; clients cannot write one
    record above the mapped offsets   always kept
    record of an aborted transaction  never kept
    marker                            kept while a batch of its transaction is left, and as long as tombstones are; its
                                      bytes are never looked up as a key (KAFKA-14055)
    last batch of a live producer     kept, without records if need be; its last marker if it has no data

A batch that keeps all its records is copied byte for byte. Any other keeps base offset, last offset, producer, epochs,
codec and timestamp type: neither offsets nor sequence numbers ever change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from klamm.log.compaction.cleaned_transactions import CleanedTransactions
from klamm.log.compaction.offset_map import OffsetMap
from klamm.log.indexes.transaction_index import AbortedEntry
from klamm.model.ports import Buffer
from klamm.wire.batch import CONTROL, LOG_APPEND_TIME, NO_TIMESTAMP, TRANSACTIONAL, BatchHeader, pack_batch
from klamm.wire.records import Record, build_batch, iter_records


class LastRecord(NamedTuple):
    """The last batch of a producer whose state the log still has."""

    data_offset: int | None
    """Last offset of its last data batch; None if it only has a marker."""
    epoch: int


class Filtered(NamedTuple):
    batch: Buffer | None
    """None if nothing of the batch is left."""
    aborted: AbortedEntry | None = None
    """Its entry for the transaction index of the new segment."""


class RecordFilter:
    """One pass over the segments of a log, in order."""

    def __init__(
        self, offsets: OffsetMap, transactions: CleanedTransactions, producers: Mapping[int, LastRecord]
    ) -> None:
        self._offsets = offsets
        self._transactions = transactions
        self._producers = producers
        self.records_read = 0
        self.records_kept = 0
        self.records_without_key = 0

    def filter(self, batch: Buffer, header: BatchHeader, *, keep_deletes: bool) -> Filtered:
        """`keep_deletes`: tombstones and markers of this segment are too young to be removed."""
        self.records_read += header.count
        needed = self._is_last_of_producer(header)
        if header.is_control:
            may_go, aborted = self._transactions.end(header, batch)
            if header.count and (keep_deletes or not may_go):
                self.records_kept += header.count
                return Filtered(batch, aborted)
            return Filtered(_emptied(header) if needed else None)
        if self._transactions.is_aborted(header):
            return Filtered(_emptied(header) if needed else None)
        kept = [record for record in iter_records(batch) if self._stays(record, keep_deletes)]
        self.records_kept += len(kept)
        if not kept:
            return Filtered(_emptied(header) if needed else None)
        return Filtered(batch if len(kept) == header.count else _rebuilt(header, kept))

    def _stays(self, record: Record, keep_deletes: bool) -> bool:
        if record.offset > self._offsets.latest_offset:
            return True
        if record.key is None:
            self.records_without_key += 1
            return False
        return record.offset >= self._offsets.get(record.key) and (record.value is not None or keep_deletes)

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        last = self._producers.get(header.producer_id) if header.has_producer_id else None
        if last is None:
            return False
        if last.data_offset is None:
            return header.is_control and header.producer_epoch == last.epoch
        return header.last_offset == last.data_offset


def _rebuilt(header: BatchHeader, records: list[Record]) -> bytes:
    return build_batch(
        records,
        base_offset=header.base_offset,
        codec=header.codec,
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
        log_append_time=header.max_timestamp if header.is_log_append_time else None,
        last_offset=header.last_offset,
    )


def _emptied(header: BatchHeader) -> bytes:
    """Only a header, with the largest timestamp, as in Kafka."""
    attributes = header.attributes & (LOG_APPEND_TIME | TRANSACTIONAL | CONTROL)
    return pack_batch(header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, count=0), b"")
