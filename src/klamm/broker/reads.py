"""The fetch path: reads for followers and consumers, and waits by long poll until there is enough to read.

Partitions are read in request order, each up to its own limit and the rest of the response's. Until one partition has
yielded data, its first batch is returned whole, whatever its size (KIP-74). A follower's fetch tells where its log
ends; the first read records that, before the wait. The read after the wait starts from scratch, so that the answer
shows the state at its completion, including new errors. A new high watermark does not end the wait of followers
(KAFKA-9952); it travels with their next fetch. Partitions of a follower's session that rest (`resting_partitions`) are
read only when they wake.

A wide or large fetch is read in slices, and other tasks run in between. A partition's answer is of the moment in which
it was read; changes after the first slice are remembered by a watch (`purgatory`), so that none is missed. Responses to
consumers share a budget of bytes: each may take a sixteenth of what is left, so slow consumers cannot fill the memory,
and the last one still gets a batch. Followers are few, and acks=all waits for them: they are not limited.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Generator, Sequence
from functools import partial
from typing import Final, NamedTuple

from klamm.broker.fetch_wait import FetchWait
from klamm.broker.handlers.slices import in_slices
from klamm.broker.partition import Bound, Partition
from klamm.broker.purgatory import Watch
from klamm.broker.replica_manager import ReplicaManager
from klamm.broker.replica_selection import ReplicaView, nearest
from klamm.broker.replication_quota import is_named
from klamm.broker.resting_partitions import RestingPartitions
from klamm.broker.topic_traffic import TopicTraffic
from klamm.log.log import Log
from klamm.log.log_results import AbortedTransaction
from klamm.model.byte_budget import ByteBudget
from klamm.model.config import RACK_AWARE
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import NO_EPOCH, BrokerId, TopicPartition
from klamm.model.ports import Buffer
from klamm.model.requests import ClientConnection
from klamm.wire.fetch import FetchPartition, FetchResult

VERSION_FROM_FOLLOWERS: Final = 11
"""From this version a consumer may read from any replica (KIP-392)."""
ENTRIES_PER_SLICE: Final = 500
BYTES_PER_SLICE: Final = 4 << 20
SHARE_OF_BUDGET: Final = 16


class FetchQuery(NamedTuple):
    version: int
    replica_id: BrokerId
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    read_committed: bool = False
    rack_id: str = ""

    @property
    def from_follower(self) -> bool:
        return self.replica_id >= 0

    @property
    def bound(self) -> Bound:
        if self.from_follower:
            return Bound.LOG_END
        return Bound.LAST_STABLE if self.read_committed else Bound.HIGH_WATERMARK

    @property
    def leader_only(self) -> bool:
        return self.from_follower or self.version < VERSION_FROM_FOLLOWERS


class Reads:
    def __init__(self, replicas: ReplicaManager, budget: ByteBudget | None = None) -> None:
        """`budget` is for the responses to consumers. By default it has no limit."""
        self._replicas = replicas
        self.traffic = TopicTraffic()
        replicas.gauges.held.when_gone.append(self.traffic.forget)  # consumers may read from followers (KIP-392)
        self._budget = budget or ByteBudget()
        self.bytes_out = 0
        self.replication_bytes_out = 0
        self.reassignment_bytes_out = 0
        """The part of it for replicas that a reassignment adds."""
        self.failed_requests = 0

    async def fetch(
        self,
        query: FetchQuery,
        entries: Sequence[FetchPartition],
        client: ClientConnection | None = None,
        resting: RestingPartitions | None = None,
    ) -> list[FetchResult]:
        """`entries` name each partition once. `resting` are further ones, which are answered only if they wake during
        the wait."""
        limit = min(query.max_bytes, self._replicas.config.fetch_max_bytes)
        if query.from_follower or not self._budget.is_limited:
            return await self._fetch(query, entries, _Room(limit, None), client, resting)
        return await self._fetch_within_budget(query, entries, limit, client)

    async def _fetch(
        self,
        query: FetchQuery,
        entries: Sequence[FetchPartition],
        room: _Room,
        client: ClientConnection | None,
        resting: RestingPartitions | None = None,
    ) -> list[FetchResult]:
        limit = room.reserve()
        reading = self._read_all(query, entries, limit, record=query.from_follower)
        results = _finished(reading)
        enough = min(query.min_bytes, limit)
        if results is not None and (not (entries or resting) or self._is_enough(query, results, enough)):
            self._count(query, results)
            return results
        watch = self._replicas.waiting_fetches.watch(entry.partition for entry in entries)
        woken = _Woken(watch)
        if resting is not None:
            resting.listen(woken.add)
        try:
            if results is None:  # it takes several turns: from now on, the watch remembers changes
                await asyncio.sleep(0)
                results = await in_slices(reading)
            if not self._is_enough(query, results, enough):
                wait = self._wait(query, entries, results, enough)
                woken.begin_wait(wait)
                results = []  # a waiting fetch holds no bytes
                room.release()
                await watch.wait(wait.is_over, query.max_wait_ms / 1000, client)
                if client is not None and client.is_gone:
                    return []
                all_entries = [*entries, *woken.entries]
                results = await in_slices(self._read_all(query, all_entries, room.reserve(), record=False))
        finally:
            watch.close()
            if resting is not None:
                resting.stop_listening(woken.add)
        self._count(query, results)
        return results

    # --- the budget of responses ---

    async def _fetch_within_budget(
        self, query: FetchQuery, entries: Sequence[FetchPartition], limit: int, client: ClientConnection | None
    ) -> list[FetchResult]:
        """Without room for as long as the client may wait, the answer has no records. What the response holds counts
        until it is sent."""
        budget, held = self._budget, 0
        if not budget.has_room:
            await budget.wait_room(query.max_wait_ms / 1000)
        room = _Room(limit, budget)
        try:
            results = await self._fetch(query, entries, room, client)
            held = sum(len(result.records) for result in results) if client is not None else 0
            budget.take(held)
        finally:
            room.release()
        if client is not None and held:
            client.when_answered(partial(budget.give_back, held))
        return results

    # --- counting ---

    def _count(self, query: FetchQuery, results: Sequence[FetchResult]) -> None:
        size = sum(len(result.records) for result in results)
        self.failed_requests += sum(result.error is not ErrorCode.NONE for result in results)
        if query.from_follower:
            self.replication_bytes_out += size
            self._charge(query.replica_id, results)
        else:
            self.bytes_out += size
            for result in results:
                if len(result.records):
                    self.traffic.of(result.partition.topic).bytes_out += len(result.records)

    def _charge(self, follower: BrokerId, results: Sequence[FetchResult]) -> None:
        """Charge the leaders' quota for what throttled partitions returned, and count what moves replicas."""
        for result in results:
            partition = self._replicas.partitions.get(result.partition) if len(result.records) else None
            if partition is None:
                continue
            if self._is_throttled(partition):
                self._replicas.leader_quota.record(len(result.records))
            if follower in partition.assignment.adding:
                self.reassignment_bytes_out += len(result.records)

    # --- reading ---

    def _log_for(self, query: FetchQuery, entry: FetchPartition) -> tuple[Partition, Log]:
        partition = self._replicas.partition(entry.partition)
        log = partition.local_log(entry.current_leader_epoch, leader_only=query.leader_only)
        if query.from_follower and query.replica_id not in partition.followers:
            # The assignment that this broker knows does not have it: one of the two brokers is behind (KAFKA-13837).
            has_epoch = entry.current_leader_epoch != NO_EPOCH
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH if has_epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition, log

    def _read_all(
        self, query: FetchQuery, entries: Sequence[FetchPartition], limit: int, *, record: bool
    ) -> Generator[None, None, list[FetchResult]]:
        """Yields after each slice. `record` what a follower's fetch tells, each in the step that reads it."""
        left = limit
        nothing_yet = limit > 0 or query.max_bytes <= 0
        results: list[FetchResult] = []
        slice_end, slice_bytes = ENTRIES_PER_SLICE, BYTES_PER_SLICE
        for number, entry in enumerate(entries, 1):
            result = self._read(query, entry, max(0, min(entry.max_bytes, left)), nothing_yet)
            if record and result.error is ErrorCode.NONE:
                self._replicas.follower_fetched(
                    entry.partition, query.replica_id, entry.fetch_offset, entry.log_start_offset
                )
            size = len(result.records)
            if size:
                nothing_yet = False
                left -= size
                slice_bytes -= size
            results.append(result)
            if number >= slice_end or slice_bytes <= 0:
                slice_end, slice_bytes = number + ENTRIES_PER_SLICE, BYTES_PER_SLICE
                yield
        return results

    def _read(self, query: FetchQuery, entry: FetchPartition, max_bytes: int, at_least_one: bool) -> FetchResult:
        try:
            partition, log = self._log_for(query, entry)
            better = self._better(query, entry, partition, log)
            if better is not None:
                elsewhere = _result(entry.partition, log, b"", [] if query.read_committed else None)
                return elsewhere._replace(preferred_read_replica=better)
            offset = entry.fetch_offset
            at_end = offset == partition.bound(log, query.bound)  # true for most partitions of most fetches
            is_full = not (max_bytes or at_least_one) and log.log_start_offset <= offset <= log.log_end_offset
            if at_end or is_full or self._is_held_back(query, partition):
                return _result(entry.partition, log, b"", [] if query.read_committed else None)
            read = partition.read(log, offset, max_bytes, query.bound, at_least_one=at_least_one)
            aborted = None
            if query.read_committed and not query.from_follower:
                aborted = log.aborted_transactions(offset, read.next_offset) if read.records else []
            return _result(entry.partition, log, read.records, aborted)
        except KafkaError as error:
            return FetchResult(entry.partition, error.code)
        except Exception as error:  # it concerns this partition; the others of the request are read
            self._replicas.guard.record("read", entry.partition, error)
            return FetchResult(entry.partition, ErrorCode.KAFKA_STORAGE_ERROR)

    def _better(self, query: FetchQuery, entry: FetchPartition, partition: Partition, log: Log) -> BrokerId | None:
        """A follower in the consumer's rack that is in sync and has the offset, if this leader is in another rack."""
        me = self._replicas.me
        if query.from_follower or not query.rack_id or not partition.is_leader:
            return None
        if self._replicas.config.replica_selector_class != RACK_AWARE:
            return None
        brokers = self._replicas.metadata.brokers
        views = [ReplicaView(me, self._replicas.config.rack, log.log_end_offset, math.inf)]
        for broker, follower in partition.followers.items():
            has_offset = follower.log_start_offset <= entry.fetch_offset <= follower.log_end_offset
            if broker in partition.isr and broker in brokers and has_offset:
                views.append(
                    ReplicaView(broker, brokers[broker].rack, follower.log_end_offset, follower.last_caught_up)
                )
        chosen = nearest(query.rack_id, me, views)
        return chosen if chosen != me else None

    def _is_held_back(self, query: FetchQuery, partition: Partition) -> bool:
        """A throttled follower that is not in sync gets nothing while the quota is exceeded."""
        return (
            query.from_follower
            and self._is_throttled(partition)
            and query.replica_id not in partition.isr
            and self._replicas.leader_quota.is_exceeded()
        )

    def _is_throttled(self, partition: Partition) -> bool:
        """The leaders' list names this broker's replica, not the follower's."""
        if partition.log is None:
            return False
        throttled = partition.log.config.leader_replication_throttled_replicas
        return is_named(throttled, partition.topic_partition.partition, self._replicas.me)

    # --- waiting ---

    def _is_enough(self, query: FetchQuery, results: Sequence[FetchResult], enough: int) -> bool:
        if query.max_wait_ms <= 0 or any(_ends_the_wait(result) for result in results):
            return True
        return sum(len(result.records) for result in results) >= enough

    def _wait(
        self, query: FetchQuery, entries: Sequence[FetchPartition], results: Sequence[FetchResult], enough: int
    ) -> FetchWait:
        return FetchWait(
            entries,
            results,
            enough,
            query.bound,
            partial(self._log_for, query),
            partial(self._is_held_back, query),
        )


class _Woken:
    """Partitions of a session that woke during the fetch: they may end its wait, and are read after it."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._wait: FetchWait | None = None
        self.entries: list[FetchPartition] = []

    def add(self, entry: FetchPartition) -> None:
        self.entries.append(entry)
        if self._wait is not None:
            self._wait.add(entry)
        self._watch.add([entry.partition])
        self._watch.check(entry.partition)

    def begin_wait(self, wait: FetchWait) -> None:
        for entry in self.entries:
            wait.add(entry)
        self._wait = wait


class _Room:
    """What a response may take of the budget: reserved while it is read. While it waits, it takes nothing, or a few
    hundred idle consumers would leave one batch at a time to the others."""

    __slots__ = ("_budget", "_limit", "_reserved")

    def __init__(self, limit: int, budget: ByteBudget | None) -> None:
        self._limit = limit
        self._budget = budget
        self._reserved = 0

    def reserve(self) -> int:
        if self._budget is None:
            return self._limit
        left = self._budget.left or 0
        self._reserved = min(self._limit, max(left // SHARE_OF_BUDGET, 1)) if left > 0 else 0
        self._budget.take(self._reserved)
        return self._reserved

    def release(self) -> None:
        if self._budget is not None and self._reserved:
            self._budget.give_back(self._reserved)
            self._reserved = 0


def _finished(reading: Generator[None, None, list[FetchResult]]) -> list[FetchResult] | None:
    """The results if they were complete within the first slice."""
    try:
        next(reading)
    except StopIteration as done:
        results: list[FetchResult] = done.value
        return results
    return None


def _ends_the_wait(result: FetchResult) -> bool:
    """An error, or a better replica: the client must not wait for it (KAFKA-13767)."""
    return result.error is not ErrorCode.NONE or result.preferred_read_replica >= 0


def _result(name: TopicPartition, log: Log, records: Buffer, aborted: list[AbortedTransaction] | None) -> FetchResult:
    return FetchResult(
        name,
        ErrorCode.NONE,
        log.high_watermark,
        log.last_stable_offset,
        log.log_start_offset,
        aborted,
        records,
    )
