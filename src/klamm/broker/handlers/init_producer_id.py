"""InitProducerId (22): a producer id and epoch, for an idempotent or a transactional producer.

Without a transactional id any broker answers, with a new id and epoch 0, whatever id and epoch the client had: a client
starts over that way after a lost sequence (KIP-360). With one, its coordinator answers.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from klamm.broker.coordinators.transactions.decisions import Expected
from klamm.broker.coordinators.transactions.transaction import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from klamm.broker.handlers.services import Services
from klamm.model.errors import ErrorCode, KafkaError, ZNodeError, ZooKeeperError
from klamm.model.ids import ProducerId
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.INIT_PRODUCER_ID)
VERSION_EXPECTED_EPOCH: Final = 3

log = logging.getLogger(__name__)


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    error, producer_id, epoch = ErrorCode.NONE, NO_PRODUCER_ID, NO_PRODUCER_EPOCH
    try:
        producer_id, epoch = await _answer(services, context, version, request)
    except KafkaError as refusal:
        error = refusal.code
    return _RESPONSE(error_code=error, producer_id=producer_id, producer_epoch=epoch)


async def _answer(services: Services, context: RequestContext, version: int, request: Any) -> tuple[ProducerId, int]:
    transactional_id = request.transactional_id
    if transactional_id is None:
        if not services.may(context, Operation.IDEMPOTENT_WRITE):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    elif not services.may_transactional_id(context, Operation.WRITE, transactional_id):
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    expected = _expected(request) if version >= VERSION_EXPECTED_EPOCH else None
    if transactional_id is None:
        return await _new_producer(services)
    return await services.transactions.init_producer_id(transactional_id, request.transaction_timeout_ms, expected)


def _expected(request: Any) -> Expected | None:
    has_id, has_epoch = request.producer_id != NO_PRODUCER_ID, request.producer_epoch != NO_PRODUCER_EPOCH
    if has_id != has_epoch:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    return Expected(ProducerId(request.producer_id), request.producer_epoch) if has_id else None


async def _new_producer(services: Services) -> tuple[ProducerId, int]:
    try:
        return await services.producer_ids.take(), 0
    except (ZooKeeperError, ZNodeError) as failed:
        log.warning("cannot get a producer id now: %s", failed)
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE) from failed  # clients retry it
