"""Metadata (3): brokers, controller, topics and their leaders, as this broker's cache knows them.

Leaders and epochs are never invented: clients keep the highest epoch they saw and drop older answers. A leader that is
not alive is answered as -1 with LEADER_NOT_AVAILABLE; one without an endpoint on the client's listener as
LISTENER_NOT_FOUND (version 6 and later). The request may create a missing topic.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from klamm.admin.placement import RackMode
from klamm.broker.handlers.services import Services
from klamm.broker.topics import NewTopic
from klamm.model.control import PartitionMetadata
from klamm.model.errors import ErrorCode, KafkaError, ZooKeeperError
from klamm.model.ids import INTERNAL_TOPICS, NO_LEADER
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.METADATA)
_TOPIC: Final = _RESPONSE.MetadataResponseTopic
_PARTITION: Final = _TOPIC.MetadataResponsePartition
VERSION_LISTENER_NOT_FOUND: Final = 6
VERSION_AUTO_CREATE_FLAG: Final = 4

log = logging.getLogger(__name__)


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    cache = services.metadata
    if request.topics is None or (version == 0 and not request.topics):
        names = [name for name in cache.topics() if services.may(context, Operation.DESCRIBE, name)]
        may_create = False
    else:
        names = list(dict.fromkeys(topic.name for topic in request.topics))
        may_create = version < VERSION_AUTO_CREATE_FLAG or request.allow_auto_topic_creation
    brokers = [
        _RESPONSE.MetadataResponseBroker(node_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
        for broker, endpoint in cache.endpoints(context.listener)
    ]
    return _RESPONSE(
        brokers=brokers,
        cluster_id=services.cluster_id,
        controller_id=-1 if cache.controller_id is None else cache.controller_id,
        topics=[await _topic(services, context, version, name, may_create) for name in names],
    )


async def _topic(services: Services, context: RequestContext, version: int, name: str, may_create: bool) -> Any:
    if not services.may(context, Operation.DESCRIBE, name):
        return _refused(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    known = services.metadata.topic(name)
    if known is None:
        return _refused(name, await _create_or_explain(services, context, name, may_create))
    return _TOPIC(
        error_code=ErrorCode.NONE,
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        partitions=[_partition(services, context, version, p, known[p]) for p in sorted(known)],
    )


def _refused(name: str, error: ErrorCode) -> Any:
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
    # The coordinators create their topics themselves, in a shape of their own (50 compacted partitions).
    if name in INTERNAL_TOPICS or not (may_create and services.config.auto_create_topics_enable):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not (services.may(context, Operation.CREATE) or services.may(context, Operation.CREATE, name)):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    try:
        planned = services.topics.plan(NewTopic(name), await services.placement_brokers(), RackMode.SAFE)
        await services.topics.create(planned)
    except KafkaError as error:
        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            return error.code
    except ZooKeeperError as error:
        log.warning("cannot create topic %s now: %s", name, error)
    return ErrorCode.LEADER_NOT_AVAILABLE
