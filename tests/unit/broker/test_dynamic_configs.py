"""Configuration changes that reach a running broker, on our own ZooKeeper server; and the replication quotas."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from klamm.broker.config_changes import ConfigChanges
from klamm.broker.dynamic_configs import FOLLOWER_RATE, LEADER_RATE, DynamicConfigs
from klamm.broker.replication_quota import ReplicationQuota
from klamm.broker.topic_configs import TopicConfigs, usable_config
from klamm.model.config import TopicConfig
from klamm.model.ids import BrokerId
from klamm.model.ports import CreateMode
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.zookeeper.change_notifications import PURGED_AFTER_MS
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.server.memory import MemoryZooKeeper
from klamm.zookeeper.znodes import config, config_change
from klamm.zookeeper.znodes.persistent import PERSISTENT_PATHS

TIMEOUT = 10


class Logs:
    def __init__(self) -> None:
        self.configs: dict[str, TopicConfig] = {}

    def reconfigure(self, topic: str, config: TopicConfig) -> None:
        self.configs[topic] = config


class World:
    def __init__(self, zk: ZooKeeperClient) -> None:
        self.zk = zk
        self.logs = Logs()
        self.leader_quota, self.follower_quota = ReplicationQuota(SystemClock()), ReplicationQuota(SystemClock())
        topics = TopicConfigs(zk, SystemClock(), TopicConfig(), 1.0)
        logs: Any = self.logs
        self.dynamic = DynamicConfigs(BrokerId(1), zk, topics, logs, self.leader_quota, self.follower_quota)

    async def write(self, kind: str, name: str, **overrides: str) -> None:
        """Writes the overrides first and the notification second, as every writer does."""
        path, data = config.path(kind, name), config.encode({k.replace("_", "."): v for k, v in overrides.items()})
        if await self.zk.exists(path) is None:
            await self.zk.create(path, data)
        else:
            await self.zk.set(path, data)
        await self.notify(config_change.encode(f"{kind}/{name}"))

    async def notify(self, data: bytes) -> str:
        path, _ = await self.zk.create(config_change.PREFIX, data, CreateMode.PERSISTENT_SEQUENTIAL)
        return path


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    network, clock, rng = AsyncioNetwork(), SystemClock(), random.Random(1)
    async with MemoryZooKeeper(network, clock, rng).running() as server:
        client = ZooKeeperClient(network, clock, rng, f"127.0.0.1:{server.port}", 6_000)
        await client.start()
        for path in PERSISTENT_PATHS:
            await client.ensure_path(path)
        yield World(client)
        await client.close()


@pytest.fixture
async def following(world: World) -> AsyncIterator[ConfigChanges]:
    changes = ConfigChanges(world.zk, SystemClock(), world.dynamic.apply)
    task = asyncio.create_task(changes.run())
    yield changes
    task.cancel()
    await asyncio.wait([task])


async def test_what_changed_before_the_start_and_after_it(world: World) -> None:
    await world.write("topics", "early", retention_ms="1")
    changes = asyncio.create_task(ConfigChanges(world.zk, SystemClock(), world.dynamic.apply).run())
    try:
        await eventually(lambda: "early" in world.logs.configs)
        await world.write("topics", "late", retention_ms="2")
        await eventually(lambda: "late" in world.logs.configs)
        await world.write("topics", "late")
        await eventually(lambda: world.logs.configs["late"] == TopicConfig())
        assert world.logs.configs["early"].retention_ms == 1
    finally:
        changes.cancel()
        await asyncio.wait([changes])


async def test_rates_of_this_broker_alone(world: World, following: ConfigChanges) -> None:
    rates = {LEADER_RATE: "1000", FOLLOWER_RATE: "many"}
    await world.write("brokers", "2", **rates)
    await world.write("brokers", "1", **rates)
    await eventually(lambda: world.leader_quota.limit == 1000)
    assert world.follower_quota.limit is None  # reported, and no limit
    await world.write("brokers", "1")
    await eventually(lambda: world.leader_quota.limit is None)


async def test_bad_notifications_stop_nothing(world: World, following: ConfigChanges) -> None:
    for data in (b"{", b"", config_change.encode("clients/app"), config_change.encode("nothing")):
        await world.notify(data)
    await world.write("topics", "t", retention_ms="5")
    await eventually(lambda: "t" in world.logs.configs)


async def test_old_notifications_are_swept_away(world: World) -> None:
    path = await world.notify(config_change.encode("topics/t"))

    class Later(SystemClock):
        def wall_ms(self) -> int:
            return super().wall_ms() + PURGED_AFTER_MS + 1_000

    changes = asyncio.create_task(ConfigChanges(world.zk, Later(), world.dynamic.apply).run())
    try:
        async with asyncio.timeout(TIMEOUT):
            while await world.zk.exists(path) is not None:
                await asyncio.sleep(0.005)
        assert "t" in world.logs.configs  # handled first
    finally:
        changes.cancel()
        await asyncio.wait([changes])


# --- quotas ---


def test_a_quota_is_exceeded_by_the_rate_of_the_last_seconds(clock: Any) -> None:
    quota = ReplicationQuota(clock)
    quota.record(10_000)
    assert not quota.is_exceeded()  # no limit
    quota.limit = 1_000
    assert quota.is_exceeded()
    clock.advance(10)
    assert quota.rate() == 1_000
    assert not quota.is_exceeded()  # the burst is paid for
    quota.record(5_000)
    assert quota.is_exceeded()
    clock.advance(12)
    assert quota.rate() == 0


def test_topic_overrides_without_effect_are_named_in_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    used = usable_config(
        TopicConfig(), {"preallocate": "true", "retention.ms": "5", "nonsense": "1"}, "/config/topics/t"
    )
    assert (used.retention_ms, used.preallocate) == (5, True)
    assert [record.getMessage() for record in caplog.records] == [
        "/config/topics/t: nonsense=1 has no effect: Unknown topic config name: nonsense",
        "/config/topics/t: preallocate=true has no effect: segment files grow as they are written",
    ]
