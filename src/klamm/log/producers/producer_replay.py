"""Producer state from the batches of a log: one batch applied, and a whole state rebuilt by a scan.

Appends, recoveries and truncations all use it. Batches are taken as they are in the log, unchecked.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from klamm.log.indexes.transaction_index import AbortedEntry
from klamm.log.producers.producer_snapshots import ProducerSnapshots
from klamm.log.producers.producer_state import CompletedTransaction, ProducerState
from klamm.log.segments.log_segment import LogSegment
from klamm.log.segments.log_segments import LogSegments
from klamm.model.ports import Buffer
from klamm.wire.batch import BatchHeader
from klamm.wire.records import read_end_transaction_marker
from klamm.wire.slices import finish

BATCHES_PER_SLICE: Final = 500


def apply_batch(header: BatchHeader, batch: Buffer, state: ProducerState, now_ms: int) -> CompletedTransaction | None:
    """Record one batch of the log in `state`. The bytes of `batch` are read only if it is a transaction marker."""
    completed = None
    if header.has_producer_id:
        if header.is_control:
            if header.count:  # else compaction emptied it: its transaction is gone too
                marker = read_end_transaction_marker(batch)
                completed = state.record_marker(header, marker, header.base_offset, now_ms)
        else:
            state.record(header, header.base_offset, now_ms)
    state.end_offset = header.next_offset
    return completed


def complete_transaction(segment: LogSegment, state: ProducerState, completed: CompletedTransaction) -> None:
    """`segment` holds the marker. If the transaction was aborted, the segment indexes it; then the state forgets it."""
    if completed.aborted:
        stable = state.stable_offset_after(completed)
        segment.transaction_index.append(
            AbortedEntry(completed.producer_id, completed.first_offset, completed.last_offset, stable)
        )
    state.complete(completed)


def rebuild_state(
    segments: LogSegments, snapshots: ProducerSnapshots, *, log_start_offset: int, target: int, now_ms: int
) -> ProducerState:
    return finish(
        rebuild_in_slices(segments, snapshots, log_start_offset=log_start_offset, target=target, now_ms=now_ms)
    )


def rebuild_in_slices(
    segments: LogSegments, snapshots: ProducerSnapshots, *, log_start_offset: int, target: int, now_ms: int
) -> Generator[None, None, ProducerState]:
    """The state before `target`: the newest snapshot, and a scan of the headers from there on.

    A snapshot from before the log start is useless: the batches between the two are gone, and with them the sequence
    numbers that would follow.
    """
    found = yield from snapshots.newest_at_or_below(target, now_ms)
    state = found[1] if found is not None and found[0] >= log_start_offset else ProducerState()
    start = max(state.end_offset, log_start_offset)
    scanned = 0
    for segment in segments.holding_or_after(start) if start < target else ():
        if segment.base_offset >= target:
            break
        for position, header in segment.headers(segment.position_of(max(start, segment.base_offset))):
            if header.last_offset >= target:
                break
            scanned += 1
            if scanned % BATCHES_PER_SLICE == 0:
                yield
            completed = apply_batch(header, _marker_bytes(segment, position, header), state, now_ms)
            if completed is not None:
                state.complete(completed)
    state.end_offset = target
    return state


def _marker_bytes(segment: LogSegment, position: int, header: BatchHeader) -> bytes:
    return segment.pread(header.size_in_bytes, position) if header.is_control else b""
