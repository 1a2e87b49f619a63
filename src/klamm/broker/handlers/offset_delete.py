"""OffsetDelete (47): removes offsets of topics that the group does not read (KIP-496)."""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.coordinators.groups.commits import Errors
from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import Pace, topics_of
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.OFFSET_DELETE)
_TOPIC: Final = _RESPONSE.OffsetDeleteResponseTopic
_PARTITION: Final = _TOPIC.OffsetDeleteResponsePartition


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    if not services.may_group(context, Operation.DELETE, request.group_id):
        return _RESPONSE(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    errors: Errors = {}
    wanted: dict[TopicPartition, None] = {}
    pace = Pace()
    async for topic in pace.each(request.topics):
        allowed = services.may(context, Operation.READ, topic.name)
        async for entry in pace.each(topic.partitions):
            name = TopicPartition(topic.name, entry.partition_index)
            if not allowed:
                errors[name] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif name not in services.metadata:
                errors[name] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                wanted[name] = None
    try:
        errors |= await services.groups.commits.delete(request.group_id, wanted)
    except KafkaError as error:
        return _RESPONSE(error_code=error.code)
    topics = await topics_of(errors.items(), _partition)
    return _RESPONSE(
        error_code=ErrorCode.NONE,
        topics=[_TOPIC(name=name, partitions=partitions) for name, partitions in topics.items()],
    )


def _partition(name: TopicPartition, error: ErrorCode) -> Any:
    return _PARTITION(partition_index=name.partition, error_code=error)
