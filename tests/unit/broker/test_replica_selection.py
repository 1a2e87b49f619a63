"""Which replica a consumer reads from (KIP-392): the choice, and the leader's answer."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest

from klamm.broker.reads import FetchQuery, Reads
from klamm.broker.replica_selection import ReplicaView, nearest
from klamm.model.config import RACK_AWARE, read_broker_config
from klamm.model.errors import ConfigError
from klamm.model.ids import BrokerId
from klamm.wire.fetch import FetchPartition

from .one_broker import TP, OneBroker, lead, one

__all__ = ["one"]


def view(broker: int, rack: str | None, end: int = 10, caught_up: float = 0.0) -> ReplicaView:
    return ReplicaView(BrokerId(broker), rack, end, caught_up)


@pytest.mark.parametrize(
    ("rack", "others", "chosen"),
    [
        ("", [view(2, "b")], 1),
        ("c", [view(2, "b")], 1),
        ("b", [view(2, "b")], 2),
        ("a", [view(2, "a", end=11)], 1),
        ("b", [view(2, "b", end=9), view(3, "b", end=10), view(4, None, end=99)], 3),
        ("b", [view(2, "b", caught_up=5), view(3, "b", caught_up=4)], 2),
        ("b", [view(2, "b"), view(3, "b")], 3),
    ],
)
def test_the_choice(rack: str, others: list[ReplicaView], chosen: int) -> None:
    assert nearest(rack, BrokerId(1), [view(1, "a", caught_up=math.inf), *others]) == chosen


async def read(
    one: OneBroker, offset: int = 2, rack: str = "rack2", version: int = 11, replica: int = -1, max_wait_ms: int = 0
) -> Any:
    query = FetchQuery(version, BrokerId(replica), max_wait_ms, 1000, 1000, False, rack)
    (result,) = await Reads(one.replicas).fetch(query, [FetchPartition(TP, offset, 1000)])
    return result


@pytest.fixture
async def leading(one: OneBroker, make_order: Any) -> OneBroker:
    """Broker 1 in rack1 leads; broker 2 in rack2 is in sync and has the offsets 1 to 4."""
    await one.told()
    log = await lead(one, make_order, isr=(1, 2))
    log.data += b"01234567"
    log.high_watermark = 4
    one.replicas.follower_fetched(TP, BrokerId(2), 4, 1)
    one.replicas.config = replace(one.replicas.config, replica_selector_class=RACK_AWARE, rack="rack1")
    return one


async def test_a_consumer_is_sent_to_its_rack_at_once(leading: OneBroker) -> None:
    async with asyncio.timeout(5):
        found = await read(leading, max_wait_ms=60_000)
    assert (found.preferred_read_replica, bytes(found.records), found.high_watermark) == (2, b"", 4)


@pytest.mark.parametrize(
    "fields", [{"rack": ""}, {"rack": "rack1"}, {"rack": "rack9"}, {"offset": 0}, {"version": 10, "rack": ""}]
)
async def test_otherwise_the_leader_answers(leading: OneBroker, fields: dict[str, Any]) -> None:
    found = await read(leading, **fields)
    assert found.preferred_read_replica == -1
    assert bytes(found.records) == b"01234567"[fields.get("offset", 2) : 4]


@pytest.mark.case("RPM-10")
async def test_followers_and_clusters_without_a_selector_read_from_the_leader(leading: OneBroker) -> None:
    assert (await read(leading, offset=4, replica=2)).preferred_read_replica == -1
    for selector in ("", "org.apache.kafka.common.replica.LeaderSelector"):
        leading.replicas.config = replace(leading.replicas.config, replica_selector_class=selector)
        found = await read(leading)
        assert (found.preferred_read_replica, bytes(found.records)) == (-1, b"23")


@pytest.mark.case("RPM-10")
async def test_a_follower_names_no_replica(leading: OneBroker, make_order: Any) -> None:
    assert (await read(leading)).preferred_read_replica == 2
    partition = leading.replicas.partitions[TP]
    followers, isr, log = partition.followers, partition.isr, partition.log
    assert log is not None
    partition.make_follower(make_order(leader=2, epoch=1, isr=(1, 2), replicas=(1, 2)), log)
    partition.followers, partition.isr = followers, isr  # as if it still knew them
    found = await read(leading)
    assert (found.preferred_read_replica, bytes(found.records)) == (-1, b"23")


@pytest.mark.case("RPM-10")
def test_an_unknown_selector_stops_the_start() -> None:
    settings = {"broker.id": "1", "zookeeper.connect": "zk:2181"}
    assert read_broker_config(settings | {"replica.selector.class": RACK_AWARE})[0].replica_selector_class == RACK_AWARE
    with pytest.raises(ConfigError, match=r"replica\.selector\.class"):
        read_broker_config(settings | {"replica.selector.class": "org.example.Nearest"})


async def test_a_replica_outside_the_isr_is_not_named(leading: OneBroker) -> None:
    leading.replicas.partitions[TP].isr = (BrokerId(1),)
    found = await read(leading)
    assert found.preferred_read_replica == -1
