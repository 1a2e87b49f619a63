"""A failure concerns one thing: one request, one log or one directory. Its neighbours go on, and the reason is told."""

from __future__ import annotations

import asyncio
import errno
import logging
from dataclasses import replace

import pytest

from klamm.log import log_loading
from klamm.log.log import Log
from klamm.model.config import TopicConfig
from klamm.model.errors import ConfigError, ErrorCode, KafkaError
from klamm.wire.batch import iter_batches
from klamm.wire.records import Record, build_batch

from .conftest import append, read_all
from .simulated import BROKER, A, B, created, new_disk, opened

TWO = replace(BROKER, log_dirs=("/data/1", "/data/2"))
COMPACTED = TopicConfig(
    cleanup_policy=("compact",), segment_bytes=200, max_compaction_lag_ms=1, min_cleanable_dirty_ratio=0.0
)


def refused(log: Log, code: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR) -> None:
    with pytest.raises(KafkaError) as caught:
        append(log, "refused")
    assert caught.value.code is code


# --- a full disk, too few descriptors --------------------------------------------------------------------------------


async def test_a_full_disk_refuses_appends_until_there_is_room() -> None:
    disk = new_disk()
    logs = await opened(disk)
    log = await created(logs)
    append(log, "before")
    disk.room = 30  # a part of the next batch fits
    refused(log)
    refused(log)
    assert read_all(log) == [0]
    assert not log.failed
    assert not logs.directories.offline()
    disk.room = None
    append(log, "after")
    assert read_all(log) == [0, 1]
    await logs.close()
    again = await created(await opened(disk))
    assert read_all(again) == [0, 1]


async def test_a_full_disk_refuses_a_followers_append_and_a_roll() -> None:
    disk = new_disk()
    logs = await opened(disk)
    log = await created(logs, TopicConfig(segment_bytes=100))
    first, second = (build_batch([Record(b"k", b"v" * 20, 1)], base_offset=n, leader_epoch=0) for n in (0, 1))
    log.append_as_follower(first)
    disk.room = 0
    with pytest.raises(KafkaError):
        log.append_as_follower(second)
    disk.room = None
    log.append_as_follower(second)
    assert read_all(log) == [0, 1]


async def test_retention_makes_room_on_a_full_disk() -> None:
    disk = new_disk()
    logs = await opened(disk)
    log = await created(logs, TopicConfig(segment_bytes=100, retention_bytes=100))
    for number in range(5):
        append(log, f"{number}" * 30, epoch=number)
    log.update_high_watermark(log.log_end_offset)
    disk.room = 0
    assert await logs.apply_retention() == 3
    assert log.log_start_offset == 3


async def test_a_flush_without_room_is_repeated() -> None:
    disk = new_disk()
    logs = await opened(disk)
    log = await created(logs, TopicConfig(flush_messages=1))
    flushed = asyncio.Event()
    logs.on_flushed = lambda _: flushed.set()
    disk.room = 150
    append(log, "v")  # fits, but the file of its leader epoch does not
    disk.room = 0
    with pytest.raises(KafkaError):
        await log.flush()
    assert not log.failed
    disk.room = None
    async with asyncio.timeout(5):
        await flushed.wait()
    assert log.recovery_point == 1
    assert disk.read("/data/1/a-0/leader-epoch-checkpoint") == b"0\n1\n0 0\n"


async def test_a_checkpoint_without_room_takes_nothing_offline() -> None:
    disk = new_disk()
    logs = await opened(disk)
    log = await created(logs)
    append(log, "v")
    disk.room = 0
    await logs.checkpoint_recovery_points()
    await logs.checkpoint_high_watermarks()
    assert not logs.directories.offline()
    disk.room = None
    await logs.checkpoint_recovery_points()
    assert disk.read("/data/1/recovery-point-offset-checkpoint") == b"0\n1\na 0 0\n"


async def test_too_few_descriptors_refuse_one_request() -> None:
    disk = new_disk()
    logs = await opened(disk)
    log = await created(logs)
    disk.descriptors_max = 0
    refused(log)
    assert not logs.directories.offline()
    disk.descriptors_max = None
    append(log, "v")
    assert read_all(log) == [0]


async def test_a_sync_that_fails_condemns_the_directory_whatever_its_reason() -> None:
    disk = new_disk()
    logs = await opened(disk)
    log = await created(logs)
    append(log, "v")

    def fail(operation: str, path: str) -> None:
        if operation == "sync" and path.endswith(".log"):
            raise OSError(errno.ENOSPC, "quota exceeded while writing back", path)

    disk.before = fail
    with pytest.raises(KafkaError):
        await log.flush()
    assert logs.directories.offline() == ["/data/1"]


# --- one log ---------------------------------------------------------------------------------------------------------


async def test_a_defect_after_the_write_takes_one_log_offline_and_repeats_no_offset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = new_disk()
    logs = await opened(disk)
    log, other = await created(logs), await created(logs, name=B)
    gone: list[object] = []
    logs.on_offline = lambda path, names: gone.append((path, names))
    append(log, "v")
    monkeypatch.setattr(log.epochs, "assign", _broken)
    with pytest.raises(ZeroDivisionError):
        append(log, "w", epoch=1)
    refused(log)
    assert (dict(logs.offline), gone) == ({A: "a defect"}, [("/data/1/a-0", [A])])
    assert logs.get(A) is None
    append(other, "v")
    await logs.close()
    assert not disk.exists("/data/1/.kafka_cleanshutdown")
    found = (await opened(disk)).get(A)
    assert found is not None
    append(found, "x", epoch=2)
    data = disk.read("/data/1/a-0/00000000000000000000.log")
    assert [header.base_offset for _, header in iter_batches(data)] == [0, 1, 2]


def _broken(*_: object) -> bool:
    raise ZeroDivisionError("a defect")


async def test_a_marker_that_cannot_be_read_is_refused_before_the_write() -> None:
    disk = new_disk()
    log = await created(await opened(disk))
    good = build_batch([Record(b"k", b"v", 1)], leader_epoch=0)
    options = {"producer_id": 7, "producer_epoch": 0, "transactional": True, "control": True}
    bad = build_batch([Record(None, None, 1)], base_offset=1, leader_epoch=0, **options)  # type: ignore[arg-type]
    with pytest.raises(KafkaError) as caught:
        log.append_as_follower(good + bad)
    assert caught.value.code is ErrorCode.INVALID_RECORD
    assert disk.read("/data/1/a-0/00000000000000000000.log") == b""
    assert not log.failed


async def test_a_log_whose_opening_fails_unexpectedly_stays_offline_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = new_disk()
    logs = await opened(disk)
    for name in (A, B):
        append(await created(logs, name=name), "v")
    await logs.close()
    real = log_loading.load_log

    def load(disk: object, path: str, *args: object, **options: object) -> object:
        if path.endswith("a-0"):
            raise ZeroDivisionError("a defect")
        return real(disk, path, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(log_loading, "load_log", load)
    logs = await opened(disk)
    assert dict(logs.offline) == {A: "a defect"}
    assert logs.get(B) is not None
    assert "/data/1/a-0 cannot be opened" in caplog.text


@pytest.mark.parametrize("content", [b"\x00\xff\x17", b"0\n2\n0 0\n", b"0\n1\nx y\n", b"7\n0\n"])
@pytest.mark.parametrize("clean", [True, False])
async def test_a_garbled_file_of_leader_epochs_is_rebuilt(content: bytes, clean: bool) -> None:
    disk = new_disk()
    logs = await opened(disk)
    log = await created(logs, TopicConfig(segment_bytes=150))
    for epoch in (0, 0, 3, 3, 5):
        append(log, "v" * 20, epoch=epoch)
    entries = log.epochs.entries
    await logs.close()
    disk.write_atomically("/data/1/a-0/leader-epoch-checkpoint", content)
    if not clean:
        disk.remove("/data/1/.kafka_cleanshutdown")
    found = (await opened(disk, TopicConfig(segment_bytes=150))).get(A)
    assert found is not None
    assert found.epochs.entries == entries


async def test_retention_goes_on_after_a_log_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = await opened(new_disk())
    first, second = await created(logs), await created(logs, name=B)
    for log in (first, second):
        log.config = TopicConfig(segment_bytes=100, retention_bytes=0)
        for _ in range(3):
            append(log, "v" * 30)
        log.update_high_watermark(3)
    monkeypatch.setattr(first, "delete_oldest", _broken)
    assert await logs.apply_retention() == 3
    assert logs.guard.failures["retention"] == 1


# --- the cleaner -----------------------------------------------------------------------------------------------------


async def test_one_flipped_bit_makes_one_log_uncleanable() -> None:
    disk = new_disk()
    broker = replace(BROKER, log_cleaner_enable=True)
    logs = await opened(disk, broker=broker)
    for name in (A, B):
        log = await created(logs, COMPACTED, name)
        for _ in range(12):
            append(log, "v" * 40)
        log.update_high_watermark(12)
        await log.flush()
    await logs.close()
    logs = await opened(disk, COMPACTED, broker)  # nothing of the segments is in memory
    victim = [name for name in disk.list("/data/1/a-0") if name.endswith(".log")][1]
    disk.corrupt(f"/data/1/a-0/{victim}", 16, 4)
    assert await logs.cleaner.clean_filthiest()
    assert "unknown message format 6" in logs.cleaner.uncleanable[A]
    assert B not in logs.cleaner.uncleanable
    directory = logs.home_of(A)
    assert directory is not None
    assert logs.cleaner.uncleanable_bytes_in(directory) > 0


async def test_the_cleaner_rests_while_the_disk_is_full() -> None:
    disk = new_disk()
    logs = await opened(disk)
    log = await created(logs, COMPACTED)
    for _ in range(12):
        append(log, "v" * 40)
    log.update_high_watermark(12)
    await log.flush()
    disk.room = 0
    assert not await logs.cleaner.clean_filthiest()
    assert not log.failed
    disk.room = None
    assert await logs.cleaner.clean_filthiest()
    assert read_all(log)[-1] == 11


# --- directories -----------------------------------------------------------------------------------------------------


async def test_the_death_of_the_last_directory_is_told_once() -> None:
    disk = new_disk(directories=TWO.log_dirs)
    logs = await opened(disk, broker=TWO)
    told: list[int] = []
    logs.on_all_offline = lambda: told.append(1)
    first, second = await created(logs), await created(logs, name=B)
    disk.fail("/data/1")
    disk.fail("/data/2")
    refused(first)
    assert told == []
    refused(second)
    assert told == [1]


async def test_a_directory_that_is_dead_at_the_start_is_named(caplog: pytest.LogCaptureFixture) -> None:
    disk = new_disk(directories=TWO.log_dirs)
    disk.fail("/data/2")
    with caplog.at_level(logging.ERROR):
        logs = await opened(disk, broker=TWO)
    assert logs.directories.offline() == ["/data/2"]
    assert "log directory /data/2 cannot be used and is offline" in caplog.text


async def test_no_directory_that_can_be_listed() -> None:
    disk = new_disk()
    disk.before = _fail_list
    with pytest.raises(ConfigError, match="none of /data/1 can be used"):
        await opened(disk)


def _fail_list(operation: str, path: str) -> None:
    if operation == "list":
        raise OSError(errno.EIO, "broken", path)


# --- deletions that are not certain ----------------------------------------------------------------------------------


@pytest.mark.parametrize("passes", [False, True])
async def test_a_deletion_that_cannot_be_made_safe_is_not_done(passes: bool) -> None:
    """A power cut may bring the log back, or its recovery point would hold for the next log of this name."""
    disk = new_disk(directories=TWO.log_dirs)
    logs = await opened(disk, broker=TWO)
    log = await created(logs)
    append(log, "of the former life")
    logs.delete(A)
    home = log.directory.rpartition("/")[0]
    disk.fail(home, errno.ENOSPC if passes else errno.EIO)
    assert await logs.settle_deletions() == {A}
    assert await logs.settle_deletions() == {A}, "a repeated deletion is not done either"
    assert logs.directories.offline() == ([] if passes else [home])
    again = (await logs.create_many([(A, TopicConfig(), True), (B, TopicConfig(), True)]))[A]
    assert isinstance(again, KafkaError)
    assert again.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert (logs.get(A), logs.get(B) is None) == (None, passes), "the full directory has the fewest logs"
    disk.heal(home)
    assert await logs.settle_deletions() == (set() if passes else {A})
    await logs.close()


async def test_a_log_that_is_set_aside_must_stay_there() -> None:
    disk = new_disk(directories=TWO.log_dirs)
    logs = await opened(disk, broker=TWO)
    append(await created(logs), "of the former life")
    home = logs.home_of(A)
    assert home is not None

    def fail_sync(operation: str, path: str) -> None:
        if operation == "sync_directory":
            raise OSError(errno.EIO, "Input/output error", path)

    disk.before = fail_sync
    with pytest.raises(KafkaError):
        await logs.set_aside(A)
    disk.before = None
    assert (logs.stray_count, home.failure is None) == (0, False)


async def test_deletions_that_are_settled_at_once_leave_no_file_open() -> None:
    disk = new_disk()
    logs = await opened(disk)
    before = disk._descriptors
    for name in (A, B):
        append(await created(logs, name=name), "v")
        logs.delete(name)
    assert disk._descriptors == before
    assert await asyncio.gather(logs.settle_deletions(), logs.settle_deletions()) == [set(), set()]
    disk.cut_power()
    disk.restore_power()
    again = await opened(disk)
    assert (again.get(A), again.get(B)) == (None, None)
