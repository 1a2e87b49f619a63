"""Configuration changes that reach a running broker, on our own ZooKeeper server; and the replication quotas."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from klamm.broker.config_changes import ConfigChanges
from klamm.broker.dynamic_configs import DynamicConfigs
from klamm.broker.replication_quota import ReplicationQuota
from klamm.broker.topic_configs import TopicConfigs, usable_config
from klamm.model.config import BrokerConfig, TopicConfig, topic_defaults
from klamm.model.ids import BrokerId, TopicPartition
from klamm.model.ports import CreateMode
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.zookeeper.change_notifications import PURGED_AFTER_MS
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.server.memory import MemoryZooKeeper
from klamm.zookeeper.znodes import config, config_change
from klamm.zookeeper.znodes.persistent import PERSISTENT_PATHS

TIMEOUT = 10
FILE = BrokerConfig(broker_id=1, zookeeper_connect="zk:2181", log_retention_ms=7)
LEADER_RATE, FOLLOWER_RATE = "leader.replication.throttled.rate", "follower.replication.throttled.rate"


class Logs:
    def __init__(self) -> None:
        self.configs: dict[str, TopicConfig] = {}

    def logs(self) -> list[Any]:
        return [SimpleNamespace(topic_partition=TopicPartition(name, 0)) for name in self.configs]

    def use(self, config: BrokerConfig) -> None:
        self.broker_config = config

    def reconfigure(self, topic: str, config: TopicConfig) -> None:
        self.configs[topic] = config


class World:
    def __init__(self, zk: ZooKeeperClient) -> None:
        self.zk = zk
        self.logs = Logs()
        self.leader_quota, self.follower_quota = ReplicationQuota(SystemClock()), ReplicationQuota(SystemClock())
        self.topics = topics = TopicConfigs(zk, SystemClock(), topic_defaults(FILE), 1.0)
        logs: Any = self.logs
        self.dynamic = DynamicConfigs(BrokerId(1), FILE, zk, topics, logs, self.leader_quota, self.follower_quota)

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
        await eventually(lambda: world.logs.configs["late"] == topic_defaults(FILE))
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


@pytest.mark.case("FET-21")
async def test_a_broker_that_starts_later_reads_the_rates(world: World) -> None:
    await world.write("brokers", "1", **{LEADER_RATE: "1000", FOLLOWER_RATE: "2000"})
    assert (world.leader_quota.limit, world.follower_quota.limit) == (None, None)
    await world.dynamic.load()
    assert (world.leader_quota.limit, world.follower_quota.limit) == (1000, 2000)


@pytest.mark.case("FRQ-06")
async def test_changed_defaults_reach_open_logs_and_not_what_topics_override(
    world: World, following: ConfigChanges
) -> None:
    seen: list[int] = []

    async def see(now: BrokerConfig) -> None:
        seen.append(now.log_cleaner_backoff_ms)

    world.dynamic.when_changed(see)
    await world.write("topics", "own", retention_ms="1")
    await world.write("topics", "plain")
    await world.write("brokers", "<default>", log_retention_ms="100", log_cleaner_backoff_ms="5")
    await eventually(lambda: world.logs.configs["plain"].retention_ms == 100)
    assert world.logs.configs["own"].retention_ms == 1
    assert world.logs.broker_config.log_cleaner_backoff_ms == 5
    assert world.topics.defaults.retention_ms == 100, "for logs that are created later"
    await world.write("brokers", "1", log_retention_ms="200")
    await eventually(lambda: world.logs.configs["plain"].retention_ms == 200)
    await world.write("brokers", "1")
    await eventually(lambda: world.logs.configs["plain"].retention_ms == 100)
    await world.write("brokers", "<default>")
    await eventually(lambda: world.logs.configs["plain"].retention_ms == 7)
    await eventually(lambda: seen == [5, 5, 5, 15_000])  # those that listen hear of it after the logs


async def test_what_another_program_wrote_is_used_as_far_as_possible(
    world: World, following: ConfigChanges, caplog: pytest.LogCaptureFixture
) -> None:
    await world.write("topics", "t")
    bad = {"no_such_key": "1", "num_partitions": "3", "log_segment_bytes": "one", LEADER_RATE.replace(".", "_"): "5"}
    await world.write("brokers", "<default>", log_retention_ms="100", **bad)
    await eventually(lambda: world.logs.configs["t"].retention_ms == 100)
    assert world.leader_quota.limit is None
    named = [record.getMessage() for record in caplog.records]
    for key in bad:
        assert any(f"{key.replace('_', '.')} has no effect" in line for line in named), key


@pytest.mark.case("FRQ-07")
async def test_malformed_notifications_reach_no_handler(world: World) -> None:
    reached: list[str] = []

    async def apply(entity: str) -> None:
        reached.append(entity)

    version_1 = b'{"version":1,"entity_type":"%s","entity_name":"t"}'
    for data in (b"{", b"not json", b"[]", b'{"version":3}', b'{"version":2}', version_1 % b"users", b'{"version":1}'):
        await world.notify(data)
    await world.notify(version_1 % b"topics")
    await world.notify(config_change.encode("topics/u"))
    changes = asyncio.create_task(ConfigChanges(world.zk, SystemClock(), apply).run())
    try:
        await eventually(lambda: len(reached) == 2)
    finally:
        changes.cancel()
        await asyncio.wait([changes])
    assert reached == ["topics/t", "topics/u"]


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
