"""WriteTxnMarkers (27): a transaction coordinator, here or on another broker, ends transactions on partitions.

Only brokers may ask. The sender does not negotiate: it takes its version from inter.broker.protocol.version.
"""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.coordinators.transactions.markers import MarkerAnswers, MarkerEntry
from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import Pace, topics_of
from klamm.model.errors import ErrorCode
from klamm.model.ids import ProducerId, TopicPartition
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.WRITE_TXN_MARKERS)
_MARKER: Final = _RESPONSE.WritableTxnMarkerResult
_TOPIC: Final = _MARKER.WritableTxnMarkerTopicResult
_PARTITION: Final = _TOPIC.WritableTxnMarkerPartitionResult


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    pace = Pace()
    entries = [await _entry(marker, pace) async for marker in pace.each(request.markers)]
    answers: MarkerAnswers | None
    if context.privileged and services.may(context, Operation.CLUSTER_ACTION):
        answers = await services.markers.write(entries)
    else:
        answers = None
    return _RESPONSE(markers=[await _result(entry, answers, pace) async for entry in pace.each(entries)])


async def _entry(marker: Any, pace: Pace) -> MarkerEntry:
    named = ((topic.name, index) for topic in marker.topics for index in topic.partition_indexes)
    return MarkerEntry(
        ProducerId(marker.producer_id),
        marker.producer_epoch,
        marker.transaction_result,
        marker.coordinator_epoch,
        tuple([TopicPartition(topic, index) async for topic, index in pace.each(named)]),
    )


async def _result(entry: MarkerEntry, answers: MarkerAnswers | None, pace: Pace) -> Any:
    """Without answers, the whole request is refused."""

    def partition(name: TopicPartition, _: None) -> Any:
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED if answers is None else answers[entry.producer_id, name]
        return _PARTITION(partition_index=name.partition, error_code=error)

    topics = await topics_of(((name, None) for name in entry.partitions), partition, pace)
    return _MARKER(
        producer_id=entry.producer_id,
        topics=[_TOPIC(name=topic, partitions=partitions) for topic, partitions in topics.items()],
    )
