"""Searches over the segments of a log: by time, and for the aborted transactions in a range."""

from __future__ import annotations

from klamm.log.log_results import AbortedTransaction, TimestampOffset
from klamm.log.segments.log_segments import LogSegments
from klamm.model.ids import LeaderEpoch
from klamm.wire.records import iter_records


def find_timestamp(segments: LogSegments, log_start_offset: int, timestamp: int) -> TimestampOffset | None:
    """The first *record* at or after `timestamp`, in the first segment that has one that late.

    Times need not rise, so this is not the smallest such time; and a batch's largest time says nothing about which of
    its records has it, so the records are read.
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
    """Those that a reader of [from, to) must skip; may name more, never fewer.

    A transaction is indexed where its marker lies, which may be segments later; an entry whose last stable offset is
    beyond the range ends the search, for all that began before it are known by then.
    """
    found: list[AbortedTransaction] = []
    for segment in segments.holding_or_after(from_offset):
        for entry in segment.transaction_index.entries():
            if entry.last_offset >= from_offset and entry.first_offset < to_offset:
                found.append(AbortedTransaction(entry.producer_id, entry.first_offset))
            if entry.last_stable_offset >= to_offset:
                return found
    return found
