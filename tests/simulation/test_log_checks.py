"""What the checks of logs and replicas accept, and what they do not: on real logs, on a simulated disk."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from klamm.broker.fetcher import FetchState
from klamm.broker.partition import Partition
from klamm.log.log import Log
from klamm.log.log_manager import LogManager
from klamm.model.config import BrokerConfig, TopicConfig
from klamm.model.control import PartitionOrder
from klamm.model.ids import BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.simulation.disk import SimulatedDisk
from klamm.simulation.invariants import Problem
from klamm.simulation.log_checks import content_of, is_sound
from klamm.simulation.loop import VirtualClock, VirtualTimeLoop, run_in_virtual_time
from klamm.simulation.power import survives
from klamm.simulation.replicas import Replica, agree, is_known, isr_has_it, match
from klamm.simulation.survival import Survival
from klamm.wire.records import Record, build_batch

T0 = TopicPartition("t", 0)
CONFIG = TopicConfig(segment_bytes=400, index_interval_bytes=0)
BROKER = BrokerConfig(zookeeper_connect="x", log_dirs=("/data",), log_cleaner_enable=False)
T = TypeVar("T")


def new_disk() -> SimulatedDisk:
    loop = VirtualTimeLoop()
    disk = SimulatedDisk(VirtualClock(loop), random.Random(1))
    loop.close()
    disk.make_directories("/data")
    disk.sync_directory("/")
    return disk


async def opened(disk: SimulatedDisk) -> LogManager:
    logs = LogManager(disk, disk._clock, BROKER, random.Random(1))
    logs.directories.lock()
    await logs.load(lambda topic: CONFIG)
    return logs


async def new_log(disk: SimulatedDisk) -> tuple[LogManager, Log]:
    logs = await opened(disk)
    log = (await logs.create_many([(T0, CONFIG, True)]))[T0]
    assert isinstance(log, Log)
    return logs, log


def write(log: Log, *values: str, epoch: int = 0, producer: int = -1) -> None:
    for number, value in enumerate(values):
        record = Record(None, value.encode(), 0)
        batch = build_batch([record])
        if producer >= 0:
            batch = build_batch([record], producer_id=producer, producer_epoch=0, base_sequence=number)
        log.append_as_leader(batch, LeaderEpoch(epoch))


def run(work: Callable[[], Awaitable[T]]) -> T:
    async def main() -> T:
        return await work()

    return run_in_virtual_time(main())


def judged(log: Log) -> Problem:
    return is_sound(T0, log, content_of(log, log.log_end_offset))


def test_epochs_and_producers_repeat_what_is_in_the_batches() -> None:
    async def look() -> None:
        _, log = await new_log(new_disk())
        write(log, "a", "b", producer=7)
        write(log, "c", epoch=2)
        assert judged(log) is None
        log.epochs.assign(LeaderEpoch(3), 9)
        assert judged(log), "an epoch cannot begin beyond the end"
        log.epochs.truncate_from_end(1)
        assert judged(log), "the epoch of the last batch is missing"
        log.epochs.assign(LeaderEpoch(2), 2)
        assert judged(log) is None
        log._producers.reset_state(3)
        assert judged(log), "the producer is missing"

    run(look)


def replica(broker: int, log: Log, leader: int, epoch: int) -> Replica:
    partition = Partition(T0, BrokerId(broker), log._clock, 10.0)
    state = LeaderAndIsr(BrokerId(leader), LeaderEpoch(epoch), (BrokerId(1), BrokerId(2)), ControllerEpoch(1))
    order = PartitionOrder(T0, state, 0, Assignment((BrokerId(1), BrokerId(2))), False)
    make = partition.make_leader if broker == leader else partition.make_follower
    make(order, log)
    return Replica(BrokerId(broker), partition, log, None if broker == leader else FetchState.FETCHING)


def test_a_follower_has_a_prefix_of_its_leader() -> None:
    async def look() -> None:
        (_, one), (_, two) = await new_log(new_disk()), await new_log(new_disk())
        write(one, "a", "b", "c")
        write(two, "a", "b")
        both = [replica(1, one, 1, 1), replica(2, two, 1, 1)]
        assert match(both) is None
        write(two, "x")
        both = [replica(1, one, 1, 1), replica(2, two, 1, 1)]
        assert match(both), "the third record differs"
        assert match([replica(1, one, 1, 1), replica(2, two, 1, 0)]) is None, "it has not reconciled in this epoch"
        assert agree(both) is None, "nothing is committed yet"
        for log in (one, two):
            log.update_high_watermark(3)
        assert agree(both)
        assert isr_has_it(both, (BrokerId(1), BrokerId(2)))
        assert isr_has_it(both, (BrokerId(1),)) is None

    run(look)


def test_what_a_leader_knows_of_a_follower_is_true() -> None:
    def never(broker: BrokerId, moment: float) -> bool:
        return False

    async def look() -> None:
        (_, one), (_, two) = await new_log(new_disk()), await new_log(new_disk())
        write(one, "a", "b")
        write(two, "a", "b")
        leader, follower = replica(1, one, 1, 1), replica(2, two, 1, 1)
        assert is_known(leader, [leader, follower], never, never) is None, "it has not fetched yet"
        leader.partition.record_fetch(BrokerId(2), 2, 0)
        assert is_known(leader, [leader, follower], never, never) is None
        former = replica(2, two, 1, 0)
        assert is_known(leader, [leader, former], never, never), "it is in an older epoch"
        assert is_known(leader, [leader, former], lambda *_: True, never) is None, "it has just started"
        two.truncate_to(1)
        shorter = replica(2, two, 1, 1)
        assert is_known(leader, [leader, shorter], never, never), "it lacks what it reported"
        assert is_known(leader, [leader, shorter], never, lambda *_: True) is None, "it has just lost power"

    run(look)


def test_what_a_power_cut_would_leave_is_known_before() -> None:
    async def look() -> None:
        disk = new_disk()
        _, log = await new_log(disk)
        write(log, "a", "b")
        await log.flush()
        write(log, "c")
        for seed in range(10):
            assert survives(disk, log, log._clock, random.Random(seed)) is None
        log._durability.recovery_point = 3
        assert any(survives(disk, log, log._clock, random.Random(seed)) for seed in range(10)), "c was not flushed"
        assert content_of(log, 3) == content_of(log, log.log_end_offset), "the log itself was left alone"

    run(look)


def test_what_a_log_must_still_have() -> None:
    async def look() -> None:
        disk, survival = new_disk(), Survival()
        logs, log = await new_log(disk)
        write(log, "a", "b")
        await log.flush()
        write(log, "c")
        log.update_high_watermark(2)
        survival.ends(logs.logs(), power_lost=True)
        disk.cut_power()
        disk.restore_power()
        logs = await opened(disk)
        assert survival.begins(logs, lambda name: 3) is None
        survival.ends(logs.logs(), power_lost=True)
        found = logs.get(T0)
        assert found is not None
        found.truncate_to(1)
        assert survival.begins(logs, lambda name: 3), "what was flushed is gone"
        found.update_high_watermark(1)
        assert survival.begins(logs, lambda name: 0), "nothing was committed"
        survival.deleted.add(T0)
        assert survival.begins(logs, lambda name: 3), "it was deleted"

    run(look)
