"""The fetch path: reads for followers and consumers, and waits by long poll until there is enough to read.

Partitions are read in request order, each up to its own limit and the rest of the response's. Until one partition has
yielded data, its first batch is returned whole, whatever its size (KIP-74). A follower's fetch tells where its log
ends; the first read records that, before the wait. The read after the wait starts from scratch, so that the answer
shows the state at its completion, including new errors. A new high watermark does not end the wait of followers
(KAFKA-9952); it travels with their next fetch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from klamm.broker.partition import Bound, Partition
from klamm.broker.replica_manager import ReplicaManager
from klamm.broker.replication_quota import is_named
from klamm.log.log import Log
from klamm.log.log_results import AbortedTransaction
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import NO_EPOCH, BrokerId, TopicPartition
from klamm.model.ports import Buffer
from klamm.model.requests import ClientConnection
from klamm.wire.fetch import FetchPartition, FetchResult

VERSION_FROM_FOLLOWERS: Final = 11
"""From this version a consumer may read from any replica (KIP-392)."""
VERSION_FIRST_BATCH_WHOLE: Final = 3


class FetchQuery(NamedTuple):
    version: int
    replica_id: BrokerId
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    read_committed: bool = False

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
    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas
        self.bytes_out = 0
        self.replication_bytes_out = 0
        self.failed_requests = 0

    async def fetch(
        self,
        query: FetchQuery,
        entries: Sequence[FetchPartition],
        refused: Sequence[FetchResult] = (),
        client: ClientConnection | None = None,
    ) -> list[FetchResult]:
        """`refused` are partitions that the handler turned down: they are answered, but do not end the wait."""
        results = self._read_all(query, entries)
        if query.from_follower:
            self._record(query.replica_id, entries, results)
        if entries and not self._is_enough(query, results):
            by_name = {entry.partition: entry for entry in entries}
            await self._replicas.waiting_fetches.wait(
                by_name, lambda changed: self._is_over(query, by_name, changed), query.max_wait_ms / 1000, client
            )
            results = self._read_all(query, entries)
        self._count(query, results)
        return [*results, *refused]

    def _count(self, query: FetchQuery, results: Sequence[FetchResult]) -> None:
        size = sum(len(result.records) for result in results)
        self.failed_requests += sum(result.error is not ErrorCode.NONE for result in results)
        if query.from_follower:
            self.replication_bytes_out += size
            self._charge(results)
        else:
            self.bytes_out += size

    def _charge(self, results: Sequence[FetchResult]) -> None:
        """Charge the leaders' quota for what throttled partitions returned."""
        for result in results:
            if len(result.records) and self._is_throttled(self._replicas.partitions[result.partition]):
                self._replicas.leader_quota.record(len(result.records))

    # --- reading ---

    def _log_for(self, query: FetchQuery, entry: FetchPartition) -> tuple[Partition, Log]:
        partition = self._replicas.partition(entry.partition)
        log = partition.local_log(entry.current_leader_epoch, leader_only=query.leader_only)
        if query.from_follower and query.replica_id not in partition.followers:
            # The assignment that this broker knows does not have it: one of the two brokers is behind (KAFKA-13837).
            has_epoch = entry.current_leader_epoch != NO_EPOCH
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH if has_epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition, log

    def _read_all(self, query: FetchQuery, entries: Sequence[FetchPartition]) -> list[FetchResult]:
        left = min(query.max_bytes, self._replicas.config.fetch_max_bytes)
        nothing_yet = query.version >= VERSION_FIRST_BATCH_WHOLE
        results = []
        for entry in entries:
            result = self._read(query, entry, max(0, min(entry.max_bytes, left)), nothing_yet)
            if len(result.records):
                nothing_yet = False
                left -= len(result.records)
            results.append(result)
        return results

    def _read(self, query: FetchQuery, entry: FetchPartition, max_bytes: int, at_least_one: bool) -> FetchResult:
        try:
            partition, log = self._log_for(query, entry)
            at_end = entry.fetch_offset == partition.bound(log, query.bound)  # true for most partitions of most fetches
            if at_end or self._is_held_back(query, partition):
                return _result(entry.partition, log, b"", [] if query.read_committed else None)
            read = partition.read(log, entry.fetch_offset, max_bytes, query.bound, at_least_one=at_least_one)
            aborted = None
            if query.read_committed and not query.from_follower:
                aborted = log.aborted_transactions(entry.fetch_offset, read.next_offset) if read.records else []
            return _result(entry.partition, log, read.records, aborted)
        except KafkaError as error:
            return FetchResult(entry.partition, error.code)

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

    def _record(self, broker: BrokerId, entries: Sequence[FetchPartition], results: Sequence[FetchResult]) -> None:
        for entry, result in zip(entries, results, strict=True):
            if result.error is ErrorCode.NONE:
                partition = self._replicas.partitions[entry.partition]
                partition.record_fetch(broker, entry.fetch_offset, entry.log_start_offset)
                self._replicas.after_follower_fetch(partition, broker)

    # --- waiting ---

    def _is_enough(self, query: FetchQuery, results: Sequence[FetchResult]) -> bool:
        if query.max_wait_ms <= 0 or any(result.error is not ErrorCode.NONE for result in results):
            return True
        return sum(len(result.records) for result in results) >= query.min_bytes

    def _is_over(
        self, query: FetchQuery, entries: Mapping[TopicPartition, FetchPartition], changed: TopicPartition | None
    ) -> bool:
        """Called for each change of a partition. If one byte is enough, the changed partition alone decides."""
        candidates = entries.values() if changed is None else (entries[changed],)
        if not any(self._has_news(query, entry) for entry in candidates):
            return False
        return query.min_bytes <= 1 or self._is_enough(query, self._read_all(query, list(entries.values())))

    def _has_news(self, query: FetchQuery, entry: FetchPartition) -> bool:
        """There is something to read, or an error to report."""
        try:
            partition, log = self._log_for(query, entry)
        except KafkaError:
            return True
        if self._is_held_back(query, partition):
            return False
        end = partition.bound(log, query.bound)
        return entry.fetch_offset != end and (entry.fetch_offset < end or entry.fetch_offset > log.log_end_offset)


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
