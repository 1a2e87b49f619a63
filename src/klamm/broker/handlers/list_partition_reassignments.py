"""ListPartitionReassignments (46): which partitions are on the move; unknown ones and those at rest are left out."""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.handlers.services import Services
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.model.partition import Assignment
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.LIST_PARTITION_REASSIGNMENTS)
_TOPIC: Final = _RESPONSE.OngoingTopicReassignment
_PARTITION: Final = _TOPIC.OngoingPartitionReassignment


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    asked = None
    if request.topics is not None:
        asked = [TopicPartition(topic.name, p) for topic in request.topics for p in topic.partition_indexes]
    moving: dict[TopicPartition, Assignment] = {}
    refused: KafkaError | None = None
    try:
        if not services.may(context, Operation.DESCRIBE):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        moving = await services.controller.list_partition_reassignments(asked)
    except KafkaError as error:
        refused = error
    topics: dict[str, list[Any]] = {}
    for name, assignment in moving.items():
        topics.setdefault(name.topic, []).append(
            _PARTITION(
                partition_index=name.partition,
                replicas=list(assignment.replicas),
                adding_replicas=list(assignment.adding),
                removing_replicas=list(assignment.removing),
            )
        )
    return _RESPONSE(
        throttle_time_ms=services.quotas.throttle(context, "ListPartitionReassignments", 0),
        error_code=refused.code if refused else ErrorCode.NONE,
        error_message=refused.message if refused else None,
        topics=[_TOPIC(name=topic, partitions=partitions) for topic, partitions in topics.items()],
    )
