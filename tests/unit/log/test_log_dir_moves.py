"""A replica moves to another directory while it is in use: nothing is lost, whatever happens during the move."""

from __future__ import annotations

import asyncio
import errno
import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest

from klamm.log.directories.log_directory import MOVED_HERE
from klamm.log.directory_moves.log_dir_move import LogDirMove
from klamm.log.disk import FileDisk
from klamm.log.log import Log
from klamm.log.recovery import LoadedLog, load_log
from klamm.model.config import TopicConfig
from klamm.model.errors import ConfigError, ErrorCode, KafkaError
from klamm.model.ids import LeaderEpoch, TopicPartition

from .conftest import append, read_all
from .test_log_manager import CONFIG, create, failing, manager, one, started, tp, two

__all__ = ["one", "two"]
T0 = tp("t-0")


def content(log: Log) -> bytes:
    found, offset = b"", log.log_start_offset
    while offset < log.log_end_offset:
        read = log.read(offset, 1 << 20, upper_bound=log.log_end_offset, at_least_one=True)
        found, offset = found + bytes(read.records), read.next_offset
    return found


async def test_everything_moves_and_the_old_directory_goes(disk: FileDisk, one: Path, two: Path) -> None:
    async with started(disk, one, two) as logs:
        log = await create(logs, T0, CONFIG)
        for number in range(40):
            append(log, f"record {number}")
        log.epochs.assign(LeaderEpoch(9), log.log_end_offset)  # an epoch without records
        log.update_high_watermark(30)
        before, source = content(log), Path(log.directory).parent
        target = next(d for d in logs.directories if Path(d.path) != source)

        assert await logs.dir_moves.move(T0, target)

        moved = logs.get(T0)
        assert moved is not None
        assert moved is not log
        assert Path(moved.directory) == Path(target.path) / "t-0"
        assert content(moved) == before
        assert moved.high_watermark == 30
        assert moved.epochs.entries == log.epochs.entries
        assert (moved.log_start_offset, moved.log_end_offset) == (log.log_start_offset, log.log_end_offset)
        assert len(list(moved.segments)) > 1
        assert [p.name for p in source.iterdir() if p.name.startswith("t-0") and not p.name.endswith("-delete")] == []
        append(moved, "and on")
    async with started(disk, one, two) as logs:
        again = logs.get(T0)
        assert again is not None
        assert Path(again.directory) == Path(target.path) / "t-0"
        assert content(again).startswith(before)
        assert again.high_watermark == 30


@pytest.mark.case("FET-20")
async def test_appends_and_truncations_meanwhile(
    disk: FileDisk, one: Path, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(disk, one, two) as logs:
        log = await create(logs, T0, CONFIG)
        for number in range(20):
            append(log, f"old {number}")
        target = next(d for d in logs.directories if Path(d.path) != Path(log.directory).parent)
        monkeypatch.setattr("klamm.log.directory_moves.log_dir_move.CHUNK_BYTES", 100)
        copy_chunk, count = LogDirMove.copy_chunk, 0

        def interfering(self: LogDirMove) -> bool:
            nonlocal count
            count += 1
            if count == 5:
                log.truncate_to(3)  # below the end of the copy
                for number in range(20):
                    append(log, f"new {number}", epoch=1)
            if count == 12:
                append(log, "late", epoch=1)
            return copy_chunk(self)

        monkeypatch.setattr(LogDirMove, "copy_chunk", interfering)
        expected_end = 24
        assert await logs.dir_moves.move(T0, target)
        moved = logs.get(T0)
        assert moved is not None
        assert moved.log_end_offset == expected_end
        found = content(moved)
        assert all(word in found for word in (b"old 2", b"new 0", b"new 19", b"late"))
        assert b"old 3" not in found
        assert moved.epochs.entries == log.epochs.entries


@pytest.mark.case("FET-20")
async def test_one_replica_moves_at_a_time_and_is_exchanged_when_it_has_caught_up(
    disk: FileDisk, one: Path, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(disk, one, two) as logs:
        names = [T0, tp("t-1"), tp("t-2")]
        before = {name: await create(logs, name, CONFIG) for name in names}
        targets = {}
        for name, log in before.items():
            for number in range(20):
                append(log, f"{name} {number}")
            targets[name] = next(d for d in logs.directories if Path(d.path) != Path(log.directory).parent)
        monkeypatch.setattr("klamm.log.directory_moves.log_dir_move.CHUNK_BYTES", 100)
        copy_chunk, copied = LogDirMove.copy_chunk, []
        finished: list[tuple[TopicPartition, int]] = []

        def watched(self: LogDirMove) -> bool:
            name = self.current.topic_partition
            assert [other for other in names if logs.dir_moves.under_way(other)] == [name]
            assert logs.get(name) is self.current, "it is exchanged at the end"
            copied.append(name)
            is_complete = copy_chunk(self)
            if is_complete and self.current.log_end_offset == 20:
                append(self.current, f"{name} meanwhile")  # while the copy is being flushed
            return is_complete

        def moved(name: TopicPartition) -> None:
            assert logs.dir_moves.under_way(name) is None
            finished.append((name, before[name].log_end_offset))

        monkeypatch.setattr(LogDirMove, "copy_chunk", watched)
        logs.dir_moves.on_moved = moved
        for name in (*names, tp("unknown-0")):
            logs.dir_moves.request(name, targets.get(name, next(iter(logs.directories))))
        moving = asyncio.create_task(logs.dir_moves.run())
        async with asyncio.timeout(10):
            while len(finished) < len(names):
                await asyncio.sleep(0.001)
        moving.cancel()
        assert [name for name, _ in itertools.groupby(copied)] == names
        assert min(copied.count(name) for name in names) > 3
        assert finished == [(name, 21) for name in names]
        for name, log in before.items():
            now = logs.get(name)
            assert now is not None
            assert (now is log, logs.home_of(name)) == (False, targets[name])
            assert read_all(now) == list(range(21))
            assert b"%s meanwhile" % str(name).encode() in content(now)


async def test_a_target_that_fails_leaves_the_replica_where_it_is(
    disk: FileDisk, one: Path, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(disk, one, two) as logs:
        log = await create(logs, T0, CONFIG)
        append(log, "kept")
        target = next(d for d in logs.directories if Path(d.path) != Path(log.directory).parent)
        monkeypatch.setattr(disk, "rename", failing)
        assert not await logs.dir_moves.move(T0, target)
        assert logs.get(T0) is log
        assert logs.directories.offline() == [target.path]
        append(log, "and on")


async def test_a_copy_that_cannot_be_opened_leaves_one_partition_not_two(
    disk: FileDisk, one: Path, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged_in_its_place(disk: FileDisk, directory: str, config: TopicConfig, **kwargs: Any) -> LoadedLog:
        if directory.endswith("/t-0"):
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "damaged")
        return load_log(disk, directory, config, **kwargs)

    async with started(disk, one, two) as logs:
        log = await create(logs, T0, CONFIG)
        append(log, "kept")
        target = next(d for d in logs.directories if Path(d.path) != Path(log.directory).parent)
        monkeypatch.setattr("klamm.log.directory_moves.log_dir_moves.load_log", damaged_in_its_place)
        assert not await logs.dir_moves.move(T0, target)
        assert logs.get(T0) is log
    monkeypatch.undo()
    async with started(disk, one, two) as logs:
        again = logs.get(T0)
        assert again is not None
        assert again.log_end_offset == 1


async def test_a_crash_between_the_two_renames_leaves_one_log(
    disk: FileDisk, one: Path, two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed = [tmp_path / "crashed" / path.name for path in (one, two)]

    async with started(disk, one, two) as logs:
        log = await create(logs, T0, CONFIG)
        append(log, "kept")
        before, source = content(log), Path(log.directory).parent
        target = next(d for d in logs.directories if Path(d.path) != source)
        replace = logs.replace

        def copied_before(*args: Any) -> None:
            for path, copy in zip((one, two), crashed, strict=True):
                shutil.copytree(path, copy)
            replace(*args)

        monkeypatch.setattr(logs, "replace", copied_before)
        assert await logs.dir_moves.move(T0, target)
    assert all((path / "t-0").exists() for path in crashed)

    async with started(disk, *crashed) as logs:
        kept = logs.get(T0)
        assert kept is not None
        assert (content(kept), Path(kept.directory).parent.name) == (before, Path(target.path).name)
        append(kept, "and on")
        former = next(d for d in logs.directories if Path(d.path).name == source.name)
        assert not Path(former.file("t-0")).exists()
        logs.dir_moves.request(T0, former)  # the file of the former move does no harm
        moving = asyncio.create_task(logs.dir_moves.run())
        async with asyncio.timeout(5):
            while logs.home_of(T0) is not former or Path(former.file("t-0"), MOVED_HERE).exists():
                await asyncio.sleep(0.001)
        moving.cancel()
    async with started(disk, *crashed) as logs:
        assert logs.home_of(T0) is not None


@pytest.mark.parametrize("moved", [(), (0, 1)], ids=["neither has moved", "both have moved"])
async def test_without_proof_of_a_move_a_partition_in_two_places_stops_the_start(
    disk: FileDisk, one: Path, two: Path, moved: tuple[int, ...]
) -> None:
    for number, path in enumerate((one, two)):
        (path / "t-0").mkdir(parents=True)
        if number in moved:
            (path / "t-0" / MOVED_HERE).touch()
    with pytest.raises(ConfigError, match="t-0 exists twice"):
        await manager(disk, one, two).load(lambda topic: CONFIG)
    assert (one / "t-0").exists() and (two / "t-0").exists()


async def test_a_directory_that_cannot_give_up_what_has_moved_goes_offline(
    disk: FileDisk, one: Path, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("t-0", "t-1"):
        for path in (one, two):
            (path / name).mkdir(parents=True)
        (two / name / MOVED_HERE).touch()

    def refuse(source: str, target: str) -> None:
        raise OSError(errno.EROFS, "read-only file system")

    monkeypatch.setattr(disk, "rename", refuse)
    async with started(disk, one, two) as logs:
        assert [Path(path) for path in logs.directories.offline()] == [one]
        assert {logs.home_of(tp(name)).path for name in ("t-0", "t-1")} == {str(two)}
    assert (one / "t-0").exists()


async def test_copies_of_the_previous_run_are_removed(disk: FileDisk, one: Path, two: Path) -> None:
    async with started(disk, one, two) as logs:
        home = Path((await create(logs, T0, CONFIG)).directory).parent
    other = two if home == one else one
    left = other / f"t-0.{'a' * 32}-future"
    left.mkdir()
    async with started(disk, one, two) as logs:
        assert logs.get(T0) is not None
    assert not left.exists()


async def test_a_replica_is_created_where_it_was_wished(disk: FileDisk, one: Path, two: Path) -> None:
    async with started(disk, one, two) as logs:
        wished = next(d for d in logs.directories if Path(d.path) == two)
        for number in range(3):
            logs.prefer(tp(f"t-{number}"), wished)
        made = await logs.create_many((tp(f"t-{number}"), CONFIG, True) for number in range(3))
        assert {Path(log.directory).parent for log in made.values()} == {two}  # type: ignore[union-attr]


async def test_a_move_that_is_cancelled_or_wished_later(
    disk: FileDisk, one: Path, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(disk, one, two) as logs:
        log = await create(logs, T0, CONFIG)
        for number in range(20):
            append(log, f"{number}")
        target = next(d for d in logs.directories if Path(d.path) != Path(log.directory).parent)
        monkeypatch.setattr("klamm.log.directory_moves.log_dir_move.CHUNK_BYTES", 100)
        moved: list[TopicPartition] = []
        logs.dir_moves.on_moved = moved.append
        moving = asyncio.create_task(logs.dir_moves.run())
        await asyncio.sleep(0)  # it waits for a request
        logs.dir_moves.request(T0, target)
        async with asyncio.timeout(10):
            while (move := logs.dir_moves.under_way(T0)) is None or move.copy is None:
                await asyncio.sleep(0)
        assert 0 < move.lag <= 20
        logs.dir_moves.cancel(T0)
        async with asyncio.timeout(10):
            while logs.dir_moves.under_way(T0) is not None or list(Path(target.path).glob("*-future")):
                await asyncio.sleep(0.001)
        assert (logs.get(T0), moved) == (log, [])
        logs.dir_moves.request(T0, target)
        async with asyncio.timeout(10):
            while not moved:
                await asyncio.sleep(0.001)
        moving.cancel()
        now = logs.get(T0)
        assert now is not None and logs.home_of(T0) is target
        assert read_all(now) == list(range(20))


async def test_the_log_start_advances_and_the_log_is_deleted_during_a_move(
    disk: FileDisk, one: Path, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(disk, one, two) as logs:
        log = await create(logs, T0, CONFIG)
        for number in range(20):
            append(log, f"{number}")
        log.update_high_watermark(20)
        target = next(d for d in logs.directories if Path(d.path) != Path(log.directory).parent)
        monkeypatch.setattr("klamm.log.directory_moves.log_dir_move.CHUNK_BYTES", 100)
        moving = asyncio.create_task(logs.dir_moves.move(T0, target))
        while (move := logs.dir_moves.under_way(T0)) is None or move.copy is None or not move.copy.log_end_offset:
            await asyncio.sleep(0)
        log.advance_log_start(15)
        await asyncio.sleep(0)
        assert move.copy.log_start_offset == 15, "nothing below it is copied"
        logs.delete(T0)
        assert not await moving
        assert logs.get(T0) is None
        assert logs.directories.offline() == []


async def test_checkpoints_and_timers_follow_a_move(disk: FileDisk, one: Path, two: Path) -> None:
    """After a crash the offsets must be known where the log is, and nowhere else. A timer of the former log must not
    keep the new one from being flushed in time."""
    async with started(disk, one, two) as logs:
        log = await create(logs, T0, TopicConfig(flush_ms=60_000))
        for number in range(5):
            append(log, f"{number}")
        log.update_high_watermark(5)
        log.advance_log_start(3)
        source = Path(log.directory).parent
        target = next(d for d in logs.directories if Path(d.path) != source)
        assert await logs.dir_moves.move(T0, target)
        for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
            assert "t 0 " in Path(target.path, name).read_text()
            assert "t 0 " not in (source / name).read_text()
        assert "t 0 " not in (source / "log-start-offset-checkpoint").read_text()
        now = logs.get(T0)
        assert now is not None
        append(now, "on")
        assert logs._flushes._timers[T0]._args == (now,)  # type: ignore[attr-defined]
