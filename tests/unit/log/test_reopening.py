"""Logs that are offline alone come back when what kept them closed has passed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from klamm.log import log_loading, log_reopening
from klamm.log.log_manager import LogManager
from klamm.log.validation import AppendOrigin
from klamm.model import guard
from klamm.model.config import TopicConfig
from klamm.model.errors import KafkaError
from klamm.model.ids import LeaderEpoch, TopicPartition
from klamm.net.clock import SystemClock
from klamm.simulation.disk import SimulatedDisk
from klamm.wire.records import ControlType

from .conftest import append, marker, produced, read_all
from .simulated import BROKER, A, B, created, new_disk, opened


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(guard, "LONGEST_PAUSE_S", 0.02)


@asynccontextmanager
async def running(disk: SimulatedDisk) -> AsyncIterator[tuple[LogManager, list[TopicPartition]]]:
    logs, back = LogManager(disk, SystemClock(), BROKER, random.Random(1)), list[TopicPartition]()
    logs.directories.lock()
    await logs.load(lambda _: TopicConfig())
    logs.on_reopened = back.append
    async with logs.running():
        yield logs, back


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def with_two_logs() -> SimulatedDisk:
    disk = new_disk()
    logs = await opened(disk)
    for name in (A, B):
        log = await created(logs, name=name)
        append(log, "one")
        append(log, "two")
        log.update_high_watermark(2)
    await logs.close()
    return disk


def broken(*_: object, **__: object) -> None:
    raise ZeroDivisionError("a defect")


async def test_a_log_that_could_not_be_opened_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = await with_two_logs()
    attempts = []

    def load(*_: object, **__: object) -> None:
        attempts.append(1)
        raise ZeroDivisionError("still a defect")

    real = log_reopening.load_log
    monkeypatch.setattr(log_loading, "load_log", broken)
    monkeypatch.setattr(log_reopening, "load_log", load)
    async with running(disk) as (logs, back):
        await until(lambda: len(attempts) > 6)
        assert dict.fromkeys((A, B), "a defect") == logs.offline
        monkeypatch.setattr(log_reopening, "load_log", real)
        await until(lambda: len(back) == 2)
        for name in (A, B):
            log = logs.get(name)
            assert log is not None and not logs.is_offline(name)
            assert (read_all(log), log.high_watermark) == ([0, 1], 2)
            append(log, "three")


@pytest.mark.parametrize("is_clean", [True, False])
async def test_logs_that_come_back_later_may_have_lost_records_too(
    monkeypatch: pytest.MonkeyPatch, is_clean: bool
) -> None:
    """ADR 0014: the registration says so before any log is open."""
    disk = await with_two_logs()
    if not is_clean:
        disk.remove("/data/1/.kafka_cleanshutdown")
    monkeypatch.setattr(log_loading, "load_log", broken)
    logs = await opened(disk)
    assert not list(logs.logs())
    assert logs.recovered is not is_clean


async def test_a_log_that_contradicts_itself_is_recovered() -> None:
    disk = await with_two_logs()
    async with running(disk) as (logs, back):
        log = logs.get(A)
        assert log is not None
        append(log, "three")
        log.give_up(ValueError("memory and file differ"))
        assert logs.is_offline(A) and logs.get(B) is not None
        await until(lambda: back == [A])
        again = logs.get(A)
        assert again is not None and again is not log
        assert (read_all(again), again.high_watermark) == ([0, 1, 2], 2)
        assert append(again, "four").first_offset == 3
        assert [directory.log_count for directory in logs.directories] == [2]


async def test_a_log_that_is_deleted_meanwhile_stays_away() -> None:
    disk = await with_two_logs()
    async with running(disk) as (logs, back):
        log = logs.get(A)
        assert log is not None
        log.give_up(ValueError("memory and file differ"))
        logs.delete(A)
        other = logs.get(B)
        assert other is not None
        other.give_up(ValueError("later"))
        await until(lambda: back == [B])
        assert logs.get(A) is None and A not in logs.offline


async def test_a_directory_that_fails_takes_the_log_with_it() -> None:
    disk = await with_two_logs()
    async with running(disk) as (logs, back):
        log = logs.get(A)
        assert log is not None
        disk.fail("/data/1/a-0")
        log.give_up(ValueError("memory and file differ"))
        await until(logs.directories.offline)
        assert back == [] and logs.get(B) is None


async def test_a_disk_that_fills_up_between_a_marker_and_its_index_entry() -> None:
    """The marker is in the log and its transaction not in the index of aborted ones: readers would see its records."""
    disk = new_disk()
    async with running(disk) as (logs, back):
        log = await created(logs)
        log.append_as_leader(produced(7, 0, transactional=True), LeaderEpoch(0))
        abort = marker(7, ControlType.ABORT)
        await log.flush()
        disk.room = len(abort) + 10
        with pytest.raises(KafkaError):
            log.append_as_leader(abort, LeaderEpoch(0), origin=AppendOrigin.COORDINATOR)
        assert logs.is_offline(A) and not logs.directories.offline()
        await asyncio.sleep(0.05)
        assert not logs.directories.offline(), "a recovery without room is tried again"
        disk.room = None
        await until(lambda: back == [A])
        again = logs.get(A)
        assert again is not None
        again.update_high_watermark(again.log_end_offset)
        assert again.log_end_offset == 2
        assert again.aborted_transactions(0, 2) == [(7, 0)]
        assert again.last_stable_offset == 2


async def test_what_the_next_opening_is_told() -> None:
    """Segments that were not flushed are read again, whatever memory believed."""
    disk = new_disk()
    logs = await opened(disk, TopicConfig(segment_bytes=100))
    log = await created(logs, TopicConfig(segment_bytes=100))
    for number in range(4):
        append(log, f"{number}" * 20)
    log.update_high_watermark(3)
    log.give_up(ValueError("memory and files disagree"))
    (closed, attempts, _) = logs._reopening._closed[A]
    assert (closed.recovery_point, closed.clean, closed.high_watermark, attempts) == (0, False, 3, 0)
    disk.corrupt(f"/data/1/a-0/{1:020d}.log", 80)
    await logs._reopening._try(closed, 1)
    again = logs.get(A)
    assert again is not None
    assert read_all(again) == [0], "the damage ends the log"


async def test_a_log_is_opened_again_after_its_flush_has_ended() -> None:
    logs = await opened(new_disk())
    log = await created(logs)
    append(log, "v")
    may_end = asyncio.Event()
    logs._flushes._running[A] = asyncio.create_task(_wait(may_end))
    log.give_up(ValueError("memory and files disagree"))
    (closed, _, _) = logs._reopening._closed[A]
    trying = asyncio.create_task(logs._reopening._try(closed, 1))
    done, _ = await asyncio.wait([trying], timeout=0.1)
    assert not done
    may_end.set()
    await trying
    assert logs.get(A) is not None
    del logs._flushes._running[A]


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


async def test_an_offline_partition_is_not_created_again() -> None:
    broker = replace(BROKER, log_dirs=("/data/1", "/data/2"))
    disk = new_disk(directories=broker.log_dirs)
    logs = await opened(disk, broker=broker)
    told: list[tuple[str, list[TopicPartition]]] = []
    logs.on_offline = lambda path, names: told.append((path, names))
    log = await created(logs)
    log.give_up(ValueError("memory and files disagree"))
    assert isinstance((await logs.create_many([(A, TopicConfig(), True)]))[A], KafkaError)
    told.clear()
    home = next(iter(logs.directories))
    for _ in range(2):
        logs.directory_failed(home, OSError(5, "Input/output error"))
    assert told == [("/data/1", [A])], "once"
    for is_new in (False, True):  # it may be in the directory that failed, unless it is new
        found = (await logs.create_many([(B, TopicConfig(), is_new)]))[B]
        assert isinstance(found, KafkaError) is not is_new


async def test_no_checkpoint_is_written_before_all_logs_are_open() -> None:
    """It would lose the others."""
    disk = await with_two_logs()
    before = disk.read("/data/1/replication-offset-checkpoint")
    logs = LogManager(disk, SystemClock(), BROKER, random.Random(1))
    logs.directories.lock()
    loaded: list[bool] = []
    directory = next(iter(logs.directories))
    disk.before = lambda operation, path: loaded.append(directory.loaded) if "-0/" in path else None
    await logs.load(lambda _: TopicConfig())
    disk.before = None
    assert loaded and not any(loaded) and directory.loaded
    assert disk.read("/data/1/replication-offset-checkpoint") == before
    await logs.close()
