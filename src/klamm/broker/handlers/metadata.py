"""Metadata (3): brokers, controller, topics and their leaders, as this broker's cache knows them.

Leaders and epochs are never invented: clients keep the highest epoch they saw and drop older answers. A leader that is
not alive is answered as -1 with LEADER_NOT_AVAILABLE; one without an endpoint on the client's listener as
LISTENER_NOT_FOUND (version 6 and later). The request may create a missing topic.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

from klamm.admin.placement import RackMode
from klamm.broker.handlers.freeing import freed
from klamm.broker.handlers.metered import Metered
from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import each, in_slices
from klamm.broker.topics import NewTopic
from klamm.model.control import PartitionMetadata
from klamm.model.errors import ErrorCode, KafkaError, ZNodeError, ZooKeeperError
from klamm.model.ids import INTERNAL_TOPICS, NO_LEADER
from klamm.model.ports import Buffer
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class
from klamm.wire.metadata import encode_topic, join_response

_RESPONSE: Final = response_class(ApiKey.METADATA)
_TOPIC: Final = _RESPONSE.MetadataResponseTopic
_PARTITION: Final = _TOPIC.MetadataResponsePartition
VERSION_LISTENER_NOT_FOUND: Final = 6
VERSION_AUTO_CREATE_FLAG: Final = 4
VERSION_OPERATIONS: Final = 8
PARTITIONS_PER_SLICE: Final = 2_000
NOT_ASKED: Final = -(2**31)
"""The value of `authorized_operations` unless the client asks for them."""

log = logging.getLogger(__name__)


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Metered:
    cache = services.metadata
    if request.topics is None or (version == 0 and not request.topics):
        names = {name: None for name in cache.topics() if services.may(context, Operation.DESCRIBE, name)}
        may_create = False
    else:
        names = {topic.name: None async for topic in each(request.topics, PARTITIONS_PER_SLICE)}
        may_create = version < VERSION_AUTO_CREATE_FLAG or request.allow_auto_topic_creation
    asked_operations = version >= VERSION_OPERATIONS and request.include_topic_authorized_operations
    slices: list[bytes] = []
    topics: list[bytes] = []
    budget = PARTITIONS_PER_SLICE
    for name in names:
        topics.append(await _topic(services, context, version, name, may_create, asked_operations))
        known = cache.topic(name)
        budget -= 1 + (0 if known is None else len(known))
        if budget <= 0:
            budget = PARTITIONS_PER_SLICE
            slices.append(b"".join(topics))
            topics.clear()
            await asyncio.sleep(0)
    slices.append(b"".join(topics))
    count = len(names)
    await in_slices(freed(names))
    brokers = [
        _RESPONSE.MetadataResponseBroker(node_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
        for broker, endpoint in cache.endpoints(context.listener)
    ]
    response = _RESPONSE(
        brokers=brokers,
        cluster_id=services.cluster_id,
        controller_id=-1 if cache.controller_id is None else cache.controller_id,
        authorized_operations=_cluster_operations(services, context, version, request),
    )

    def encode(throttle_ms: int) -> Sequence[Buffer]:
        response.throttle_time_ms = throttle_ms
        return join_response(response, version, count, slices)

    return Metered(0, encode)


def _cluster_operations(services: Services, context: RequestContext, version: int, request: Any) -> int:
    if version < VERSION_OPERATIONS or not request.include_cluster_authorized_operations:
        return NOT_ASKED
    return services.operations(context) if services.may(context, Operation.DESCRIBE) else 0


async def _topic(
    services: Services, context: RequestContext, version: int, name: str, may_create: bool, asked_operations: bool
) -> bytes:
    """One topic of the answer, encoded. What is the same for all clients is encoded once."""
    if not services.may(context, Operation.DESCRIBE, name):
        return encode_topic(_empty(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED), version)
    operations = services.operations(context, name) if asked_operations else NOT_ASKED
    known = services.metadata.topic(name)
    if known is None:
        refused = _empty(name, await _create_or_explain(services, context, name, may_create))
        refused.authorized_operations = operations
        return encode_topic(refused, version)
    encoded = services.metadata.encoded(version, context.listener)
    if not asked_operations and name in encoded:
        return encoded[name]
    topic = _empty(name, ErrorCode.NONE)
    topic.authorized_operations = operations
    topic.partitions = [_partition(services, context, version, p, known[p]) for p in sorted(known)]
    made = encode_topic(topic, version)
    if not asked_operations:
        encoded[name] = made
    return made


def _empty(name: str, error: ErrorCode) -> Any:
    return _TOPIC(error_code=error, name=name, is_internal=name in INTERNAL_TOPICS, partitions=[])


def _partition(
    services: Services, context: RequestContext, version: int, index: int, metadata: PartitionMetadata
) -> Any:
    cache = services.metadata
    error, leader = ErrorCode.NONE, metadata.leader
    if not cache.is_alive(leader):
        error, leader = ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER
    elif cache.endpoint(leader, context.listener) is None:
        found = version >= VERSION_LISTENER_NOT_FOUND
        error = ErrorCode.LISTENER_NOT_FOUND if found else ErrorCode.LEADER_NOT_AVAILABLE
        leader = NO_LEADER
    replicas, isr = metadata.replicas, metadata.isr
    if version == 0:  # its clients fail on replicas that are not in the list of brokers
        replicas = tuple(b for b in replicas if cache.is_alive(b))
        isr = tuple(b for b in isr if cache.is_alive(b))
        if error is ErrorCode.NONE and (replicas, isr) != (metadata.replicas, metadata.isr):
            error = ErrorCode.REPLICA_NOT_AVAILABLE
    return _PARTITION(
        error_code=error,
        partition_index=index,
        leader_id=leader,
        leader_epoch=metadata.leader_epoch,
        replica_nodes=list(replicas),
        isr_nodes=list(isr),
        offline_replicas=list(metadata.offline_replicas),
    )


async def _create_or_explain(services: Services, context: RequestContext, name: str, may_create: bool) -> ErrorCode:
    """The error for a topic that the cache does not have. Usually it is created, and the client asks again."""
    if not services.metadata.is_informed:
        return ErrorCode.LEADER_NOT_AVAILABLE  # this broker does not know yet which topics exist
    # A coordinator's topic is created whenever it is asked for, in a shape of its own.
    if name not in INTERNAL_TOPICS:
        if not (may_create and services.config.auto_create_topics_enable):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if not (services.may(context, Operation.CREATE) or services.may(context, Operation.CREATE, name)):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    try:
        if name in INTERNAL_TOPICS:
            await services.internal_topic(name).ensure()
        else:
            planned = services.topics.plan(NewTopic(name), await services.placement_brokers(), RackMode.SAFE)
            await services.topics.create(planned)
    except KafkaError as error:
        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            return error.code
    except (ZooKeeperError, ZNodeError) as error:
        log.warning("cannot create topic %s now: %s", name, error)
    return ErrorCode.LEADER_NOT_AVAILABLE
