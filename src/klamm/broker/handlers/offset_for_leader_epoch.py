"""OffsetForLeaderEpoch (23): where an epoch ends in the leader's log, for followers and consumers (KIP-320)."""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import Pace
from klamm.log.leader_epochs import UNDEFINED
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import NO_EPOCH, TopicPartition
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.OFFSET_FOR_LEADER_EPOCH)
_TOPIC: Final = _RESPONSE.OffsetForLeaderTopicResult
_PARTITION: Final = _TOPIC.EpochEndOffset


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    as_broker = services.may(context, Operation.CLUSTER_ACTION)
    topics = []
    pace = Pace()
    async for topic in pace.each(request.topics):
        allowed = as_broker or services.may(context, Operation.DESCRIBE, topic.topic)
        topics.append(_TOPIC(topic=topic.topic, partitions=[]))
        async for entry in pace.each(topic.partitions):
            topics[-1].partitions.append(_end(services, topic.topic, entry, allowed))
    return _RESPONSE(topics=topics)


def _end(services: Services, topic: str, entry: Any, allowed: bool) -> Any:
    error, end = ErrorCode.TOPIC_AUTHORIZATION_FAILED, UNDEFINED
    if allowed:
        current = entry.current_leader_epoch if entry.current_leader_epoch is not None else NO_EPOCH
        try:
            partition = services.replicas.partition(TopicPartition(topic, entry.partition))
            error, end = ErrorCode.NONE, partition.epoch_end(current, entry.leader_epoch)
        except KafkaError as refused:
            error = refused.code
    return _PARTITION(error_code=error, partition=entry.partition, leader_epoch=end.epoch, end_offset=end.offset)
