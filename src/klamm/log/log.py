"""One partition's log: what may be appended, what may be read, and where its offsets stand.

Invariants: log start ≤ high watermark ≤ log end; last stable offset ≤ high watermark; recovery point ≤ log end. Appends
and reads run in the event loop and end in the page cache; `flush`, and whatever else waits for the platter, runs in the
disk pool. An append is one write. The first file operation that fails ends the life of the log in this process
(KAFKA-10778): what is on disk is then known only to a recovery.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from klamm.log.compaction.swap import Swap
from klamm.log.durability import Durability
from klamm.log.indexes.transaction_index import AbortedEntry
from klamm.log.leader_epochs import LeaderEpochCache
from klamm.log.lookup import find_aborted, find_timestamp
from klamm.log.producers.producer_history import ProducerHistory
from klamm.log.producers.producer_state import CompletedTransaction, ProducerState
from klamm.log.recovery import LoadedLog, apply_to_producers
from klamm.log.rolling import is_full, is_old
from klamm.log.segment import Segment
from klamm.log.segments import Segments
from klamm.log.validation import AppendOrigin, StoredBatch, check_batches, store
from klamm.log.values import (
    AbortedTransaction,
    AppendInfo,
    LogOwner,
    ReadResult,
    TimestampOffset,
    UnexpectedAppendOffset,
)
from klamm.model.config import TopicConfig
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import LeaderEpoch, TopicPartition
from klamm.model.ports import Buffer, Clock, Disk
from klamm.model.settings import LONG_MAX
from klamm.wire.batch import BatchHeader, check_crc, iter_batches
from klamm.wire.records import read_end_transaction_marker

__all__ = [
    "AbortedTransaction",
    "AppendInfo",
    "AppendOrigin",
    "Log",
    "LogOwner",
    "ReadResult",
    "TimestampOffset",
    "UnexpectedAppendOffset",
]

P = ParamSpec("P")
R = TypeVar("R")

EPOCHS_FLUSH_MS = 2_000
"""Until a new leader epoch is in its file. Recovery rebuilds it from the batches until then, and at a fail-over, when a
thousand logs begin an epoch at once, their thousand flushes must not compete with the first records."""


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
        self._producers = ProducerHistory(loaded.producers, loaded.snapshots)
        self.epochs: LeaderEpochCache = loaded.epochs
        self._log_start_offset = loaded.log_start_offset
        self._log_end_offset = loaded.log_end_offset
        self._high_watermark = loaded.log_start_offset
        self._durability = Durability(
            disk, directory, loaded.segments, self._producers, loaded.epochs, loaded.recovery_point
        )
        self._swap: Swap | None = None
        self._first_unstable: int | None = None
        self._failure: OSError | None = None
        self.deleted = False
        self.epochs.bind(lambda: self._log_end_offset, lambda: owner.flush_within(self, EPOCHS_FLUSH_MS))
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
        return self._durability.recovery_point

    @property
    def segments(self) -> Segments:
        return self._segments

    @property
    def producers(self) -> ProducerState:
        return self._producers.state

    @property
    def generation(self) -> int:
        """Another number, another past: something was truncated in between."""
        return self._durability.generation

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
        stored = self._assign(view, batches, leader_epoch, now_ms)
        headers = [batch.header for batch in stored]
        size = sum(batch.size for batch in stored)
        if size > self.config.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE, f"{size} bytes, segment.bytes is {self.config.segment_bytes}"
            )
        max_timestamp = max(header.max_timestamp for header in headers)
        self._maybe_roll(size, headers[0].base_offset, headers[-1].last_offset, max_timestamp, now_ms)
        self._write([chunk for batch in stored for chunk in batch.chunks], size, headers, view)
        log_append_time = now_ms if self.config.message_timestamp_type == "LogAppendTime" else -1
        return AppendInfo(
            headers[0].base_offset, headers[-1].last_offset, max_timestamp, log_append_time, self._log_start_offset
        )

    def _assign(
        self, view: memoryview, batches: list[tuple[int, BatchHeader]], leader_epoch: LeaderEpoch, now_ms: int
    ) -> list[StoredBatch]:
        stored: list[StoredBatch] = []
        next_offset = self._log_end_offset
        for position, header in batches:
            batch = view[position : position + header.size_in_bytes]
            stored.append(
                store(batch, header, self.config, base_offset=next_offset, leader_epoch=leader_epoch, now_ms=now_ms)
            )
            next_offset += header.last_offset_delta + 1
        return stored

    def _check_producer(
        self, view: memoryview, batches: list[tuple[int, BatchHeader]], origin: AppendOrigin
    ) -> AppendInfo | None:
        """The original's offsets if this is a retry of what was written already."""
        position, header = batches[0]
        if len(batches) > 1 and any(header.has_producer_id for _, header in batches):
            raise KafkaError(ErrorCode.INVALID_RECORD, "more than one batch with a producer id")
        if not header.has_producer_id:
            return None
        state = self._producers.state
        if header.is_control:
            state.check_marker(header, read_end_transaction_marker(view[position:]))
            return None
        if origin is AppendOrigin.COORDINATOR:
            state.check_coordinator_batch(header)
            return None
        found = state.duplicate_of(header)
        if found is None:
            state.check(header)
            return None
        time = found.timestamp
        return AppendInfo(found.first_offset, found.last_offset, time, time, self._log_start_offset, duplicate=True)

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
        now_ms = self._clock.wall_ms()
        run: list[tuple[int, BatchHeader]] = []
        run_bytes = 0
        for position, header in batches:
            size = header.size_in_bytes
            if run and is_full(self._segments.active, self.config, size, header.last_offset, pending=run_bytes):
                self._write_run(view, run)
                run, run_bytes = [], 0
            if not run:
                self._maybe_roll(size, header.base_offset, header.last_offset, header.max_timestamp, now_ms)
            run.append((position, header))
            run_bytes += size
        self._write_run(view, run)
        max_timestamp = max(header.max_timestamp for _, header in batches)
        first_offset = batches[0][1].base_offset
        return AppendInfo(first_offset, self._log_end_offset - 1, max_timestamp, -1, self._log_start_offset)

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
        state = self._producers.state
        in_view = 0
        for header in headers:
            segment.note(position, header)
            self._log_end_offset = header.next_offset
            self.epochs.assign(LeaderEpoch(header.leader_epoch), header.base_offset)
            if header.producer_id >= 0:
                completed = apply_to_producers(header, view[in_view:], state, self._clock.wall_ms())
                if completed is not None:
                    self._complete(segment, completed)
                self._refresh_unstable()
            position += header.size_in_bytes
            in_view += header.size_in_bytes
        state.end_offset = self._log_end_offset
        self._flush_if_asked()

    def _complete(self, segment: Segment, completed: CompletedTransaction) -> None:
        state = self._producers.state
        if completed.aborted:
            stable = state.stable_offset_after(completed)
            segment.transaction_index.append(
                AbortedEntry(completed.producer_id, completed.first_offset, completed.last_offset, stable)
            )
        state.complete(completed)

    def _flush_if_asked(self) -> None:
        """flush.messages and flush.ms, both off by default: durability is replication."""
        if self._log_end_offset - self.recovery_point >= self.config.flush_messages:
            self._owner.flush_soon(self)
        elif self.config.flush_ms < LONG_MAX:
            self._owner.flush_within(self, self.config.flush_ms)

    # --- rolling -----------------------------------------------------------------------------------------------------

    def _maybe_roll(self, size: int, first_offset: int, last_offset: int, max_timestamp: int, now_ms: int) -> None:
        active = self._segments.active
        if is_full(active, self.config, size, last_offset) or is_old(active, self.config, max_timestamp, now_ms):
            self._roll_to(max(first_offset, self._log_end_offset))

    @_storage
    def roll(self) -> None:
        """Close the active segment and begin the next at the log's end; nothing to do if it is empty."""
        self._roll_to(self._log_end_offset)

    def _roll_to(self, base_offset: int) -> None:
        old = self._segments.active
        if old.size == 0 and old.base_offset == base_offset:
            return
        old.seal()
        self._producers.take_snapshot()
        self._add_segment(base_offset)
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
        at_end = upper_bound >= self._log_end_offset
        for segment in self._segments.holding_or_after(offset) if offset < upper_bound else ():
            if segment.base_offset >= upper_bound:
                break
            found = segment.read(offset, max_bytes, upper_bound, at_end=at_end, at_least_one=at_least_one)
            # Where compaction took the end of a segment, the next batch is in a later one.
            if found.records or segment.position_of(offset) < segment.size:
                return ReadResult(*found)
        return ReadResult(b"", offset, offset)

    @_storage
    def offset_for_timestamp(self, timestamp: int, bound: int) -> TimestampOffset | None:
        """The first record at or after that time, if its offset is below `bound`."""
        found = find_timestamp(self._segments, self._log_start_offset, timestamp)
        return found if found is not None and found.offset < bound else None

    @_storage
    def aborted_transactions(self, from_offset: int, to_offset: int) -> list[AbortedTransaction]:
        """Those that a reader of [from, to) must skip; may name more, never fewer."""
        return find_aborted(self._segments, from_offset, to_offset)

    # --- offsets -----------------------------------------------------------------------------------------------------

    def update_high_watermark(self, offset: int) -> bool:
        """Set, bounded to [log start, LEO]; may lower it (a follower). True if it changed."""
        bounded = max(self._log_start_offset, min(offset, self._log_end_offset))
        if bounded == self._high_watermark:
            return False
        self._set_high_watermark(bounded)
        return True

    def maybe_increment_high_watermark(self, offset: int) -> bool:
        """The leader's form: only ever raises it."""
        return offset > self._high_watermark and self.update_high_watermark(offset)

    def _set_high_watermark(self, offset: int) -> None:
        self._high_watermark = offset
        self._producers.state.on_high_watermark(offset)
        self._refresh_unstable()

    def _refresh_unstable(self) -> None:
        first = self._producers.state.first_unstable_offset
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
        """The first `count` segments, which lie below the high watermark; if that is all of them, one is begun."""
        if count == len(self._segments):
            self._roll_to(self._log_end_offset)
        self._delete(self._segments.take_first(count))
        self.advance_log_start(min(self._segments.first.base_offset, self._high_watermark))
        return count

    def _delete(self, segments: list[Segment]) -> None:
        renamed = [path for segment in segments for path in segment.rename_deleted()]
        if renamed:
            self._owner.remove_later(renamed, self.config.file_delete_delay_ms)

    # --- truncation --------------------------------------------------------------------------------------------------

    @_storage
    def truncate_to(self, offset: int) -> bool:
        """Cut the end off. True if anything was cut; an epoch that begins at the end goes in any case (KAFKA-10706)."""
        if offset >= self._log_end_offset:
            self.epochs.truncate_from_end(self._log_end_offset)
            return False
        if offset < self._segments.first.base_offset:
            self.truncate_fully_and_start_at(offset)
            return True
        self._prepare_cut(offset)
        self._delete(self._segments.take_above(offset))
        self._segments.active.truncate_to(offset)
        self._log_end_offset = offset
        self._log_start_offset = min(self._log_start_offset, offset)
        self.epochs.truncate_from_end(offset)
        now_ms = self._clock.wall_ms()
        self._producers.return_to(offset, self._segments, log_start_offset=self._log_start_offset, now_ms=now_ms)
        self._set_high_watermark(min(self._high_watermark, offset))
        return True

    @_storage
    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Everything goes; the log is empty and begins at `offset`, which becomes the high watermark too."""
        self._prepare_cut(offset)
        self._delete(self._segments.take_first(len(self._segments)))
        self._add_segment(offset)
        self._log_start_offset = self._log_end_offset = self._durability.recovery_point = offset
        self.epochs.clear()
        self._producers.start_anew(offset)
        self._set_high_watermark(offset)

    def _prepare_cut(self, offset: int) -> None:
        """First of all: a crash in the middle must find checkpoints from which it sees the cut, and no swap to finish
        that would bring back what is cut off."""
        self.finish_swap()
        lowered = self._durability.cut(offset)
        self._owner.truncating(self, offset, recovery_point_lowered=lowered)

    # --- compaction --------------------------------------------------------------------------------------------------

    @_storage
    def begin_swap(self, swap: Swap) -> None:
        """From here on a restart finishes it; so must we, whatever happens to the log meanwhile."""
        self._swap = swap
        swap.begin()

    @_storage
    def finish_swap(self) -> None:
        """Readers that come now find the cleaned segment; there may be none to finish."""
        swap, self._swap = self._swap, None
        if swap is not None:
            renamed = swap.finish()
            self._segments.replace(swap.sources, swap.replacement)
            self._owner.remove_later(renamed, self.config.file_delete_delay_ms)

    # --- durability --------------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Everything up to the present end to the platter, off the loop; then the recovery point is there."""
        self.check_usable()
        try:
            plan = self._durability.plan(self._log_end_offset)
            await self._disk.run(lambda: self._durability.carry_out(plan))
            self._durability.flushed(plan)
        except OSError as error:
            raise self.fail(error) from error

    def expire_producers(self, idle_ms: int) -> None:
        self._producers.state.expire(self._clock.wall_ms() - idle_ms)

    def close(self) -> None:
        """Everything to the platter and the files closed: the next load is clean. Runs in the pool; raises OSError."""
        try:
            if self._failure is None:
                self._segments.active.seal()
                self._producers.take_snapshot()
                self._durability.carry_out(self._durability.plan(self._log_end_offset))
                self._durability.recovery_point = self._log_end_offset
        finally:
            self.close_files()

    def close_files(self) -> None:
        for segment in self._segments:
            segment.close_files()

    def move_to(self, directory: str) -> None:
        """The directory was renamed for deletion: nothing reads or writes this log any more."""
        self.directory = directory
        self.deleted = True
        self._failure = self._failure or FileNotFoundError(f"{self.topic_partition} was deleted")
