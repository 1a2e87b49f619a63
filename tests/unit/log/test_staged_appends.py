"""Large batches are written ahead of their append, off the loop; whatever happens meanwhile, nothing of them stays
beyond the end of the log unless they are appended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from klamm.log import disk as real_disk
from klamm.log import validation
from klamm.log.log import Log
from klamm.log.log_results import UnexpectedAppendOffset
from klamm.log.validation import AppendOrigin, PreparedAppend, check_batches, prepare
from klamm.model.config import TopicConfig
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import LeaderEpoch

from .conftest import Workbench, batch, produced, read_all

EPOCH = LeaderEpoch(3)
LARGE = batch("x" * 50_000, "y" * 50_000)
SMALL = batch("small")


def prepared(records: bytes) -> PreparedAppend:
    view, config = memoryview(records), TopicConfig(max_message_bytes=10_000_000)
    batches = check_batches(view, config, AppendOrigin.CLIENT)
    return PreparedAppend(view, batches, prepare(view, batches, config, 0, AppendOrigin.CLIENT), 1_600_000_000_000)


def on_disk(log: Log) -> int:
    """Bytes in the files of all segments."""
    return sum(path.stat().st_size for path in Path(log.directory).glob("*.log"))


def files(log: Log) -> list[bytes]:
    return [path.read_bytes() for path in sorted(Path(log.directory).glob("*.log"))]


def check_whole(bench: Workbench, log: Log, values: int) -> None:
    """The files hold what the log says, and a recovery finds nothing to cut off."""
    assert on_disk(log) == log.size_bytes
    end, content = log.log_end_offset, read_all(log)
    assert end == values
    again = bench.open(clean=False)
    assert (again.log_end_offset, read_all(again)) == (end, content)


async def test_it_is_appended_like_any_other(bench: Workbench) -> None:
    plain = bench.open(directory=bench.directory / "plain")
    log = bench.open()
    for one in (plain, log):
        one.append_as_leader(SMALL, EPOCH)
    staged = await log.stage(prepared(LARGE))
    assert staged.staged is not None
    assert (log.log_end_offset, on_disk(log) > log.size_bytes) == (1, True), "written, but not appended"
    assert log.append_as_leader(staged, EPOCH) == plain.append_as_leader(LARGE, EPOCH)
    staged.drop()
    for one in (plain, log):
        one.append_as_leader(SMALL, EPOCH)
    assert files(log) == files(plain)
    check_whole(bench, log, 4)


def append_small(log: Log) -> None:
    log.append_as_leader(SMALL, EPOCH)


def truncate(log: Log) -> None:
    log.truncate_to(0)
    log.append_as_leader(SMALL, EPOCH)


@pytest.mark.parametrize(("meanwhile", "values"), [(append_small, 4), (Log.roll, 3), (truncate, 3)])
async def test_what_changes_the_log_drops_it_and_the_append_writes_it(
    bench: Workbench, meanwhile: Callable[[Log], None], values: int
) -> None:
    log = bench.open()
    log.append_as_leader(SMALL, EPOCH)
    staged = await log.stage(prepared(LARGE))
    meanwhile(log)
    assert on_disk(log) == log.size_bytes, "nothing stays beyond the end"
    log.append_as_leader(staged, EPOCH)
    staged.drop()
    check_whole(bench, log, values)


async def test_a_batch_that_is_not_appended_leaves_nothing(bench: Workbench) -> None:
    log = bench.open()
    once = produced(7, 0, count=2)
    log.append_as_leader(once, EPOCH)
    staged = await log.stage(prepared(once))
    assert log.append_as_leader(staged, EPOCH).duplicate
    staged.drop()
    check_whole(bench, log, 2)


async def test_a_closed_log_keeps_nothing_of_it(bench: Workbench) -> None:
    log = bench.open()
    log.append_as_leader(SMALL, EPOCH)
    staged = await log.stage(prepared(LARGE))
    await bench.disk.run(log.close)
    assert on_disk(log) == log.size_bytes
    staged.drop()
    again = bench.open(recovery_point=1)
    assert (again.log_end_offset, again.size_bytes) == (1, len(SMALL))


class Slowly:
    """The thread writes in many small steps, and tells when it has begun."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(real_disk, "_STAGED_AT_ONCE", 1_000)
        self.reached = threading.Event()
        plain = real_disk.os.pwrite

        def told(fd: int, data: memoryview, position: int) -> int:
            written = plain(fd, data, position)
            self.reached.set()
            return written

        monkeypatch.setattr(real_disk.os, "pwrite", told)


@pytest.mark.parametrize("close", [False, True])
async def test_the_thread_stops_when_its_bytes_are_dropped(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, close: bool
) -> None:
    log = bench.open()
    log.append_as_leader(SMALL, EPOCH)
    slowly = Slowly(monkeypatch)
    staging: Awaitable[PreparedAppend] = asyncio.create_task(log.stage(prepared(batch("x" * 5_000_000))))
    await asyncio.sleep(0)
    await asyncio.to_thread(slowly.reached.wait)
    if close:
        log.close_files()
    else:
        log.append_as_leader(SMALL, EPOCH)
    size = on_disk(log)
    staged = await staging
    assert on_disk(log) == size == log.size_bytes, "the thread writes nothing more"
    staged.drop()


async def test_a_cancelled_request_leaves_nothing(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    log = bench.open()
    slowly = Slowly(monkeypatch)
    staging = asyncio.create_task(log.stage(prepared(batch("x" * 5_000_000))))
    await asyncio.sleep(0)
    await asyncio.to_thread(slowly.reached.wait)
    staging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await staging
    log.append_as_leader(SMALL, EPOCH)
    await bench.disk.run(lambda: None)
    check_whole(bench, log, 1)


async def test_a_full_disk_refuses_it(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    log = bench.open()
    log.append_as_leader(SMALL, EPOCH)

    def full(fd: int, data: memoryview, position: int) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(real_disk.os, "pwrite", full)
        with pytest.raises(KafkaError) as caught:
            await log.stage(prepared(LARGE))
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert not log.failed
    log.append_as_leader(SMALL, EPOCH)
    check_whole(bench, log, 2)


def _no_truncation(fd: int, size: int) -> None:
    raise OSError(5, "Input/output error")


async def test_bytes_that_cannot_be_cut_off_concern_their_log_alone(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request that staged them has other partitions: it must see an error of this log, if any."""
    log = bench.open()
    log.append_as_leader(SMALL, EPOCH)
    staged = await log.stage(prepared(LARGE))
    monkeypatch.setattr(real_disk.os, "ftruncate", _no_truncation)
    staged.drop()
    assert log.failed
    assert [error.errno for error in bench.owner.failures] == [5]


async def test_a_batch_that_cannot_be_written_nor_cut_off(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    log = bench.open()

    def full(fd: int, data: memoryview, position: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(real_disk.os, "pwrite", full)
    monkeypatch.setattr(real_disk.os, "ftruncate", _no_truncation)
    with pytest.raises(KafkaError) as caught:
        await log.stage(prepared(LARGE))
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.failed


# --- what a follower fetched -----------------------------------------------------------------------------------------


def replicated(offset: int, *values: str) -> bytes:
    return batch(*values, base_offset=offset, leader_epoch=3)


@pytest.fixture
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "STAGED_BYTES_MIN", 50_000)


@pytest.mark.usefixtures("small_is_large")
async def test_a_follower_writes_a_large_batch_off_the_loop(bench: Workbench) -> None:
    plain = bench.open(directory=bench.directory / "plain")
    log = bench.open()
    large = replicated(1, "x" * 60_000)
    for one in (plain, log):
        one.append_as_follower(replicated(0, "a"))
    prepared = await log.prepare_replicated(large)
    assert prepared.staged is not None
    assert (log.log_end_offset, on_disk(log) > log.size_bytes) == (1, True), "written, but not appended"
    assert log.append_as_follower(prepared) == plain.append_as_follower(large)
    prepared.drop()
    assert files(log) == files(plain)
    check_whole(bench, log, 2)


@pytest.mark.usefixtures("small_is_large")
async def test_a_follower_whose_log_changes_meanwhile(bench: Workbench) -> None:
    log = bench.open()
    log.append_as_follower(replicated(0, "a"))
    prepared = await log.prepare_replicated(replicated(1, "x" * 60_000))
    log.roll()
    log.append_as_follower(prepared)
    assert read_all(log) == [0, 1]
    late = await log.prepare_replicated(replicated(2, "y" * 60_000))
    log.append_as_follower(replicated(2, "b"))
    with pytest.raises(UnexpectedAppendOffset):
        log.append_as_follower(late)
    for one in (prepared, late):
        one.drop()
    check_whole(bench, log, 3)


async def test_small_batches_of_a_large_answer_are_checked_off_the_loop(bench: Workbench) -> None:
    log = bench.open(TopicConfig(segment_bytes=150))
    answer = b"".join(replicated(number, "v") for number in range(6))
    prepared = await log.prepare_replicated(answer)
    assert prepared.staged is None
    log.append_as_follower(prepared)
    assert (read_all(log), len(log.segments) > 1) == (list(range(6)), True)


async def test_a_damaged_answer_is_refused_before_anything_is_written(bench: Workbench) -> None:
    log = bench.open()
    damaged = bytearray(replicated(0, "x" * 60_000))
    damaged[-1] ^= 1
    with pytest.raises(KafkaError) as caught:
        await log.prepare_replicated(damaged)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert on_disk(log) == 0
