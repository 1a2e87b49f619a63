"""AlterPartitionReassignments (45): moves partitions; an entry without replicas cancels a move (KIP-455).

The answer comes when the request is accepted and durable, not when the replicas have moved:
ListPartitionReassignments tells that.
"""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.handlers.answers import error_fields
from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import each, topics_of
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import BrokerId, TopicPartition
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
_TOPIC: Final = _RESPONSE.ReassignableTopicResponse
_PARTITION: Final = _TOPIC.ReassignablePartitionResponse


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    try:
        if not services.may(context, Operation.ALTER):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        results = await services.controller.alter_partition_reassignments(await _targets(request))
    except KafkaError as error:
        return _RESPONSE(**error_fields(error), responses=[])
    topics = await topics_of(results.items(), _partition)
    responses = [_TOPIC(name=topic, partitions=partitions) for topic, partitions in topics.items()]
    return _RESPONSE(**error_fields(None), responses=responses)


async def _targets(request: Any) -> dict[TopicPartition, tuple[BrokerId, ...] | None]:
    named = ((topic.name, partition) for topic in request.topics for partition in topic.partitions)
    return {
        TopicPartition(topic, partition.partition_index): None
        if partition.replicas is None
        else tuple(map(BrokerId, partition.replicas))
        async for topic, partition in each(named)
    }


def _partition(name: TopicPartition, refused: KafkaError | None) -> Any:
    return _PARTITION(partition_index=name.partition, **error_fields(refused))
