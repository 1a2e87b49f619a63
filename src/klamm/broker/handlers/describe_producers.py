"""DescribeProducers (61): which producers a partition knows, and where their open transactions begin (KIP-664).

Together with DescribeTransactions it finds a hanging transaction: one that is open on a partition, but that no
coordinator will end.
"""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.handlers.answers import error_fields
from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import Pace, topics_of
from klamm.log.producers.producer_state import ProducerEntry
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

ENTRIES_PER_SLICE: Final = 500
"""Partitions and producers: a partition may have any number of producers."""
_RESPONSE: Final = response_class(ApiKey.DESCRIBE_PRODUCERS)
_TOPIC: Final = _RESPONSE.TopicResponse
_PARTITION: Final = _TOPIC.PartitionResponse
_PRODUCER: Final = _PARTITION.ProducerState
NO_OFFSET: Final = -1


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    """Each partition is described once, however often it is named: its description may be long."""
    pace = Pace(ENTRIES_PER_SLICE)
    named = ((topic.name, index) for topic in request.topics for index in topic.partition_indexes)
    names = {TopicPartition(topic, index): None async for topic, index in pace.each(named)}
    described = [(name, await _describe(services, context, name, pace)) async for name in pace.each(names)]
    topics = await topics_of(described, lambda _, partition: partition, pace)
    return _RESPONSE(topics=[_TOPIC(name=name, partitions=found) for name, found in topics.items()])


async def _describe(services: Services, context: RequestContext, name: TopicPartition, pace: Pace) -> Any:
    try:
        if not services.may(context, Operation.READ, name.topic):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        log = services.replicas.partition(name).local_log()
        producers = sorted(log.producers.entries(), key=lambda entry: entry.producer_id)
        active = [_producer(producer) async for producer in pace.each(producers)]
        return _PARTITION(partition_index=name.partition, **error_fields(None), active_producers=active)
    except KafkaError as error:
        return _PARTITION(partition_index=name.partition, **error_fields(error), active_producers=[])


def _producer(entry: ProducerEntry) -> Any:
    first = entry.transaction_first_offset
    return _PRODUCER(
        producer_id=entry.producer_id,
        producer_epoch=entry.epoch,
        last_sequence=entry.last_sequence,
        last_timestamp=entry.last_timestamp,
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_start_offset=NO_OFFSET if first is None else first,
    )
