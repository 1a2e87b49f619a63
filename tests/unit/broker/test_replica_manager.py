"""Orders and reports that concern single replicas: stopped, moved, offline, badly named, or during a shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from klamm.broker.fetcher import EpochAnswered, EpochAsked
from klamm.broker.metadata_cache import MetadataCache
from klamm.broker.replica_manager import ReplicaManager
from klamm.broker.topic_configs import TopicConfigs
from klamm.model.brokers import Broker
from klamm.model.config import BrokerConfig, TopicConfig
from klamm.model.control import MetadataUpdate, Sender, StopOrder
from klamm.model.errors import ErrorCode
from klamm.model.ids import BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from klamm.wire.fetch import FetchPartition, FetchResult

from .conftest import TP, FakeLog

TWO, THREE = BrokerId(2), BrokerId(3)
SENDER = Sender(TWO, ControllerEpoch(5), BrokerEpoch(-1))


class Events:
    def emit(self, records: Any) -> None: ...


class IdleLeader:
    """Notes what its followers ask for, and has nothing for them."""

    is_answering = False

    def __init__(self) -> None:
        self.fetched: list[FetchPartition] = []

    async def fetch(self, wanted: Sequence[FetchPartition], max_wait: float | None = None) -> Sequence[FetchResult]:
        self.fetched += wanted
        await asyncio.sleep(3600)
        return ()

    async def epoch_ends(self, asked: Sequence[EpochAsked]) -> Sequence[EpochAnswered]:
        return ()

    async def log_ends(self, partition: TopicPartition, leader_epoch: LeaderEpoch) -> tuple[int, int]:
        return 0, 0

    def close(self) -> None: ...


class Replicas:
    def __init__(self, manager: ReplicaManager, logs: Any, leader: IdleLeader, make_order: Any) -> None:
        self.manager = manager
        self.logs = logs
        self.leader = leader
        self.order = make_order

    async def told(self, **order: Any) -> ErrorCode:
        told = self.order(**order)
        return (await self.manager.leader_and_isr(SENDER, [told])).partitions[told.partition]


@pytest.fixture
async def replicas(zk: Any, logs: Any, clock: Any, make_order: Any) -> AsyncIterator[Replicas]:
    metadata, leader = MetadataCache(), IdleLeader()
    alive = [Broker(BrokerId(number), ()) for number in (1, 2, 3)]
    await metadata.update(MetadataUpdate(SENDER, alive, []))
    manager = ReplicaManager(
        BrokerId(1),
        BrokerConfig(broker_id=1),
        clock=clock,
        zk=zk,
        logs=logs,
        metadata=metadata,
        configs=TopicConfigs(zk, clock, TopicConfig(), 1.0),
        events=Events(),
        endpoint=lambda broker: leader,
    )
    async with manager.running():
        yield Replicas(manager, logs, leader, make_order)
        assert manager.guard.failures == {}, "a defect that the guard caught"


async def test_a_replica_that_is_offline_cannot_be_deleted(replicas: Replicas) -> None:
    """NONE would tell the controller that its data is gone; it comes back with the directory."""
    assert await replicas.told() is ErrorCode.NONE
    replicas.logs.offline[TP] = "the disk does not answer"
    answer = await replicas.manager.stop_replica(SENDER, [StopOrder(TP, 0, delete=True)])
    assert answer.partitions == {TP: ErrorCode.KAFKA_STORAGE_ERROR}
    assert replicas.logs.deleted == []


@pytest.mark.parametrize(
    ("partition", "error"),
    [
        (TopicPartition("../../etc", 0), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TopicPartition("orders", -1), ErrorCode.INVALID_PARTITIONS),
    ],
)
async def test_an_order_cannot_choose_another_directory(
    replicas: Replicas, partition: TopicPartition, error: ErrorCode
) -> None:
    assert await replicas.told(partition=partition) is error
    assert (partition in replicas.manager.partitions, replicas.logs.kept) == (False, {})


@pytest.mark.parametrize("leads", [True, False])
async def test_a_log_that_moved_to_another_directory_is_the_one_that_is_used(replicas: Replicas, leads: bool) -> None:
    await replicas.told(leader=1 if leads else 2)
    replicas.logs.kept[TP] = moved = FakeLog().fill(0, 0)
    replicas.logs.dir_moves.on_moved(TP)
    assert replicas.manager.partitions[TP].log is moved
    for _ in range(10):
        await asyncio.sleep(0)
    fetcher = replicas.manager.fetchers.of(TWO)
    assert (fetcher is not None and len(fetcher) == 1) is not leads
    if fetcher is not None:
        (following,) = fetcher._following.values()
        assert following.log is moved, "else the former log would grow, and this one would not"


@pytest.mark.parametrize("why", ["the leader is dead", "this broker shuts down", "the replica is gone"])
async def test_a_moved_log_is_not_fetched_for(replicas: Replicas, why: str) -> None:
    await replicas.told(leader=2)
    if why == "the leader is dead":
        alive = [Broker(BrokerId(number), ()) for number in (1, 3)]
        await replicas.manager.update_metadata(MetadataUpdate(SENDER, alive, []))
    elif why == "this broker shuts down":
        replicas.manager.is_shutting_down = True
    else:
        await replicas.manager.stop_replica(SENDER, [StopOrder(TP, 0, delete=True)])
    replicas.logs.kept[TP] = FakeLog()
    replicas.logs.dir_moves.on_moved(TP)
    fetcher = replicas.manager.fetchers.of(TWO)
    assert fetcher is None or len(fetcher) == 0


async def test_a_broker_that_shuts_down_obeys_but_fetches_nothing_new(replicas: Replicas) -> None:
    replicas.manager.is_shutting_down = True
    assert await replicas.told(leader=2) is ErrorCode.NONE
    assert replicas.manager.partitions[TP].leader == TWO
    assert replicas.manager.fetchers.of(TWO) is None


async def test_a_follower_outside_the_isr_that_lapses_lets_the_high_watermark_go_on(
    replicas: Replicas, clock: Any
) -> None:
    """No other event would do that, and no other event would wake who waits."""
    await replicas.told(isr=(1, 2), replicas=(1, 2, 3))
    partition, woken = replicas.manager.partitions[TP], []
    replicas.logs.kept[TP].fill(0)
    replicas.manager.follower_fetched(TP, THREE, 0, 0)
    partition.followers[THREE].last_caught_up = clock.monotonic()
    partition.pending_isr = (BrokerId(1), TWO)  # an ISR write is under way, so no other begins
    replicas.manager.follower_fetched(TP, TWO, 1, 0)
    assert replicas.logs.kept[TP].high_watermark == 0
    clock.advance(replicas.manager.config.replica_lag_time_max_ms / 1000 + 1)
    replicas.manager.moved = woken.append  # type: ignore[method-assign]
    replicas.manager._shrink_isr(partition)
    assert (replicas.logs.kept[TP].high_watermark, woken) == (1, [TP])
