"""Errors of the file system, wherever they are met: what they concern goes offline, and nothing that was promised is
undone."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from klamm.log import disk as real_disk
from klamm.log.directories.topic_lives import TopicLife
from klamm.log.disk import FileDisk
from klamm.log.files import create_empty
from klamm.log.log import Log
from klamm.log.log_manager import LogManager
from klamm.log.recovery import load_log
from klamm.model.config import TopicConfig
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import BrokerId
from klamm.model.ports import Buffer
from klamm.simulation.disk import SimulatedDisk

from .conftest import Workbench, append, read_all
from .simulated import BROKER, A, B, created, new_disk, opened

TWO = replace(BROKER, log_dirs=("/data/1", "/data/2"))
COMPACTED = TopicConfig(cleanup_policy=("compact",), segment_bytes=200, min_cleanable_dirty_ratio=0.0)


def fail_at(disk: SimulatedDisk, operation: str, ending: str, code: int = errno.EIO) -> None:
    """From now on this operation fails on every path with this ending."""

    def before(called: str, path: str) -> None:
        if called == operation and path.endswith(ending):
            raise OSError(code, os.strerror(code), path)

    disk.before = before


async def two_directories() -> tuple[SimulatedDisk, LogManager]:
    """A is in the first one, B in the second."""
    disk = new_disk(directories=TWO.log_dirs)
    logs = await opened(disk, broker=TWO)
    for name in (A, B):
        append(await created(logs, name=name), "v")
    assert [logs.home_of(name).path for name in (A, B)] == list(TWO.log_dirs)  # type: ignore[union-attr]
    return disk, logs


# --- at the start ----------------------------------------------------------------------------------------------------


async def test_a_directory_whose_meta_properties_cannot_be_read_is_offline() -> None:
    disk, logs = await two_directories()
    logs.write_meta(BrokerId(1), "c")
    fail_at(disk, "read", "/data/1/meta.properties")
    assert logs.directories.read_meta() == (1, "c")
    assert logs.directories.offline() == ["/data/1"]


async def test_a_directory_whose_meta_properties_cannot_be_written_is_offline() -> None:
    disk, logs = await two_directories()
    fail_at(disk, "rename", "/data/1/meta.properties.tmp")
    logs.write_meta(BrokerId(1), "c")
    assert logs.directories.offline() == ["/data/1"]
    assert (logs.is_offline(A), logs.is_offline(B)) == (True, False)


@pytest.mark.parametrize("ending", ["/data/1/.kafka_cleanshutdown", "/data/1/a-0"])
async def test_a_directory_that_fails_while_it_is_loaded_is_offline(ending: str) -> None:
    disk, logs = await two_directories()
    await logs.close()
    fail_at(disk, "remove" if "clean" in ending else "list", ending)
    logs = await opened(disk, broker=TWO)
    assert logs.directories.offline() == ["/data/1"]
    assert logs.get(A) is None
    assert logs.get(B) is not None


async def test_a_log_without_a_descriptor_left_is_offline_alone() -> None:
    disk = new_disk()
    logs = await opened(disk)
    for name in (A, B):
        append(await created(logs, name=name), "v")
    await logs.close()
    fail_at(disk, "open", "a-0/00000000000000000000.log", errno.EMFILE)
    logs = await opened(disk)
    assert (logs.is_offline(A), logs.is_offline(B)) == (True, False)
    assert logs.directories.offline() == []


# --- while it runs ---------------------------------------------------------------------------------------------------


async def test_the_life_of_a_topic_cannot_be_written() -> None:
    disk, logs = await two_directories()
    disk.fail("/data/1")
    await logs.lives.remember({A: TopicLife(1, 2), B: TopicLife(1, 3)})
    assert logs.directories.offline() == ["/data/1"]


async def test_the_cleaner_meets_a_failed_directory() -> None:
    disk = new_disk(directories=TWO.log_dirs)
    logs = await opened(disk, broker=TWO)
    log = await created(logs, replace(COMPACTED, min_compaction_lag_ms=1))
    for number in range(9):
        append(log, f"{number}", timestamp=-1)  # without timestamps, the age of the file counts
    log.update_high_watermark(9)
    await log.flush()
    fail_at(disk, "modified_ms", ".log")
    assert not await logs.cleaner.clean_filthiest()
    assert log.failed
    assert logs.directories.offline() == ["/data/1"]


async def test_a_log_that_is_created_while_its_directory_fails_is_not_used() -> None:
    disk = new_disk(directories=TWO.log_dirs)
    logs = await opened(disk, broker=TWO)
    creating = asyncio.create_task(logs.create_many([(A, TopicConfig(), True)]))
    while not disk.exists("/data/1/a-0"):
        await asyncio.sleep(0)
    home = next(iter(logs.directories))
    logs.directory_failed(home, OSError(errno.EIO, "Input/output error"))
    log = (await creating)[A]
    assert isinstance(log, Log)
    with pytest.raises(KafkaError) as caught:
        append(log, "v")
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


async def test_the_old_directory_of_a_replica_that_moved_fails() -> None:
    """The new one has everything: the partition goes on."""
    disk, logs = await two_directories()
    source, target = logs.directories
    fail_at(disk, "rename", "/data/1/a-0")
    assert await logs.dir_moves.move(A, target)
    assert logs.directories.offline() == ["/data/1"]
    moved = logs.get(A)
    assert moved is not None
    append(moved, "w")
    assert read_all(moved) == [0, 1]
    assert source.log_count == 0


async def test_the_new_directory_fails_during_a_move() -> None:
    disk, logs = await two_directories()
    log = logs.get(A)
    assert log is not None
    _, target = logs.directories
    fail_at(disk, "sync", ".log")
    assert not await logs.dir_moves.move(A, target)
    disk.before = None
    assert logs.directories.offline() == ["/data/2"]
    assert logs.get(A) is log
    append(log, "w")


async def test_producers_expire() -> None:
    logs = await opened(new_disk())
    expired: list[int] = []
    for name in (A, B):
        log = await created(logs, name=name)
        log.expire_producers = expired.append if name == B else _broken  # type: ignore[method-assign]
    await logs._expire_producers()
    assert expired == [BROKER.producer_id_expiration_ms]
    assert logs.guard.failures["expiry"] == 1


def _broken(*_: object) -> None:
    raise ValueError("a defect")


async def test_a_flush_with_a_defect_takes_its_log_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = await opened(new_disk())
    log, other = await created(logs), await created(logs, name=B)
    monkeypatch.setattr(log._durability, "plan", _broken)
    for one in (log, other):
        append(one, "v")
        logs.flush_soon(one)
    await logs._flushes.drain()
    assert (logs.is_offline(A), logs.is_offline(B)) == (True, False)
    assert other.recovery_point == 1


async def test_a_log_whose_sync_failed_promises_nothing_more() -> None:
    """The kernel reports a lost write once: the next sync of the same file would succeed."""
    disk = new_disk()
    log = await created(await opened(disk))
    append(log, "v")
    fail_at(disk, "sync", ".log")
    with pytest.raises(KafkaError):
        await log.flush()
    disk.before = None
    before = disk.syncs
    with pytest.raises(KafkaError):
        await log.flush()
    log.close()
    assert (log.recovery_point, log.recovery_begins, disk.syncs) == (0, 0, before)


async def test_a_directory_that_fails_while_its_logs_are_closed_leaves_no_clean_marker() -> None:
    disk, logs = await two_directories()
    fail_at(disk, "sync", "a-0/00000000000000000000.log")
    await logs.close()
    disk.before = None
    assert [disk.exists(f"{path}/.kafka_cleanshutdown") for path in TWO.log_dirs] == [False, True]
    again = await opened(disk, broker=TWO)
    assert again.recovered


async def test_a_log_that_is_deleted_during_its_recovery_stays_deleted() -> None:
    disk = new_disk()
    logs = await opened(disk)
    log = await created(logs)
    append(log, "v")
    log.give_up(ValueError("memory and files disagree"))
    (closed, _, _) = logs._reopening._closed[A]
    trying = asyncio.create_task(logs._reopening._try(closed, 1))
    await asyncio.sleep(0)
    opened_before = disk._descriptors
    logs._registry.remove(A)
    await trying
    assert logs.get(A) is None
    assert disk._descriptors == opened_before, "its files are closed again"


# --- creation and the end --------------------------------------------------------------------------------------------


async def test_two_requests_create_one_log() -> None:
    logs = await opened(new_disk())
    wanted = [(A, TopicConfig(), True)]
    first, second = await asyncio.gather(logs.create_many(wanted), logs.create_many(wanted))
    assert first[A] is second[A] is logs.get(A)


@pytest.mark.parametrize("at_work", ["flush", "cleaner"])
async def test_a_new_log_waits_for_what_still_works_on_the_files_of_its_namesake(at_work: str) -> None:
    """Both write by path: the epochs and snapshots of the former log must not come into the new one's directory."""
    disk = new_disk()
    disk.job_seconds = 0.0
    logs = await opened(disk)
    ended = asyncio.Event()
    if at_work == "flush":
        logs._flushes._running[A] = flush = asyncio.create_task(_until_set(ended))
        flush.add_done_callback(lambda _: logs._flushes._running.pop(A))
    else:
        logs.cleaner._busy[A] = ended
    creating = asyncio.create_task(logs.create_many([(A, TopicConfig(), True)]))
    for _ in range(200):
        await asyncio.sleep(0)
    assert not disk.exists("/data/1/a-0")
    ended.set()
    assert isinstance((await creating)[A], Log)


async def _until_set(event: asyncio.Event) -> None:
    await event.wait()


async def test_the_end_waits_for_what_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, logs = await two_directories()
    disk.job_seconds = 0.0
    log = logs.get(A)
    assert log is not None
    may_write = asyncio.Event()
    everywhere = logs._checkpoints.everywhere

    async def slowly(collect: Any) -> None:
        await may_write.wait()
        await everywhere(collect)

    monkeypatch.setattr(logs._checkpoints, "everywhere", slowly)
    logs.flush_soon(log)
    checkpoint = logs.checkpoint_high_watermarks()
    closing = asyncio.create_task(logs.close())
    for _ in range(500):
        await asyncio.sleep(0)
    assert not closing.done()
    may_write.set()
    await closing
    assert checkpoint.done()
    logs.flush_soon(log)
    logs.flush_within(log, 0)
    assert not logs._flushes.is_busy(A)


async def test_a_flush_under_way_at_the_end() -> None:
    disk, logs = await two_directories()
    disk.job_seconds = 0.0
    log = logs.get(A)
    assert log is not None
    may_flush, flush = asyncio.Event(), log.flush

    async def slowly() -> None:
        await may_flush.wait()
        await flush()

    log.flush = slowly  # type: ignore[method-assign]
    logs.flush_soon(log)
    closing = asyncio.create_task(logs.close())
    for _ in range(500):
        await asyncio.sleep(0)
    assert not closing.done()
    may_flush.set()
    await closing


async def test_the_clean_marker_comes_last() -> None:
    disk, logs = await two_directories()
    calls: list[tuple[str, str]] = []
    disk.before = lambda operation, path: calls.append((operation, path))
    await logs.close()
    for path in TWO.log_dirs:
        changes = [at.rpartition("/")[2] for what, at in calls if what in ("rename", "sync") and at.startswith(path)]
        assert changes[-1] == ".kafka_cleanshutdown.tmp"
        assert changes.index("recovery-point-offset-checkpoint.tmp") > changes.index(f"{0:020d}.log")


# --- the real disk ---------------------------------------------------------------------------------------------------


class ShortWrites:
    """A write takes some bytes only, as on a disk that is almost full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, then: Callable[[int, Buffer, int], int]) -> None:
        def short(fd: int, chunks: Sequence[Buffer], position: int) -> int:
            return os.pwrite(fd, b"".join(chunks)[:3], position)

        self._pwrite = os.pwrite
        monkeypatch.setattr(real_disk.os, "pwritev", short)
        monkeypatch.setattr(real_disk.os, "pwrite", lambda *args: self._first(then, *args))
        self._calls = 0

    def _first(self, then: Callable[[int, Buffer, int], int], fd: int, data: Buffer, position: int) -> int:
        self._calls += 1
        return self._pwrite(fd, data, position) if self._calls == 1 else then(fd, data, position)


def test_the_rest_of_a_short_write_follows(disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    ShortWrites(monkeypatch, lambda fd, data, position: pwrite(fd, data[:2], position))
    file = disk.open(str(tmp_path / "f"), create=True)
    assert file.append([b"abc", b"defgh"]) == 0
    assert (tmp_path / "f").read_bytes() == b"abcdefgh"
    assert file.size() == 8
    file.close()


def test_nothing_stays_of_a_write_that_does_not_fit(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(b"old")

    def full(fd: int, data: Buffer, position: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    ShortWrites(monkeypatch, full)
    file = disk.open(str(tmp_path / "f"))
    with pytest.raises(OSError, match="No space"):
        file.append([b"abcdefgh"])
    assert (tmp_path / "f").read_bytes() == b"old"
    assert file.size() == 3
    file.close()


def test_a_file_that_is_closed_during_a_sync_is_closed_after_it(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.open(str(tmp_path / "f"), create=True)
    syncing, may_end, closed = threading.Event(), threading.Event(), list[int]()
    close = os.close

    def fsync(fd: int) -> None:
        syncing.set()
        assert may_end.wait(10)
        os.fstat(fd)

    monkeypatch.setattr(real_disk.os, "fsync", fsync)
    monkeypatch.setattr(real_disk.os, "close", lambda fd: (closed.append(fd), close(fd)))
    thread = threading.Thread(target=file.sync)
    thread.start()
    assert syncing.wait(10)
    file.close()
    assert closed == []
    may_end.set()
    thread.join()
    assert len(closed) == 1
    file.close()
    file.sync()
    assert len(closed) == 1


# --- stray files -----------------------------------------------------------------------------------------------------


def test_a_new_file_begins_empty(disk: FileDisk, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"of another life")
    create_empty(disk, str(tmp_path / "f"))
    assert (tmp_path / "f").read_bytes() == b""


async def test_a_new_segment_takes_nothing_over_from_stray_files(bench: Workbench) -> None:
    log = bench.open()
    append(log, "v")
    for suffix in ("log", "index", "timeindex", "txnindex"):
        Path(log.directory, f"{1:020d}.{suffix}").write_bytes(b"x" * 68)
    log.roll()
    assert log.segments.active.size == 0
    assert len(log.segments.active.offset_index) == len(log.segments.active.time_index) == 0
    assert log.segments.active.transaction_index.entries() == []
    append(log, "w")
    assert read_all(log) == [0, 1]


def test_a_log_that_is_truncated_below_its_first_segment_begins_there(bench: Workbench) -> None:
    log = bench.open(log_start_offset=10)
    append(log, "v")
    assert log.truncate_to(4)
    assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (4, 4, 4)
    append(log, "w")
    assert read_all(log) == [4]


def test_a_batch_larger_than_the_buffer_is_recovered(bench: Workbench) -> None:
    log = bench.open(TopicConfig(max_message_bytes=10_000_000))
    append(log, "small")
    append(log, "x" * 3_000_000)
    append(log, "y" * 1_500_000, "z")
    end, size = log.log_end_offset, log.size_bytes
    log.close_files()
    again = load_log(bench.disk, log.directory, log.config, log_start_offset=0, recovery_point=0, clean=False, now_ms=0)
    assert (again.log_end_offset, again.segments.active.size) == (end, size)
