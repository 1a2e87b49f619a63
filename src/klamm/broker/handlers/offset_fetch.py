"""OffsetFetch (9): a group's committed offsets. Version 0 reads them from ZooKeeper, as consumers before 0.9 expect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from klamm.broker.coordinators.groups.records import Offset
from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import each, topics_of
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.OFFSET_FETCH)
_TOPIC: Final = _RESPONSE.OffsetFetchResponseTopic
_PARTITION: Final = _TOPIC.OffsetFetchResponsePartition
VERSION_ZOOKEEPER: Final = 0
VERSION_TOP_ERROR: Final = 2
OFFSETS_PER_SLICE: Final = 1_000
NO_OFFSET: Final = Offset(-1)

Fetched = dict[TopicPartition, tuple[Offset, ErrorCode]]


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    asked = await _asked(request)
    try:
        if not services.may_group(context, Operation.DESCRIBE, request.group_id):
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if asked is None:
            found = services.groups.commits.fetch(request.group_id, None, require_stable=request.require_stable)
            may_see = _visible_topics(services, context)
            return await _answer({name: result async for name, result in each(found.items()) if may_see(name.topic)})
        return await _answer(await _fetch(services, context, version, request, asked))
    except KafkaError as error:
        if version >= VERSION_TOP_ERROR:
            return _RESPONSE(error_code=error.code, topics=[])
        refused = (NO_OFFSET, error.code)
        return await _answer({name: refused async for name in each(asked or ())})


async def _asked(request: Any) -> list[TopicPartition] | None:
    if request.topics is None:
        return None
    named = ((topic.name, index) for topic in request.topics for index in topic.partition_indexes)
    return [TopicPartition(topic, index) async for topic, index in each(named)]


async def _fetch(
    services: Services, context: RequestContext, version: int, request: Any, asked: list[TopicPartition]
) -> Fetched:
    may_see = _visible_topics(services, context)
    wanted = [name async for name in each(asked) if may_see(name.topic)]
    if version == VERSION_ZOOKEEPER:
        found = await services.old_offsets.fetch(request.group_id, wanted, services.metadata)
    else:
        found = {}
        for start in range(0, max(len(wanted), 1), OFFSETS_PER_SLICE):
            if start:
                await asyncio.sleep(0)
            some = wanted[start : start + OFFSETS_PER_SLICE]
            found |= services.groups.commits.fetch(request.group_id, some, require_stable=request.require_stable)
    refused = (NO_OFFSET, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return {name: found.get(name, refused) async for name in each(asked)}


def _visible_topics(services: Services, context: RequestContext) -> Callable[[str], bool]:
    """Each topic is asked for once."""
    return cache(lambda topic: services.may(context, Operation.DESCRIBE, topic))


async def _answer(found: Fetched) -> Any:
    topics = await topics_of(found.items(), _partition)
    return _RESPONSE(topics=[_TOPIC(name=name, partitions=partitions) for name, partitions in topics.items()])


def _partition(name: TopicPartition, result: tuple[Offset, ErrorCode]) -> Any:
    value, error = result
    return _PARTITION(
        partition_index=name.partition,
        committed_offset=value.offset,
        committed_leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        error_code=error,
    )
