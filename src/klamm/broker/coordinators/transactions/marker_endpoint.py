"""Another broker's side of WriteTxnMarkers, over the wire.

Version 0, always: brokers do not negotiate, and every Kafka up to 3.9 takes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from klamm.broker.broker_client import BrokerClient
from klamm.broker.coordinators.transactions.markers import MarkerAnswers, MarkerEntry
from klamm.model.ids import ProducerId, TopicPartition
from klamm.wire.apis import ApiKey
from klamm.wire.by_topic import by_topic
from klamm.wire.errors import error_of
from klamm.wire.messages import request_class

VERSION: Final = 0


class RemoteMarkers:
    def __init__(self, client: BrokerClient) -> None:
        self._client = client

    async def write(self, entries: Sequence[MarkerEntry]) -> MarkerAnswers:
        cls = request_class(ApiKey.WRITE_TXN_MARKERS)
        marker_class = cls.WritableTxnMarker
        topic_class = marker_class.WritableTxnMarkerTopic
        markers = [
            marker_class(
                producer_id=entry.producer_id,
                producer_epoch=entry.producer_epoch,
                transaction_result=entry.commit,
                topics=[
                    topic_class(name=topic, partition_indexes=[name.partition for name in names])
                    for topic, names in by_topic(entry.partitions, lambda name: name).items()
                ],
                coordinator_epoch=entry.coordinator_epoch,
            )
            for entry in entries
        ]
        answer = await self._client.message(ApiKey.WRITE_TXN_MARKERS, VERSION, cls(markers=markers))
        return {
            (ProducerId(marker.producer_id), TopicPartition(topic.name, result.partition_index)): error_of(
                result.error_code
            )
            for marker in answer.markers
            for topic in marker.topics
            for result in topic.partitions
        }

    def close(self) -> None:
        self._client.close()
