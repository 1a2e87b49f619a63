"""DescribeTransactions (65): what a coordinator knows of transactional ids (KIP-664)."""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.coordinators.transactions.transaction import Transaction
from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import mapped
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.by_topic import by_topic
from klamm.wire.messages import response_class

IDS_PER_SLICE: Final = 100
_RESPONSE: Final = response_class(ApiKey.DESCRIBE_TRANSACTIONS)
_STATE: Final = _RESPONSE.TransactionState


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    def describe(transactional_id: str) -> Any:
        return _describe(services, context, transactional_id)

    return _RESPONSE(transaction_states=await mapped(describe, request.transactional_ids, IDS_PER_SLICE))


def _describe(services: Services, context: RequestContext, transactional_id: str) -> Any:
    try:
        if not services.may_transactional_id(context, Operation.DESCRIBE, transactional_id):
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        found = services.transactions.find(transactional_id)
        if found is None:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return _found(services, context, found)
    except KafkaError as error:
        return _STATE(error_code=error.code, transactional_id=transactional_id, transaction_state="", topics=[])


def _found(services: Services, context: RequestContext, found: Transaction) -> Any:
    """Topics that the client may not describe are left out."""
    topics = by_topic(sorted(found.partitions), lambda name: name)
    return _STATE(
        error_code=ErrorCode.NONE,
        transactional_id=found.transactional_id,
        transaction_state=found.state.kafka_name,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.start_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=[
            _STATE.TopicData(topic=topic, partitions=[name.partition for name in names])
            for topic, names in topics.items()
            if services.may(context, Operation.DESCRIBE, topic)
        ],
    )
