"""Sends records to partitions: whole batches, acknowledged as asked, repeated after a change of leader.

It has no idempotence: a batch whose answer was lost is sent again and may then be there twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from klamm.client.cluster import ClusterClient
from klamm.client.partitioner import partition_of
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.wire.apis import ApiKey
from klamm.wire.errors import error_of
from klamm.wire.messages import request_class
from klamm.wire.records import Codec, Record, build_batch

ALL_REPLICAS: Final = -1
NO_ANSWER: Final = 0
BATCH_BYTES_MAX: Final = 512 * 1024
"""Below the default limit of brokers, 1 MiB, with room for what a record needs besides key and value."""


class Producer:
    def __init__(self, cluster: ClusterClient, *, acks: int = ALL_REPLICAS, codec: Codec = Codec.NONE) -> None:
        self._cluster = cluster
        self._acks = acks
        self._codec = codec
        self._turn = 0

    def spread(self, records: Sequence[Record], partitions: Sequence[int]) -> dict[int, list[Record]]:
        """The records of each partition: by key; those without one go together, to another partition each time."""
        self._turn += 1
        found: dict[int, list[Record]] = {}
        for record in records:
            place = self._turn % len(partitions) if record.key is None else partition_of(record.key, len(partitions))
            found.setdefault(partitions[place], []).append(record)
        return found

    async def send(self, topic: str, records: Mapping[int, Sequence[Record]]) -> dict[int, list[int]]:
        """The offset of each record, by partition; -1 without acknowledgement."""
        sends = (self._send_all(TopicPartition(topic, index), group) for index, group in records.items())
        found = await asyncio.gather(*sends, return_exceptions=True)  # so that each ends before one is reported
        offsets: dict[int, list[int]] = {}
        for index, result in zip(records, found, strict=True):
            if isinstance(result, BaseException):
                raise result
            offsets[index] = result
        return offsets

    async def _send_all(self, name: TopicPartition, records: Sequence[Record]) -> list[int]:
        offsets: list[int] = []
        for batch in _batches(records):
            base = await self._cluster.repeating(f"Produce to {name}", partial(self._send_batch, name, batch))
            offsets += range(base, base + len(batch)) if base >= 0 else [-1] * len(batch)
        return offsets

    async def _send_batch(self, name: TopicPartition, records: Sequence[Record]) -> int:
        leader = await self._cluster.leader_of(name.topic, name.partition)
        link = await self._cluster.link_to(leader)
        request = self._request(name, build_batch(records, codec=self._codec))
        if self._acks == NO_ANSWER:
            link.tell(ApiKey.PRODUCE, request)
            return -1
        answer = await link.ask(ApiKey.PRODUCE, request, self._cluster.timeout)
        (entry,) = answer.responses[0].partition_responses
        if entry.error_code != ErrorCode.NONE:
            raise KafkaError(error_of(entry.error_code), entry.error_message or f"{name} on broker {leader}")
        return int(entry.base_offset)

    def _request(self, name: TopicPartition, batch: bytes) -> Any:
        cls = request_class(ApiKey.PRODUCE)
        entry = cls.TopicProduceData.PartitionProduceData(index=name.partition, records=batch)
        data = [cls.TopicProduceData(name=name.topic, partition_data=[entry])]
        return cls(acks=self._acks, timeout_ms=int(self._cluster.timeout * 1000 * 2 / 3), topic_data=data)


def _batches(records: Sequence[Record]) -> Iterator[list[Record]]:
    batch: list[Record] = []
    size = 0
    for record in records:
        bytes_of_it = len(record.key or b"") + len(record.value or b"") + 64
        if batch and size + bytes_of_it > BATCH_BYTES_MAX:
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += bytes_of_it
    if batch:
        yield batch
