"""The observer reads the tree only when something has changed, confirms it otherwise, and isolates a silent broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from klamm.admin.replication_throttles import FOLLOWER_RATE, LEADER_REPLICAS
from klamm.dashboard.history import EventFiles, History
from klamm.dashboard.observation import Observation
from klamm.dashboard.observer import REST_FACTOR, SAMPLE_SECONDS, Observer
from klamm.model.brokers import Broker, Endpoint
from klamm.model.errors import ConnectionLoss
from klamm.model.ids import BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.model.ports import Create, CreateMode
from klamm.simulation.loop import run_in_virtual_time
from klamm.testing.zookeeper import InMemoryTree, InMemoryZooKeeper
from klamm.wire.apis import ApiKey
from klamm.zookeeper.znodes import (
    broker_id,
    candidates,
    cluster_id,
    config,
    controller,
    controller_epoch,
    partition_state,
    topic,
)

from .clusters import METADATA, dashboard

ONE = BrokerId(1)
SPACE = {"total_bytes": 100_000, "usable_bytes": 9_000}


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)


class CountingZooKeeper(InMemoryZooKeeper):
    """Counts bulk reads of states, and knows the last zxid as the real client does."""

    def __init__(self, tree: InMemoryTree) -> None:
        super().__init__(tree, 1)
        self._shared = tree
        self.bulk_reads = 0
        self.submitted = 0
        self.tasks_max = 0
        self.has_multi_read = True
        self.is_lost = False

    @property
    def last_zxid(self) -> int:
        return self._shared.zxid

    @property
    def _has_multi_read(self) -> bool:
        return self.has_multi_read

    def _submit(self, *request: Any) -> Any:
        self.submitted += 1
        if self.submitted % 100 == 0:
            self.tasks_max = max(self.tasks_max, len(asyncio.all_tasks()))
        return super()._submit(*request)

    async def get_many(self, paths: Any) -> Any:
        if self.is_lost:
            raise ConnectionLoss(detail="nothing answers")
        return await super().get_many(paths)

    async def read_many(self, paths: Any) -> Any:
        self.bulk_reads += 1
        return await super().read_many(paths)


class Brokers:
    """What the brokers answer to DescribeLogDirs."""

    timeout = 1.0

    def __init__(self) -> None:
        self.size = 1_000

    async def metadata(self, topics: None) -> Any:
        raise ConnectionRefusedError

    async def ask_broker(self, broker: int, key: object, request: object, newest: int | None = None) -> Any:
        if broker == 2 or key is not ApiKey.DESCRIBE_LOG_DIRS:
            raise ConnectionRefusedError
        partition = SimpleNamespace(partition_index=0, partition_size=self.size, is_future_key=False)
        topics = [SimpleNamespace(name="t", partitions=[partition])]
        return SimpleNamespace(
            error_code=0, results=[SimpleNamespace(log_dir="/data", error_code=0, topics=topics, **SPACE)]
        )


@pytest.fixture
async def zk() -> CountingZooKeeper:
    return await small_cluster()


async def small_cluster() -> CountingZooKeeper:
    client = CountingZooKeeper(InMemoryTree())
    for path in (
        "/brokers/ids",
        "/brokers/topics",
        "/cluster",
        "/admin",
        candidates.PARENT,
        "/config/topics",
        "/config/brokers",
    ):
        await client.ensure_path(path)
    await client.create(cluster_id.PATH, cluster_id.encode("abc"))
    await client.create(controller_epoch.PATH, controller_epoch.encode(ControllerEpoch(3)))
    await client.create(controller.PATH, controller.encode(ONE, 1), CreateMode.EPHEMERAL)
    await client.create(topic.path("t"), topic.encode({0: Assignment((ONE,))}))
    name = TopicPartition("t", 0)
    await client.ensure_path(partition_state.partition_path(name))
    state = LeaderAndIsr(ONE, LeaderEpoch(0), (ONE,), ControllerEpoch(3))
    await client.create(partition_state.path(name), partition_state.encode(state))
    return client


class Watched:
    def __init__(self, zk: CountingZooKeeper) -> None:
        self.zk = zk
        self.clock = Clock()
        self.published: list[Observation] = []
        self.brokers = Brokers()
        self.observer = Observer(
            zk,  # type: ignore[arg-type]
            self.brokers,  # type: ignore[arg-type]
            History(EventFiles(())),
            self.clock,
            self.published.append,
        )

    async def look(self) -> Observation:
        await self.observer.look()
        return self.observer.current


async def test_the_tree_is_read_again_only_after_a_change(zk: CountingZooKeeper) -> None:
    watched = Watched(zk)
    first = await watched.look()
    assert first.snapshot is not None and first.snapshot.cluster_id == "abc"
    assert (first.snapshot.controller, first.snapshot.controller_epoch, first.checked_at) == (1, 3, 100.0)
    assert zk.bulk_reads == 1
    watched.clock.now = 110.0
    confirmed = await watched.look()
    assert (zk.bulk_reads, confirmed.checked_at, confirmed.version) == (1, 110.0, first.version), "only younger"
    await zk.create(candidates.path(BrokerId(2)))
    changed = await watched.look()
    assert (zk.bulk_reads, changed.version) == (2, first.version + 1)
    assert changed.snapshot is not None and changed.snapshot.candidates == (2,)


async def test_the_first_page_needs_only_the_tree(zk: CountingZooKeeper) -> None:
    watched = Watched(zk)
    await watched.look()
    early, complete = watched.published
    assert early.snapshot is complete.snapshot and early.snapshot is not None
    assert (early.findings, early.load.sampled_at) == (None, None), "the doctor and the brokers come after it"
    assert complete.findings is not None and complete.version == early.version + 1
    await zk.create(candidates.path(BrokerId(2)))
    watched.clock.now += 10
    await watched.look()
    assert len(watched.published) == 3, "a later look is published as a whole"


async def test_until_zookeeper_is_read_the_brokers_say_how_it_is(zk: CountingZooKeeper) -> None:
    watched = Watched(zk)
    told = asyncio.Event()

    async def metadata(topics: None) -> Any:
        await told.wait()
        return METADATA

    watched.brokers.metadata = metadata  # type: ignore[method-assign]
    told.set()
    await watched.observer.preview()
    early = watched.observer.current
    assert early.snapshot is None and early.preview is not None and early.shown is early.preview
    assert (early.preview.partitions, early.checked_at) == (3, 100.0)
    told.clear()
    late = asyncio.create_task(watched.observer.preview())
    await asyncio.sleep(0)
    read = await watched.look()
    told.set()
    await late
    assert watched.observer.current is read and read.preview is None, "what comes late is not shown"
    assert read.shown is read.snapshot is not None


def test_sizes_are_asked_for_as_soon_as_the_tree_is_read() -> None:
    async def main() -> None:
        watched = Watched(await small_cluster())
        await watched.zk.create(
            f"{broker_id.PARENT}/1", broker_id.encode(Broker(ONE, (Endpoint("PLAINTEXT", "h", 1),)), 0)
        )
        running = asyncio.create_task(watched.observer.run())
        await asyncio.sleep(SAMPLE_SECONDS / 2)
        assert watched.observer.current.load.size_of(1) == 1_000
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run_in_virtual_time(main())


async def test_a_large_cluster_is_read_with_one_request_for_each_state(scaled: Callable[[int, int], int]) -> None:
    """The ZooKeeper of Kafka 2.5 has no multi-read. Nothing is read twice, and no read has a task of its own."""
    zk = await small_cluster()
    topics, each = scaled(20, 200), 100
    in_sync = tuple(BrokerId(broker) for broker in (1, 2, 3))
    state = partition_state.encode(LeaderAndIsr(ONE, LeaderEpoch(0), in_sync, ControllerEpoch(3)))
    for number in range(topics):
        name = f"large-{number}"
        await zk.create(topic.path(name), topic.encode(dict.fromkeys(range(each), Assignment(in_sync))))
        await zk.create(partition_state.partitions_path(name))
        partitions = [TopicPartition(name, partition) for partition in range(each)]
        await zk.write_many([Create(partition_state.partition_path(partition), None) for partition in partitions])
        await zk.write_many([Create(partition_state.path(partition), state) for partition in partitions])
    zk.has_multi_read, zk.submitted = False, 0
    watched = Watched(zk)
    await watched.look()
    assert zk.submitted <= topics * (each + 2) + 40, "states, topics with their listings, and a few more"
    assert zk.tasks_max < 5
    page = dashboard(replace(watched.published[0], checked_at=time.monotonic())).get("/")
    assert f"{topics * each + 1:,}" in page.text and "the doctor has not looked yet" in page.text


async def test_a_long_read_is_followed_by_a_longer_rest(zk: CountingZooKeeper) -> None:
    watched = Watched(zk)
    slow_read = zk.read_many

    async def read_slowly(paths: Any) -> Any:
        watched.clock.now += 2.0
        return await slow_read(paths)

    zk.read_many = read_slowly  # type: ignore[method-assign]
    await watched.look()
    await zk.create(candidates.path(BrokerId(2)))
    watched.clock.now += 2.0 * REST_FACTOR - 0.1
    resting = await watched.look()
    assert (zk.bulk_reads, resting.checked_at) == (1, 100.0), "it is not confirmed, so its age grows"
    watched.clock.now += 0.2
    await watched.look()
    assert zk.bulk_reads == 2


async def test_settings_that_concern_health_and_throttles(zk: CountingZooKeeper) -> None:
    overrides = {"min.insync.replicas": "2", LEADER_REPLICAS: "0:1"}
    await zk.create(config.topic_path("t"), config.encode(overrides))
    await zk.create(config.path(config.BROKERS, "1"), config.encode({FOLLOWER_RATE: "5000"}))
    await zk.create(config.path(config.BROKERS, "<default>"), config.encode({FOLLOWER_RATE: "7"}))
    snapshot = (await Watched(zk).look()).snapshot
    assert snapshot is not None
    assert snapshot.topics["t"].min_isr == 2
    assert (snapshot.throttled_topics, snapshot.throttles) == (("t",), {1: 5000})


async def test_a_silent_broker_concerns_only_itself(zk: CountingZooKeeper) -> None:
    watched = Watched(zk)
    await watched.look()
    await watched.observer.sample([1, 2])
    watched.clock.now += 2.0
    watched.brokers.size = 3_000
    await watched.observer.sample([1, 2])
    load = watched.observer.current.load
    assert load.silent == {2: "the connection was refused"}
    assert (load.size_of(1), load.size_of(2), load.rates) == (3_000, None, {1: (1_000.0,)})
    assert load.sizes == {TopicPartition("t", 0): {1: 3_000}}
    assert [(d.broker, d.path, d.usable_bytes) for d in load.nearly_full] == [(1, "/data", 9_000)]


async def test_a_move_has_progress_a_rate_and_time_left(zk: CountingZooKeeper) -> None:
    moving = Assignment((ONE, BrokerId(3)), adding=(BrokerId(3),))
    await zk.set(topic.path("t"), topic.encode({0: moving}))
    watched = Watched(zk)
    await watched.look()

    async def ask_broker(broker: int, key: object, request: object, newest: int | None = None) -> Any:
        if key is not ApiKey.DESCRIBE_LOG_DIRS:
            raise ConnectionRefusedError
        size = 10_000 if broker == 1 else 1_000 * (watched.clock.now - 99)
        partition = SimpleNamespace(partition_index=0, partition_size=int(size), is_future_key=False)
        topics = [SimpleNamespace(name="t", partitions=[partition])]
        return SimpleNamespace(
            error_code=0, results=[SimpleNamespace(log_dir="/data", error_code=0, topics=topics, **SPACE)]
        )

    watched.brokers.ask_broker = ask_broker  # type: ignore[method-assign]
    await watched.observer.sample([1, 3])
    watched.clock.now += 4.0
    await watched.observer.sample([1, 3])
    load = watched.observer.current.load
    assert [(move.copied_bytes, move.total_bytes) for move in load.moves] == [(5_000, 10_000)]
    assert load.move_rate == (1_000.0, 5.0)


async def test_trouble_is_said_and_ends(zk: CountingZooKeeper) -> None:
    watched = Watched(zk)
    await watched.look()
    zk.is_lost = True
    with pytest.raises(ConnectionLoss):
        await watched.observer.look()
    assert watched.observer.current.checked_at == 100.0
