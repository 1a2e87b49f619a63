"""Producing and reading: batches that follow their leader, and exactly the records that were asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from klamm.client.addresses import addresses
from klamm.client.cluster import ClusterClient
from klamm.client.errors import ClientError
from klamm.client.partitioner import murmur2
from klamm.client.producer import BATCH_BYTES_MAX, Producer
from klamm.client.reader import Reader, offsets_at, records_of
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class
from klamm.wire.records import (
    Codec,
    ControlType,
    EndTransactionMarker,
    Record,
    build_batch,
    build_end_transaction_marker,
    iter_batches,
    iter_records,
)

from .fake_brokers import FakeWorld

T0 = TopicPartition("t", 0)


@asynccontextmanager
async def connected(world: FakeWorld, timeout: float = 5.0) -> AsyncIterator[ClusterClient]:
    async with ClusterClient(addresses("b1:9092"), network=world, timeout=timeout).running() as client:
        yield client


def produced(error: int = 0, base: int = 0) -> Any:
    cls = response_class(ApiKey.PRODUCE)
    entry = cls.TopicProduceResponse.PartitionProduceResponse(error_code=error, base_offset=base)
    return cls(responses=[cls.TopicProduceResponse(name="t", partition_responses=[entry])])


def fetched(error: int = 0, records: bytes = b"", partition: int = 0) -> Any:
    cls = response_class(ApiKey.FETCH)
    entry = cls.FetchableTopicResponse.PartitionData(error_code=error, records=records, partition_index=partition)
    return cls(responses=[cls.FetchableTopicResponse(topic="t", partitions=[entry])])


async def test_a_batch_follows_its_leader() -> None:
    world = FakeWorld()
    world.leaders["t"] = [1]
    one, two = world.brokers.values()

    def moved(*_: Any) -> Any:
        world.leaders["t"] = [2]
        return produced(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    one.answers[ApiKey.PRODUCE] = moved
    two.answers[ApiKey.PRODUCE] = lambda *_: produced(base=40)
    async with connected(world) as client:
        producer = Producer(client, codec=Codec.ZSTD)
        records = [Record(b"k", b"one", 5, (("h", b"v"),)), Record(None, b"two", 6)]
        assert await producer.send("t", {0: records}) == {0: [40, 41]}
    (_, _, request) = two.asked[-1]
    raw = request.topic_data[0].partition_data[0].records
    assert [record._replace(offset=-1) for record in iter_records(raw)] == records
    assert (request.acks, next(iter_batches(raw))[1].codec) == (-1, Codec.ZSTD)


async def test_without_acknowledgement_nothing_is_awaited() -> None:
    world = FakeWorld(1)
    world.leaders["t"] = [1]
    world.brokers["b1"].answers[ApiKey.PRODUCE] = lambda *_: None
    async with connected(world) as client:
        assert await Producer(client, acks=0).send("t", {0: [Record(None, b"x", 0)]}) == {0: [-1]}
        await client.metadata([])  # the connection still matches answers to requests
    assert world.brokers["b1"].keys() == [ApiKey.PRODUCE]


async def test_a_refused_batch_says_why() -> None:
    world = FakeWorld(1)
    world.leaders["t"] = [1]
    world.brokers["b1"].answers[ApiKey.PRODUCE] = lambda *_: produced(ErrorCode.MESSAGE_TOO_LARGE)
    async with connected(world) as client:
        with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE: t-0 on broker 1"):
            await Producer(client).send("t", {0: [Record(None, b"x", 0)]})


async def test_many_records_are_several_batches() -> None:
    world = FakeWorld(1)
    world.leaders["t"] = [1]
    bases = iter([0, 2])
    world.brokers["b1"].answers[ApiKey.PRODUCE] = lambda *_: produced(base=next(bases))
    async with connected(world) as client:
        records = [Record(None, bytes(BATCH_BYTES_MAX // 2 - 100), 0)] * 3
        assert await Producer(client).send("t", {0: records}) == {0: [0, 1, 2]}


def test_records_with_a_key_stay_together_and_others_take_turns() -> None:
    producer = Producer(ClusterClient([]))
    with_key = [Record(b"a", b"1", 0), Record(b"order-1", b"2", 0), Record(b"a", b"3", 0)]
    found = producer.spread(with_key, list(range(10)))
    assert {index: [r.value for r in records] for index, records in found.items()} == {4: [b"1", b"3"], 6: [b"2"]}
    assert murmur2(b"21") == -973932308 & 0xFFFFFFFF  # as in the Java client
    places = [set(producer.spread([Record(None, b"x", 0)] * 2, [0, 1])) for _ in range(2)]
    assert places[0] != places[1] and all(len(place) == 1 for place in places)


async def test_reading_follows_the_leader_and_starts_where_it_was_told() -> None:
    world = FakeWorld()
    world.leaders["t"] = [1]
    one, two = world.brokers.values()
    batch = build_batch([Record(None, b"%d" % n, n) for n in range(4)], base_offset=10)

    def moved(*_: Any) -> Any:
        world.leaders["t"] = [2]
        return fetched(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    one.answers[ApiKey.FETCH] = moved
    two.answers[ApiKey.FETCH] = lambda *_: fetched(records=batch)
    async with connected(world) as client:
        reader = Reader(client, {T0: 12})
        found = []
        while not found:
            found = await reader.poll()
        await reader.close()
    assert [(place, record.offset, record.value) for place, record in found] == [(T0, 12, b"2"), (T0, 13, b"3")]
    assert reader.positions == {T0: 14}


async def test_an_offset_that_is_gone() -> None:
    world = FakeWorld(1)
    world.leaders["t"] = [1]
    world.brokers["b1"].answers[ApiKey.FETCH] = lambda *_: fetched(ErrorCode.OFFSET_OUT_OF_RANGE)
    async with connected(world) as client:
        with pytest.raises(ClientError, match="t-0 has no offset 7: its records may have expired"):
            await Reader(client, {T0: 7}).poll()


async def test_a_topic_that_is_not_there() -> None:
    async with connected(FakeWorld(1), timeout=0.1) as client:
        with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION: topic t"):
            await offsets_at(client, [T0], -1)


def test_control_records_are_skipped_and_torn_batches_wait() -> None:
    marker = EndTransactionMarker(ControlType.COMMIT, 0)
    control = build_end_transaction_marker(marker, timestamp=0, producer_id=1, producer_epoch=0, base_offset=2)
    batches = build_batch([Record(None, b"a", 0), Record(None, b"b", 0)]) + control
    records, position = records_of(batches + build_batch([Record(None, b"c", 0)], base_offset=3)[:-1], 1)
    assert ([record.value for record in records], position) == ([b"b"], 3)
    broken = bytearray(batches)
    broken[70] ^= 1
    with pytest.raises(KafkaError, match="CORRUPT_MESSAGE"):
        records_of(bytes(broken), 0)
