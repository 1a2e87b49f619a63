"""A coordinator hears of the leaderships of its topic, and of those alone."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.model.control import Sender, StopOrder
from klamm.model.errors import ErrorCode
from klamm.model.ids import BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition

from .one_broker import OneBroker, one

__all__ = ["one"]

OFFSETS = TopicPartition("__consumer_offsets", 3)
OTHER = TopicPartition("orders", 3)
SENDER = Sender(BrokerId(2), ControllerEpoch(1), BrokerEpoch(-1))


class Coordinator:
    def __init__(self) -> None:
        self.heard: list[tuple[str, TopicPartition, int | None]] = []

    def became_leader(self, partition: TopicPartition, leader_epoch: LeaderEpoch) -> None:
        self.heard.append(("leader", partition, leader_epoch))

    def resigned(self, partition: TopicPartition, leader_epoch: LeaderEpoch | None) -> None:
        self.heard.append(("resigned", partition, leader_epoch))

    def news(self) -> list[tuple[str, TopicPartition, int | None]]:
        heard, self.heard = self.heard, []
        return heard


@pytest.fixture
async def coordinator(one: OneBroker) -> Coordinator:
    await one.told()
    one.replicas.fetchers.add = lambda *_: None  # type: ignore[method-assign]
    coordinator = one.replicas.leadership_listeners[OFFSETS.topic] = Coordinator()
    return coordinator


async def test_leader_follower_and_a_new_epoch_of_the_same_leader(
    one: OneBroker, coordinator: Coordinator, make_order: Any
) -> None:
    async def order(leader: int, epoch: int) -> None:
        orders = [make_order(leader, epoch, (1,), (1, 2), partition=name) for name in (OFFSETS, OTHER)]
        answer = await one.replicas.leader_and_isr(SENDER, orders)
        assert set(answer.partitions.values()) == {ErrorCode.NONE}

    await order(1, 4)
    assert coordinator.news() == [("leader", OFFSETS, 4)]
    await order(1, 5)
    assert coordinator.news() == []
    await order(2, 6)
    assert coordinator.news() == [("resigned", OFFSETS, 6)]
    await order(-1, 7)
    assert coordinator.news() == [], "no leader is known: the role stays as it was"


async def test_a_deleted_and_a_failed_replica(one: OneBroker, coordinator: Coordinator, make_order: Any) -> None:
    lead = [make_order(1, 4, (1,), (1, 2), partition=OFFSETS)]
    await one.replicas.leader_and_isr(SENDER, lead)
    coordinator.news()
    await one.replicas.stop_replica(SENDER, [StopOrder(OFFSETS, LeaderEpoch(4), delete=False)])
    assert coordinator.news() == []
    await one.replicas.stop_replica(SENDER, [StopOrder(OFFSETS, LeaderEpoch(5), delete=True)])
    assert coordinator.news() == [("resigned", OFFSETS, None)]
    await one.replicas.leader_and_isr(SENDER, lead)
    coordinator.news()
    one.logs.on_offline("/data", [OFFSETS, OTHER])
    assert coordinator.news() == [("resigned", OFFSETS, None)]
