"""DeleteRecords (21): raises the log start of partitions, and answers when every live replica has followed (KIP-107).

Followers learn the leader's log start from its answers and report theirs with their next fetch. After a timeout the
deletion goes on.
"""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import Pace, each
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import INTERNAL_TOPICS, TopicPartition
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

ENTRIES_PER_SLICE: Final = 200
_RESPONSE: Final = response_class(ApiKey.DELETE_RECORDS)
_TOPIC: Final = _RESPONSE.DeleteRecordsTopicResult
TO_HIGH_WATERMARK: Final = -1
UNKNOWN: Final = -1


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    results: dict[TopicPartition, tuple[int, ErrorCode]] = {}
    wanted: dict[TopicPartition, int] = {}
    pace = Pace(ENTRIES_PER_SLICE)
    async for topic in pace.each(request.topics):
        may_delete = services.may(context, Operation.DELETE, topic.name)
        async for entry in pace.each(topic.partitions):
            name = TopicPartition(topic.name, entry.partition_index)
            try:
                if not may_delete:
                    raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                wanted[name] = _advance(services, name, entry.offset)
                results[name] = _low_watermark(services, name), ErrorCode.REQUEST_TIMED_OUT
            except KafkaError as error:
                results[name] = UNKNOWN, error.code
    await _wait(services, context, wanted, results, request.timeout_ms)
    pace = Pace()
    return _RESPONSE(topics=[await _answer(topic, results, pace) async for topic in pace.each(request.topics)])


def _advance(services: Services, name: TopicPartition, offset: int) -> int:
    """Raise the leader's log start. Returns the offset below which everything shall be deleted."""
    if name.topic in INTERNAL_TOPICS:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
    log = services.replicas.partition(name).local_log()
    if "delete" not in log.config.cleanup_policy:
        raise KafkaError(ErrorCode.POLICY_VIOLATION)
    target = log.high_watermark if offset == TO_HIGH_WATERMARK else offset
    if target < 0:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    log.advance_log_start(target)
    services.replicas.moved(name)  # followers shall hear of it in their next round
    return target


def _low_watermark(services: Services, name: TopicPartition) -> int:
    return services.replicas.partition(name).low_watermark(services.metadata.is_alive)


async def _wait(
    services: Services,
    context: RequestContext,
    wanted: dict[TopicPartition, int],
    results: dict[TopicPartition, tuple[int, ErrorCode]],
    timeout_ms: int,
) -> None:
    def settle(name: TopicPartition) -> None:
        try:
            reached = _low_watermark(services, name)
        except KafkaError as error:  # this broker no longer leads it
            results[name] = UNKNOWN, error.code
            del wanted[name]
            return
        if reached >= wanted[name]:
            results[name] = reached, ErrorCode.NONE
            del wanted[name]

    def done(changed: TopicPartition) -> bool:
        if changed in wanted:
            settle(changed)
        return not wanted

    watch = services.replicas.waiting_deletions.watch(wanted)
    try:
        async for name in each(list(wanted), ENTRIES_PER_SLICE):
            settle(name)
        if wanted:
            await watch.wait(done, timeout_ms / 1000, context.connection)
    finally:
        watch.close()


async def _answer(topic: Any, results: dict[TopicPartition, tuple[int, ErrorCode]], pace: Pace) -> Any:
    partitions = []
    async for entry in pace.each(topic.partitions):
        low_watermark, error = results[TopicPartition(topic.name, entry.partition_index)]
        partitions.append(
            _TOPIC.DeleteRecordsPartitionResult(
                partition_index=entry.partition_index, low_watermark=low_watermark, error_code=error
            )
        )
    return _TOPIC(name=topic.name, partitions=partitions)
