"""What the ingest and its audit read from Kafka itself: where a log begins and ends, and what is at an offset.

Spark's source provides neither, and a consumer hides transaction markers and aborted records, so this reads raw batches
with Fetch. Every error of the client becomes one line.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Final, TypeVar

from klamm.client import reader
from klamm.client.admin import TOPIC, check
from klamm.client.blocking import BlockingClient, blocking_client
from klamm.client.errors import ClientError, NoBroker
from klamm.client.groups import GroupAdmin
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.pipelines.anchors import EpochEnd, LogFacts, is_same, record_crc
from klamm.pipelines.lake_state import Anchor, IngestState, LakeError, OffsetRange
from klamm.pipelines.offset_kinds import BatchHead, LogBounds, OffsetKind, OffsetSpan, classify, join_spans, parts_of
from klamm.wire.apis import ApiKey
from klamm.wire.messages import request_class
from klamm.wire.records import BatchHeader, Record, iter_batches, iter_records

T = TypeVar("T")

_FETCH_BYTES_MAX: Final = 8 * 1024 * 1024
_CLOSE_SECONDS_MAX: Final = 2
_LOOK_BACK: Final = 20
"""Batches without a record, such as transaction markers, that may follow the newest record."""


class KafkaTopics:
    """A connection to the cluster at `bootstrap_server`. Every failure is a LakeError with one line."""

    def __init__(self, bootstrap_server: str) -> None:
        self._bootstrap_server = bootstrap_server
        self._resources = ExitStack()
        self._client: BlockingClient
        self._turn = threading.Lock()
        """Spark calls from threads of its own, and the client has one event loop."""
        self._is_closed = False

    def __enter__(self) -> KafkaTopics:
        try:
            self._client = self._resources.enter_context(
                blocking_client(self._bootstrap_server, client_id="klamm-lake")
            )
        except NoBroker as e:
            raise LakeError(f"no Kafka broker answers at {self._bootstrap_server}") from e
        except ClientError as e:
            raise LakeError(str(e)) from e
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._turn.acquire(timeout=_CLOSE_SECONDS_MAX):  # else a batch still asks, and the process ends
            self._is_closed = True
            try:
                self._resources.close()
            finally:
                self._turn.release()

    def log_bounds(self, topic: str, isolation: int = reader.READ_UNCOMMITTED) -> dict[int, LogBounds]:
        """The log start of every partition, and the high watermark or (READ_COMMITTED) the last stable offset."""
        try:
            partitions = [TopicPartition(topic, partition) for partition in sorted(self._leaders(topic))]
            cluster = self._client.cluster
            starts = self._run(reader.offsets_at(cluster, partitions, reader.EARLIEST))
            ends = self._run(reader.offsets_at(cluster, partitions, reader.LATEST, isolation))
        except (KafkaError, ClientError) as e:
            raise LakeError(f"topic {topic}: cannot read its offsets from {self._bootstrap_server}: {e}") from e
        return {name.partition: LogBounds(starts[name], ends[name]) for name in partitions}

    def stable_bounds(self, topic: str) -> dict[int, LogBounds]:
        """Log start and last stable offset: what a read_committed consumer can reach."""
        return self.log_bounds(topic, reader.READ_COMMITTED)

    def offsets_at_time(self, topic: str, timestamp: int) -> dict[int, int]:
        """The first offset of each partition at or after a time in milliseconds; the log end if there is none."""
        ends = self.log_bounds(topic)
        partitions = [TopicPartition(topic, partition) for partition in ends]
        try:
            found = self._run(reader.offsets_at(self._client.cluster, partitions, timestamp))
        except (KafkaError, ClientError) as e:
            raise LakeError(f"topic {topic}: cannot read its offsets from {self._bootstrap_server}: {e}") from e
        return {p.partition: offset if (offset := found[p]) >= 0 else ends[p.partition].end for p in partitions}

    def topic_names(self) -> list[str]:
        try:
            return self._run(self._client.admin.topic_names())
        except (KafkaError, ClientError) as e:
            raise LakeError(f"cannot list the topics of {self._bootstrap_server}: {e}") from e

    def is_compacted(self, topic: str) -> bool:
        try:
            configs = self._run(self._client.admin.describe_configs(TOPIC, topic, ["cleanup.policy"]))
            return "compact" in str(configs["cleanup.policy"])
        except (KafkaError, ClientError) as e:
            raise LakeError(f"topic {topic}: cannot read cleanup.policy from {self._bootstrap_server}: {e}") from e

    def newest_values(self, topic: str, count: int, partitions_max: int) -> list[bytes | None]:
        """The values of about so many of the newest committed records, of a few partitions."""
        bounds = {p: log for p, log in self.stable_bounds(topic).items() if log.end > log.start}
        each = max(1, count // max(1, min(len(bounds), partitions_max)))
        return [
            record.value
            for partition, log in sorted(bounds.items())[:partitions_max]
            for _, record in self.committed_records(
                topic, partition, OffsetRange(max(log.start, log.end - each), log.end)
            )
        ]

    # --- anchors

    def samples_at(self, topic: str, offsets: Mapping[int, int]) -> dict[int, Record]:
        """The record at an offset of each partition, as far as there is one."""
        found = {}
        for name, batch in self._batches_at(topic, offsets).items():
            for record in iter_records(batch):
                if record.offset == offsets[name.partition]:
                    found[name.partition] = record
        return found

    def records_at(self, topic: str, offsets: Mapping[int, int]) -> dict[int, Anchor]:
        """The record at an offset of each partition. A partition without a record there is left out."""
        found = {}
        for name, batch in self._batches_at(topic, offsets).items():
            anchor = _anchor(batch, offsets[name.partition])
            if anchor is not None:
                found[name.partition] = anchor
        return found

    def newest_records(self, topic: str, ranges: Mapping[int, OffsetRange]) -> dict[int, Anchor]:
        """The newest record in a range of each partition, behind transaction markers. Looks back a few batches only."""
        found: dict[int, Anchor] = {}
        wanted = {partition: r.end - 1 for partition, r in ranges.items() if r.end > r.start}
        for _ in range(_LOOK_BACK):
            if not wanted:
                break
            batches = self._batches_at(topic, wanted)
            lower: dict[int, int] = {}
            for partition, offset in wanted.items():
                batch = batches.get(TopicPartition(topic, partition))
                header = None if batch is None else next(iter_batches(batch))[1]
                if batch is not None and header is not None and not header.is_control:
                    anchor = _anchor(batch, offset)
                    if anchor is not None:
                        found[partition] = anchor
                        continue
                lower[partition] = (offset if header is None else min(offset, header.base_offset)) - 1
            wanted = {p: offset for p, offset in lower.items() if offset >= ranges[p].start}
        return found

    def mean_record_bytes(self, topic: str, bounds: Mapping[int, LogBounds]) -> float:
        """In the newest batches, as they are stored. 0 if the topic is empty."""
        newest = {partition: log.end - 1 for partition, log in bounds.items() if log.end > log.start}
        headers = [next(iter_batches(batch))[1] for batch in self._batches_at(topic, newest).values()]
        return sum(h.size_in_bytes for h in headers) / max(1, sum(max(1, h.count) for h in headers))

    def times_at(self, topic: str, offsets: Mapping[int, int]) -> dict[int, int]:
        """When the batch at an offset of each partition was made, in milliseconds."""
        batches = self._batches_at(topic, offsets)
        return {name.partition: next(iter_batches(batch))[1].base_timestamp for name, batch in batches.items()}

    def log_facts(
        self, topic: str, state: IngestState, partitions: Collection[int] | None = None
    ) -> dict[int, LogFacts]:
        """What the log shows of the records that the table remembers, for these partitions or all."""
        bounds = self.log_bounds(topic)
        wanted = [p for p in bounds if partitions is None or p in partitions]
        anchors = self._still_there(topic, state.anchors, bounds, wanted)
        strange = [
            p
            for p in wanted
            if p in state.ends
            and (
                bounds[p].end < state.ends[p] or (p in state.anchors and not is_same(state.anchors[p], anchors.get(p)))
            )
        ]
        origins = self._still_there(topic, state.origins, bounds, strange)
        compacted = bool(strange) and self.is_compacted(topic)
        return {
            p: LogFacts(
                bounds[p],
                anchors.get(p),
                origins.get(p),
                self._epoch_end(topic, p, state.anchors[p].leader_epoch)
                if p in strange and p in state.anchors and state.anchors[p].leader_epoch >= 0
                else None,
                compacted,
            )
            for p in wanted
        }

    def _still_there(
        self, topic: str, known: Mapping[int, Anchor], bounds: Mapping[int, LogBounds], wanted: Collection[int]
    ) -> dict[int, Anchor]:
        offsets = {
            p: known[p].offset for p in wanted if p in known and bounds[p].start <= known[p].offset < bounds[p].end
        }
        return self.records_at(topic, offsets)

    def _batches_at(self, topic: str, offsets: Mapping[int, int]) -> dict[TopicPartition, memoryview]:
        """The batch at or after an offset of each partition, by one Fetch to each leader."""
        positions = {TopicPartition(topic, partition): offset for partition, offset in offsets.items()}
        try:
            entries = self._run(self._fetch_each(positions)) if positions else {}
        except (KafkaError, ClientError) as e:
            raise LakeError(f"topic {topic}: cannot read records from {self._bootstrap_server}: {e}") from e
        return {name: memoryview(entry.records) for name, entry in entries.items() if entry.records}

    async def _fetch_each(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, Any]:
        cluster = self._client.cluster

        async def attempt() -> dict[TopicPartition, Any]:
            by_leader: dict[int, dict[TopicPartition, int]] = {}
            for name, offset in positions.items():
                by_leader.setdefault(await cluster.leader_of(*name), {})[name] = offset
            found: dict[TopicPartition, Any] = {}
            for leader, wanted in by_leader.items():
                found |= await reader.fetch(cluster, leader, wanted, partition_bytes_max=1)
            missing = {name: offset for name, offset in positions.items() if not found[name].records}
            for name in missing:  # the answer was full before this partition's turn, or it failed
                found |= await reader.fetch(
                    cluster, await cluster.leader_of(*name), {name: positions[name]}, partition_bytes_max=1
                )
            for entry in found.values():
                check(entry)
            return found

        return await cluster.repeating(f"Fetch of {len(positions)} partitions", attempt)

    def _epoch_end(self, topic: str, partition: int, epoch: int) -> EpochEnd | None:
        try:
            return self._run(self._ask_epoch_end(TopicPartition(topic, partition), epoch))
        except (KafkaError, ClientError):
            return None  # only tells apart what is already known to be another log

    async def _ask_epoch_end(self, name: TopicPartition, epoch: int) -> EpochEnd:
        cluster = self._client.cluster
        cls = request_class(ApiKey.OFFSET_FOR_LEADER_EPOCH)
        entry = cls.OffsetForLeaderTopic.OffsetForLeaderPartition(partition=name.partition, leader_epoch=epoch)
        request = cls(topics=[cls.OffsetForLeaderTopic(topic=name.topic, partitions=[entry])])

        async def attempt() -> EpochEnd:
            answer = await cluster.ask_broker(
                await cluster.leader_of(*name), ApiKey.OFFSET_FOR_LEADER_EPOCH, request, newest=3
            )
            (found,) = answer.topics[0].partitions
            check(found)
            return EpochEnd(found.leader_epoch, found.end_offset)

        return await cluster.repeating(f"OffsetForLeaderEpoch of {name}", attempt)

    # --- what is at an offset

    def kinds_at(self, topic: str, partition: int, gaps: Sequence[OffsetRange]) -> list[OffsetSpan]:
        """The offsets of gaps by kind, neighbours joined. One walk over the log explains all gaps that lie together."""
        try:
            return join_spans(self._spans(topic, partition, gaps))
        except (KafkaError, ClientError) as e:
            raise LakeError(f"{topic}-{partition}: cannot fetch {gaps[0].start}..{gaps[-1].end - 1}: {e}") from e

    def _spans(self, topic: str, partition: int, gaps: Sequence[OffsetRange]) -> Iterator[OffsetSpan]:
        start, end = self.stable_bounds(topic).get(partition, LogBounds(0, 0))
        left = deque(sorted(gaps))
        while left:
            gap = left.popleft()
            if gap.start < start:
                until = min(start, gap.end)
                yield OffsetSpan(OffsetKind.BELOW_LOG_START, gap.start, until)
            elif gap.start >= end:  # a fetch from there would be out of range
                until = gap.end
                yield OffsetSpan(OffsetKind.BEYOND_LOG_END, gap.start, until)
            else:
                answer = self._run(self._fetch(TopicPartition(topic, partition), gap.start))
                until, spans = _read_spans(answer, gap.start, end)
                read = [gap, *left]
                yield from parts_of(spans, read)
                while left and left[0].end <= until:
                    left.popleft()
                if left and left[0].start < until:
                    left[0] = OffsetRange(until, left[0].end)
            if gap.end > until:
                left.appendleft(OffsetRange(until, gap.end))

    def scan(self, topic: str, partition: int, planned: OffsetRange) -> Iterator[tuple[BatchHeader, memoryview]]:
        """The batches that hold these offsets."""
        for answer in self._answers(topic, partition, planned):
            records = memoryview(answer.records)
            for at, header in iter_batches(records):
                if header.last_offset >= planned.start and header.base_offset < planned.end:
                    yield header, records[at : at + header.size_in_bytes]

    def committed_records(
        self, topic: str, partition: int, planned: OffsetRange
    ) -> Iterator[tuple[BatchHeader, Record]]:
        """The records of these offsets that a read_committed consumer would get."""
        position = planned.start
        for answer in self._answers(topic, partition, planned):
            until, spans = _read_spans(answer, position, planned.end)
            committed = {o for span in spans if span.kind is OffsetKind.RECORD for o in range(span.start, span.end)}
            records = memoryview(answer.records)
            for at, header in iter_batches(records):
                if not header.is_control:
                    for record in iter_records(records[at : at + header.size_in_bytes]):
                        if record.offset in committed:
                            yield header, record
            position = until

    def _answers(self, topic: str, partition: int, planned: OffsetRange) -> Iterator[Any]:
        """Fetch answers from the start of the range to its end, each with batches."""
        position = planned.start
        while position < planned.end:
            try:
                answer = self._run(self._fetch(TopicPartition(topic, partition), position))
            except (KafkaError, ClientError) as e:
                raise LakeError(f"{topic}-{partition}: cannot fetch {position}..{planned.end - 1}: {e}") from e
            reached = [header.next_offset for _, header in iter_batches(memoryview(answer.records or b""))]
            if not reached:
                return
            yield answer
            position = max(position + 1, reached[-1])

    # --- consumer group

    def commit_group(self, group: str, topic: str, ends: Mapping[int, int]) -> None:
        """Commit positions to a group without members, so that Kafka's own tools show the lag."""
        offsets = {TopicPartition(topic, partition): end for partition, end in ends.items()}
        try:
            outcomes = self._run(GroupAdmin(self._client.cluster).commit(group, offsets))
        except (KafkaError, ClientError) as e:
            raise LakeError(f"cannot commit the offsets of {topic} to the group {group}: {e}") from e
        for name, error in outcomes.items():
            if error is not None:
                raise LakeError(f"cannot commit the offset of {name} to the group {group}: {error}")

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        with self._turn:
            if self._is_closed:  # after Ctrl-C, Spark may still be in a batch
                work.close()
                raise LakeError(f"the connection to {self._bootstrap_server} is closed")
            return self._client.run(work)

    async def _fetch(self, name: TopicPartition, offset: int) -> Any:
        cluster = self._client.cluster

        async def attempt() -> Any:
            leader = await cluster.leader_of(*name)
            entries = await reader.fetch(
                cluster,
                leader,
                {name: offset},
                isolation=reader.READ_COMMITTED,
                partition_bytes_max=_FETCH_BYTES_MAX,
            )
            check(entries[name])
            return entries[name]

        return await cluster.repeating(f"Fetch of {name}", attempt)

    def _leaders(self, topic: str) -> dict[int, int]:
        (described,) = self._run(self._client.admin.describe_topics([topic]))
        if described.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise LakeError(f"topic {topic} does not exist on {self._bootstrap_server}")
        check(described)
        leaders = {entry.partition_index: entry.leader_id for entry in described.partitions}
        without = sorted(partition for partition, leader in leaders.items() if leader < 0)
        if without:
            raise LakeError(f"topic {topic}: no leader for partitions {without}")
        return leaders


def _anchor(batch: memoryview, offset: int) -> Anchor | None:
    """The record at this offset in the batch; None if the batch begins later or has lost the record."""
    header = next(iter_batches(batch))[1]
    if header.base_offset > offset:
        return None
    for record in iter_records(batch[: header.size_in_bytes]):
        if record.offset == offset:
            crc = record_crc(record.timestamp, record.key, record.value)
            return Anchor(offset, header.leader_epoch, header.crc, crc)
    return None


def _read_spans(answer: Any, position: int, end: int) -> tuple[int, list[OffsetSpan]]:
    """What is at the offsets of a Fetch answer, and how far it reaches."""
    records = memoryview(answer.records or b"")
    batches = [_head(records[at : at + header.size_in_bytes], header) for at, header in iter_batches(records)]
    if not batches:  # nothing to read between here and the last stable offset
        return end, [OffsetSpan(OffsetKind.ABSENT, position, end)]
    aborted = [(entry.producer_id, entry.first_offset) for entry in answer.aborted_transactions or ()]
    reached = min(end, max(position + 1, batches[-1].last_offset + 1))
    return reached, list(classify(batches, aborted, position, reached))


def _head(batch: memoryview, header: BatchHeader) -> BatchHead:
    span = range(header.base_offset, header.last_offset + 1)
    # a batch that lost records to compaction keeps its offset range: only then read the records themselves
    offsets = span if header.count == len(span) else [record.offset for record in iter_records(batch)]
    return BatchHead(
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        is_control=header.is_control,
        is_transactional=header.is_transactional,
        producer_id=header.producer_id,
        record_offsets=offsets,
    )
