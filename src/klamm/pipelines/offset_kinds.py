"""What is at an offset of a log: a record, a transaction marker, an aborted record, or no longer anything.

The rules of Kafka's read_committed, applied to batch headers: a control batch (attribute bit 5) is a marker; a
transactional batch (bit 4) is aborted while its producer has an open entry in the Fetch response's list of aborted
transactions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class LogBounds(NamedTuple):
    start: int
    end: int


class OffsetKind(StrEnum):
    RECORD = "record"
    MARKER = "marker"
    ABORTED = "aborted"
    ABSENT = "absent"
    """Inside the log but in no batch: removed by compaction, or a gap."""
    BELOW_LOG_START = "below-log-start"
    BEYOND_LOG_END = "beyond-log-end"


class OffsetSpan(NamedTuple):
    kind: OffsetKind
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class BatchHead:
    """The parts of a batch header that tell what is at its offsets."""

    base_offset: int
    last_offset: int
    is_control: bool
    is_transactional: bool
    producer_id: int
    record_offsets: Sequence[int]


def classify(
    batches: Iterable[BatchHead], aborted: Iterable[tuple[int, int]], start: int, end: int
) -> Iterator[OffsetSpan]:
    """What is at each offset of [start, end), given the batches there and the aborted (producer id, first offset).

    An aborted transaction reaches from its first offset to its producer's next marker.
    """
    open_aborts = sorted(aborted, key=lambda entry: entry[1])
    aborting: set[int] = set()
    position = start
    for batch in batches:
        while open_aborts and open_aborts[0][1] <= batch.last_offset:
            aborting.add(open_aborts.pop(0)[0])
        if batch.is_control:
            kind = OffsetKind.MARKER
            aborting.discard(batch.producer_id)
        elif batch.is_transactional and batch.producer_id in aborting:
            kind = OffsetKind.ABORTED
        else:
            kind = OffsetKind.RECORD
        for offset in batch.record_offsets:
            if offset < position:
                continue
            if offset >= end:
                break
            if offset > position:
                yield OffsetSpan(OffsetKind.ABSENT, position, offset)
            yield OffsetSpan(kind, offset, offset + 1)
            position = offset + 1
    if position < end:
        yield OffsetSpan(OffsetKind.ABSENT, position, end)


def join_spans(spans: Iterable[OffsetSpan]) -> list[OffsetSpan]:
    """Neighbours of one kind become one span."""
    joined: list[OffsetSpan] = []
    for span in spans:
        if joined and joined[-1].kind == span.kind and joined[-1].end == span.start:
            joined[-1] = OffsetSpan(span.kind, joined[-1].start, span.end)
        else:
            joined.append(span)
    return joined


def parts_of(spans: Iterable[OffsetSpan], gaps: Iterable[tuple[int, int]]) -> Iterator[OffsetSpan]:
    """The parts of spans that lie in gaps. Both are in order and do not overlap."""
    ordered = list(gaps)
    for kind, start, end in spans:
        while ordered and ordered[0][1] <= start:
            ordered.pop(0)
        for gap_start, gap_end in ordered:
            if gap_start >= end:
                break
            yield OffsetSpan(kind, max(start, gap_start), min(end, gap_end))
