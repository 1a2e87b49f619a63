"""AlterPartitionReassignments (45): moves partitions; an entry without replicas cancels a move (KIP-455).

The answer comes when the request is accepted and durable, not when the replicas have moved:
ListPartitionReassignments tells that.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final

from klamm.broker.handlers.answers import error_fields
from klamm.broker.handlers.services import Services
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import BrokerId, TopicPartition
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.by_topic import by_topic
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
_TOPIC: Final = _RESPONSE.ReassignableTopicResponse
_PARTITION: Final = _TOPIC.ReassignablePartitionResponse


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    try:
        if not services.may(context, Operation.ALTER):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        results = await services.controller.alter_partition_reassignments(_targets(request))
    except KafkaError as error:
        return _RESPONSE(**error_fields(error), responses=[])
    topics = by_topic(results.items(), itemgetter(0))
    return _RESPONSE(**error_fields(None), responses=[_topic(topic, group) for topic, group in topics.items()])


def _targets(request: Any) -> dict[TopicPartition, tuple[BrokerId, ...] | None]:
    return {
        TopicPartition(topic.name, partition.partition_index): None
        if partition.replicas is None
        else tuple(map(BrokerId, partition.replicas))
        for topic in request.topics
        for partition in topic.partitions
    }


def _topic(topic: str, results: Sequence[tuple[TopicPartition, KafkaError | None]]) -> Any:
    partitions = [_PARTITION(partition_index=name.partition, **error_fields(refused)) for name, refused in results]
    return _TOPIC(name=topic, partitions=partitions)
