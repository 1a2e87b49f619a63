"""ListOffsets (2): the first offset, the last one, or the first at or after a timestamp.

A new leader whose high watermark has not reached the start of its epoch cannot tell consumers the end yet, because the
end could go back (KIP-207). It answers OFFSET_NOT_AVAILABLE until then, or LEADER_NOT_AVAILABLE below version 5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import each
from klamm.broker.partition import Bound, Partition
from klamm.log.log import Log
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import NO_EPOCH, TopicPartition
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.LIST_OFFSETS)
_TOPIC: Final = _RESPONSE.ListOffsetsTopicResponse
_PARTITION: Final = _TOPIC.ListOffsetsPartitionResponse
LATEST: Final = -1
EARLIEST: Final = -2
DEBUGGING_REPLICA: Final = -2
VERSION_OFFSET_NOT_AVAILABLE: Final = 5
WITHOUT_READS_PER_SLICE: Final = 5_000
LOOKUPS_PER_SLICE: Final = 50
"""A lookup by time reads an index and up to a few kilobytes of records."""


class Found(NamedTuple):
    offset: int = -1
    timestamp: int = -1
    leader_epoch: int = NO_EPOCH


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    asked: Counter[tuple[str, int]] = Counter()
    async for topic, entry in each(_entries(request), WITHOUT_READS_PER_SLICE):
        asked[topic.name, entry.partition_index] += 1
    topics: list[Any] = []
    allowed: dict[str, bool] = {}
    answered: Any = None
    async for topic, entry in each(_entries(request), LOOKUPS_PER_SLICE):
        if topic is not answered:
            answered = topic
            topics.append(_TOPIC(name=topic.name, partitions=[]))
            allowed[topic.name] = services.may(context, Operation.DESCRIBE, topic.name)
        if not allowed[topic.name]:
            error, found = ErrorCode.TOPIC_AUTHORIZATION_FAILED, Found()
        elif asked[topic.name, entry.partition_index] > 1:
            error, found = ErrorCode.INVALID_REQUEST, Found()
        else:
            error, found = await _find(services, version, request, topic.name, entry)
        topics[-1].partitions.append(_answer(version, entry.partition_index, error, found))
    return _RESPONSE(topics=topics)


def _entries(request: Any) -> Iterator[tuple[Any, Any]]:
    return ((topic, entry) for topic in request.topics for entry in topic.partitions)


def _answer(version: int, index: int, error: ErrorCode, found: Found) -> Any:
    if version == 0:
        offsets = [found.offset] if found.offset >= 0 else []
        return _PARTITION(partition_index=index, error_code=error, old_style_offsets=offsets)
    return _PARTITION(
        partition_index=index,
        error_code=error,
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=found.leader_epoch,
    )


async def _find(services: Services, version: int, request: Any, topic: str, entry: Any) -> tuple[ErrorCode, Found]:
    epoch = entry.current_leader_epoch if entry.current_leader_epoch is not None else NO_EPOCH
    try:
        partition = services.replicas.partition(TopicPartition(topic, entry.partition_index))
        if entry.timestamp >= 0 and partition.log is not None:
            await partition.log.read_timestamps()
        log = partition.local_log(epoch, leader_only=request.replica_id != DEBUGGING_REPLICA)
        is_consumer = request.replica_id == -1
        if not is_consumer:
            bound = Bound.LOG_END
        else:
            bound = Bound.LAST_STABLE if request.isolation_level else Bound.HIGH_WATERMARK
        return ErrorCode.NONE, _lookup(partition, log, entry.timestamp, bound, is_consumer)
    except KafkaError as error:
        if error.code is ErrorCode.OFFSET_NOT_AVAILABLE and version < VERSION_OFFSET_NOT_AVAILABLE:
            return ErrorCode.LEADER_NOT_AVAILABLE, Found()
        return error.code, Found()


def _lookup(partition: Partition, log: Log, timestamp: int, bound: Bound, is_consumer: bool) -> Found:
    end = partition.bound(log, bound)
    is_settled = not is_consumer or not partition.is_leader or partition.epoch_start_offset <= log.high_watermark
    if timestamp == EARLIEST:
        first = log.epochs.earliest
        epoch = first.epoch if first is not None and first.start_offset <= log.log_start_offset else NO_EPOCH
        return Found(log.log_start_offset, -1, epoch)
    if timestamp == LATEST:
        if not is_settled:
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
        return Found(end, -1, partition.leader_epoch)
    if timestamp < 0:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp} needs a newer version of ListOffsets")
    found = log.offset_for_timestamp(timestamp, end)
    if found is not None:
        return Found(found.offset, found.timestamp, NO_EPOCH if found.leader_epoch is None else found.leader_epoch)
    if not is_settled:
        raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
    return Found()
