"""FindCoordinator (10): the broker that coordinates a group or a transactional id.

It is the leader of the key's partition in the coordinator's topic, which the first question creates. The answer waits
a while for a live leader on the client's listener. Then it is COORDINATOR_NOT_AVAILABLE, and the client asks again.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from klamm.broker.coordinators.internal_topic import InternalTopic
from klamm.broker.handlers.services import Services
from klamm.model.brokers import Endpoint
from klamm.model.errors import ErrorCode, KafkaError, ZNodeError, ZooKeeperError
from klamm.model.ids import NO_LEADER, BrokerId
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.FIND_COORDINATOR)
GROUP: Final = 0
TRANSACTION: Final = 1
VERSION_KEY_TYPE: Final = 1
LEADER_WAIT_S: Final = 2.0
"""A fail-over or the creation of the topic rarely takes longer. librdkafka gives up after three refusals within half a
second, and then a producer that commits offsets in a transaction waits for ever."""

log = logging.getLogger(__name__)


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    key_type = request.key_type if version >= VERSION_KEY_TYPE else GROUP
    try:
        leader, endpoint = await _find(services, context, key_type, request.key)
    except KafkaError as error:
        return _RESPONSE(
            error_code=error.code, error_message=error.message or error.code.name, node_id=NO_LEADER, host="", port=-1
        )
    name = ErrorCode.NONE.name  # Kafka sends this text with a success, too
    return _RESPONSE(
        error_code=ErrorCode.NONE, error_message=name, node_id=leader, host=endpoint.host, port=endpoint.port
    )


async def _find(services: Services, context: RequestContext, key_type: int, key: str) -> tuple[BrokerId, Endpoint]:
    if key_type == GROUP:
        if not services.may_group(context, Operation.DESCRIBE, key):
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        topic = services.offsets_topic
    elif key_type == TRANSACTION:
        if not services.may_transactional_id(context, Operation.DESCRIBE, key):
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        topic = services.transactions_topic
    else:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"unknown key type {key_type}")
    try:
        return await _leader_of(services, context, topic, key)
    except (ZooKeeperError, ZNodeError) as error:
        log.warning("cannot find the coordinator of %r now: %s", key, error)
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE) from error


async def _leader_of(
    services: Services, context: RequestContext, topic: InternalTopic, key: str
) -> tuple[BrokerId, Endpoint]:
    known = services.metadata
    if not await known.wait_until(lambda: known.is_informed, LEADER_WAIT_S, context.connection):
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "this broker does not know the cluster yet")
    if not topic.exists:
        await _create(topic)
    name = await topic.partition_of(key)

    def leader() -> BrokerId:
        partition = known.partition(name)
        return NO_LEADER if partition is None else partition.leader

    def endpoint() -> Endpoint | None:
        return known.endpoint(leader(), context.listener)

    await known.wait_until(lambda: endpoint() is not None, LEADER_WAIT_S, context.connection)
    found = endpoint()
    if found is None:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{name} has no leader that this broker knows")
    return leader(), found


async def _create(topic: InternalTopic) -> None:
    try:
        await topic.ensure()
    except KafkaError as error:
        log.warning("cannot create %s: %s", topic.name, error)
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from error
