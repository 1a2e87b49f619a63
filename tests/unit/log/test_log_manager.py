"""All logs of a broker: directories, locks, checkpoints, clean and unclean stops, directories that fail."""

from __future__ import annotations

import asyncio
import random
import re
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from klamm.log import log_loading
from klamm.log.directories.offset_checkpoints import OffsetCheckpoints
from klamm.log.directories.topic_lives import TopicLife
from klamm.log.disk import FileDisk
from klamm.log.log import Log
from klamm.log.log_manager import LogManager
from klamm.log.segments.retention import SEGMENTS_AT_ONCE
from klamm.model.config import BrokerConfig, TopicConfig
from klamm.model.errors import ConfigError, ErrorCode, KafkaError
from klamm.model.ids import BrokerId, LeaderEpoch, TopicPartition

from .conftest import SetClock, append, produced, read_all

CONFIG = TopicConfig(segment_bytes=500)


def manager(disk: FileDisk, *directories: Path, **settings: int) -> LogManager:
    config = BrokerConfig(zookeeper_connect="none", log_dirs=tuple(map(str, directories)), **settings)
    return LogManager(disk, SetClock(), config, random.Random(1))


@asynccontextmanager
async def started(disk: FileDisk, *directories: Path, **settings: int) -> AsyncIterator[LogManager]:
    logs = manager(disk, *directories, **settings)
    logs.directories.lock()
    await logs.load(lambda topic: CONFIG)
    async with logs.running():
        yield logs


async def create(logs: LogManager, partition: TopicPartition, config: TopicConfig, *, is_new: bool = True) -> Log:
    created = (await logs.create_many([(partition, config, is_new)]))[partition]
    if isinstance(created, KafkaError):
        raise created
    return created


def storage_error() -> pytest.RaisesExc[KafkaError]:
    return pytest.RaisesExc(KafkaError, check=lambda error: error.code is ErrorCode.KAFKA_STORAGE_ERROR)


def failing(*args: object, **kwargs: object) -> None:
    raise OSError(5, "Input/output error")


def tp(name: str) -> TopicPartition:
    topic, _, partition = name.rpartition("-")
    return TopicPartition(topic, int(partition))


@pytest.fixture
def one(tmp_path: Path) -> Path:
    return tmp_path / "one"


@pytest.fixture
def two(tmp_path: Path) -> Path:
    return tmp_path / "two"


async def test_a_clean_stop_keeps_logs_and_checkpoints(disk: FileDisk, one: Path) -> None:
    async with started(disk, one) as logs:
        for name in ("a-0", "a-1", "b-c-2"):
            log = await create(logs, tp(name), CONFIG)
            for _ in range(20):
                append(log, "v")
            log.update_high_watermark(20)
        log.advance_log_start(3)
    assert (one / "replication-offset-checkpoint").read_text() == "0\n3\na 0 20\na 1 20\nb-c 2 20\n"
    assert (one / "recovery-point-offset-checkpoint").read_text() == "0\n3\na 0 20\na 1 20\nb-c 2 20\n"
    assert (one / "log-start-offset-checkpoint").read_text() == "0\n1\nb-c 2 3\n"
    assert (one / ".kafka_cleanshutdown").read_bytes() == b""
    async with started(disk, one) as logs:
        assert not (one / ".kafka_cleanshutdown").exists()
        assert [str(log.topic_partition) for log in logs.logs()] == ["a-0", "a-1", "b-c-2"]
        for log in logs.logs():
            assert (log.high_watermark, log.log_end_offset) == (20, 20)
        assert read_all(log) == list(range(3, 20))


async def test_a_new_leader_epoch_reaches_its_file_a_little_later(
    disk: FileDisk, one: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if no record follows: the requested flush writes the epochs too."""
    monkeypatch.setattr("klamm.log.log.EPOCHS_FLUSH_MS", 1)
    async with started(disk, one) as logs:
        log = await create(logs, tp("t-0"), CONFIG)
        log.epochs.assign(LeaderEpoch(7), 0)
        written = one / "t-0" / "leader-epoch-checkpoint"
        while not (written.exists() and "7 0" in written.read_text()):
            await asyncio.sleep(0.001)
        assert not log.epochs.dirty


async def test_a_killed_broker_recovers_what_it_wrote(disk: FileDisk, one: Path, tmp_path: Path) -> None:
    async with started(disk, one) as logs:
        log = await create(logs, tp("a-0"), CONFIG)
        for _ in range(20):
            append(log, "v", epoch=3)
        log.update_high_watermark(18)
        await logs.checkpoint_high_watermarks()
        # A flush may be running, as in a process that is killed; its temporary files may vanish during the copy.
        shutil.copytree(one, tmp_path / "killed", ignore=shutil.ignore_patterns("*.tmp"))
        (tmp_path / "killed" / "a-0" / "leader-epoch-checkpoint.tmp").write_bytes(b"half")
    async with started(disk, tmp_path / "killed") as logs:
        again = logs.get(tp("a-0"))
        assert again is not None
        assert (again.log_end_offset, again.high_watermark, again.epochs.latest_epoch) == (20, 18, 3)


class Killed(BaseException): ...


async def test_a_crash_while_loading_counts_as_unclean(
    disk: FileDisk, one: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(disk, one) as logs:
        append(await create(logs, tp("a-0"), CONFIG), "v")
    logs = manager(disk, one)
    monkeypatch.setattr("klamm.log.log_loading.load_log", lambda *a, **k: (_ for _ in ()).throw(Killed()))
    with pytest.RaisesGroup(Killed):
        await logs.load(lambda topic: CONFIG)
    assert not (one / ".kafka_cleanshutdown").exists()


@pytest.mark.case("LOG-21")
async def test_a_directory_has_one_owner(disk: FileDisk, one: Path) -> None:
    async with started(disk, one):
        with pytest.raises(ConfigError, match="in use"):
            manager(disk, one).directories.lock()
    second = manager(disk, one)
    second.directories.lock()
    second.directories.unlock()


async def test_meta_properties(disk: FileDisk, one: Path, two: Path) -> None:
    logs = manager(disk, one, two)
    logs.directories.lock()
    assert logs.directories.read_meta() == (None, None)
    await logs.load(lambda _: CONFIG)
    logs.directories.verify_meta(BrokerId(4), "cluster-A")
    assert not (one / "meta.properties").exists()
    logs.write_meta(BrokerId(4), "cluster-A")
    assert (two / "meta.properties").read_text() == "version=0\nbroker.id=4\ncluster.id=cluster-A\n"
    assert logs.directories.read_meta() == (4, "cluster-A")
    with pytest.raises(ConfigError, match="cluster-B"):
        logs.directories.verify_meta(BrokerId(4), "cluster-B")
    with pytest.raises(ConfigError, match=r"broker\.id is 5"):
        logs.directories.verify_meta(BrokerId(5), "cluster-A")
    (two / "meta.properties").write_text("#\nbroker.id=9\nversion=0\ncluster.id=cluster-A\n")
    with pytest.raises(ConfigError, match="different"):
        logs.directories.read_meta()
    (two / "meta.properties").write_text("version=1\nnode.id=9\n")
    with pytest.raises(ConfigError, match="version=1"):
        logs.directories.read_meta()
    logs.directories.unlock()


@pytest.mark.case("LOG-20")
async def test_new_logs_go_where_fewest_are(disk: FileDisk, one: Path, two: Path) -> None:
    async with started(disk, one, two) as logs:
        for n in range(4):
            await create(logs, TopicPartition("a", n), CONFIG)
        made = await logs.create_many([(TopicPartition("b", n), CONFIG, True) for n in range(200)])
        assert all(isinstance(log, Log) for log in made.values())
        assert len(list(one.glob("*-*/"))) == len(list(two.glob("*-*/"))) == 102
        assert await create(logs, TopicPartition("a", 0), CONFIG, is_new=False) is logs.get(TopicPartition("a", 0))


@pytest.mark.case("LOG-20")
async def test_a_directory_in_which_creation_fails_is_skipped(
    disk: FileDisk, one: Path, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone: list[tuple[str, list[TopicPartition]]] = []
    async with started(disk, one, two) as logs:
        logs.on_offline = lambda path, partitions: gone.append((path, partitions))
        first = await create(logs, TopicPartition("a", 0), CONFIG)
        real = disk.make_directories
        monkeypatch.setattr(
            disk, "make_directories", lambda path: failing() if path.startswith(str(two)) else real(path)
        )
        with storage_error():
            await create(logs, TopicPartition("a", 1), CONFIG)
        log = await create(logs, TopicPartition("a", 1), CONFIG)
        assert Path(log.directory).parent == Path(first.directory).parent == one
        assert gone == [(str(two), [])]
        assert logs.directories.offline() == [str(two)]
        with storage_error():
            await create(logs, TopicPartition("a", 2), CONFIG, is_new=False)
        made = await logs.create_many([(TopicPartition("a", 2), CONFIG, False), (TopicPartition("a", 3), CONFIG, True)])
        assert isinstance(made[TopicPartition("a", 2)], KafkaError)
        assert isinstance(made[TopicPartition("a", 3)], Log)
    assert (one / ".kafka_cleanshutdown").exists()
    assert not (two / ".kafka_cleanshutdown").exists()


async def test_a_failed_write_takes_the_directory_offline(disk: FileDisk, one: Path, two: Path) -> None:
    gone: list[tuple[str, list[TopicPartition]]] = []
    async with started(disk, one, two) as logs:
        logs.on_offline = lambda path, partitions: gone.append((path, partitions))
        bad = await create(logs, tp("a-0"), CONFIG)
        good = await create(logs, tp("a-1"), CONFIG)
        also_bad = await create(logs, tp("a-2"), CONFIG)
        assert also_bad.directory.startswith(str(one))
        bad.segments.active.append = failing  # type: ignore[method-assign,assignment]
        with storage_error():
            append(bad, "v")
        assert gone == [(str(one), [tp("a-0"), tp("a-2")])]
        assert also_bad.failed
        assert logs.get(tp("a-0")) is None
        assert logs.is_offline(tp("a-0"))
        assert logs.is_offline(tp("a-2"))
        with storage_error():
            await create(logs, tp("a-0"), CONFIG)
        append(good, "v")
    assert not (one / ".kafka_cleanshutdown").exists()
    assert (two / ".kafka_cleanshutdown").exists()


async def test_one_bad_partition_stays_offline_and_the_others_load(
    disk: FileDisk, one: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(disk, one) as logs:
        for name in ("a-0", "a-1"):
            append(await create(logs, tp(name), CONFIG), "v")
    real = log_loading.load_log

    def load(disk: FileDisk, path: str, *args: Any, **options: Any) -> Any:
        if path.endswith("a-0"):
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "damaged")
        return real(disk, path, *args, **options)

    monkeypatch.setattr(log_loading, "load_log", load)
    async with started(disk, one) as logs:
        assert logs.get(tp("a-0")) is None
        assert logs.is_offline(tp("a-0"))
        assert logs.get(tp("a-1")) is not None
        assert logs.directories.offline() == []
    assert not (one / ".kafka_cleanshutdown").exists()  # a log that could not be opened was not closed either


async def test_a_stop_before_everything_is_loaded_changes_no_checkpoint(disk: FileDisk, one: Path) -> None:
    async with started(disk, one) as logs:
        append(await create(logs, tp("a-0"), CONFIG), "v")
    before = {path.name: path.read_bytes() for path in one.glob("*checkpoint")}
    (one / "no partition").mkdir()
    logs = manager(disk, one)
    with pytest.raises(ConfigError):
        async with logs.running():
            await logs.load(lambda topic: CONFIG)
    assert {path.name: path.read_bytes() for path in one.glob("*checkpoint")} == before
    assert (one / ".kafka_cleanshutdown").exists()


@pytest.mark.case("LOG-19")
async def test_deleted_partitions_are_renamed_then_removed(disk: FileDisk, one: Path) -> None:
    config = TopicConfig(file_delete_delay_ms=60_000)
    topic = "t" * 249
    async with started(disk, one) as logs:
        log = await create(logs, TopicPartition(topic, 0), config)
        append(log, "of the former life")
        logs.delete(TopicPartition(topic, 0))
        (renamed,) = [path.name for path in one.glob("*-delete")]
        assert len(renamed) == 255
        with storage_error():
            append(log, "late")
        await logs.settle_deletions()
        assert topic not in (one / "recovery-point-offset-checkpoint").read_text()
        again = (await logs.create_many([(TopicPartition(topic, 0), config, True)]))[TopicPartition(topic, 0)]
        assert isinstance(again, Log)
        assert (again.log_end_offset, read_all(again)) == (0, [])
    async with started(disk, one) as logs:
        await _until(lambda: not list(one.glob("*-delete")))
        assert logs.get(TopicPartition(topic, 0)) is not None


async def test_a_log_that_could_not_be_deleted_is_offline(
    disk: FileDisk, one: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeated deletion must not be answered as done: the log would be back after the next start."""
    async with started(disk, one) as logs:
        await create(logs, TopicPartition("t", 0), CONFIG)
        monkeypatch.setattr(disk, "rename", failing)
        with storage_error():
            logs.delete(TopicPartition("t", 0))
        assert logs.is_offline(TopicPartition("t", 0))


async def test_a_flush_of_a_deleted_log_leaves_nothing_in_its_successor(
    disk: FileDisk, one: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new log of the same name must not show the epochs and producers of the deleted one."""
    partition = tp("a-0")
    async with started(disk, one) as logs:
        log = await create(logs, partition, CONFIG)
        run, may_run, flushes = disk.run, asyncio.Event(), [1]

        async def first_held_up(job: Callable[[], object]) -> object:
            if flushes:
                flushes.clear()
                await may_run.wait()
            return await run(job)

        monkeypatch.setattr(disk, "run", first_held_up)
        for sequence in range(20):
            log.append_as_leader(produced(1, sequence), LeaderEpoch(7))
        await _until(lambda: not flushes)  # the flush is planned, and its job waits for the pool
        logs.delete(partition)
        try:
            creating = asyncio.create_task(logs.create_many([(partition, CONFIG, True)]))
            await disk.run(lambda: None)  # by now the pool would have done the work of the creation
            assert not creating.done()
        finally:
            may_run.set()
        again = (await creating)[partition]
        assert isinstance(again, Log)
        assert sorted(path.name for path in (one / "a-0").iterdir()) == [
            "00000000000000000000.index",
            "00000000000000000000.log",
            "00000000000000000000.timeindex",
        ]
        append(again, "v", epoch=8)
        await _until(lambda: again.recovery_point == 1)
        assert (one / "a-0" / "leader-epoch-checkpoint").read_text() == "0\n1\n8 0\n"
        assert logs.directories.offline() == []


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("name", ["not a partition", "t-x", "t"])
async def test_a_foreign_directory_stops_the_start(disk: FileDisk, one: Path, name: str) -> None:
    (one / name).mkdir(parents=True)
    with pytest.raises(ConfigError, match="not a partition directory"):
        await manager(disk, one).load(lambda topic: CONFIG)


@pytest.mark.case("LOG-23")
async def test_an_unreadable_checkpoint_means_recovery_from_the_start(disk: FileDisk, one: Path) -> None:
    async with started(disk, one) as logs:
        log = await create(logs, tp("a-0"), CONFIG)
        append(log, "v")
    (one / "recovery-point-offset-checkpoint").write_text("1\n0\n")
    (one / "replication-offset-checkpoint").write_text("")
    (one / ".kafka_cleanshutdown").unlink()
    async with started(disk, one) as logs:
        again = logs.get(tp("a-0"))
        assert again is not None
        assert (again.log_end_offset, again.high_watermark) == (1, 0)


@pytest.mark.case("LOG-07")
@pytest.mark.case("LOG-10")
async def test_retention_takes_old_segments_below_the_high_watermark(disk: FileDisk, one: Path) -> None:
    async with started(disk, one) as logs:
        by_time = await create(logs, tp("time-0"), TopicConfig(retention_ms=1000, file_delete_delay_ms=0))
        by_size = await create(logs, tp("size-0"), TopicConfig(retention_ms=-1, retention_bytes=0))
        kept = await create(logs, tp("kept-0"), TopicConfig(retention_ms=0, cleanup_policy=("compact",)))
        for log in (by_time, by_size, kept):
            for n in range(6):
                append(log, "v", epoch=n, timestamp=1_500_000_000_000)
                if n % 2:
                    log.roll()
            log.update_high_watermark(4)
        assert await logs.apply_retention() == 4
        for log in (by_time, by_size):
            assert (log.log_start_offset, log.log_end_offset) == (4, 6)
            assert log.epochs.entries[0] == (4, 4)
        assert kept.log_start_offset == 0
        await _until(lambda: not list((one / "time-0").glob("*.deleted")))
        assert list((one / "size-0").glob("*.deleted"))
        for log in (by_time, by_size):
            log.update_high_watermark(6)
        await logs.apply_retention()
        assert (by_time.log_start_offset, by_time.log_end_offset, len(by_time.segments)) == (6, 6, 1)
        assert append(by_time, "next").first_offset == 6


async def test_retention_of_one_log_takes_several_turns(disk: FileDisk, one: Path) -> None:
    """Each segment is five files to rename, and a log that was kept for long has thousands."""
    async with started(disk, one) as logs:
        log = await create(logs, tp("old-0"), TopicConfig(retention_ms=1000))
        count = 2 * SEGMENTS_AT_ONCE + 1
        for _ in range(count):
            append(log, "v", timestamp=1_500_000_000_000)
            log.roll()
        log.update_high_watermark(count)
        left = [len(log.segments)]
        retention = asyncio.ensure_future(logs.apply_retention())
        while not retention.done():
            await asyncio.sleep(0)
            left.append(len(log.segments))
        assert retention.result() == count and log.log_start_offset == count
        assert max(before - after for before, after in pairwise(left)) == SEGMENTS_AT_ONCE


async def test_one_kind_of_checkpoint_is_collected_at_a_time(
    disk: FileDisk, one: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their timers end in the same turn, and each looks at all logs."""
    steps: list[str] = []
    collected, in_pool = OffsetCheckpoints.collected, OffsetCheckpoints.in_pool

    def collect(checkpoints: OffsetCheckpoints, *args: Any) -> Any:
        steps.append("collected")
        return collected(checkpoints, *args)

    async def write(checkpoints: OffsetCheckpoints, *args: Any) -> None:
        await in_pool(checkpoints, *args)
        steps.append("written")

    async with started(disk, one) as logs:
        with monkeypatch.context() as patched:
            patched.setattr(OffsetCheckpoints, "collected", collect)
            patched.setattr(OffsetCheckpoints, "in_pool", write)
            await asyncio.gather(logs.checkpoint_recovery_points(), logs.checkpoint_log_start_offsets())
    assert steps == ["collected", "written"] * 2


@pytest.mark.case("LOG-08")
async def test_compacted_logs_still_lose_what_is_below_their_start(disk: FileDisk, one: Path) -> None:
    async with started(disk, one) as logs:
        log = await create(logs, tp("kept-0"), TopicConfig(cleanup_policy=("compact",)))
        for _ in range(3):
            append(log, "v")
            log.roll()
        log.update_high_watermark(3)
        log.advance_log_start(2)
        assert await logs.apply_retention() == 2
        assert log.segments.first.base_offset == 2


async def test_flush_ms_bounds_how_long_an_append_stays_unflushed(disk: FileDisk, one: Path) -> None:
    async with started(disk, one) as logs:
        log = await create(logs, tp("a-0"), TopicConfig(flush_ms=1))
        append(log, "v")
        await _until(lambda: log.recovery_point == 1)
        append(log, "v")
        await _until(lambda: log.recovery_point == 2)
        eager = await create(logs, tp("a-1"), TopicConfig(flush_messages=2))
        eager.epochs.assign(LeaderEpoch(0), 0)
        append(eager, "v")
        append(eager, "v")
        await _until(lambda: eager.recovery_point == 2)


async def test_flushes_that_are_due_take_turns_and_one_that_is_asked_for_now_does_not_wait(
    disk: FileDisk, one: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a fail-over thousands of flushes are due at once and would take the processor from the records."""
    monkeypatch.setattr("klamm.log.log.EPOCHS_FLUSH_MS", 1)
    async with started(disk, one) as logs:
        due = [await create(logs, tp(f"due-{n}"), CONFIG) for n in range(4)]
        run, may_run, in_pool, most = disk.run, asyncio.Event(), 0, 0

        async def held_up(job: Callable[[], object]) -> object:
            nonlocal in_pool, most
            in_pool += 1
            most = max(most, in_pool)
            await may_run.wait()
            done = await run(job)
            in_pool -= 1
            return done

        monkeypatch.setattr(disk, "run", held_up)
        try:
            for log in due:
                log.epochs.assign(LeaderEpoch(7), 0)
            await _until(lambda: in_pool == 1)
            await asyncio.sleep(0.01)  # longer than all their timers
            assert most == 1
            logs.flush_soon(due[-1])
            await _until(lambda: in_pool == 2)
            logs.delete(tp("due-2"))
        finally:
            may_run.set()
        await _until(lambda: not any(log.epochs.dirty for log in due if not log.deleted))
        assert most == 2
        assert due[2].epochs.dirty


async def test_rolling_flushes_off_the_loop_and_moves_the_recovery_point(disk: FileDisk, one: Path) -> None:
    async with started(disk, one) as logs:
        log = await create(logs, tp("a-0"), CONFIG)
        for _ in range(20):
            append(log, "v")
        await _until(lambda: log.recovery_point == 20)
        assert (Path(log.directory) / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"
        await logs.checkpoint_recovery_points()
        assert "a 0 19" in (one / "recovery-point-offset-checkpoint").read_text()
        log.truncate_to(7)
        assert "a 0 7" in (one / "recovery-point-offset-checkpoint").read_text()


async def test_recovery_points_and_log_starts_are_written_at_their_own_intervals(disk: FileDisk, one: Path) -> None:
    intervals = {"log_flush_offset_checkpoint_interval_ms": 60_000, "log_flush_start_offset_checkpoint_interval_ms": 1}
    async with started(disk, one, **intervals) as logs:
        log = await create(logs, tp("a-0"), CONFIG)
        for _ in range(3):
            append(log, "v")
        log.update_high_watermark(3)
        log.advance_log_start(2)
        starts = one / "log-start-offset-checkpoint"
        await _until(lambda: starts.exists() and "a 0 2" in starts.read_text())
        assert not (one / "recovery-point-offset-checkpoint").exists()


async def test_a_log_that_was_set_aside_stays_and_is_reported(disk: FileDisk, one: Path) -> None:
    partition = TopicPartition("t" * 249, 0)
    async with started(disk, one) as logs:
        append(await create(logs, partition, CONFIG), "of the former life")
        aside = await logs.set_aside(partition)
        again = await create(logs, partition, CONFIG)
        assert (again.log_end_offset, logs.stray_count) == (0, 1)
    assert aside is not None and Path(aside, f"{0:020}.log").stat().st_size > 0
    # Kafka 2.5 stops at a directory that is not TOPIC-PARTITION, or that has a suffix without its pattern.
    assert re.fullmatch(r"[a-zA-Z0-9._-]{1,249}-\d+", Path(aside).name) and len(Path(aside).name) <= 255
    async with started(disk, one) as logs:
        assert (logs.stray_count, [log.topic_partition for log in logs.logs()]) == (1, [partition])
    assert Path(aside).exists()


async def test_the_lives_of_logs_survive_a_restart_and_follow_them(disk: FileDisk, one: Path, two: Path) -> None:
    a, b = tp("a-0"), tp("b-0")
    async with started(disk, one, two) as logs:
        for partition in (a, b):
            await create(logs, partition, CONFIG)
        await logs.lives.remember({a: TopicLife(1, 5), b: TopicLife(1, 6)})
    async with started(disk, one, two) as logs:
        assert (logs.lives.of(a), logs.lives.of(b)) == (TopicLife(1, 5), TopicLife(1, 6))
        logs.delete(b)
        await logs.lives.remember({a: TopicLife(2, 5)})
        assert logs.lives.of(b) is None
    home = next(path for path in (one, two) if (path / "a-0").exists())
    (home / "klamm-topic-lives").write_text("garbage")
    async with started(disk, one, two) as logs:
        assert logs.lives.of(a) is None


@pytest.mark.case("RPM-12")
async def test_the_checkpoint_of_high_watermarks_has_each_partition_in_its_directory(
    disk: FileDisk, one: Path, two: Path
) -> None:
    def checkpoint(directory: Path) -> dict[str, int]:
        version, count, *lines = (directory / "replication-offset-checkpoint").read_text().splitlines()
        assert (version, int(count)) == ("0", len(lines))
        return {f"{topic}-{partition}": int(offset) for topic, partition, offset in map(str.split, lines)}

    async with started(disk, one, two) as logs:
        for number, directory in enumerate((one, one, two)):
            logs.prefer(tp(f"t-{number}"), next(d for d in logs.directories if d.path == str(directory)))
            log = await create(logs, tp(f"t-{number}"), CONFIG)
            append(log, "a", "b", "c")
            log.update_high_watermark(number)
        await logs.checkpoint_high_watermarks()
        assert (checkpoint(one), checkpoint(two)) == ({"t-0": 0, "t-1": 1}, {"t-2": 2})
        for name, offset in (("t-0", 3), ("t-2", 1)):
            changed = logs.get(tp(name))
            assert changed is not None
            changed.update_high_watermark(offset)
        await logs.checkpoint_high_watermarks()
        assert (checkpoint(one), checkpoint(two)) == ({"t-0": 3, "t-1": 1}, {"t-2": 1})
    async with started(disk, one, two) as logs:
        assert {str(log.topic_partition): log.high_watermark for log in logs.logs()} == {"t-0": 3, "t-1": 1, "t-2": 1}
