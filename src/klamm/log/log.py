"""One partition's log: what may be appended, what may be read, and where its offsets stand.

Invariants: log start ≤ high watermark ≤ log end; last stable offset ≤ high watermark; recovery point ≤ log end. Appends
and reads run in the event loop and end in the page cache; `flush`, and whatever else waits for the platter, runs in the
disk pool. An append is one write. The first file operation that fails ends the life of the log in this process
(KAFKA-10778): what is on disk is then known only to a recovery.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from klamm.log.leader_epochs import LeaderEpochCache
from klamm.log.producer_snapshots import encode_snapshot
from klamm.log.producer_state import CompletedTransaction
from klamm.log.recovery import LoadedLog, apply_to_producers, rebuild_producers
from klamm.log.segment import RELATIVE_OFFSET_MAX, Segment
from klamm.log.segments import Segments
from klamm.log.transaction_index import AbortedEntry
from klamm.log.validation import AppendOrigin, StoredBatch, check_batches, store
from klamm.model.config import TopicConfig
from klamm.model.errors import ErrorCode, KafkaError, KlammError
from klamm.model.ids import LeaderEpoch, ProducerId, TopicPartition
from klamm.model.ports import Buffer, Clock, Disk
from klamm.wire.batch import BatchHeader, check_crc, iter_batches
from klamm.wire.records import iter_records, read_end_transaction_marker

__all__ = ["AbortedTransaction", "AppendInfo", "AppendOrigin", "Log", "LogOwner", "ReadResult", "TimestampOffset"]

P = ParamSpec("P")
R = TypeVar("R")


class AppendInfo(NamedTuple):
    first_offset: int
    last_offset: int
    max_timestamp: int
    """Of the appended batches (of the original batch for a duplicate); -1 when no record has a time."""
    log_append_time: int
    """The broker's time where the topic says LogAppendTime, else -1: what Produce answers."""
    log_start_offset: int
    duplicate: bool = False
    """Nothing was written: the offsets are those of the batch that a retry repeats. It still waits for the HW."""


class ReadResult(NamedTuple):
    records: bytes
    """Whole batches of one segment; the first one contains the asked offset (or is the next that exists)."""
    first_offset: int
    """Base offset of the first batch; the asked offset when there are no records."""
    next_offset: int
    """Offset after the last batch returned: where the next read goes on."""


class TimestampOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: LeaderEpoch | None


class AbortedTransaction(NamedTuple):
    producer_id: ProducerId
    first_offset: int


class UnexpectedAppendOffset(KlammError):
    """A follower got batches that do not continue its log: the fetcher of this partition is wrong, not the data."""

    def __init__(self, partition: TopicPartition, first_offset: int, log_end_offset: int) -> None:
        super().__init__(
            f"{partition}: batches from offset {first_offset} do not continue a log ending at {log_end_offset}"
        )
        self.first_offset = first_offset


class LogOwner(Protocol):
    """Who keeps the log: told what must happen outside the append that caused it."""

    def flush_soon(self, log: Log) -> None: ...

    def remove_later(self, paths: list[str], delay_ms: int) -> None: ...

    def recovery_point_lowered(self, log: Log) -> None:
        """The checkpoint must not promise what a truncation took back: written before this returns."""

    def storage_failed(self, log: Log, error: OSError) -> None: ...


@dataclass(slots=True)
class _FlushPlan:
    """What one flush takes to the platter, gathered in the loop and carried out in the pool."""

    target: int
    generation: int
    sealed: list[Segment]
    syncs: list[Callable[[], None]]
    snapshots: dict[int, bytes]
    epochs: bytes | None


def _storage(method: Callable[Concatenate[Log, P], R]) -> Callable[Concatenate[Log, P], R]:
    """Refuses a failed log; an OSError inside makes it one."""

    @wraps(method)
    def guarded(log: Log, /, *args: P.args, **kwargs: P.kwargs) -> R:
        log.check_usable()
        try:
            return method(log, *args, **kwargs)
        except OSError as error:
            raise log.fail(error) from error

    return guarded


class Log:
    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        rng: random.Random,
        topic_partition: TopicPartition,
        directory: str,
        config: TopicConfig,
        loaded: LoadedLog,
        owner: LogOwner,
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._random = rng
        self._owner = owner
        self.topic_partition = topic_partition
        self.directory = directory
        """Of this partition; its parent is the log directory."""
        self.config = config
        """Replaceable at any time: limits count from the next append."""
        self._segments = loaded.segments
        self._snapshots = loaded.snapshots
        self._producers = loaded.producers
        self.epochs: LeaderEpochCache = loaded.epochs
        self._log_start_offset = loaded.log_start_offset
        self._log_end_offset = loaded.log_end_offset
        self._high_watermark = loaded.log_start_offset
        self._recovery_point = loaded.recovery_point
        self._first_unstable: int | None = None
        self._pending_snapshots: dict[int, bytes] = {}
        self._snapshot_end = max(self._snapshots.offsets, default=-1)
        self._generation = 0
        """Counts truncations: a flush that began before one promises nothing."""
        self._failure: OSError | None = None
        self.epochs.bind(lambda: self._log_end_offset, lambda: owner.flush_soon(self))
        self._refresh_unstable()

    # --- where it stands ---------------------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._log_end_offset

    @property
    def high_watermark(self) -> int:
        return self._high_watermark

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the oldest transaction begins that is open, or finished by a marker that the HW does not cover."""
        return self._first_unstable

    @property
    def last_stable_offset(self) -> int:
        first = self._first_unstable
        return self._high_watermark if first is None or first > self._high_watermark else first

    @property
    def recovery_point(self) -> int:
        """What lies below survives a power cut; a recovery begins in the segment that holds it."""
        return self._recovery_point

    @property
    def segments(self) -> Segments:
        return self._segments

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def failed(self) -> bool:
        """A file operation failed: every append and read raises KAFKA_STORAGE_ERROR from now on."""
        return self._failure is not None

    def check_usable(self) -> None:
        if self._failure is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition}: {self._failure}")

    def fail(self, error: OSError) -> KafkaError:
        """Take no more appends; returns what the caller raises."""
        if self._failure is None:
            self._failure = error
            self._owner.storage_failed(self, error)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition}: {error}")

    # --- append ------------------------------------------------------------------------------------------------------

    @_storage
    def append_as_leader(
        self, records: Buffer, leader_epoch: LeaderEpoch, *, origin: AppendOrigin = AppendOrigin.CLIENT
    ) -> AppendInfo:
        """Validate, assign offsets, write. Raises KafkaError with nothing written.

        Several batches at once are taken only without producer ids: Produce carries one batch a partition since v3.
        """
        view = memoryview(records)
        now_ms = self._clock.wall_ms()
        batches = check_batches(view, self.config, origin)
        duplicate = self._check_producer(view, batches, origin)
        if duplicate is not None:
            return duplicate
        stored: list[StoredBatch] = []
        next_offset = self._log_end_offset
        for position, header in batches:
            batch = view[position : position + header.size_in_bytes]
            assigned = store(
                batch, header, self.config, base_offset=next_offset, leader_epoch=leader_epoch, now_ms=now_ms
            )
            stored.append(assigned)
            next_offset += header.last_offset_delta + 1
        size = sum(batch.size for batch in stored)
        if size > self.config.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE, f"{size} bytes, segment.bytes is {self.config.segment_bytes}"
            )
        max_timestamp = max(batch.header.max_timestamp for batch in stored)
        self._maybe_roll(size, stored[0].header.base_offset, stored[-1].header.last_offset, max_timestamp, now_ms)
        first_offset = self._log_end_offset
        self._write(
            [chunk for batch in stored for chunk in batch.chunks], size, [batch.header for batch in stored], view
        )
        log_append_time = now_ms if self.config.message_timestamp_type == "LogAppendTime" else -1
        return AppendInfo(first_offset, next_offset - 1, max_timestamp, log_append_time, self._log_start_offset)

    def _check_producer(
        self, view: memoryview, batches: list[tuple[int, BatchHeader]], origin: AppendOrigin
    ) -> AppendInfo | None:
        """The original's offsets if this is a retry of what was written already."""
        if not any(header.has_producer_id for _, header in batches):
            return None
        if len(batches) > 1:
            raise KafkaError(ErrorCode.INVALID_RECORD, "more than one batch with a producer id")
        position, header = batches[0]
        if header.is_control:
            self._producers.check_marker(header, read_end_transaction_marker(view[position:]))
            return None
        if origin is AppendOrigin.COORDINATOR:
            self._producers.check_coordinator_batch(header)
            return None
        found = self._producers.duplicate_of(header)
        if found is None:
            self._producers.check(header)
            return None
        return AppendInfo(
            found.first_offset,
            found.last_offset,
            found.timestamp,
            found.timestamp,
            self._log_start_offset,
            duplicate=True,
        )

    @_storage
    def append_as_follower(self, records: Buffer) -> AppendInfo:
        """Batches with the offsets and epochs that the leader gave them. A torn one at the end is left out.

        Raises CORRUPT_MESSAGE (fetch again) or UnexpectedAppendOffset (a fault of the caller) with nothing written.
        """
        view = memoryview(records)
        batches = list(iter_batches(view))
        if not batches:
            return AppendInfo(self._log_end_offset, self._log_end_offset - 1, -1, -1, self._log_start_offset)
        self._check_continues(view, batches)
        first = batches[0][1]
        run: list[tuple[int, BatchHeader]] = []
        run_bytes = 0
        for position, header in batches:
            if run and self._must_roll(header.size_in_bytes, header.last_offset, pending=run_bytes):
                self._write_run(view, run)
                run, run_bytes = [], 0
            if not run:
                self._maybe_roll(
                    header.size_in_bytes,
                    header.base_offset,
                    header.last_offset,
                    header.max_timestamp,
                    self._clock.wall_ms(),
                )
            run.append((position, header))
            run_bytes += header.size_in_bytes
        self._write_run(view, run)
        max_timestamp = max(header.max_timestamp for _, header in batches)
        return AppendInfo(first.base_offset, self._log_end_offset - 1, max_timestamp, -1, self._log_start_offset)

    def _check_continues(self, view: memoryview, batches: list[tuple[int, BatchHeader]]) -> None:
        first = batches[0][1]
        if first.base_offset < self._log_end_offset:
            # An empty log that starts inside a batch: the leader deleted records up to there, but sends whole batches.
            is_empty = self._log_end_offset == self._log_start_offset
            if not is_empty or first.last_offset < self._log_end_offset:
                raise UnexpectedAppendOffset(self.topic_partition, first.base_offset, self._log_end_offset)
        expected = first.base_offset
        for position, header in batches:
            if header.base_offset < expected or header.last_offset_delta < 0:
                raise UnexpectedAppendOffset(self.topic_partition, header.base_offset, expected)
            check_crc(view, position, header)
            expected = header.next_offset
        if first.base_offset < self._log_end_offset:
            self.truncate_fully_and_start_at(first.base_offset)

    def _write_run(self, view: memoryview, run: list[tuple[int, BatchHeader]]) -> None:
        start, (last_position, last) = run[0][0], run[-1]
        end = last_position + last.size_in_bytes
        self._write([view[start:end]], end - start, [header for _, header in run], view[start:end])

    def _write(self, chunks: list[Buffer], size: int, headers: list[BatchHeader], view: memoryview) -> None:
        """One write, then everything that follows from it. `view` has the batches' records, for markers."""
        segment = self._segments.active
        position = segment.append(chunks, size)
        now_ms = self._clock.wall_ms()
        offset_in_view = 0
        has_producers = False
        for header in headers:
            last_offset = header.last_offset
            segment.note(
                position, header.size_in_bytes, header.base_offset, last_offset, header.max_timestamp, last_offset
            )
            self._log_end_offset = last_offset + 1
            self.epochs.assign(LeaderEpoch(header.leader_epoch), header.base_offset)
            if header.producer_id >= 0:
                has_producers = True
                completed = apply_to_producers(header, view[offset_in_view:], self._producers, now_ms)
                if completed is not None:
                    self._complete(segment, completed)
            position += header.size_in_bytes
            offset_in_view += header.size_in_bytes
        self._producers.end_offset = self._log_end_offset
        if has_producers:
            self._refresh_unstable()
        if self._log_end_offset - self._recovery_point >= self.config.flush_messages:
            self._owner.flush_soon(self)

    def _complete(self, segment: Segment, completed: CompletedTransaction) -> None:
        if completed.aborted:
            stable = self._producers.stable_offset_after(completed)
            segment.transaction_index.append(
                AbortedEntry(completed.producer_id, completed.first_offset, completed.last_offset, stable)
            )
        self._producers.complete(completed)

    # --- rolling -----------------------------------------------------------------------------------------------------

    def _maybe_roll(self, size: int, first_offset: int, last_offset: int, max_timestamp: int, now_ms: int) -> None:
        active = self._segments.active
        if self._must_roll(size, last_offset) or (active.size and self._is_old(active, max_timestamp, now_ms)):
            self._roll_to(max(first_offset, self._log_end_offset))

    def _must_roll(self, size: int, last_offset: int, *, pending: int = 0) -> bool:
        active = self._segments.active
        filled = active.size + pending
        limit = self.config.segment_index_bytes
        return (
            (filled > 0 and filled + size > self.config.segment_bytes)
            or last_offset - active.base_offset > RELATIVE_OFFSET_MAX
            or active.offset_index.is_full(limit)
            or active.time_index.is_full(limit, spare=1)
        )

    def _is_old(self, active: Segment, max_timestamp: int, now_ms: int) -> bool:
        """By the records' own time where they have one, else by the clock."""
        first = active.first_timestamp
        limit = self.config.segment_ms
        if "compact" in self.config.cleanup_policy:
            limit = min(limit, self.config.max_compaction_lag_ms)
        has_time = first is not None and first >= 0 and max_timestamp >= 0
        waited = max_timestamp - first if has_time and first is not None else now_ms - active.created_ms
        return waited > limit - active.jitter_ms

    @_storage
    def roll(self) -> None:
        """Close the active segment and begin the next at the log's end; nothing to do if it is empty."""
        self._roll_to(self._log_end_offset)

    def _roll_to(self, base_offset: int) -> None:
        old = self._segments.active
        if old.size == 0 and old.base_offset == base_offset:
            return
        old.seal()
        self._keep_snapshot()
        self._add_segment(base_offset)
        self._log_end_offset = base_offset
        self._owner.flush_soon(self)

    def _add_segment(self, base_offset: int) -> None:
        jitter = min(self.config.segment_jitter_ms, self.config.segment_ms)
        segment = Segment(
            self._disk,
            self.directory,
            base_offset,
            created_ms=self._clock.wall_ms(),
            index_interval_bytes=self.config.index_interval_bytes,
            jitter_ms=self._random.randrange(jitter) if jitter > 0 else 0,
        )
        segment.create()
        self._segments.add(segment)

    def _keep_snapshot(self) -> None:
        """Of the producer state as it is now; the next flush writes it. A crash before that costs a longer scan."""
        if self._producers.end_offset > self._snapshot_end:
            self._pending_snapshots[self._producers.end_offset] = encode_snapshot(self._producers)
            self._snapshot_end = self._producers.end_offset

    # --- read --------------------------------------------------------------------------------------------------------

    @_storage
    def read(self, offset: int, max_bytes: int, *, upper_bound: int, at_least_one: bool) -> ReadResult:
        """Batches wholly below `upper_bound` (LEO, HW or LSO), at most `max_bytes` of them, except that the first one
        comes whole whatever its size if `at_least_one`. Raises OFFSET_OUT_OF_RANGE outside [log start, LEO]."""
        if not self._log_start_offset <= offset <= self._log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {self.topic_partition}: it has {self._log_start_offset} to {self._log_end_offset}",
            )
        if offset >= upper_bound:
            return ReadResult(b"", offset, offset)
        at_end = upper_bound >= self._log_end_offset
        for segment in self._segments.holding_or_after(offset):
            if segment.base_offset >= upper_bound:
                break
            found = segment.read(offset, max_bytes, upper_bound, at_end=at_end, at_least_one=at_least_one)
            if found.records or self._has_batch_from(segment, offset):
                return ReadResult(*found)
        return ReadResult(b"", offset, offset)

    @staticmethod
    def _has_batch_from(segment: Segment, offset: int) -> bool:
        """False where compaction took the end of a segment: the next batch is in a later one."""
        return segment.position_of(offset) < segment.size

    @_storage
    def offset_for_timestamp(self, timestamp: int, bound: int) -> TimestampOffset | None:
        """The first record at or after that time, if its offset is below `bound`."""
        for segment in self._segments:
            if segment.max_timestamp[0] < timestamp:
                continue
            start = max(segment.time_index.offset_at_or_below(timestamp), self._log_start_offset)
            for position, header in segment.headers(segment.position_of(start)):
                if header.max_timestamp < timestamp or header.last_offset < self._log_start_offset:
                    continue
                for record in iter_records(segment.pread(header.size_in_bytes, position)):
                    if record.timestamp >= timestamp and record.offset >= self._log_start_offset:
                        if record.offset >= bound:
                            return None
                        epoch = LeaderEpoch(header.leader_epoch) if header.leader_epoch >= 0 else None
                        return TimestampOffset(record.timestamp, record.offset, epoch)
        return None

    @_storage
    def aborted_transactions(self, from_offset: int, to_offset: int) -> list[AbortedTransaction]:
        """Those that a reader of [from, to) must skip; may name more, never fewer."""
        found: list[AbortedTransaction] = []
        for segment in self._segments.holding_or_after(from_offset):
            for entry in segment.transaction_index.entries():
                if entry.last_offset >= from_offset and entry.first_offset < to_offset:
                    found.append(AbortedTransaction(entry.producer_id, entry.first_offset))
                if entry.last_stable_offset >= to_offset:
                    return found
        return found

    # --- offsets -----------------------------------------------------------------------------------------------------

    def update_high_watermark(self, offset: int) -> bool:
        """Set, bounded to [log start, LEO]; may lower it (a follower). True if it changed."""
        bounded = max(self._log_start_offset, min(offset, self._log_end_offset))
        if bounded == self._high_watermark:
            return False
        self._high_watermark = bounded
        self._producers.on_high_watermark(bounded)
        self._refresh_unstable()
        return True

    def maybe_increment_high_watermark(self, offset: int) -> bool:
        """The leader's form: only ever raises it."""
        return offset > self._high_watermark and self.update_high_watermark(offset)

    def _refresh_unstable(self) -> None:
        first = self._producers.first_unstable_offset
        self._first_unstable = None if first is None else max(first, self._log_start_offset)

    @_storage
    def advance_log_start(self, offset: int) -> bool:
        """Raise LSTART; segments below it go with the next retention pass. OFFSET_OUT_OF_RANGE above the HW."""
        if offset > self._high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"log start {offset} above the high watermark {self._high_watermark}"
            )
        if offset <= self._log_start_offset:
            return False
        self._log_start_offset = offset
        self.epochs.truncate_from_start(offset)
        self._refresh_unstable()
        return True

    @_storage
    def delete_oldest(self, count: int) -> int:
        """The first `count` segments, which must lie below the high watermark; if that is all, a new one is begun."""
        count = min(count, len(self._segments))
        if count == len(self._segments) and count:
            if self._segments.active.size == 0:
                count -= 1
            else:
                self._roll_to(self._log_end_offset)
        self._delete(self._segments.take_first(count))
        if count and self._segments.first.base_offset > self._log_start_offset:
            self._high_watermark = max(self._high_watermark, self._segments.first.base_offset)
            self.advance_log_start(self._segments.first.base_offset)
        return count

    def _delete(self, segments: list[Segment]) -> None:
        renamed = [path for segment in segments for path in segment.rename_deleted()]
        if renamed:
            self._owner.remove_later(renamed, self.config.file_delete_delay_ms)

    # --- truncation --------------------------------------------------------------------------------------------------

    @_storage
    def truncate_to(self, offset: int) -> bool:
        """Cut the end off. True if anything was cut; the epoch cache is cut in any case (KAFKA-10706)."""
        if offset >= self._log_end_offset:
            self.epochs.truncate_from_end(max(offset, self._log_end_offset))
            return False
        if offset < self._segments.first.base_offset:
            self.truncate_fully_and_start_at(offset)
            return True
        self._lower_recovery_point(offset)
        self._delete(self._segments.take_above(offset))
        self._segments.active.truncate_to(offset)
        self._log_end_offset = offset
        self._log_start_offset = min(self._log_start_offset, offset)
        self.epochs.truncate_from_end(offset)
        self._drop_snapshots_above(offset)
        self._producers = rebuild_producers(
            self._segments,
            self._snapshots,
            log_start_offset=self._log_start_offset,
            target=offset,
            now_ms=self._clock.wall_ms(),
        )
        self._after_truncation(min(self._high_watermark, offset))
        return True

    @_storage
    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Everything goes; the log is empty and begins at `offset`, which becomes the high watermark too."""
        self._lower_recovery_point(offset)
        self._delete(self._segments.take_first(len(self._segments)))
        self._add_segment(offset)
        self._log_start_offset = self._log_end_offset = offset
        self._recovery_point = offset
        self.epochs.clear()
        self._drop_snapshots_above(-1)
        self._producers = type(self._producers)()
        self._producers.end_offset = offset
        self._after_truncation(offset)

    def _lower_recovery_point(self, offset: int) -> None:
        """First of all: a crash in the middle must find a checkpoint from which recovery sees the cut."""
        self._generation += 1
        if self._recovery_point > offset:
            self._recovery_point = offset
            self._owner.recovery_point_lowered(self)

    def _drop_snapshots_above(self, offset: int) -> None:
        self._pending_snapshots = {at: data for at, data in self._pending_snapshots.items() if at <= offset}
        self._snapshots.remove_above(offset)
        self._snapshot_end = max(*self._snapshots.offsets, *self._pending_snapshots, -1, -1)

    def _after_truncation(self, high_watermark: int) -> None:
        self._high_watermark = high_watermark
        self._producers.on_high_watermark(high_watermark)
        self._refresh_unstable()

    # --- durability --------------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Everything up to the present end to the platter, off the loop; then the recovery point is there."""
        self.check_usable()
        try:
            plan = self._plan_flush()
            await self._disk.run(lambda: self._carry_out(plan))
        except OSError as error:
            raise self.fail(error) from error
        if plan.generation != self._generation or self._failure is not None:
            self._remove_stale_snapshots(plan)
            return
        for offset in plan.snapshots:
            self._pending_snapshots.pop(offset, None)
            self._snapshots.added(offset)
        self._recovery_point = max(self._recovery_point, plan.target)
        self._prune_snapshots()
        for segment in plan.sealed:
            segment.close_files()

    def _plan_flush(self) -> _FlushPlan:
        unflushed = self._unflushed()
        for segment in unflushed:
            segment.write_out()
        epochs = self.epochs.encode() if self.epochs.dirty else None
        self.epochs.dirty = False
        return _FlushPlan(
            target=self._log_end_offset,
            generation=self._generation,
            sealed=[segment for segment in unflushed if segment is not self._segments.active],
            syncs=[sync for segment in unflushed for sync in segment.syncs()],
            snapshots=dict(self._pending_snapshots),
            epochs=epochs,
        )

    def _unflushed(self) -> list[Segment]:
        """From the recovery point on; a segment sealed since has a last index entry even if its batches are safe."""
        behind = self._recovery_point < self._log_end_offset
        found = self._segments.holding_or_after(self._recovery_point) if behind else []
        return found + [
            segment for segment in self._segments if segment.has_unwritten_entries() and segment not in found
        ]

    def _carry_out(self, plan: _FlushPlan) -> None:
        for sync in plan.syncs:
            sync()
        if plan.epochs is not None:
            self._disk.write_atomically(self.epochs.path, plan.epochs)
        for offset, data in plan.snapshots.items():
            self._disk.write_atomically(self._snapshots.path(offset), data)
        self._disk.sync_directory(self.directory)

    def _remove_stale_snapshots(self, plan: _FlushPlan) -> None:
        """A truncation overtook the flush: what it wrote may describe batches that are gone."""
        for offset in plan.snapshots:
            self._snapshots.added(offset)
        self._drop_snapshots_above(min(self._producers.end_offset, self._recovery_point))
        self.epochs.dirty = True

    def _prune_snapshots(self) -> None:
        """Kept from the segment that a recovery would begin in, and from the one before the active one."""
        before_active = self._segments[max(len(self._segments) - 2, 0)].base_offset
        self._snapshots.remove_below(min(before_active, self._segments.at_or_below(self._recovery_point).base_offset))

    def expire_producers(self, idle_ms: int) -> None:
        self._producers.expire(self._clock.wall_ms() - idle_ms)

    def close(self) -> None:
        """Everything to the platter and the files closed: the next load is clean. Runs in the pool; raises OSError."""
        try:
            if self._failure is None:
                self._segments.active.seal()
                self._keep_snapshot()
                self._carry_out(self._plan_flush())
                self._recovery_point = self._log_end_offset
        finally:
            self.close_files()

    def close_files(self) -> None:
        for segment in self._segments:
            segment.close_files()

    def move_to(self, directory: str) -> None:
        """The directory was renamed. Nothing reads or writes this log any more."""
        self.close_files()
        self.directory = directory
        self._failure = self._failure or FileNotFoundError(f"{self.topic_partition} was deleted")
