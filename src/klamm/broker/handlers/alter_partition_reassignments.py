"""AlterPartitionReassignments (45): where partitions are to go; no replicas for one means cancel (KIP-455).

Answered when the request is accepted and durable, not when the replicas have moved: ListPartitionReassignments tells.
"""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.handlers.services import Services
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
        results = await services.controller.alter_partition_reassignments(_targets(request))
    except KafkaError as error:
        return _answer(services, context, error, {})
    return _answer(services, context, None, results)


def _targets(request: Any) -> dict[TopicPartition, tuple[BrokerId, ...] | None]:
    return {
        TopicPartition(topic.name, partition.partition_index): None
        if partition.replicas is None
        else tuple(map(BrokerId, partition.replicas))
        for topic in request.topics
        for partition in topic.partitions
    }


def _answer(
    services: Services,
    context: RequestContext,
    error: KafkaError | None,
    results: dict[TopicPartition, KafkaError | None],
) -> Any:
    topics: dict[str, list[Any]] = {}
    for name, refused in results.items():
        topics.setdefault(name.topic, []).append(
            _PARTITION(
                partition_index=name.partition,
                error_code=refused.code if refused else ErrorCode.NONE,
                error_message=refused.message if refused else None,
            )
        )
    return _RESPONSE(
        throttle_time_ms=services.quotas.throttle(context, "AlterPartitionReassignments", 0),
        error_code=error.code if error else ErrorCode.NONE,
        error_message=error.message if error else None,
        responses=[_TOPIC(name=topic, partitions=partitions) for topic, partitions in topics.items()],
    )
