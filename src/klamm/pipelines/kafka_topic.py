"""What the ingest and its audit read from Kafka itself: where a log begins and ends, and what is at an offset.

Spark's source provides neither, and a consumer hides transaction markers and aborted records, so this reads raw batches
with Fetch. Every error of the client becomes one line.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any

import kafka.errors
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient
from kafka.protocol.consumer import FetchRequest
from kafka.record.memory_records import MemoryRecords
from kafka.structs import TopicPartition

from klamm.pipelines.lake_state import LakeError
from klamm.pipelines.offset_kinds import BatchHead, LogBounds, OffsetKind, OffsetSpan, classify, join_spans

_BOOTSTRAP_MS_MAX = 15_000
_FETCH_BYTES_MAX = 8 * 1024 * 1024
_FETCH_VERSION_MAX = 11  # later versions use topic ids; Kafka 2.3 to 3.9 supports this one
_READ_COMMITTED = 1
_EARLIEST, _LATEST = -2, -1


class KafkaTopics:
    """A connection to the cluster at `bootstrap_server`. Every failure is a LakeError with one line."""

    def __init__(self, bootstrap_server: str) -> None:
        self._bootstrap_server = bootstrap_server
        self._admin: Any = None

    def __enter__(self) -> KafkaTopics:
        try:
            self._admin = KafkaAdminClient(
                bootstrap_servers=self._bootstrap_server, bootstrap_timeout_ms=_BOOTSTRAP_MS_MAX, client_id="klamm-lake"
            )
        except (kafka.errors.KafkaError, OSError, ValueError) as e:
            raise LakeError(f"no Kafka broker answers at {self._bootstrap_server}") from e
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admin.close()

    def log_bounds(self, topic: str) -> dict[int, LogBounds]:
        """The log start and the high watermark of every partition."""
        try:
            partitions = [TopicPartition(topic, partition) for partition in sorted(self._leaders(topic))]
            starts = self._admin.list_partition_offsets(dict.fromkeys(partitions, _EARLIEST))
            ends = self._admin.list_partition_offsets(dict.fromkeys(partitions, _LATEST))
        except kafka.errors.KafkaError as e:
            raise LakeError(f"topic {topic}: cannot read its offsets from {self._bootstrap_server}: {e}") from e
        return {tp.partition: LogBounds(starts[tp].offset, ends[tp].offset) for tp in partitions}

    def is_compacted(self, topic: str) -> bool:
        try:
            resource = ConfigResource(ConfigResourceType.TOPIC, topic, ["cleanup.policy"])
            configs = self._admin.describe_configs([resource], config_filter="all")
            return "compact" in str(configs["topic"][topic]["cleanup.policy"]["value"])
        except kafka.errors.KafkaError as e:
            raise LakeError(f"topic {topic}: cannot read cleanup.policy from {self._bootstrap_server}: {e}") from e

    def kinds_at(self, topic: str, partition: int, start: int, end: int) -> list[OffsetSpan]:
        """The offsets of [start, end) by kind, neighbours joined."""
        try:
            return join_spans(self._spans(topic, partition, start, end))
        except kafka.errors.KafkaError as e:
            raise LakeError(f"{topic}-{partition}: cannot fetch {start}..{end - 1}: {e}") from e

    def _spans(self, topic: str, partition: int, start: int, end: int) -> Iterator[OffsetSpan]:
        bounds = self.log_bounds(topic).get(partition, LogBounds(0, 0))
        position = start
        if position < bounds.start:
            position = min(bounds.start, end)
            yield OffsetSpan(OffsetKind.BELOW_LOG_START, start, position)
        leader = self._leaders(topic).get(partition, -1)
        while position < end:
            if position >= bounds.end:  # a fetch from there would be out of range
                yield OffsetSpan(OffsetKind.ABSENT, position, end)
                return
            answer = self._fetch(leader, topic, partition, position)
            batches = [_head(batch) for batch in MemoryRecords(answer.records or b"")]
            if not batches:  # nothing to read between here and the last stable offset
                yield OffsetSpan(OffsetKind.ABSENT, position, end)
                return
            aborted = [(entry.producer_id, entry.first_offset) for entry in answer.aborted_transactions or ()]
            reached = min(end, max(position, batches[-1].last_offset + 1))
            yield from classify(batches, aborted, position, reached)
            position = reached

    def _fetch(self, leader: int, topic: str, partition: int, offset: int) -> Any:
        topic_type = FetchRequest.FetchTopic
        request = FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=_FETCH_BYTES_MAX,
            isolation_level=_READ_COMMITTED,
            session_id=0,
            session_epoch=-1,
            topics=[
                topic_type(
                    topic=topic,
                    partitions=[
                        topic_type.FetchPartition(
                            partition=partition,
                            current_leader_epoch=-1,
                            fetch_offset=offset,
                            log_start_offset=-1,
                            partition_max_bytes=_FETCH_BYTES_MAX,
                        )
                    ],
                )
            ],
            forgotten_topics_data=[],
            rack_id="",
            max_version=_FETCH_VERSION_MAX,
        )
        manager = self._admin._manager  # the client has no public call for Fetch

        async def send() -> Any:
            return await manager.send(request, node_id=leader)

        answer = manager.run(send).responses[0].partitions[0]
        error = kafka.errors.for_code(answer.error_code)
        if error is not kafka.errors.NoError:
            raise error()
        return answer

    def _leaders(self, topic: str) -> dict[int, int]:
        if topic not in self._admin.list_topics():  # describing an unknown topic could create it
            raise LakeError(f"topic {topic} does not exist on {self._bootstrap_server}")
        described = self._admin.describe_topics([topic])[0]
        leaders = {entry["partition_index"]: entry["leader_id"] for entry in described["partitions"]}
        without = sorted(partition for partition, leader in leaders.items() if leader < 0)
        if without:
            raise LakeError(f"topic {topic}: no leader for partitions {without}")
        return leaders


def _head(batch: Any) -> BatchHead:
    span = range(batch.base_offset, batch.last_offset + 1)
    # a batch that lost records to compaction keeps its offset range: only then read the records themselves
    offsets = span if batch.records_count == len(span) else [record.offset for record in batch]
    return BatchHead(
        base_offset=batch.base_offset,
        last_offset=batch.last_offset,
        is_control=batch.is_control_batch,
        is_transactional=batch.is_transactional,
        producer_id=batch.producer_id,
        record_offsets=offsets,
    )
