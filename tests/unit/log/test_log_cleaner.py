"""When a log is cleaned, and what happens if it is deleted, truncated, moved or damaged during the cleaning."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from klamm.broker.metrics import register_cleaner_metrics
from klamm.log.compaction.cleanable import cleanable, filthiest
from klamm.log.disk import FileDisk
from klamm.log.log import Log
from klamm.log.log_manager import LogManager
from klamm.model.config import BrokerConfig
from klamm.model.ids import LeaderEpoch
from klamm.model.ports import T
from klamm.telemetry.metrics import MetricsRegistry
from klamm.telemetry.prometheus import exposition
from klamm.wire.slices import finish

from .conftest import SetClock, Workbench
from .test_compaction import BEGAN, CONFIG, batches, contents, put, seal
from .test_log_manager import create, tp

CHECKPOINT = "cleaner-offset-checkpoint"
NAME = tp("t-0")


class SteppedDisk(FileDisk):
    """A disk whose pool stops before one of the jobs of a cleaning, so that the test can act at that moment."""

    def __init__(self) -> None:
        super().__init__(1)
        self._left: int | None = None
        self.stopped = asyncio.Event()
        self.released = asyncio.Event()

    def stop_before(self, job: int) -> None:
        self._left = job
        self.stopped.clear()
        self.released.clear()

    def release(self) -> None:
        self._left = None
        self.released.set()

    async def run(self, job: Callable[[], T]) -> T:
        task = asyncio.current_task()
        if self._left is not None and task is not None and task.get_name() == "cleaning":
            self._left -= 1
            if self._left < 0:
                self._left = None
                self.stopped.set()
                await self.released.wait()
        return await super().run(job)


@pytest.fixture
async def stepped() -> AsyncIterator[SteppedDisk]:
    disk = SteppedDisk()
    yield disk
    disk.close()


@asynccontextmanager
async def logs_in(disk: FileDisk, *directories: Path, **settings: int | bool) -> AsyncIterator[LogManager]:
    """The cleaner runs only when the test calls it."""
    paths = tuple(map(str, directories))
    config = BrokerConfig(zookeeper_connect="none", log_dirs=paths, log_cleaner_enable=False, **settings)
    logs = LogManager(disk, SetClock(), config, random.Random(1))
    logs.directories.lock()
    await logs.load(lambda topic: CONFIG)
    async with logs.running():
        yield logs


async def fill(log: Log, rounds: int = 12) -> None:
    for round in range(rounds):
        put(log, ("a", f"a{round}"), ("b", f"b{round}"), (f"only-{round}", "x"))
    log.roll()
    log.update_high_watermark(log.log_end_offset)
    await log.flush()


async def a_dirty_log(logs: LogManager, name: str = "t-0") -> Log:
    log = await create(logs, tp(name), CONFIG)
    await fill(log)
    return log


def entries(directory: Path) -> dict[str, int]:
    lines = (directory / CHECKPOINT).read_text().splitlines()
    assert (lines[0], int(lines[1])) == ("0", len(lines) - 2)
    return {f"{topic}-{partition}": int(offset) for topic, partition, offset in map(str.split, lines[2:])}


def leftovers(directory: Path) -> list[str]:
    return [path.name for path in directory.rglob("*") if path.suffix in (".cleaned", ".swap")]


# --- what is cleaned ---


async def test_the_checkpoint_says_how_far_and_survives_a_restart(disk: FileDisk, tmp_path: Path) -> None:
    async with logs_in(disk, tmp_path) as logs:
        log = await a_dirty_log(logs)
        assert await logs.cleaner.clean_filthiest()
        assert entries(tmp_path) == {"t-0": 36}
        assert not await logs.cleaner.clean_filthiest()
        assert len(contents(log)) == 14
    (tmp_path / CHECKPOINT).write_text("0\n2\ngone 0 5\nt 0 36\n")
    async with logs_in(disk, tmp_path) as logs:
        assert entries(tmp_path) == {"t-0": 36}  # an entry must not stay for another log of the same name
        assert not await logs.cleaner.clean_filthiest()
        found = logs.get(NAME)
        assert found is not None and len(contents(found)) == 14


async def test_the_filthiest_comes_first_and_others_are_left_alone(disk: FileDisk, tmp_path: Path) -> None:
    async with logs_in(disk, tmp_path) as logs:
        little, most, kept = [await a_dirty_log(logs, name) for name in ("little-0", "most-0", "kept-0")]
        assert await logs.cleaner.clean_filthiest()
        assert await logs.cleaner.clean_filthiest()
        kept.config = replace(CONFIG, cleanup_policy=("delete",))
        order = []
        await fill(little, 20)
        await fill(most, 40)
        await fill(kept, 40)
        while await logs.cleaner.clean_filthiest():
            order.append({name: offset for name, offset in entries(tmp_path).items() if offset > 36})
        assert order == [{"most-0": 156}, {"most-0": 156, "little-0": 96}]
        assert logs.cleaner.max_dirty_ratio == 0


@pytest.mark.parametrize(
    ("checkpoint", "start", "first_dirty"),
    [(None, 0, 0), (None, 4, 4), (7, 0, 7), (3, 4, 4), (12, 0, 12), (13, 0, 0), (13, 4, 4)],
)
def test_where_the_dirty_part_begins(bench: Workbench, checkpoint: int | None, start: int, first_dirty: int) -> None:
    log = bench.open(CONFIG)
    for number in range(12):
        put(log, ("a", str(number)))
    seal(log)
    log.advance_log_start(start)
    assert cleanable(log, checkpoint, bench.clock.wall_ms()).first_dirty == first_dirty


def test_what_may_not_be_cleaned_yet(bench: Workbench) -> None:
    log = bench.open(CONFIG)
    for number in range(4):
        put(log, ("a", str(number)), time=BEGAN + 1000 * number)
        log.roll()

    def end(**config: int) -> int:
        log.config = replace(CONFIG, **config)
        return cleanable(log, 0, BEGAN + 4000).first_uncleanable

    assert end() == 0  # nothing is committed or flushed
    log.update_high_watermark(3)
    assert end() == 0
    asyncio.run(log.flush())
    assert end() == 3
    log.update_high_watermark(4)
    assert end() == 4
    assert end(min_compaction_lag_ms=1500) == 3
    assert end(min_compaction_lag_ms=3500) == 1
    assert end(min_compaction_lag_ms=5000) == 0
    put(log, ("b", "active"))
    log.update_high_watermark(5)
    assert end() == 4


def test_when_it_is_due(bench: Workbench) -> None:
    log = bench.open(CONFIG)
    for number in range(4):
        put(log, ("a", str(number)), time=BEGAN + number)
        log.roll()
    seal(log)

    def due(first_dirty: int, now_ms: int = BEGAN + 100, **config: float) -> bool:
        log.config = replace(CONFIG, **config)  # type: ignore[arg-type]
        found = cleanable(log, first_dirty, now_ms)
        assert filthiest([found]) is (found if found.is_due else None)
        return found.is_due

    assert due(0) and due(1) and not due(2)  # more than half
    assert due(3, min_cleanable_dirty_ratio=0.2) and not due(3, min_cleanable_dirty_ratio=0.25)
    assert not due(4, min_cleanable_dirty_ratio=0.0)
    assert due(3, max_compaction_lag_ms=90) and not due(3, max_compaction_lag_ms=100)
    assert not due(4, BEGAN + 10**9, max_compaction_lag_ms=1)


async def test_the_task_cleans_by_itself_and_ends_when_told(disk: FileDisk, tmp_path: Path) -> None:
    config = BrokerConfig(zookeeper_connect="none", log_dirs=(str(tmp_path),), log_cleaner_backoff_ms=1)
    logs = LogManager(disk, SetClock(), config, random.Random(1))
    logs.directories.lock()
    await logs.load(lambda topic: CONFIG)
    async with logs.running():
        log = await a_dirty_log(logs)
        async with asyncio.timeout(10):
            while len(contents(log)) > 14 or not (tmp_path / CHECKPOINT).exists():
                await asyncio.sleep(0.001)
    assert entries(tmp_path) == {"t-0": 36}


# --- what happens to the log during a cleaning ---


async def interrupted(
    stepped: SteppedDisk, root: Path, act: Callable[[LogManager, Log], None], *directories: str
) -> AsyncIterator[tuple[LogManager, Log, Path]]:
    """Run cleanings and act before the first job of one in the pool, before the second of the next, and so on."""
    job = 0
    while True:
        places = [root / f"{job}" / name for name in directories or ("one",)]
        async with logs_in(stepped, *places) as logs:
            log = await a_dirty_log(logs)
            stepped.stop_before(job)
            cleaning = asyncio.create_task(logs.cleaner.clean_filthiest(), name="cleaning")
            stopped = asyncio.create_task(stepped.stopped.wait())
            await asyncio.wait([cleaning, stopped], return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            if cleaning.done() or NAME in logs.cleaner._offsets:  # clean: only its checkpoint may be missing
                assert job > 5
                stepped.release()
                await cleaning
                return
            act(logs, log)
            yield logs, log, places[0]
            stepped.release()
            await cleaning
            assert not logs.cleaner.is_busy(NAME)
            assert not leftovers(places[0] / "t-0")
        job += 1


@pytest.mark.case("DEL-06")
async def test_a_deletion_waits_for_no_cleaning_and_nothing_comes_back(stepped: SteppedDisk, tmp_path: Path) -> None:
    async for logs, log, directory in interrupted(stepped, tmp_path, lambda logs, log: logs.delete(NAME)):
        assert logs.get(NAME) is None and not (directory / "t-0").exists()
        successor = asyncio.create_task(logs.create_many([(NAME, CONFIG, True)]))
        await asyncio.sleep(0)
        assert not (directory / "t-0").exists()  # the new log waits until the cleaning of the old one is over
        stepped.release()
        again = (await successor)[NAME]
        assert isinstance(again, Log) and again is not log
        await logs.cleaner.settled([NAME])
        await asyncio.sleep(0)
        assert (again.log_end_offset, contents(again), again.failed) == (0, [], False)
        assert not (directory / CHECKPOINT).exists() or entries(directory) == {}
        assert logs.directories.offline() == [] and logs.cleaner.uncleanable_in(logs.directories.online()[0]) == []


@pytest.mark.case("DEL-06")
async def test_a_deleted_log_leaves_the_checkpoint(disk: FileDisk, tmp_path: Path) -> None:
    async with logs_in(disk, tmp_path) as logs:
        for name in ("t-0", "other-0"):
            await a_dirty_log(logs, name)
        while await logs.cleaner.clean_filthiest():
            pass
        assert entries(tmp_path) == {"t-0": 36, "other-0": 36}
        logs.delete(NAME)
        await logs.settle_deletions()
        assert entries(tmp_path) == {"other-0": 36}
        again = await a_dirty_log(logs)
        assert cleanable(again, None, 0).first_dirty == 0
        assert await logs.cleaner.clean_filthiest()


async def test_a_truncation_ends_the_cleaning_and_lowers_the_checkpoint(stepped: SteppedDisk, tmp_path: Path) -> None:
    def cut(logs: LogManager, log: Log) -> None:
        log.truncate_to(9)

    async for logs, log, directory in interrupted(stepped, tmp_path, cut):
        assert log.log_end_offset == 9
        log.append_as_follower(b"")
        stepped.release()
        await logs.cleaner.settled([NAME])
        assert not (directory / CHECKPOINT).exists()  # given up: nothing is clean
        assert all(header.last_offset < 9 for header, _ in batches(log))
        put(log, ("new", "x"), epoch=1)
        await fill(log)
        while await logs.cleaner.clean_filthiest():
            pass
        assert entries(directory) == {"t-0": log.log_end_offset}
        log.truncate_to(12)  # in a batch that begins at 10
        assert entries(directory) == {"t-0": log.log_end_offset} == {"t-0": 10}


async def test_a_topic_that_is_no_longer_compacted_is_let_go(stepped: SteppedDisk, tmp_path: Path) -> None:
    """KAFKA-12840: what was swapped in stays; the new policy applies to the rest."""

    def switch(logs: LogManager, log: Log) -> None:
        logs.reconfigure("t", replace(CONFIG, cleanup_policy=("delete",)))

    async for logs, log, directory in interrupted(stepped, tmp_path, switch):
        stepped.release()
        await logs.cleaner.settled([NAME])
        assert not (directory / CHECKPOINT).exists()
        assert {key for _, key, _ in contents(log)} == {"a", "b", *(f"only-{n}" for n in range(12))}


async def test_a_move_pauses_the_cleaning_and_takes_the_checkpoint_along(stepped: SteppedDisk, tmp_path: Path) -> None:
    async for logs, log, _ in interrupted(stepped, tmp_path, lambda logs, log: None, "one", "two"):
        home = logs.home_of(NAME)
        target = next(directory for directory in logs.directories if directory is not home)
        move = asyncio.create_task(logs.dir_moves.move(NAME, target))
        await asyncio.sleep(0)
        stepped.release()
        assert await move
        moved = logs.get(NAME)
        assert moved is not None and moved is not log
        two, before = Path(target.path), contents(moved)
        await logs.cleaner.settled([NAME])
        assert await logs.cleaner.clean_filthiest()
        clean = entries(two)["t-0"]  # the segments of the copy begin at other offsets
        assert 0 < clean <= 36 and len(contents(moved)) < 36
        assert {key: value for _, key, value in contents(moved)} == {key: value for _, key, value in before}
        assert home is not None
        assert await logs.dir_moves.move(NAME, home)
        assert (entries(two), entries(Path(home.path))) == ({}, {"t-0": clean})


async def test_a_stop_waits_for_the_step_that_runs(stepped: SteppedDisk, tmp_path: Path) -> None:
    async with logs_in(stepped, tmp_path) as logs:
        log = await a_dirty_log(logs)
        stepped.stop_before(2)
        cleaning = asyncio.create_task(logs.cleaner.clean_filthiest(), name="cleaning")
        await stepped.stopped.wait()
        closing = asyncio.create_task(logs.cleaner.close())
        await asyncio.sleep(0)
        assert not closing.done()
        stepped.release()
        await closing
        await cleaning
    assert not (tmp_path / CHECKPOINT).exists() and not leftovers(tmp_path)
    assert {key: value for _, key, value in contents(log)}["a"] == "a11"


async def test_what_cannot_be_cleaned_is_reported_and_the_others_go_on(
    disk: FileDisk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with logs_in(disk, tmp_path) as logs:
        bad, good = await a_dirty_log(logs, "bad-0"), await a_dirty_log(logs, "good-0")
        path = Path(bad.segments[1].log_path)
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        while await logs.cleaner.clean_filthiest() or not logs.cleaner.uncleanable_in(logs.directories.online()[0]):
            pass
        while await logs.cleaner.clean_filthiest():
            pass
        assert entries(tmp_path) == {"good-0": 36}
        assert len(contents(good)) == 14
        (home,) = logs.directories.online()
        assert logs.cleaner.uncleanable_in(home) == [bad]
        assert logs.cleaner.uncleanable_bytes_in(home) == sum(segment.size for segment in bad.segments)
        assert "bad-0 cannot be cleaned" in caplog.text and not bad.failed
        metrics = MetricsRegistry()
        register_cleaner_metrics(metrics, logs)
        manager = "kafka.log", "LogCleanerManager"
        assert metrics.value(*manager, "uncleanable-partitions-count", logDirectory=str(tmp_path)) == 1
        assert metrics.value(*manager, "uncleanable-bytes", logDirectory=str(tmp_path)) > 0
        assert 0 < metrics.value("kafka.log", "LogCleaner", "cleaner-recopy-percent") < 100
        assert b"kafka_log_logcleanermanager_time_since_last_run_ms" in exposition(finish(metrics.snapshot()))
        assert not leftovers(tmp_path)
        logs.delete(tp("bad-0"))
        assert logs.cleaner.uncleanable_in(home) == []


async def test_a_disk_that_fails_takes_its_directory_offline(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with logs_in(disk, tmp_path / "one") as logs:
        log = await a_dirty_log(logs)

        def failing(path: str, time_ms: int) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(disk, "set_modified_ms", failing)
        await logs.cleaner.clean_filthiest()
        assert log.failed and logs.directories.offline() == [str(tmp_path / "one")]


async def test_retention_leaves_the_log_that_is_being_cleaned(stepped: SteppedDisk, tmp_path: Path) -> None:
    async with logs_in(stepped, tmp_path) as logs:
        log = await a_dirty_log(logs)
        log.advance_log_start(20)
        stepped.stop_before(1)
        cleaning = asyncio.create_task(logs.cleaner.clean_filthiest(), name="cleaning")
        await stepped.stopped.wait()
        assert await logs.apply_retention() == 0
        stepped.release()
        await cleaning
        assert await logs.apply_retention() > 0


async def test_followers_take_what_a_compacted_leader_has(disk: FileDisk, tmp_path: Path) -> None:
    async with logs_in(disk, tmp_path) as logs:
        leader, follower = await a_dirty_log(logs), await create(logs, tp("copy-0"), CONFIG)
        assert await logs.cleaner.clean_filthiest()
        put(leader, ("a", "last"), epoch=2)
        while follower.log_end_offset < leader.log_end_offset:
            end = leader.log_end_offset
            read = leader.read(follower.log_end_offset, 200, upper_bound=end, at_least_one=True)
            follower.append_as_follower(read.records)
        assert contents(follower) == contents(leader)
        assert follower.epochs.latest_epoch == LeaderEpoch(2)
        times = range(BEGAN, BEGAN + 5)
        found = [[log.offset_for_timestamp(time, log.log_end_offset) for time in times] for log in (leader, follower)]
        assert found[0] == found[1]
