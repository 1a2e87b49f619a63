"""AddPartitionsToTxn (24): a producer tells its coordinator which partitions its transaction will write to.

All or nothing: if one partition is refused here, the others get OPERATION_NOT_ATTEMPTED and none is added.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import each, topics_of
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import INTERNAL_TOPICS, TopicPartition
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.ADD_PARTITIONS_TO_TXN)
_TOPIC: Final = _RESPONSE.AddPartitionsToTxnTopicResult
_PARTITION: Final = _TOPIC.AddPartitionsToTxnPartitionResult


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    transactional_id = request.v3_and_below_transactional_id
    named = ((topic.name, index) for topic in request.v3_and_below_topics for index in topic.partitions)
    names = [TopicPartition(*each_named) async for each_named in each(named)]
    try:
        if not services.may_transactional_id(context, Operation.WRITE, transactional_id):
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        refused = await _refused(services, context, names)
        if not refused:
            producer_id, epoch = request.v3_and_below_producer_id, request.v3_and_below_producer_epoch
            await services.transactions.add_partitions(transactional_id, producer_id, epoch, frozenset(names))
        default = ErrorCode.OPERATION_NOT_ATTEMPTED if refused else ErrorCode.NONE
    except KafkaError as error:
        refused, default = {}, error.code
    topics = await topics_of(((name, refused.get(name, default)) for name in names), _partition)
    return _RESPONSE(
        results_by_topic_v3_and_below=[_TOPIC(name=name, results_by_partition=found) for name, found in topics.items()]
    )


async def _refused(
    services: Services, context: RequestContext, names: list[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    may_write = cache(lambda topic: topic not in INTERNAL_TOPICS and services.may(context, Operation.WRITE, topic))
    refused = {}
    async for name in each(names):
        if not may_write(name.topic):
            refused[name] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif name not in services.metadata:
            refused[name] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return refused


def _partition(name: TopicPartition, error: ErrorCode) -> Any:
    return _PARTITION(partition_index=name.partition, partition_error_code=error)
