"""What UpdateMetadata leaves in the cache, and which waits it ends."""

from __future__ import annotations

import asyncio

import pytest

from klamm.broker.metadata_cache import TOPICS_PER_SLICE, MetadataCache
from klamm.model.brokers import Broker, Endpoint
from klamm.model.control import MetadataUpdate, PartitionMetadata, Sender, TopicUpdate
from klamm.model.ids import LEADER_DURING_DELETE, BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition


def broker(broker_id: int) -> Broker:
    return Broker(BrokerId(broker_id), (Endpoint("CLIENT", "h", 9000 + broker_id),))


def led_by(leader: int, epoch: int = 0) -> PartitionMetadata:
    isr = (BrokerId(1), BrokerId(2))
    return PartitionMetadata(BrokerId(leader), LeaderEpoch(epoch), isr, isr, ())


async def told(
    cache: MetadataCache, controller: BrokerId, brokers: list[Broker], topics: list[TopicUpdate]
) -> list[TopicPartition]:
    sender = Sender(controller, ControllerEpoch(1), BrokerEpoch(1))
    return await cache.update(MetadataUpdate(sender, brokers, topics))


@pytest.mark.case("MDC-01")
async def test_topics_and_brokers_as_told() -> None:
    cache = MetadataCache()
    assert not cache.is_informed
    await told(cache, BrokerId(2), [broker(2), broker(1)], [("t", [(0, led_by(1, 4)), (1, led_by(2))])])
    assert cache.is_informed
    assert list(cache.brokers) == [1, 2]
    assert cache.controller_id == 2
    assert cache.partition(TopicPartition("t", 0)) == led_by(1, 4)
    assert cache.topic("unknown") is None
    assert cache.endpoint(BrokerId(1), "CLIENT") == Endpoint("CLIENT", "h", 9001)
    assert cache.endpoint(BrokerId(1), "OTHER") is None
    await told(cache, BrokerId(-1), [broker(1)], [])
    assert cache.controller_id is None
    assert cache.topics() == ["t"], "an update without partitions keeps them"


async def test_broker_0_may_be_the_controller() -> None:
    cache = MetadataCache()
    await told(cache, BrokerId(0), [broker(0)], [])
    assert cache.controller_id == 0


@pytest.mark.parametrize("change", ["the topic", "another topic", "a broker"])
async def test_what_was_encoded_is_forgotten_in_every_version_when_it_changes(change: str) -> None:
    cache = MetadataCache()
    await told(cache, BrokerId(1), [broker(1)], [("t", [(0, led_by(1))]), ("other", [(0, led_by(1))])])
    for version in (7, 8, 9):
        cache.encoded(version, "CLIENT")["t"] = b"as it was"
    brokers = [broker(1), broker(2)] if change == "a broker" else [broker(1)]
    topic = {"the topic": "t", "another topic": "other"}.get(change)
    await told(cache, BrokerId(1), brokers, [(topic, [(0, led_by(2))])] if topic else [])
    kept = [cache.encoded(version, "CLIENT").get("t") for version in (7, 8, 9)]
    assert kept == [b"as it was" if change == "another topic" else None] * 3


@pytest.mark.case("MDC-04")
async def test_a_reader_keeps_what_it_read() -> None:
    cache = MetadataCache()
    await told(cache, BrokerId(1), [broker(1)], [("t", [(0, led_by(1))])])
    brokers, topic = cache.brokers, cache.topic("t")
    await told(cache, BrokerId(1), [broker(1), broker(2)], [("t", [(0, led_by(2)), (1, led_by(2))])])
    assert list(brokers) == [1]
    assert topic == {0: led_by(1)}


async def test_leader_minus_two_forgets_the_partition_and_then_the_topic() -> None:
    cache = MetadataCache()
    await told(cache, BrokerId(1), [broker(1)], [("t", [(0, led_by(1)), (1, led_by(1))])])
    assert await told(cache, BrokerId(1), [broker(1)], [("t", [(0, led_by(LEADER_DURING_DELETE))])]) == [("t", 0)]
    await told(cache, BrokerId(1), [broker(1)], [("t", [(1, led_by(LEADER_DURING_DELETE))])])
    assert cache.topics() == []
    assert await told(cache, BrokerId(1), [broker(1)], [("t", [(1, led_by(LEADER_DURING_DELETE))])]) == []


async def test_large_updates_give_way_to_others() -> None:
    cache = MetadataCache()
    turns = 0

    async def count() -> None:
        nonlocal turns
        while not cache.is_informed:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    topics = [(f"t{i}", [(0, led_by(1))]) for i in range(TOPICS_PER_SLICE * 4)]
    await told(cache, BrokerId(1), [broker(1)], topics)
    await counting
    assert turns >= 3


async def test_waiting_for_leaders() -> None:
    cache = MetadataCache()
    waiting = asyncio.create_task(cache.wait_until(lambda: cache.has_leaders("t", [0, 1]), 60))
    await asyncio.sleep(0)
    await told(cache, BrokerId(1), [broker(1)], [("t", [(0, led_by(1)), (1, led_by(2))])])
    await asyncio.sleep(0)
    assert not waiting.done(), "the leader of 1 is not alive"
    await told(cache, BrokerId(1), [broker(1), broker(2)], [])
    assert await waiting
    assert not await cache.wait_until(lambda: False, 0)
    assert not await cache.wait_until(lambda: False, 0.001)
