"""InitProducerId (22): an id for an idempotent producer.

Without a transactional id any broker answers, with a new id and epoch 0, whatever id and epoch the client had: a client
starts over that way after a lost sequence (KIP-360). Transactional producers need a coordinator, which this broker does
not have: they get COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from klamm.broker.handlers.services import Services
from klamm.model.errors import ErrorCode, ZNodeError, ZooKeeperError
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.INIT_PRODUCER_ID)

log = logging.getLogger(__name__)


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    producer_id, epoch, error = -1, -1, ErrorCode.NONE
    if request.transactional_id is not None:
        is_empty = request.transactional_id == ""
        error = ErrorCode.INVALID_REQUEST if is_empty else ErrorCode.COORDINATOR_NOT_AVAILABLE
    elif not services.may(context, Operation.IDEMPOTENT_WRITE):
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    else:
        try:
            producer_id, epoch = await services.producer_ids.take(), 0
        except (ZooKeeperError, ZNodeError) as failed:
            log.warning("cannot get a producer id now: %s", failed)
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE  # clients retry it
    return _RESPONSE(
        error_code=error,
        producer_id=producer_id,
        producer_epoch=epoch,
    )
