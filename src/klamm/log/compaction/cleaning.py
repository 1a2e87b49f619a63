"""Cleans one log, in steps small enough to share the disk pool: maps the keys of the dirty part, then copies what
stays, group by group, into segments that replace their sources.

The steps run in the pool while the loop goes on using the log. So they open the source files themselves, and use only
those parts of a segment that never change. The loop collects everything else first, as the plan. The loop may abandon a
cleaning between two steps; files that have not been swapped in are then removed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from klamm.log.compaction.cleanable import Cleanable
from klamm.log.compaction.cleaned_transactions import CleanedTransactions
from klamm.log.compaction.offset_map import OffsetMap, slots_for
from klamm.log.compaction.record_filter import LastRecord, RecordFilter
from klamm.log.compaction.swap import CLEANED_SUFFIX, Swap
from klamm.log.files import size_of
from klamm.log.indexes.transaction_index import AbortedEntry
from klamm.log.producers.producer_state import ProducerEntry
from klamm.log.segments.log_segment import RELATIVE_OFFSET_MAX, LogSegment
from klamm.model.config import TopicConfig
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ports import Buffer, Disk
from klamm.wire.batch import HEADER_BYTES, BatchHeader, check_crc, corrupt, iter_batches, read_header
from klamm.wire.records import iter_records

CHUNK_BYTES: Final = 256 * 1024
"""Bytes read by one step: about ten milliseconds of a thread, then other work gets its turn."""

Batches = list[tuple[memoryview, BatchHeader]]


@dataclass(frozen=True, slots=True)
class CleaningPlan:
    directory: str
    config: TopicConfig
    segments: list[LogSegment]
    """From the first one of the log to the last that can be cleaned."""
    first_dirty: int
    dirty_position: int
    """A batch boundary at or before `first_dirty`, in the segment that holds it."""
    first_uncleanable: int
    aborted: list[AbortedEntry]
    producers: list[ProducerEntry]

    @property
    def delete_horizon_ms(self) -> int:
        """Segments last modified before this time lose their tombstones and markers."""
        clean = [segment for segment in self.segments if segment.base_offset < self.first_dirty]
        return clean[-1].modified_ms() - self.config.delete_retention_ms if clean else 0


def plan_cleaning(found: Cleanable) -> CleaningPlan:
    """Runs in the loop."""
    log, segments = found.log, found.log.segments
    held = segments.at_or_below(found.first_dirty)
    position = held.offset_index.position_at_or_below(found.first_dirty) if held.base_offset < found.first_dirty else 0
    return CleaningPlan(
        directory=log.directory,
        config=log.config,
        segments=segments.between(0, found.first_uncleanable),
        first_dirty=found.first_dirty,
        dirty_position=position,
        first_uncleanable=found.first_uncleanable,
        aborted=[
            entry
            for segment in segments
            for entry in segment.transaction_index.entries()
            if entry.first_offset < found.first_uncleanable
        ],
        producers=log.producers.frozen(),
    )


def last_records(producers: Iterable[ProducerEntry]) -> dict[int, LastRecord]:
    return {
        entry.producer_id: LastRecord(entry.batches[-1].last_offset if entry.batches else None, entry.epoch)
        for entry in producers
    }


@dataclass(slots=True)
class CleaningTally:
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    records_without_key: int = 0
    buffer_utilization: float = 0.0

    @property
    def recopy_ratio(self) -> float:
        return self.bytes_written / max(self.bytes_read, 1)


class Cleaning:
    def __init__(self, disk: Disk, plan: CleaningPlan, buffer_bytes: int) -> None:
        self._disk = disk
        self._plan = plan
        self._buffer_bytes = buffer_bytes
        self.tally = CleaningTally()
        self.end_offset = plan.first_dirty
        """Where the clean part ends once all steps are done."""

    def steps(self) -> Generator[Swap | None, None, None]:
        """Each `next` is a job of the pool. The caller carries out a Swap before the next step."""
        plan = self._plan
        # Compute it now: it depends on a segment that may be swapped out before the last group.
        horizon_ms = plan.delete_horizon_ms
        offsets = OffsetMap(slots_for(plan.first_uncleanable - plan.first_dirty, self._buffer_bytes))
        yield from self._map(offsets)
        if offsets.latest_offset < plan.first_dirty:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"log.cleaner.dedupe.buffer.size={self._buffer_bytes} is too small for the keys of the batch at offset "
                f"{plan.first_dirty}",
            )
        self.end_offset = offsets.latest_offset + 1
        self.tally.buffer_utilization = offsets.utilization
        records = RecordFilter(offsets, CleanedTransactions(plan.aborted), last_records(plan.producers))
        for group in self._groups():
            yield from self._clean(group, records, horizon_ms)
            self.tally.records_read, self.tally.records_kept = records.records_read, records.records_kept
            self.tally.records_without_key = records.records_without_key

    # --- (a) the map -------------------------------------------------------------------------------------------------

    def _map(self, offsets: OffsetMap) -> Iterator[None]:
        """Map keys until the dirty part ends or the map is full; then the next cleaning continues from there."""
        plan = self._plan
        dirty = [s for s in _with_ends(plan.segments, plan.first_uncleanable) if s[1] > plan.first_dirty]
        transactions = CleanedTransactions([entry for entry in plan.aborted if entry.last_offset >= plan.first_dirty])
        for segment, end in dirty:
            start = plan.dirty_position if segment.base_offset < plan.first_dirty else 0
            for batches in self._chunks(segment, start):
                if not all(self._map_batch(batch, header, transactions, offsets) for batch, header in batches):
                    return
                yield
            offsets.latest_offset = end - 1  # even if the last offsets are a gap

    def _map_batch(
        self, batch: Buffer, header: BatchHeader, transactions: CleanedTransactions, offsets: OffsetMap
    ) -> bool:
        """False if there is no room for all of its keys; those that were mapped lie above the latest offset."""
        start = self._plan.first_dirty
        if header.is_control:
            transactions.end(header, batch)
        elif not transactions.is_aborted(header):
            for record in iter_records(batch):
                if record.key is not None and record.offset >= start and not offsets.put(record.key, record.offset):
                    return False
        if header.last_offset >= start:
            offsets.latest_offset = header.last_offset
        return True

    # --- (b) the copy ------------------------------------------------------------------------------------------------

    def _groups(self) -> list[list[LogSegment]]:
        segments = [segment for segment in self._plan.segments if segment.base_offset < self.end_offset]
        sizes = [
            SegmentSize(
                s.base_offset, s.size, size_of(self._disk, s.offset_index.path), size_of(self._disk, s.time_index.path)
            )
            for s in segments
        ]
        limits = self._plan.config.segment_bytes, self._plan.config.segment_index_bytes
        return [segments[group] for group in group_segments(sizes, *limits, self._plan.first_uncleanable)]

    def _clean(self, group: list[LogSegment], records: RecordFilter, horizon_ms: int) -> Iterator[Swap | None]:
        plan, disk = self._plan, self._disk
        modified_ms = group[-1].modified_ms()
        cleaned = self._segment(group[0].base_offset, modified_ms, CLEANED_SUFFIX)
        try:
            cleaned.create()
            for segment in group:
                keep_deletes = segment.modified_ms() > horizon_ms
                for batches in self._chunks(segment, 0):
                    self._copy(batches, records, cleaned, keep_deletes=keep_deletes)
                    yield None
            cleaned.seal()
            cleaned.write_out()
            for sync in cleaned.syncs():
                sync()
            cleaned.close_files()
            disk.set_modified_ms(cleaned.log_path, modified_ms)
            yield Swap(disk, plan.directory, group, self._segment(group[0].base_offset, modified_ms))
        finally:
            cleaned.close_files()
            for path in cleaned.paths:  # they no longer exist once it is swapped in
                if disk.exists(path):
                    disk.remove(path)

    def _segment(self, base_offset: int, created_ms: int, suffix: str = "") -> LogSegment:
        return LogSegment(
            self._disk,
            self._plan.directory,
            base_offset,
            created_ms=created_ms,
            index_interval_bytes=self._plan.config.index_interval_bytes,
            suffix=suffix,
        )

    def _copy(self, batches: Batches, records: RecordFilter, cleaned: LogSegment, *, keep_deletes: bool) -> None:
        kept: list[tuple[Buffer, BatchHeader]] = []
        for batch, header in batches:
            self.tally.bytes_read += len(batch)
            found = records.filter(batch, header, keep_deletes=keep_deletes)
            if found.batch is not None:
                kept.append((found.batch, header if found.batch is batch else read_header(found.batch)))
            if found.aborted is not None:
                cleaned.transaction_index.append(found.aborted)
        size = sum(header.size_in_bytes for _, header in kept)
        if not kept:
            return
        position = cleaned.append([batch for batch, _ in kept], size)
        for _, header in kept:
            cleaned.note(position, header)
            position += header.size_in_bytes
        self.tally.bytes_written += size

    def _chunks(self, segment: LogSegment, position: int) -> Iterator[Batches]:
        """Whole batches from `position` on. Verifies checksums, so that damaged records do not get a valid one here."""
        file = self._disk.open(segment.log_path)
        try:
            size = CHUNK_BYTES
            while position < segment.size:
                data = memoryview(file.pread(min(size, segment.size - position), position))
                batches = list(iter_batches(data))
                if not batches:
                    size = self._size_needed(segment, data, position)
                    continue
                for at, header in batches:
                    check_crc(data, at, header)
                yield [(data[at : at + header.size_in_bytes], header) for at, header in batches]
                last_at, last = batches[-1]
                position += last_at + last.size_in_bytes
                size = CHUNK_BYTES
        finally:
            file.close()

    @staticmethod
    def _size_needed(segment: LogSegment, data: memoryview, position: int) -> int:
        needed = read_header(data).size_in_bytes if len(data) >= HEADER_BYTES else HEADER_BYTES
        if position + needed > segment.size:
            raise corrupt(f"{segment.log_path} ends inside the batch at position {position}")
        return needed


class SegmentSize(NamedTuple):
    base_offset: int
    log_bytes: int
    index_bytes: int
    time_index_bytes: int


def group_segments(sizes: Sequence[SegmentSize], segment_bytes: int, index_bytes: int, end_offset: int) -> list[slice]:
    """Group neighbours that fit into one segment, so that segments do not become ever smaller.

    >>> small = [SegmentSize(base, 40, 8, 12) for base in (0, 10, 20, 30)]
    >>> group_segments(small, 100, 1000, 40)
    [slice(0, 2, None), slice(2, 4, None)]
    """
    groups: list[slice] = []
    start = 0
    for at in range(1, len(sizes) + 1):
        group = sizes[start : at + 1]
        following = sizes[at + 1].base_offset if at + 1 < len(sizes) else end_offset
        fits = (
            sum(size.log_bytes for size in group) <= segment_bytes
            and sum(size.index_bytes for size in group) <= index_bytes
            and sum(size.time_index_bytes for size in group) <= index_bytes
            and following - 1 - group[0].base_offset <= RELATIVE_OFFSET_MAX
        )
        if at == len(sizes) or not fits:
            groups.append(slice(start, at))
            start = at
    return groups


def _with_ends(segments: list[LogSegment], end_offset: int) -> Iterator[tuple[LogSegment, int]]:
    following = [segment.base_offset for segment in segments[1:]] + [end_offset]
    return zip(segments, following, strict=True)
