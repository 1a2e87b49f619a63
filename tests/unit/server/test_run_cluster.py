"""`klamm up` on data that has topics: it is ready when the brokers know them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from klamm.model.ids import BrokerId
from klamm.model.partition import Assignment
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.server import inspection, run_cluster
from klamm.zookeeper.server.memory import MemoryZooKeeper
from klamm.zookeeper.znodes import delete_topics, topic


class Brokers:
    """Each answers with more topics every time."""

    def __init__(self, connect: str, *answers: set[str]) -> None:
        self.zookeeper = connect
        self.brokers = {1: None}
        self.answers = list(answers)

    async def metadata(self, broker: int) -> Any:
        known = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return SimpleNamespace(topics=[SimpleNamespace(name=name) for name in known])


@pytest.fixture
async def connect() -> AsyncIterator[str]:
    """A ZooKeeper with a topic, and one that is to be deleted."""
    async with MemoryZooKeeper(AsyncioNetwork(), SystemClock(), random.Random(1)).running() as server:
        async with inspection.zookeeper(server.address) as zk:
            await zk.ensure_path(topic.PARENT)
            await zk.ensure_path(delete_topics.PARENT)
            for name in ("orders", "old"):
                await zk.create(topic.path(name), topic.encode({0: Assignment((BrokerId(1),))}))
            await zk.create(delete_topics.path("old"))
        yield server.address


async def test_the_start_waits_until_brokers_know_the_topics(connect: str) -> None:
    cluster: Any = Brokers(connect, set(), {"other"}, {"orders"}, {"too far"})
    await run_cluster._until_topics_are_known(cluster)
    assert cluster.answers == [{"too far"}]


async def test_a_topic_of_which_brokers_never_hear_delays_the_start_only(
    connect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_cluster, "TOPICS_SECONDS", 0.0)
    cluster: Any = Brokers(connect, set())
    await run_cluster._until_topics_are_known(cluster)
