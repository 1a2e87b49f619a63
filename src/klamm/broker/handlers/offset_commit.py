"""OffsetCommit (8): stores a group's offsets. Version 0 stores them in ZooKeeper, as consumers before 0.9 expect."""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.coordinators.groups.commits import Committer, Errors
from klamm.broker.coordinators.groups.records import Offset
from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import Pace
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.OFFSET_COMMIT)
_TOPIC: Final = _RESPONSE.OffsetCommitResponseTopic
_PARTITION: Final = _TOPIC.OffsetCommitResponsePartition
VERSION_ZOOKEEPER: Final = 0
UNSET: Final = -1


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    if not services.may_group(context, Operation.READ, request.group_id):
        errors = dict.fromkeys(_names(request), ErrorCode.GROUP_AUTHORIZATION_FAILED)
        return await answer(_RESPONSE, request, errors)
    offsets, errors = await wanted_offsets(services, context, request)
    if offsets and version == VERSION_ZOOKEEPER:
        errors |= await services.old_offsets.commit(request.group_id, offsets)
    elif offsets:
        generation = request.generation_id_or_member_epoch
        committer = Committer(request.member_id, generation, request.group_instance_id)
        try:
            errors |= await services.groups.commits.commit(request.group_id, committer, offsets)
        except KafkaError as error:
            errors |= dict.fromkeys(offsets, error.code)
    return await answer(_RESPONSE, request, errors)


def _names(request: Any) -> list[TopicPartition]:
    return [TopicPartition(topic.name, entry.partition_index) for topic in request.topics for entry in topic.partitions]


async def wanted_offsets(
    services: Services, context: RequestContext, request: Any
) -> tuple[dict[TopicPartition, Offset], Errors]:
    """The offsets that the coordinator may see, and the errors of the others."""
    now_ms = services.replicas.clock.wall_ms()
    retention_ms = getattr(request, "retention_time_ms", UNSET)
    expires = None if retention_ms == UNSET else now_ms + retention_ms
    offsets: dict[TopicPartition, Offset] = {}
    errors: Errors = {}
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
                at = getattr(entry, "commit_timestamp", UNSET)
                committed_ms = now_ms if at == UNSET else at
                metadata = entry.committed_metadata or ""
                offsets[name] = Offset(
                    entry.committed_offset, entry.committed_leader_epoch, metadata, committed_ms, expires
                )
    return offsets, errors


async def answer(response: Any, request: Any, errors: Errors) -> Any:
    """The response of OffsetCommit or TxnOffsetCommit, in the order of the request."""
    name = response.__name__
    topic_class = getattr(response, f"{name}Topic")
    partition_class = getattr(topic_class, f"{name}Partition")
    pace = Pace()
    return response(
        topics=[
            topic_class(
                name=topic.name,
                partitions=[
                    partition_class(
                        partition_index=entry.partition_index,
                        error_code=errors[TopicPartition(topic.name, entry.partition_index)],
                    )
                    async for entry in pace.each(topic.partitions)
                ],
            )
            async for topic in pace.each(request.topics)
        ]
    )
