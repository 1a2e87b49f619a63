"""Searches over the segments of a log: by timestamp, and for the aborted transactions in a range."""

from __future__ import annotations

from klamm.log.log_results import AbortedTransaction, TimestampOffset
from klamm.log.segments.log_segments import LogSegments
from klamm.model.ids import LeaderEpoch
from klamm.wire.records import iter_records


def find_timestamp(segments: LogSegments, log_start_offset: int, timestamp: int) -> TimestampOffset | None:
    """The first *record* with `timestamp` or a later one, in the first segment that has one.

    Timestamps need not rise, so this need not be the smallest such timestamp. A batch's largest timestamp does not say
    which of its records has it, so the records are read.
    """
    for segment in segments:
        if segment.max_timestamp[0] < timestamp:
            continue
        start = max(segment.time_index.offset_at_or_below(timestamp), log_start_offset)
        for position, header in segment.headers(segment.position_of(start)):
            if header.max_timestamp < timestamp or header.last_offset < log_start_offset:
                continue
            for record in iter_records(segment.pread(header.size_in_bytes, position)):
                if record.timestamp >= timestamp and record.offset >= log_start_offset:
                    epoch = LeaderEpoch(header.leader_epoch) if header.leader_epoch >= 0 else None
                    return TimestampOffset(record.timestamp, record.offset, epoch)
    return None


def find_aborted(segments: LogSegments, from_offset: int, to_offset: int) -> list[AbortedTransaction]:
    """The aborted transactions that a reader of [from, to) must skip, and perhaps others.

    A transaction is indexed in the segment of its marker, which may be a later one. An entry whose last stable offset
    lies beyond the range ends the search: all transactions that began before it have been found.
    """
    found: list[AbortedTransaction] = []
    for segment in segments.holding_or_after(from_offset):
        for entry in segment.transaction_index.entries():
            if entry.last_offset >= from_offset and entry.first_offset < to_offset:
                found.append(AbortedTransaction(entry.producer_id, entry.first_offset))
            if entry.last_stable_offset >= to_offset:
                return found
    return found
