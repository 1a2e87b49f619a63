"""flush.messages: what was acknowledged survives a power cut, and the records of many share one fsync."""

from __future__ import annotations

import asyncio
import random

from klamm.log.log import Log
from klamm.log.log_manager import LogManager
from klamm.model.config import BrokerConfig, TopicConfig
from klamm.model.ids import LeaderEpoch, TopicPartition
from klamm.simulation.disk import SimulatedDisk
from klamm.simulation.loop import run_in_virtual_time

from .conftest import SetClock, batch, read_all

NAME = TopicPartition("t", 0)
BROKER = BrokerConfig(zookeeper_connect="x", log_dirs=("/data",), log_cleaner_enable=False)


async def opened(disk: SimulatedDisk, config: TopicConfig) -> tuple[LogManager, Log]:
    logs = LogManager(disk, SetClock(), BROKER, random.Random(1))
    logs.directories.lock()
    await logs.load(lambda _: config)
    log = (await logs.create_many([(NAME, config, True)]))[NAME]
    assert isinstance(log, Log)
    return logs, log


def new_disk(seed: int = 1) -> SimulatedDisk:
    disk = SimulatedDisk(SetClock(), random.Random(seed))
    disk.make_directories("/data")
    disk.sync_directory("/")
    return disk


async def acknowledged(logs: LogManager, log: Log, value: str) -> int:
    """Append, and return the offset when a broker would answer."""
    end = log.append_as_leader(batch(value), LeaderEpoch(0)).last_offset + 1
    flushed = asyncio.Event()
    logs.on_flushed = lambda _: flushed.set()
    while not log.may_acknowledge(end):
        flushed.clear()
        await flushed.wait()
    return end - 1


def test_what_was_acknowledged_survives_a_power_cut() -> None:
    async def main(seed: int) -> None:
        disk = new_disk(seed)
        config = TopicConfig(flush_messages=1, segment_bytes=500)
        logs, log = await opened(disk, config)
        offsets = [await acknowledged(logs, log, f"value-{number}") for number in range(20)]
        disk.cut_power()
        disk.restore_power()
        _, log = await opened(disk, config)
        assert read_all(log) == offsets

    for seed in range(20):
        run_in_virtual_time(main(seed))


def test_appends_that_wait_share_a_flush() -> None:
    async def main() -> None:
        disk = new_disk()
        _, log = await opened(disk, TopicConfig(flush_messages=1))
        before = disk.syncs
        for number in range(100):
            log.append_as_leader(batch(f"value-{number}"), LeaderEpoch(0))
        assert not log.may_acknowledge(1)
        while log.waits_for_flush:
            await asyncio.sleep(0.001)
        assert disk.syncs - before <= 6  # the log twice at most; its directory; the file of the new leader epoch

    run_in_virtual_time(main())


def test_fewer_records_than_flush_messages_wait_for_nothing() -> None:
    async def main() -> None:
        _, log = await opened(new_disk(), TopicConfig(flush_messages=3))
        for number in range(2):
            end = log.append_as_leader(batch(f"value-{number}"), LeaderEpoch(0)).last_offset + 1
            assert log.may_acknowledge(end)
        end = log.append_as_leader(batch("value-2"), LeaderEpoch(0)).last_offset + 1
        assert not log.may_acknowledge(end)
        await log.flush()
        assert log.may_acknowledge(end)

    run_in_virtual_time(main())


def test_a_recovery_begins_in_the_first_segment_whose_indexes_may_be_lost() -> None:
    async def main() -> None:
        _, log = await opened(new_disk(), TopicConfig())
        log.append_as_leader(batch("v"), LeaderEpoch(0))
        await log.flush()
        assert (log.recovery_point, log.recovery_begins) == (1, 0)
        log.roll()
        assert (log.recovery_point, log.recovery_begins) == (1, 0)
        await log.flush()
        assert log.recovery_begins == 1

    run_in_virtual_time(main())


def test_a_segment_that_was_sealed_during_a_flush_is_synced_by_the_next() -> None:
    async def main() -> None:
        disk = new_disk()
        _, log = await opened(disk, TopicConfig())
        log.append_as_leader(batch("a"), LeaderEpoch(0))
        flush = asyncio.create_task(log.flush())
        await asyncio.sleep(0)
        log.append_as_leader(batch("b"), LeaderEpoch(0))
        log.roll()
        await flush
        assert (log.recovery_point, log.recovery_begins) == (1, 0)
        synced: list[tuple[str, str]] = []
        disk.before = lambda operation, path: synced.append((operation, path))
        await log.flush()
        assert log.recovery_point == 2
        assert ("sync", log.segments.first.log_path) in synced
        assert ("sync", log.segments.first.time_index.path) in synced

    run_in_virtual_time(main())
