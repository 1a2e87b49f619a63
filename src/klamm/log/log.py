"""One partition's log: what may be appended, what may be read, and its offsets.

Invariants: log start ≤ high watermark ≤ log end; last stable offset ≤ high watermark; recovery point ≤ log end. Appends
and reads run in the event loop and end in the page cache; `flush` and everything else that waits for the disk runs in
the disk pool. An append is one write; the body of a large batch is written ahead of it, in the pool. The first file
operation that fails makes the log unusable in this process (KAFKA-10778): only a recovery can tell what is on disk
then. A full disk is no failure: it refuses what needs room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial, wraps
from random import Random
from typing import Concatenate, Final, NamedTuple, ParamSpec, TypeVar

from klamm.log.compaction.swap import Swap
from klamm.log.durability import Durability, FlushPlan
from klamm.log.leader_epochs import LeaderEpochCache
from klamm.log.log_owner import LogOwner
from klamm.log.log_results import AbortedTransaction, AppendInfo, ReadResult, TimestampOffset
from klamm.log.producers.producer_replay import apply_batch, complete_transaction
from klamm.log.producers.producer_state import ProducerState
from klamm.log.producers.producer_state_manager import ProducerStateManager
from klamm.log.recovery import LoadedLog
from klamm.log.segments.log_segment import LogSegment
from klamm.log.segments.log_segments import LogSegments
from klamm.log.segments.lookup import find_aborted, find_timestamp
from klamm.log.segments.rolling import is_full, is_old
from klamm.log.storage_errors import is_passing
from klamm.log.validation import (
    AppendOrigin,
    Prepared,
    PreparedAppend,
    StagedBatch,
    assign_offsets,
    check_batches,
    check_continues,
    check_replicated,
    is_costly,
    prepare,
)
from klamm.model.config import TopicConfig
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import LeaderEpoch, TopicPartition
from klamm.model.ports import Buffer, Clock, Disk, Staged
from klamm.model.settings import LONG_MAX
from klamm.wire.batch import HEADER_BYTES, BatchHeader, iter_batches, read_header


class Rewound(NamedTuple):
    """The producers as they were before `offset`, read for a truncation."""

    offset: int
    log_start_offset: int
    generation: int
    state: ProducerState | None


P = ParamSpec("P")
R = TypeVar("R")

EPOCHS_FLUSH_MS = 2_000
"""Delay until a new leader epoch is written to its file; until then recovery rebuilds it from the batches. After a
fail-over a thousand logs begin an epoch at once, and their flushes must not compete with the first records."""

_TIMESTAMPS_AT_ONCE: Final = 64


def _storage(method: Callable[Concatenate[Log, P], R]) -> Callable[Concatenate[Log, P], R]:
    """Decorator: refuses to work on a failed log; an OSError in the method marks the log as failed."""

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
        rng: Random,
        topic_partition: TopicPartition,
        config: TopicConfig,
        loaded: LoadedLog,
        owner: LogOwner,
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._random = rng
        self._owner = owner
        self.topic_partition = topic_partition
        self.directory = loaded.directory
        """The directory of this partition; its parent is the log directory."""
        self.config = config
        """May be replaced at any time; new limits apply from the next append."""
        self._segments = loaded.segments
        self._producers = ProducerStateManager(loaded.producers, loaded.snapshots)
        self.epochs: LeaderEpochCache = loaded.epochs
        self._log_start_offset = loaded.log_start_offset
        self._log_end_offset = loaded.log_end_offset
        self._high_watermark = loaded.log_start_offset
        self._durability = Durability(
            disk, loaded.directory, loaded.segments, self._producers, loaded.epochs, loaded.recovery_point
        )
        self._swap: Swap | None = None
        self._rewound: Rewound | None = None
        self._first_unstable: int | None = None
        self._failure: Exception | None = None
        self.deleted = False
        self.epochs.bind(lambda: self._log_end_offset, lambda: owner.flush_within(self, EPOCHS_FLUSH_MS))
        self._refresh_unstable()

    # --- offsets and state -------------------------------------------------------------------------------------------

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
        """Start of the oldest transaction that is still open or whose end marker lies above the high watermark."""
        return self._first_unstable

    @property
    def last_stable_offset(self) -> int:
        first = self._first_unstable
        return self._high_watermark if first is None or first > self._high_watermark else first

    @property
    def recovery_point(self) -> int:
        """Offsets below it survive a power cut."""
        return self._durability.recovery_point

    @property
    def recovery_begins(self) -> int:
        """A recovery begins in the segment that holds this offset: the checkpoint has it."""
        return self._durability.recovery_begins

    @property
    def waits_for_flush(self) -> bool:
        """So many records are unflushed that flush.messages allows no more: the latest must not be acknowledged."""
        return self._log_end_offset - self.recovery_point >= self.config.flush_messages

    def may_acknowledge(self, end_offset: int) -> bool:
        """Whether flush.messages allows to acknowledge what lies below `end_offset`."""
        return end_offset <= self.recovery_point or not self.waits_for_flush

    @property
    def committable_end(self) -> int:
        """As far as this replica counts for the high watermark: what flush.messages wants flushed, it must have
        flushed, whether it follows or leads."""
        return self.recovery_point if self.waits_for_flush else self._log_end_offset

    @property
    def segments(self) -> LogSegments:
        return self._segments

    @property
    def producers(self) -> ProducerState:
        return self._producers.state

    @property
    def generation(self) -> int:
        """Changes with every truncation."""
        return self._durability.generation

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def failed(self) -> bool:
        """A file operation failed: every append and read raises KAFKA_STORAGE_ERROR."""
        return self._failure is not None

    def check_usable(self) -> None:
        if self._failure is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition}: {self._failure}")

    def fail(self, error: OSError) -> KafkaError:
        """Stop using the files, unless the error passes; returns the error for the caller to raise."""
        if self._failure is None and not is_passing(error):
            self._failure = error
            self._owner.storage_failed(self, error)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition}: {error}")

    def give_up(self, reason: Exception) -> None:
        """Memory and files disagree, although the disk works: this log alone goes offline. The next start recovers
        it."""
        if self._failure is None:
            self._failure = reason
            self._owner.log_failed(self, reason)

    # --- append ------------------------------------------------------------------------------------------------------

    async def prepare(self, records: Buffer) -> PreparedAppend | None:
        """Check and convert a client's batch off the loop, if that is costly; else None, and the append does it. No
        other append waits for it."""
        if not is_costly(records, self.config):
            return None
        view, config, now_ms = memoryview(records), self.config, self._clock.wall_ms()

        def job() -> PreparedAppend:
            batches = check_batches(view, config, AppendOrigin.CLIENT)
            return PreparedAppend(view, batches, prepare(view, batches, config, now_ms, AppendOrigin.CLIENT), now_ms)

        return await self._disk.run(job)

    async def stage(self, large: PreparedAppend) -> PreparedAppend:
        """Write the body of a large batch beyond the end of the active segment, off the loop, so that its append only
        adds the header. Anything else that changes the segment drops it, and the append writes the batch itself. The
        caller lets no other append to this log begin meanwhile, and drops what it does not append."""
        self.check_usable()
        batch, header = large.prepared[0]
        if len(batch) > self.config.segment_bytes:
            return large  # the append refuses it
        first, last = self._log_end_offset, self._log_end_offset + header.last_offset_delta
        staged: Staged | None = None
        try:
            self._maybe_roll(len(batch), first, last, header.max_timestamp, large.now_ms)
            segment = self._segments.active
            staged = segment.stage(batch[HEADER_BYTES:], HEADER_BYTES)
            await self._disk.run(staged.write)
            return large._replace(staged=StagedBatch(segment, staged, partial(self._unstage, staged)))
        except BaseException as error:
            if staged is not None:
                self._unstage(staged)
            if isinstance(error, OSError):
                raise self.fail(error) from error
            raise

    def _unstage(self, staged: Staged) -> None:
        """If what is beyond the end cannot be cut off, that concerns this log and not the request that staged it."""
        try:
            staged.drop()
        except OSError as error:
            self.fail(error)

    @_storage
    def append_as_leader(
        self,
        records: Buffer | PreparedAppend,
        leader_epoch: LeaderEpoch,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> AppendInfo:
        """Validate, assign offsets, write. If it raises KafkaError, nothing was written.

        Several batches at once are accepted only without producer ids: Produce v3 and later has one per partition.
        """
        prepared: list[Prepared] | None = None
        staged: StagedBatch | None = None
        if isinstance(records, PreparedAppend):
            view, batches, prepared, now_ms, staged = records
        else:
            view, now_ms = memoryview(records), self._clock.wall_ms()
            batches = check_batches(view, self.config, origin)
        duplicate = self._producers.check(view, batches, origin)
        if duplicate is not None:
            first, last, time = duplicate.first_offset, duplicate.last_offset, duplicate.timestamp
            return AppendInfo(first, last, time, time, self._log_start_offset, duplicate=True)
        if prepared is None:
            prepared = prepare(view, batches, self.config, now_ms, origin)
        stored = assign_offsets(prepared, next_offset=self._log_end_offset, leader_epoch=leader_epoch)
        headers = [batch.header for batch in stored]
        size = sum(batch.size for batch in stored)
        if size > self.config.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE, f"{size} bytes are more than segment.bytes={self.config.segment_bytes}"
            )
        max_timestamp = max(header.max_timestamp for header in headers)
        self._maybe_roll(size, headers[0].base_offset, headers[-1].last_offset, max_timestamp, now_ms)
        self._write([chunk for batch in stored for chunk in batch.chunks], size, headers, view, staged)
        log_append_time = now_ms if self.config.message_timestamp_type == "LogAppendTime" else -1
        return AppendInfo(
            headers[0].base_offset, headers[-1].last_offset, max_timestamp, log_append_time, self._log_start_offset
        )

    async def prepare_replicated(self, records: Buffer) -> PreparedAppend:
        """Check what the leader sent off the loop, and write a large batch there, as `stage` does."""
        view, now_ms = memoryview(records), self._clock.wall_ms()

        def job() -> PreparedAppend:
            batches = list(iter_batches(view))
            check_replicated(view, batches)
            whole = [Prepared(view[at : at + header.size_in_bytes], header) for at, header in batches]
            return PreparedAppend(view, batches, whole, now_ms)

        prepared = await self._disk.run(job)
        return await self.stage(prepared) if prepared.is_large else prepared

    @_storage
    def append_as_follower(self, records: Buffer | PreparedAppend) -> AppendInfo:
        """Append batches with the offsets and epochs that the leader assigned. A torn batch at the end is left out.

        Raises CORRUPT_MESSAGE (fetch again) or UnexpectedAppendOffset (a bug in the caller); then nothing was written.
        """
        staged: StagedBatch | None = None
        if isinstance(records, PreparedAppend):
            view, batches, _, now_ms, staged = records
        else:
            view, now_ms = memoryview(records), self._clock.wall_ms()
            batches = list(iter_batches(view))
        if not batches:
            return AppendInfo(self._log_end_offset, self._log_end_offset - 1, -1, -1, self._log_start_offset)
        first = batches[0][1].base_offset
        is_empty = self._log_end_offset == self._log_start_offset
        check_continues(batches, self.topic_partition, self._log_end_offset, is_empty=is_empty)
        if not isinstance(records, PreparedAppend):
            check_replicated(view, batches)
        if first < self._log_end_offset:
            self.truncate_fully_and_start_at(first)
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
        self._write_run(view, run, staged)
        max_timestamp = max(header.max_timestamp for _, header in batches)
        return AppendInfo(first, self._log_end_offset - 1, max_timestamp, -1, self._log_start_offset)

    def _write_run(
        self, view: memoryview, run: list[tuple[int, BatchHeader]], staged: StagedBatch | None = None
    ) -> None:
        """`staged` is the body of a batch that is the only one."""
        start, (last_position, last) = run[0][0], run[-1]
        body, end = start + HEADER_BYTES, last_position + last.size_in_bytes
        headers = [header for _, header in run]
        self._write([view[start:body], view[body:end]], end - start, headers, view[start:end], staged)

    def _write(
        self,
        chunks: list[Buffer],
        size: int,
        headers: list[BatchHeader],
        view: memoryview,
        staged: StagedBatch | None = None,
    ) -> None:
        """One write, then everything that follows from it. `view` holds the batches, for the content of markers."""
        segment = self._segments.active
        position: int | None = None
        if staged is not None and staged.segment is segment:
            position = segment.append_staged(staged.bytes, chunks[0], size)
        if position is None:
            position = segment.append(chunks, size)
        try:
            self._record(segment, position, headers, view)
        except Exception as error:  # the batches are in the file: the next append must not repeat their offsets
            self.give_up(error)
            raise
        self._flush_if_due()

    def _record(self, segment: LogSegment, position: int, headers: list[BatchHeader], view: memoryview) -> None:
        state = self._producers.state
        in_view = 0
        for header in headers:
            segment.note(position, header)
            self._log_end_offset = header.next_offset
            self.epochs.assign(LeaderEpoch(header.leader_epoch), header.base_offset)
            if header.producer_id >= 0:
                completed = apply_batch(header, view[in_view:], state, self._clock.wall_ms())
                if completed is not None:
                    complete_transaction(segment, state, completed)
                self._refresh_unstable()
            position += header.size_in_bytes
            in_view += header.size_in_bytes
        state.end_offset = self._log_end_offset

    def _flush_if_due(self) -> None:
        """flush.messages and flush.ms, both off by default: replication provides durability."""
        if self.waits_for_flush:
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
        """Seal the active segment and begin the next one at the log end; does nothing if the active one is empty."""
        self._roll_to(self._log_end_offset)

    def _roll_to(self, base_offset: int) -> None:
        old = self._segments.active
        if old.size == 0 and old.base_offset == base_offset:
            return
        old.seal()
        self._producers.take_snapshot()
        self._add_segment(base_offset)
        self._durability.rolled(old)
        self._owner.flush_soon(self)

    def _add_segment(self, base_offset: int) -> None:
        jitter = min(self.config.segment_jitter_ms, self.config.segment_ms)
        segment = LogSegment(
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
        """Batches wholly below `upper_bound` (log end, high watermark or last stable offset), at most `max_bytes`; with
        `at_least_one` the first batch is returned whatever its size. Raises OFFSET_OUT_OF_RANGE outside the log."""
        if not self._log_start_offset <= offset <= self._log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is outside {self.topic_partition}, which has offsets {self._log_start_offset} to "
                f"{self._log_end_offset}",
            )
        at_end = upper_bound >= self._log_end_offset
        for segment in self._segments.holding_or_after(offset) if offset < upper_bound else ():
            if segment.base_offset >= upper_bound:
                break
            found = segment.read(offset, max_bytes, upper_bound, at_end=at_end, at_least_one=at_least_one)
            # If compaction removed the end of this segment, the next batch is in a later one.
            if found.records or segment.position_of(offset) < segment.size:
                return found
        return ReadResult(b"", offset, offset)

    async def read_timestamps(self) -> None:
        """Call it before a search by time: the first one opens the time index of every segment, so it takes turns with
        the rest of the loop."""
        while self._read_some_timestamps():
            await asyncio.sleep(0)

    @_storage
    def _read_some_timestamps(self) -> bool:
        unknown = [segment for segment in self._segments if not segment.knows_max_timestamp][:_TIMESTAMPS_AT_ONCE]
        for segment in unknown:
            _ = segment.max_timestamp
        return bool(unknown)

    @_storage
    def offset_for_timestamp(self, timestamp: int, bound: int) -> TimestampOffset | None:
        """The first record with this timestamp or a later one, if its offset is below `bound`."""
        found = find_timestamp(self._segments, self._log_start_offset, timestamp)
        return found if found is not None and found.offset < bound else None

    @_storage
    def aborted_transactions(self, from_offset: int, to_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions that a reader of [from, to) must skip, and perhaps others."""
        return find_aborted(self._segments, from_offset, to_offset)

    # --- high watermark and log start --------------------------------------------------------------------------------

    def update_high_watermark(self, offset: int) -> bool:
        """Set it, limited to [log start, log end]; a follower may lower it. True if it changed."""
        bounded = max(self._log_start_offset, min(offset, self._log_end_offset))
        if bounded == self._high_watermark:
            return False
        self._set_high_watermark(bounded)
        return True

    def maybe_increment_high_watermark(self, offset: int) -> bool:
        """Raise it, never lower it: what a leader does."""
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
        """Raise the log start; the next retention pass deletes the segments below it. True if it changed.

        Raises OFFSET_OUT_OF_RANGE above the high watermark.
        """
        if offset > self._high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"log start {offset} is above the high watermark {self._high_watermark}"
            )
        if offset <= self._log_start_offset:
            return False
        self._log_start_offset = offset
        self.epochs.truncate_from_start(offset)
        self._refresh_unstable()
        return True

    @_storage
    def delete_oldest(self, count: int) -> int:
        """Delete the first `count` segments, which must lie below the high watermark; the log keeps at least one."""
        if count == len(self._segments):
            self._roll_to(self._log_end_offset)
        self._delete(self._segments.take_first(count))
        self.advance_log_start(min(self._segments.first.base_offset, self._high_watermark))
        return count

    def _delete(self, segments: list[LogSegment]) -> None:
        self._durability.deleted(segments)
        renamed = [path for segment in segments for path in segment.rename_deleted()]
        if renamed:
            self._owner.remove_later(renamed, self.config.file_delete_delay_ms)

    # --- truncation --------------------------------------------------------------------------------------------------

    async def prepare_truncation(self, offset: int) -> None:
        """Call it before `truncate_to`: it does the long parts first, and lets others run meanwhile. Then the recovery
        point is on disk, and the state of the producers before `offset` is read. The log stays as it is."""
        self.check_usable()
        if not self._segments.first.base_offset <= offset < self._log_end_offset:
            return
        offset = self._whole_batches_below(offset)
        if self._durability.lower(offset):
            await self._owner.lowering(self)
            self._flush_if_due()  # if the truncation does not come, what is here must become durable again
        self._rewound = await self._rewind(offset)

    async def _rewind(self, offset: int) -> Rewound | None:
        """None if the log changed meanwhile: then the truncation reads it again."""
        start, segments, generation = self._log_start_offset, list(self._segments), self.generation
        now_ms = self._clock.wall_ms()
        steps = self._producers.rewind_in_slices(offset, self._segments, log_start_offset=start, now_ms=now_ms)
        while self._rewinds_same(start, segments, generation):
            try:
                next(steps)
            except StopIteration as done:
                return Rewound(offset, start, generation, done.value)
            except OSError as error:
                raise self.fail(error) from error
            await asyncio.sleep(0)
        return None

    def _rewinds_same(self, start: int, segments: list[LogSegment], generation: int) -> bool:
        is_same = (self._log_start_offset, self.generation) == (start, generation)
        return is_same and self._failure is None and list(self._segments) == segments

    @_storage
    def _whole_batches_below(self, offset: int) -> int:
        """Where the log ends if it is truncated to `offset`: only whole batches stay. A leader whose log starts inside
        a batch, because records were deleted up to there, names an offset inside a batch. If this log ended there, it
        would claim records that it lacks, and the leader's batch would never fit (Kafka has this gap)."""
        segment = self._segments.at_or_below(offset)
        position = segment.position_of(offset)
        if position == segment.size:
            return offset
        base_offset = read_header(segment.pread(HEADER_BYTES, position)).base_offset
        return min(offset, max(base_offset, self._log_start_offset))

    def _take_rewound(self, offset: int) -> ProducerState | None:
        rewound, self._rewound = self._rewound, None
        if rewound is None or rewound[:3] != (offset, self._log_start_offset, self.generation):
            return None
        return rewound.state

    @_storage
    def truncate_to(self, offset: int) -> bool:
        """Remove everything from `offset` on; True if there was anything. A leader epoch that begins at the log end is
        removed in any case (KAFKA-10706)."""
        if offset >= self._log_end_offset:
            self.epochs.truncate_from_end(self._log_end_offset)
            return False
        if offset < self._segments.first.base_offset:
            self.truncate_fully_and_start_at(offset)
            return True
        offset = self._whole_batches_below(offset)
        rewound = self._take_rewound(offset)
        self._prepare_truncation(offset)
        self._delete(self._segments.take_above(offset))
        self._segments.active.truncate_to(offset)
        self._log_end_offset = offset
        self._log_start_offset = min(self._log_start_offset, offset)
        self.epochs.truncate_from_end(offset)
        start, now_ms = self._log_start_offset, self._clock.wall_ms()
        self._producers.truncate_to(offset, self._segments, rewound, log_start_offset=start, now_ms=now_ms)
        self._set_high_watermark(min(self._high_watermark, offset))
        return True

    @_storage
    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove everything; the empty log begins at `offset`, which is also its high watermark."""
        self._prepare_truncation(offset)
        self._delete(self._segments.take_first(len(self._segments)))
        self._add_segment(offset)
        self._log_start_offset = self._log_end_offset = self._durability.recovery_point = offset
        self.epochs.clear()
        self._producers.reset_to(offset)
        self._set_high_watermark(offset)

    def _prepare_truncation(self, offset: int) -> None:
        """Runs first: a crash in the middle of a truncation must find checkpoints that do not promise what was removed,
        and no swap to finish, which would bring it back."""
        self.finish_swap()
        lowered = self._durability.truncating(offset)
        self._owner.truncating(self, offset, recovery_point_lowered=lowered)

    # --- compaction --------------------------------------------------------------------------------------------------

    @_storage
    def begin_swap(self, swap: Swap) -> None:
        """From here on the swap is finished in any case, by this process or by the next start."""
        self._swap = swap
        swap.begin()

    @_storage
    def finish_swap(self) -> None:
        """Readers find the cleaned segment from now on. Does nothing if no swap has begun."""
        swap, self._swap = self._swap, None
        if swap is not None:
            renamed = swap.finish()
            self._segments.replace(swap.sources, swap.replacement)
            self._owner.remove_later(renamed, self.config.file_delete_delay_ms)

    # --- durability --------------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Sync everything up to the current log end, off the loop, and move the recovery point there."""
        async with self._durability.turn:
            self.check_usable()
            plan: FlushPlan | None = None
            try:
                plan = self._durability.plan(self._log_end_offset)
                await self._disk.run(lambda: self._durability.carry_out(plan))
                self._durability.flushed(plan)
            except OSError as error:
                if plan is not None:
                    self._durability.not_flushed(plan)
                raise self.fail(error) from error

    def expire_producers(self, idle_ms: int) -> None:
        self._producers.state.expire(self._clock.wall_ms() - idle_ms)

    def close(self) -> None:
        """Sync everything and close the files, so that the next load is clean. Runs in the pool; raises OSError."""
        try:
            if self._failure is None:
                self._segments.active.seal()
                self._producers.take_snapshot()
                self._durability.close(self._log_end_offset)
        finally:
            self.close_files()

    def close_files(self) -> None:
        for segment in self._segments:
            segment.close_files()

    def move_to(self, directory: str) -> None:
        """The directory was renamed for deletion: from now on nothing reads or writes this log."""
        self.directory = directory
        self.deleted = True
        self._failure = self._failure or FileNotFoundError(f"{self.topic_partition} was deleted")
