"""DescribeTransactions (65): what a coordinator knows of transactional ids (KIP-664)."""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.coordinators.transactions.transaction import Transaction
from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import Pace, topics_of
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

ENTRIES_PER_SLICE: Final = 500
"""Transactions and their partitions."""
_RESPONSE: Final = response_class(ApiKey.DESCRIBE_TRANSACTIONS)
_STATE: Final = _RESPONSE.TransactionState


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    """Each id is described once, however often it is named: its description may be long."""
    pace = Pace(ENTRIES_PER_SLICE)
    ids = {transactional_id: None async for transactional_id in pace.each(request.transactional_ids)}
    return _RESPONSE(
        transaction_states=[await _describe(services, context, each, pace) async for each in pace.each(ids)]
    )


async def _describe(services: Services, context: RequestContext, transactional_id: str, pace: Pace) -> Any:
    try:
        if not services.may_transactional_id(context, Operation.DESCRIBE, transactional_id):
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        found = services.transactions.find(transactional_id)
        if found is None:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return await _found(services, context, found, pace)
    except KafkaError as error:
        return _STATE(error_code=error.code, transactional_id=transactional_id, transaction_state="", topics=[])


async def _found(services: Services, context: RequestContext, found: Transaction, pace: Pace) -> Any:
    """Topics that the client may not describe are left out."""
    names = ((name, None) for name in sorted(found.partitions))
    topics = await topics_of(names, lambda name, _: name.partition, pace)
    return _STATE(
        error_code=ErrorCode.NONE,
        transactional_id=found.transactional_id,
        transaction_state=found.state.kafka_name,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.start_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=[
            _STATE.TopicData(topic=topic, partitions=partitions)
            for topic, partitions in topics.items()
            if services.may(context, Operation.DESCRIBE, topic)
        ],
    )
