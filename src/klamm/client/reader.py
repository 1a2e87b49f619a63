"""Reads partitions without a group: from an offset, a time, the beginning or the end, as far as wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from klamm.client.admin import check, names_by_topic, numbers_by_topic
from klamm.client.cluster import ClusterClient
from klamm.client.errors import ClientError, passes
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.wire.apis import ApiKey
from klamm.wire.errors import error_of
from klamm.wire.messages import request_class
from klamm.wire.records import Record, check_crc, iter_batches, iter_records

EARLIEST: Final = -2
LATEST: Final = -1
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
FETCH_NEWEST: Final = 11
"""Later versions name topics by id."""
WAIT_MS: Final = 500
FETCH_BYTES_MAX: Final = 16 << 20
PARTITION_BYTES_MAX: Final = 1 << 20


class ReadRecord(NamedTuple):
    partition: TopicPartition
    record: Record


async def offsets_at(
    cluster: ClusterClient, partitions: Iterable[TopicPartition], timestamp: int, isolation: int = READ_UNCOMMITTED
) -> dict[TopicPartition, int]:
    """The first offset at or after a time, or EARLIEST or LATEST. -1 if no record is that new.

    One request to each leader. What a leader cannot answer for the moment is asked again.
    """
    found: dict[TopicPartition, int] = {}
    wanted = list(partitions)

    async def attempt() -> None:
        missing = [name for name in wanted if name not in found]
        for leader, names in (await _by_leader(cluster, missing)).items():
            found.update(await _offsets_at(cluster, leader, names, timestamp, isolation))

    await cluster.repeating(f"ListOffsets of {len(wanted)} partitions", attempt)
    return found


async def _offsets_at(
    cluster: ClusterClient, leader: int, names: Sequence[TopicPartition], timestamp: int, isolation: int
) -> dict[TopicPartition, int]:
    cls = request_class(ApiKey.LIST_OFFSETS)
    topic_class = cls.ListOffsetsTopic
    entry = partial(topic_class.ListOffsetsPartition, timestamp=timestamp)
    topics = [
        topic_class(name=topic, partitions=[entry(partition_index=index) for index in indexes])
        for topic, indexes in numbers_by_topic(names).items()
    ]
    link = await cluster.link_to(leader)
    answer = await link.ask(ApiKey.LIST_OFFSETS, cls(isolation_level=isolation, topics=topics), cluster.timeout)
    found = {}
    for topic in answer.topics:
        for result in topic.partitions:
            check(result)
            found[TopicPartition(topic.name, result.partition_index)] = int(result.offset)
    return found


async def _by_leader(cluster: ClusterClient, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
    found: dict[int, list[TopicPartition]] = {}
    for name in partitions:
        found.setdefault(await cluster.leader_of(*name), []).append(name)
    return found


async def fetch(
    cluster: ClusterClient,
    leader: int,
    positions: Mapping[TopicPartition, int],
    *,
    isolation: int = READ_UNCOMMITTED,
    partition_bytes_max: int = PARTITION_BYTES_MAX,
) -> dict[TopicPartition, Any]:
    """One Fetch to one broker: the entry of each partition, with its error code."""
    cls = request_class(ApiKey.FETCH)
    topics = [
        cls.FetchTopic(
            topic=topic,
            partitions=[
                cls.FetchTopic.FetchPartition(
                    partition=name.partition, fetch_offset=positions[name], partition_max_bytes=partition_bytes_max
                )
                for name in names
            ],
        )
        for topic, names in names_by_topic(positions).items()
    ]
    request = cls(max_wait_ms=WAIT_MS, min_bytes=1, max_bytes=FETCH_BYTES_MAX, isolation_level=isolation, topics=topics)
    link = await cluster.link_to(leader)
    answer = await link.ask(ApiKey.FETCH, request, cluster.timeout, FETCH_NEWEST)
    check(answer)
    return {
        TopicPartition(topic.topic, entry.partition_index): entry
        for topic in answer.responses
        for entry in topic.partitions
    }


class Reader:
    """Follows partitions from given offsets. `poll` returns the next records of whichever leader answers first."""

    def __init__(self, cluster: ClusterClient, positions: Mapping[TopicPartition, int]) -> None:
        self._cluster = cluster
        self.positions = dict(positions)
        """The next offset of each partition."""
        self._fetches: dict[int, asyncio.Task[dict[TopicPartition, Any]]] = {}

    async def poll(self) -> list[ReadRecord]:
        """Raises KafkaError or ClientError. Empty if there was nothing for half a second, or a leader moved."""
        return await self._cluster.repeating(f"Fetch of {len(self.positions)} partitions", self._poll)

    async def close(self) -> None:
        for task in self._fetches.values():
            task.cancel()
        await asyncio.gather(*self._fetches.values(), return_exceptions=True)
        self._fetches.clear()

    async def _poll(self) -> list[ReadRecord]:
        for leader, names in (await _by_leader(self._cluster, self.positions)).items():
            if leader not in self._fetches:
                positions = {name: self.positions[name] for name in names}
                self._fetches[leader] = asyncio.create_task(fetch(self._cluster, leader, positions))
        done, _ = await asyncio.wait(self._fetches.values(), return_when=asyncio.FIRST_COMPLETED)
        finished = [leader for leader, task in self._fetches.items() if task in done]
        found: list[ReadRecord] = []
        failure: Exception | None = None
        for leader in finished:
            try:
                entries = self._fetches.pop(leader).result()
            except (KafkaError, ClientError, OSError) as error:
                failure = error
                continue
            for name, entry in entries.items():
                found += self._take(name, entry)
        if failure is not None and not found:
            raise failure
        return found

    def _take(self, name: TopicPartition, entry: Any) -> list[ReadRecord]:
        if entry.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise ClientError(f"{name} has no offset {self.positions[name]}: its records may have expired")
        error = None if entry.error_code == ErrorCode.NONE else KafkaError(error_of(entry.error_code), str(name))
        if error is not None:
            if not passes(error):
                raise error
            self._cluster.forget_leaders()
            return []
        records, self.positions[name] = records_of(entry.records or b"", self.positions[name])
        return [ReadRecord(name, record) for record in records]


def records_of(batches: bytes, position: int) -> tuple[Sequence[Record], int]:
    """The records from this offset on in whole batches, without control records, and the offset after them."""
    found: list[Record] = []
    view = memoryview(batches)
    for at, header in iter_batches(view):
        check_crc(view, at, header)
        if not header.is_control:
            found += [r for r in iter_records(view[at : at + header.size_in_bytes]) if r.offset >= position]
        position = max(position, header.next_offset)
    return found, position
