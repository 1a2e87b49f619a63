"""Follows leaders: one task per leader broker truncates, then fetches by long poll, for all partitions that it leads.

A partition starts in TRUNCATING at its high watermark whenever its leader epoch grows, because it must reconcile with
the leader before the first fetch of every epoch (KIP-320); then it is FETCHING. Every request carries the partition's
leader epoch. An answer counts only if the partition is still followed in the same epoch: a LeaderAndIsr may arrive
during any await. Errors, as in Kafka's AbstractFetcherThread:

    FENCED_LEADER_EPOCH     this follower is behind: the partition has failed until the next LeaderAndIsr
    OFFSET_OUT_OF_RANGE     ask the leader for its ends, then truncate or start over
    KAFKA_STORAGE_ERROR     if this broker's own log is broken, the partition has failed; a full disk is tried again
    anything else           retry soon, then less often, finally every replica.fetch.backoff.ms
    unexpected exception    a defect of ours: this partition alone has failed; it reconciles again after a pause that
                            doubles from 1 to 30 s

The high watermark moves only after the fetched records are appended, never before a truncation (KAFKA-14704).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, Protocol

from klamm.broker.partition import Partition
from klamm.broker.replication_quota import ReplicationQuota, is_named
from klamm.broker.truncation import Truncation, truncation
from klamm.log.leader_epochs import EpochEndOffset
from klamm.log.log import Log
from klamm.log.log_results import UnexpectedAppendOffset
from klamm.log.validation import STAGED_BYTES_MIN, PreparedAppend
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.guard import Guard, pause_after
from klamm.model.ids import BrokerId, LeaderEpoch, TopicPartition
from klamm.model.ports import Buffer, Clock
from klamm.wire.fetch import FetchPartition, FetchResult

PARTITIONS_PER_SLICE: Final = 500
"""Handled between two turns of the event loop."""
BRIEF_POLL_S: Final = 0.1
BRIEF_FOR_S: Final = 1.0
"""For so long after a partition was added, polls are brief: the orders of a fail-over come in several requests."""

FLUSH_PATIENCE_S: Final = 0.05
"""How long a poll waits for flushes, which usually take milliseconds. A partition that waits for its flush is not in
the poll, and would wait for the whole of it."""

FIRST_RETRY: Final = 0.02
"""Usually the leader has not received its LeaderAndIsr yet, which takes milliseconds. A whole backoff would hold up the
first acks=all of every new partition."""

log = logging.getLogger(__name__)


class EpochAsked(NamedTuple):
    partition: TopicPartition
    current_leader_epoch: LeaderEpoch
    epoch: LeaderEpoch


class EpochAnswered(NamedTuple):
    partition: TopicPartition
    error: ErrorCode
    end: EpochEndOffset


class LeaderEndpoint(Protocol):
    """The three APIs of a leader that a follower uses. They raise OSError when the leader cannot be reached; the next
    call connects again."""

    @property
    def is_answering(self) -> bool:
        """Part of the answer to the running request has arrived."""

    async def fetch(self, wanted: Sequence[FetchPartition], max_wait: float | None = None) -> Sequence[FetchResult]:
        """A long poll of at most `max_wait` seconds, by default as configured. When cancelled, it closes the
        connection, so that a late answer cannot be taken for another."""

    async def epoch_ends(self, asked: Sequence[EpochAsked]) -> Sequence[EpochAnswered]: ...

    async def log_ends(self, partition: TopicPartition, leader_epoch: LeaderEpoch) -> tuple[int, int]:
        """The leader's log start and log end. Raises KafkaError."""

    def close(self) -> None: ...


class FetchState(Enum):
    TRUNCATING = "truncating"
    FETCHING = "fetching"


@dataclass(slots=True, eq=False)
class Following:
    partition: Partition
    log: Log
    leader_epoch: LeaderEpoch
    initial_offset: int
    state: FetchState = FetchState.TRUNCATING
    retry_at: float = 0.0
    failures: int = 0
    """Failures in a row."""
    crashes: int = 0
    """Unexpected exceptions in a row."""
    lag: int = 0
    """Committed records that this replica lacked when the leader last answered."""
    caught_up: bool = False
    """According to the last answer, this replica has everything that is committed."""
    just_truncated: bool = False
    """No records were fetched since the truncation."""

    @property
    def is_throttled(self) -> bool:
        name, throttled = self.partition.topic_partition, self.log.config.follower_replication_throttled_replicas
        return is_named(throttled, name.partition, self.partition.me)


@dataclass(slots=True)
class ReplicatedBytes:
    """What the fetchers of a broker have appended."""

    total: int = 0
    reassignment: int = 0
    """The part of it for replicas that a reassignment adds."""


class Fetcher:
    """Follows one leader broker."""

    def __init__(
        self,
        leader: BrokerId,
        endpoint: LeaderEndpoint,
        *,
        clock: Clock,
        max_bytes: int,
        backoff: float,
        quota: ReplicationQuota,
        traffic: ReplicatedBytes,
        on_append: Callable[[TopicPartition], None],
        guard: Guard,
    ) -> None:
        self.leader = leader
        self._endpoint = endpoint
        self._clock = clock
        self._max_bytes = max_bytes
        self._backoff = backoff
        self._quota = quota
        self._traffic = traffic
        self._on_append = on_append
        self._guard = guard
        self._following: dict[TopicPartition, Following] = {}
        """In the order of the next fetch: a partition that got records goes to the end, because the leader fills its
        answer in the order of the request."""
        self._changed = asyncio.Event()
        self._poll: asyncio.Task[Sequence[FetchResult]] | None = None
        self._brief_until = float("-inf")
        self.failed: dict[TopicPartition, None] = {}
        self.is_dead = False
        """An unexpected exception ended `run`. The guard starts it again after a pause."""

    @property
    def max_lag(self) -> int:
        return max((following.lag for following in self._following.values()), default=0)

    def __len__(self) -> int:
        return len(self._following)

    def state_of(self, partition: TopicPartition) -> FetchState | None:
        following = self._following.get(partition)
        return None if following is None else following.state

    def add(self, partition: Partition) -> None:
        """Follow `partition` in its current leader epoch. It reconciles once per epoch."""
        assert partition.log is not None
        known = self._following.get(partition.topic_partition)
        if known is None or known.leader_epoch != partition.leader_epoch:
            self._following[partition.topic_partition] = Following(
                partition, partition.log, partition.leader_epoch, partition.log.high_watermark
            )
            self._expect_more()
        self.failed.pop(partition.topic_partition, None)
        self._changed.set()

    def _expect_more(self) -> None:
        """New partitions must not wait for a whole poll, or acks=all would wait for it after every election. A poll
        that still waits is given up, but only the first one: while more partitions come, polls are brief instead. So a
        stream of new partitions cannot stop the replication of the others."""
        now = self._clock.monotonic()
        if self._poll is not None and now >= self._brief_until and not self._endpoint.is_answering:
            self._poll.cancel()
        self._brief_until = now + BRIEF_FOR_S

    def remove(self, partition: TopicPartition) -> None:
        self._following.pop(partition, None)
        self.failed.pop(partition, None)

    def wake(self, partition: TopicPartition) -> None:
        if partition in self._following:
            self._changed.set()

    async def run(self) -> None:
        self.is_dead = False
        try:
            while True:
                if not await self.step():
                    await self._wait_for_work()
        except Exception:
            self.is_dead = True
            raise
        finally:
            self._close_endpoint()

    def _close_endpoint(self) -> None:
        """An error would take the place of the cancellation, and the guard would start a fetcher that has ended."""
        try:
            self._endpoint.close()
        except Exception as error:
            self._guard.record("fetcher", self.leader, error)

    async def _wait_for_work(self) -> None:
        self._changed.clear()
        earliest = min((f.retry_at for f in self._following.values() if not f.log.waits_for_flush), default=None)
        if earliest is None:
            await self._changed.wait()
            return
        try:
            async with asyncio.timeout(max(0.0, earliest - self._clock.monotonic())):
                await self._changed.wait()
        except TimeoutError:
            pass  # it is time to retry at least one partition

    async def step(self) -> bool:
        """Truncate until every due partition has reconciled, then fetch once. False if there was nothing to do."""
        try:
            truncated = False
            while await self._truncate():  # partitions added meanwhile must not wait for a whole poll
                truncated = True
            return await self._fetch() or truncated
        except OSError as error:
            log.info("leader %d cannot be reached: %s", self.leader, error)
            self._endpoint.close()
            for following in self._following.values():
                self._delay(following)
            return False

    def _ready(self, state: FetchState) -> list[Following]:
        now = self._clock.monotonic()
        return [f for f in self._following.values() if f.state is state and f.retry_at <= now and self._is_current(f)]

    def _current(self, partition: TopicPartition, asked: dict[TopicPartition, Following]) -> Following | None:
        """The partition that an answer is about, unless its leader or epoch changed during the await."""
        following = asked.get(partition)
        if following is None:
            log.error("leader %d answered for %s, which was not requested", self.leader, partition)
            return None
        return following if self._is_current(following) else None

    def _is_current(self, following: Following) -> bool:
        partition = following.partition
        is_ours = self._following.get(partition.topic_partition) is following
        return is_ours and partition.leader_epoch == following.leader_epoch

    # --- truncation ---

    async def _truncate(self) -> bool:
        ready = self._ready(FetchState.TRUNCATING)
        for start in range(0, len(ready), PARTITIONS_PER_SLICE):
            await self._truncate_some(ready[start : start + PARTITIONS_PER_SLICE])
            await asyncio.sleep(0)
        return bool(ready)

    async def _truncate_some(self, ready: Sequence[Following]) -> None:
        asked: dict[TopicPartition, Following] = {}
        questions = []
        cuts: list[tuple[Following, Truncation]] = []
        for following in ready:
            if not self._is_current(following):
                continue
            epoch = following.log.epochs.latest_epoch
            if epoch is None:
                cuts.append((following, Truncation(following.initial_offset, done=True)))
            else:
                name = following.partition.topic_partition
                asked[name] = following
                questions.append(EpochAsked(name, following.leader_epoch, epoch))
        for answer in await self._endpoint.epoch_ends(questions) if questions else ():
            following_now = self._current(answer.partition, asked)
            if following_now is not None:
                cuts += self._reconcile(following_now, answer)
            asked.pop(answer.partition, None)
        for unanswered in asked.values():
            self._delay(unanswered)
        # All at once: they share the write of a checkpoint.
        prepared = await asyncio.gather(
            *(following.log.prepare_truncation(step.offset) for following, step in cuts), return_exceptions=True
        )
        for (following, step), failure in zip(cuts, prepared, strict=True):
            if self._is_current(following):
                self._cut(following, step, failure)

    def _reconcile(self, following: Following, answer: EpochAnswered) -> list[tuple[Following, Truncation]]:
        if answer.error is not ErrorCode.NONE:
            self._on_error(following, answer.error)
            return []
        step = truncation(
            answer.end,
            following.log.epochs.end_offset_for(answer.end.epoch),
            log_end=following.log.log_end_offset,
            initial_offset=following.initial_offset,
        )
        return [(following, step)]

    def _cut(self, following: Following, step: Truncation, failure: BaseException | None) -> None:
        """`failure` is that of the preparation."""
        try:
            if failure is not None:
                raise failure
            following.log.truncate_to(step.offset)
        except KafkaError as error:
            self._on_error(following, error.code)
        except Exception as error:
            self._crashed(following, error)
        else:
            if step.done:
                following.state = FetchState.FETCHING
                following.just_truncated = True

    # --- fetching ---

    async def _fetch(self) -> bool:
        # The offset of a fetch tells the leader what this replica has, so it must be flushed if flush.messages says so.
        await self._let_flushes_end()
        ready = [f for f in self._ready(FetchState.FETCHING) if not f.log.waits_for_flush]
        asked = {f.partition.topic_partition: f for f in self._within_quota(ready)}
        if not asked:
            return False
        wanted = [
            FetchPartition(name, f.log.log_end_offset, self._max_bytes, f.leader_epoch, f.log.log_start_offset)
            for name, f in asked.items()
        ]
        offsets = {want.partition: want.fetch_offset for want in wanted}
        for count, fetched in enumerate(await self._long_poll(wanted), 1):
            if count % PARTITIONS_PER_SLICE == 0:
                await asyncio.sleep(0)
            following = self._current(fetched.partition, asked)
            if following is None or following.log.log_end_offset != offsets[fetched.partition]:
                continue
            if fetched.error is ErrorCode.NONE and len(fetched.records) >= STAGED_BYTES_MIN:
                await self._append_large(following, fetched)
            elif fetched.error is ErrorCode.NONE:
                self._append(following, fetched, fetched.records)
            elif fetched.error is ErrorCode.OFFSET_OUT_OF_RANGE:
                await self._start_over(following)
            else:
                self._on_error(following, fetched.error)
        return True

    @property
    def _waits_for_flush(self) -> bool:
        return any(f.log.waits_for_flush for f in self._ready(FetchState.FETCHING))

    async def _let_flushes_end(self) -> None:
        try:
            async with asyncio.timeout(FLUSH_PATIENCE_S):
                while self._waits_for_flush:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass  # the disk is slow: the other partitions go on, in brief polls

    def _within_quota(self, ready: list[Following]) -> list[Following]:
        """Leaves out partitions that are throttled and behind while the quota is exceeded."""
        if not self._quota.is_exceeded():
            return ready
        held_back = [f for f in ready if f.is_throttled and not f.caught_up]
        for following in held_back:
            following.retry_at = self._clock.monotonic() + self._backoff
        return [f for f in ready if f.retry_at <= self._clock.monotonic()]

    async def _long_poll(self, wanted: Sequence[FetchPartition]) -> Sequence[FetchResult]:
        """Empty if a new partition ended the poll, which closes the connection."""
        brief = self._clock.monotonic() < self._brief_until or self._waits_for_flush
        poll = self._endpoint.fetch(wanted, BRIEF_POLL_S if brief else None)
        self._poll = asyncio.create_task(poll, name=f"fetch-{self.leader}")
        try:
            return await self._poll
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # this task itself is cancelled
            return ()
        finally:
            self._poll = None

    async def _append_large(self, following: Following, fetched: FetchResult) -> None:
        """Checked and written off the loop. Whether it still fits is asked afterwards."""
        offset, prepared = following.log.log_end_offset, None
        try:
            prepared = await following.log.prepare_replicated(fetched.records)
            if self._is_current(following) and following.log.log_end_offset == offset:
                self._append(following, fetched, prepared)
        except Exception as error:
            if self._is_current(following):  # else the error is about a former epoch
                self._failed(following, error)
        finally:
            if prepared is not None:
                prepared.drop()

    def _append(self, following: Following, fetched: FetchResult, records: Buffer | PreparedAppend) -> None:
        name = following.partition.topic_partition
        try:
            self._drop_uncompared(following, fetched.log_start_offset)
            if len(fetched.records):
                following.log.append_as_follower(records)
                self._count(following, len(fetched.records))
            following.lag = max(0, fetched.high_watermark - following.log.log_end_offset)
            following.caught_up = following.lag == 0
            moved = following.log.update_high_watermark(min(fetched.high_watermark, following.log.log_end_offset))
            start = min(fetched.log_start_offset, following.log.high_watermark)
            if start > following.log.log_start_offset:
                following.log.advance_log_start(start)
        except Exception as error:
            self._failed(following, error)
            return
        following.failures = 0
        if following.crashes:
            following.crashes = 0
            self.failed.pop(name, None)
        if len(fetched.records):
            self._following[name] = self._following.pop(name)  # to the end of the order
        if moved or len(fetched.records):
            self._on_append(name)

    def _failed(self, following: Following, error: Exception) -> None:
        """Its records were not appended."""
        if isinstance(error, KafkaError):
            name = following.partition.topic_partition
            log.warning("%s: the records from leader %d were not appended: %s", name, self.leader, error)
            self._on_error(following, error.code)
        elif isinstance(error, UnexpectedAppendOffset):  # the logs differ although the epochs agree: reconcile again
            log.error("leader %d: %s", self.leader, error)
            following.state = FetchState.TRUNCATING
            self._delay(following)
        else:
            self._crashed(following, error)

    def _drop_uncompared(self, following: Following, leader_start: int) -> None:
        """A leader knows no epoch below its log start, so a follower that truncates to exactly this offset has compared
        nothing below it. The new log start reaches the disk later: after a crash in between, the records would be
        back."""
        is_uncompared = following.just_truncated and following.log.log_end_offset == leader_start
        following.just_truncated = False
        if is_uncompared and following.log.log_start_offset < leader_start:
            following.log.truncate_fully_and_start_at(leader_start)

    def _count(self, following: Following, size: int) -> None:
        self._traffic.total += size
        if following.partition.me in following.partition.assignment.adding:
            self._traffic.reassignment += size
        if following.is_throttled:
            self._quota.record(size)

    async def _start_over(self, following: Following) -> None:
        """This replica's end is outside the leader's log: an unclean election reset it, or the replica was down for
        longer than the retention time."""
        name = following.partition.topic_partition
        try:
            leader_start, leader_end = await self._endpoint.log_ends(name, following.leader_epoch)
            if not self._is_current(following):
                return
            if leader_end < following.log.log_end_offset:
                log.warning("%s: leader %d ends at %d, truncating to it", name, self.leader, leader_end)
                await following.log.prepare_truncation(leader_end)
                if self._is_current(following):
                    following.log.truncate_to(leader_end)
            elif leader_start > following.log.log_end_offset:
                log.warning("%s: leader %d starts at %d, starting over from there", name, self.leader, leader_start)
                following.log.truncate_fully_and_start_at(leader_start)
                following.log.update_high_watermark(leader_start)
        except KafkaError as error:
            if self._is_current(following):  # else the error is about a former epoch
                self._on_error(following, error.code)

    def _on_error(self, following: Following, error: ErrorCode) -> None:
        name = following.partition.topic_partition
        if error is ErrorCode.FENCED_LEADER_EPOCH or following.log.failed:
            log.warning("%s: stopped fetching from leader %d: %s", name, self.leader, error.name)
            self._following.pop(name, None)
            self.failed[name] = None
        else:
            log.info("%s: leader %d answered %s, trying again", name, self.leader, error.name)
            self._delay(following)

    def _crashed(self, following: Following, error: Exception) -> None:
        name = following.partition.topic_partition
        self._guard.record("follower", name, error)
        self.failed[name] = None
        following.crashes += 1
        following.state = FetchState.TRUNCATING
        following.retry_at = self._clock.monotonic() + pause_after(following.crashes)

    def _delay(self, following: Following) -> None:
        pause = min(self._backoff, FIRST_RETRY * 2.0 ** min(following.failures, 16))
        following.failures += 1
        following.retry_at = self._clock.monotonic() + pause
