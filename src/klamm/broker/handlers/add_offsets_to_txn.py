"""AddOffsetsToTxn (25): a producer tells its coordinator that its transaction will commit offsets of a group.

The partition of `__consumer_offsets` that holds the group joins the transaction. A producer may ask before anything has
needed that topic, so this request creates it too.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from klamm.broker.handlers.services import Services
from klamm.model.errors import ErrorCode, KafkaError, ZNodeError, ZooKeeperError
from klamm.model.ids import TopicPartition
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.ADD_OFFSETS_TO_TXN)

log = logging.getLogger(__name__)


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    error = ErrorCode.NONE
    try:
        if not services.may_transactional_id(context, Operation.WRITE, request.transactional_id):
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if not services.may_group(context, Operation.READ, request.group_id):
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        partition = await _offsets_partition(services, request.group_id)
        await services.transactions.add_partitions(
            request.transactional_id, request.producer_id, request.producer_epoch, frozenset({partition})
        )
    except KafkaError as refusal:
        error = refusal.code
    return _RESPONSE(error_code=error)


async def _offsets_partition(services: Services, group_id: str) -> TopicPartition:
    try:
        if not services.offsets_topic.exists:
            await services.offsets_topic.ensure()
        return await services.offsets_topic.partition_of(group_id)
    except (KafkaError, ZooKeeperError, ZNodeError) as error:
        if isinstance(error, KafkaError) and error.code is ErrorCode.INVALID_REQUEST:
            raise
        log.warning("cannot find the partition of group %r now: %s", group_id, error)
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE) from error  # clients retry it
