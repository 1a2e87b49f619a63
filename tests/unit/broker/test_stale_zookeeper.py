"""A broker whose ZooKeeper server is behind the controller's."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.model.control import Sender
from klamm.model.ids import BrokerEpoch, BrokerId, ControllerEpoch
from klamm.model.partition import Assignment
from klamm.zookeeper.znodes import config, topic

from .one_broker import TP, OneBroker, one

__all__ = ["one"]


async def test_an_order_waits_for_the_configuration_that_the_topic_was_created_with(
    one: OneBroker, make_order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulation found it: such a topic acknowledged before its fsync, although it had flush.messages=1."""
    is_behind, read, sync = True, one.zk.get_many, one.zk.sync

    async def read_behind(paths: Any) -> Any:
        return [None] * len(paths) if is_behind else await read(paths)

    async def catch_up(path: str) -> None:
        nonlocal is_behind
        is_behind = False
        await sync(path)

    one.zk.put(topic.path(TP.topic), b"{}")
    one.zk.put(config.topic_path(TP.topic), config.encode({"min.insync.replicas": "2"}))
    monkeypatch.setattr(one.zk, "get_many", read_behind)
    monkeypatch.setattr(one.zk, "sync", catch_up)
    sender = Sender(BrokerId(2), ControllerEpoch(1), BrokerEpoch(-1))
    await one.replicas.leader_and_isr(sender, [make_order(epoch=0)])
    assert one.logs.get(TP).config.min_insync_replicas == 2


async def test_a_topic_that_the_server_does_not_know_yet_is_not_taken_for_deleted(
    one: OneBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its transactions would get no markers."""

    async def catch_up(path: str) -> None:
        one.zk.put(topic.path(TP.topic), topic.encode({0: Assignment((BrokerId(1),))}))

    monkeypatch.setattr(one.zk, "sync", catch_up)
    assert await one.topics.partitions_left(TP.topic) == 1
