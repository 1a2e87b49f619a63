"""A truncation does its long parts first, in turns with others; what it prepared holds only for an unchanged log, and
what a flush writes meanwhile does not bring back what it removed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from klamm.log.log import Log
from klamm.log.producers import producer_replay
from klamm.log.producers.producer_snapshots import encode_snapshot
from klamm.log.segments.log_segment import LogSegment
from klamm.model.config import TopicConfig
from klamm.model.ids import LeaderEpoch, TopicPartition
from klamm.simulation.disk import SimulatedDisk

from .conftest import SetClock, Workbench, append, produced
from .simulated import A, created, new_disk, opened

T = TypeVar("T")
COUNT = 60


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_replay, "BATCHES_PER_SLICE", 10)


def filled(bench: Workbench) -> Log:
    log = bench.open(TopicConfig(index_interval_bytes=1))
    for number in range(COUNT):
        log.append_as_leader(produced(number % 3, number // 3), LeaderEpoch(0))
    return log


def scans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the headers that scans read."""
    seen: list[int] = []
    headers = LogSegment.headers

    def counted(segment: LogSegment, position: int) -> object:
        for found in headers(segment, position):
            seen.append(found[0])
            yield found

    monkeypatch.setattr(LogSegment, "headers", counted)
    return seen


async def test_the_state_is_read_in_slices_before_the_truncation(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(bench)
    seen = scans(monkeypatch)
    preparing = asyncio.create_task(log.prepare_truncation(40))
    per_turn = []
    while not preparing.done():
        before = len(seen)
        await asyncio.sleep(0)
        per_turn.append(len(seen) - before)
    assert sum(per_turn) >= 40 and max(per_turn) <= 12
    assert log.log_end_offset == COUNT
    seen.clear()
    log.truncate_to(40)
    assert len(seen) < 10, "the truncation itself scans no more than its last index interval"

    other = filled(Workbench(bench.disk, bench.directory.parent / "u-0"))
    other.truncate_to(40)
    assert encode_snapshot(log.producers.entries()) == encode_snapshot(other.producers.entries())
    assert log.producers.end_offset == 40


@pytest.mark.parametrize(
    "change",
    [
        lambda log: log.truncate_to(50),
        lambda log: (log.update_high_watermark(COUNT), log.advance_log_start(20)),
    ],
)
async def test_a_log_that_changed_is_read_again(bench: Workbench, change: Callable[[Log], object]) -> None:
    log = filled(bench)
    preparing = asyncio.create_task(log.prepare_truncation(40))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    change(log)
    await preparing
    log.truncate_to(40)
    expected = filled(Workbench(bench.disk, bench.directory.parent / "u-0"))
    change(expected)
    expected.truncate_to(40)
    assert encode_snapshot(log.producers.entries()) == encode_snapshot(expected.producers.entries())


async def test_what_was_prepared_for_another_offset_is_not_used(bench: Workbench) -> None:
    log = filled(bench)
    await log.prepare_truncation(40)
    log.truncate_to(45)
    assert log.producers.end_offset == 45
    expected = filled(Workbench(bench.disk, bench.directory.parent / "u-0"))
    expected.truncate_to(45)
    assert encode_snapshot(log.producers.entries()) == encode_snapshot(expected.producers.entries())


async def test_many_truncations_share_the_write_of_a_checkpoint() -> None:
    disk = new_disk()
    logs = await opened(disk)
    found = [await created(logs, name=TopicPartition("t", number)) for number in range(50)]
    for log in found:
        append(log, "a")
        append(log, "b")
        await log.flush()
    await logs.checkpoint_recovery_points()
    before = disk.syncs
    await asyncio.gather(*(log.prepare_truncation(1) for log in found))
    assert disk.syncs - before <= 4, "one write for the first, one for all others, two syncs each"
    after = disk.syncs
    for log in found:
        log.truncate_to(1)
    assert disk.syncs == after
    assert disk.read("/data/1/recovery-point-offset-checkpoint").count(b" 0\n") == 50


async def test_an_older_checkpoint_never_replaces_a_newer_one() -> None:
    """The pool may be slow: a truncation that lowers a recovery point in the loop overtakes it."""
    disk = new_disk()
    logs = await opened(disk)
    log = await created(logs)
    append(log, "a")
    append(log, "b")
    await log.flush()
    checkpoint = asyncio.create_task(logs.checkpoint_recovery_points())
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # the offsets are collected, the pool has not written them
    log.truncate_to(1)
    await checkpoint
    assert disk.read("/data/1/recovery-point-offset-checkpoint") == b"0\n1\na 0 0\n", "the older one says 1"


async def test_a_truncation_that_does_not_come_leaves_nothing_unflushed(bench: Workbench) -> None:
    """With flush.messages a follower does not fetch while records are unflushed: it would wait for ever."""
    log = bench.open(TopicConfig(flush_messages=1))
    append(log, "a")
    append(log, "b")
    await log.flush()
    before = bench.owner.flushes
    await log.prepare_truncation(1)
    assert log.waits_for_flush and bench.owner.flushes == before + 1


class SlowDisk(SimulatedDisk):
    """Its jobs wait until they may."""

    def __init__(self) -> None:
        super().__init__(SetClock(), new_disk()._random)
        self.may_run = asyncio.Event()

    async def run(self, job: Callable[[], T]) -> T:
        await self.may_run.wait()
        return job()


async def test_a_flush_that_was_planned_before_does_not_raise_the_recovery_point(bench: Workbench) -> None:
    disk = SlowDisk()
    disk.may_run.set()
    disk.make_directories("/data/1")
    logs = await opened(disk)
    log = await created(logs)
    append(log, "a")
    append(log, "b")
    disk.may_run.clear()
    flush = asyncio.create_task(log.flush())
    await asyncio.sleep(0)
    log._durability.recovery_point = 2  # what an earlier flush had reached
    preparing = asyncio.create_task(log.prepare_truncation(1))
    await asyncio.sleep(0)
    disk.may_run.set()
    await flush
    await preparing
    assert log.recovery_point == 1
    assert logs.get(A) is log


async def flush_during(
    log: Log, bench: Workbench, monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]
) -> None:
    """The log changes after the flush is planned and before it is carried out."""
    run = bench.disk.run

    async def slow(job: Callable[[], None]) -> None:
        change()
        await run(job)

    with monkeypatch.context() as patch:
        patch.setattr(bench.disk, "run", slow)
        await log.flush()


async def test_snapshots_of_an_overtaken_flush_are_removed(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later truncation would find in them what was removed, and refuse the records that now follow."""
    log = bench.open(TopicConfig(segment_bytes=200))
    for sequence in range(10):
        log.append_as_leader(produced(1, sequence), LeaderEpoch(0))
    await flush_during(log, bench, monkeypatch, lambda: log.truncate_to(3))
    for _ in range(6):
        append(log, "new")
    log.truncate_to(8)
    assert log.append_as_leader(produced(1, 3), LeaderEpoch(0)).first_offset == 8


async def test_epochs_of_an_overtaken_flush_are_written_again(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = bench.open()
    for epoch in range(3):
        append(log, "v", epoch=epoch)
    await flush_during(log, bench, monkeypatch, lambda: log.truncate_to(1))
    assert Path(log.epochs.path).read_text() == "0\n3\n0 0\n1 1\n2 2\n"
    await log.flush()
    assert Path(log.epochs.path).read_text() == "0\n1\n0 0\n"


async def test_a_log_that_begins_anew_is_truncated_too(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    log = bench.open()
    for _ in range(4):
        append(log, "v")
    await log.flush()
    append(log, "v")
    await flush_during(log, bench, monkeypatch, lambda: log.truncate_fully_and_start_at(3))
    assert bench.owner.lowered == [3], "on disk before the first file is gone"
    assert (log.recovery_point, log.log_end_offset) == (3, 3)


@pytest.mark.parametrize("index_interval_bytes", [1, 4096])
def test_the_times_of_a_truncated_segment(bench: Workbench, index_interval_bytes: int) -> None:
    """They are in its index, or in the batches after the last entry."""
    log = bench.open(TopicConfig(index_interval_bytes=index_interval_bytes))
    for timestamp in (1000, 2000, 9000):
        append(log, "v", timestamp=timestamp)
    log.truncate_to(2)
    segment = log.segments.active
    assert segment.max_timestamp == (2000, 1)
    assert log.offset_for_timestamp(3000, log.log_end_offset) is None
    log.truncate_to(0)
    assert (segment.first_timestamp, segment.max_timestamp) == (None, (-1, 0))
    append(log, "v", timestamp=5000)
    assert (segment.first_timestamp, segment.max_timestamp) == (5000, (5000, 0))
