"""ListPartitionReassignments (46): which partitions are being reassigned; all others are left out."""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.handlers.answers import error_fields
from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import each, topics_of
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
        named = ((topic.name, p) for topic in request.topics for p in topic.partition_indexes)
        asked = [TopicPartition(topic, p) async for topic, p in each(named)]
    try:
        if not services.may(context, Operation.DESCRIBE):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        moving = await services.controller.list_partition_reassignments(asked)
    except KafkaError as error:
        return _RESPONSE(**error_fields(error), topics=[])
    topics = await topics_of(moving.items(), _partition)
    return _RESPONSE(
        **error_fields(None),
        topics=[_TOPIC(name=topic, partitions=partitions) for topic, partitions in topics.items()],
    )


def _partition(name: TopicPartition, assignment: Assignment) -> Any:
    return _PARTITION(
        partition_index=name.partition,
        replicas=list(assignment.replicas),
        adding_replicas=list(assignment.adding),
        removing_replicas=list(assignment.removing),
    )
