"""A cleaned segment replaces its sources completely or not at all: the process dies before each file operation."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from klamm.log.compaction.cleanable import cleanable
from klamm.log.compaction.cleaning import Cleaning, plan_cleaning
from klamm.log.compaction.swap import SWAP_SUFFIX, Swap
from klamm.log.disk import FileDisk
from klamm.log.log import Log
from klamm.log.recovery import load_log
from klamm.model.config import TopicConfig
from klamm.model.errors import KafkaError
from klamm.model.ports import DiskFile
from klamm.simulation.disk import SimulatedDisk
from klamm.wire.records import ControlType

from .conftest import PARTITION, Owner, SetClock, Workbench
from .simulated import new_disk
from .test_compaction import batches, contents, end_transaction, put, seal

CONFIG = TopicConfig(cleanup_policy=("compact",), segment_bytes=700, index_interval_bytes=60)
FINAL = [(4, "once", "x"), (30, "a", "14"), (31, "b", "14"), (32, "tail", "y"), (33, "tail2", "y")]


class Killed(BaseException):
    """A BaseException, so that no handler treats it as an error."""


class MortalDisk:
    """Counts the operations that change files or names, and dies before the n-th of them."""

    CHANGES = ("rename", "remove", "set_modified_ms", "sync_directory", "write_atomically")

    def __init__(self, disk: FileDisk, dies_at: int) -> None:
        self._disk = disk
        self._left = dies_at

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._disk, name)
        return self._mortal(method) if name in self.CHANGES else method

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        self._step() if create else None
        return self._disk.open(path, create=create)

    def _mortal(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any) -> Any:
            self._step()
            return method(*args)

        return step

    def _step(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise Killed


def written(bench: Workbench) -> Log:
    log = bench.open(CONFIG)
    for round in range(15):
        put(log, ("a", str(round)), ("b", str(round)), epoch=round // 4)
        if round == 1:
            put(log, ("once", "x"))
        if round == 2:  # in the epoch of its neighbours: epochs never fall
            put(log, ("a", "aborted"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
            end_transaction(log, 5, ControlType.ABORT)
    seal(log)
    put(log, ("tail", "y"), epoch=4)
    put(log, ("tail2", "y"), epoch=4)
    return log


def steps_of(log: Log, disk: Any, now_ms: int) -> None:
    cleaning = Cleaning(disk, plan_cleaning(cleanable(log, 0, now_ms)), 1 << 20)
    steps = cleaning.steps()
    try:
        for step in steps:
            if isinstance(step, Swap):
                log.begin_swap(step)
                log.finish_swap()
    finally:
        with suppress(Killed):  # a dead process does not clean up
            steps.close()


def test_a_kill_at_every_operation_leaves_the_old_log_or_the_new(bench: Workbench) -> None:
    log = written(bench)
    before, epochs = contents(log), log.epochs.entries
    log.close()
    original = bench.directory
    outcomes, deaths = set[str](), 0
    while True:
        root = original.parent / f"dies-{deaths}"
        shutil.copytree(original, root)
        victim = bench.open(CONFIG, directory=root)
        victim.update_high_watermark(victim.log_end_offset)
        disk = MortalDisk(bench.disk, deaths)
        for segment in victim.segments:
            segment._disk = disk  # type: ignore[assignment]
        try:
            steps_of(victim, disk, bench.clock.wall_ms())
        except Killed:
            died = True
        else:
            died = False
        victim.close_files()
        for clean in (False, True):  # it opens either way, and a second crash has nothing left to repair
            again = bench.open(CONFIG, directory=root, clean=clean, recovery_point=before[-1][0] + 1)
            found = contents(again)
            assert not [path for path in root.iterdir() if path.suffix in (".cleaned", ".swap", ".deleted")]
            assert again.log_end_offset == before[-1][0] + 1
            assert again.epochs.entries == epochs
            # The last value of each key is there, and nothing that was not there before.
            assert {key: value for _, key, value in found} == {key: value for _, key, value in before}
            assert set(found) <= set(before)
            if any(value == "aborted" for _, _, value in found):
                assert again.aborted_transactions(0, again.log_end_offset)
            again.close_files()
        outcomes.add("old" if found == before else "new" if not died or len(found) < len(before) else "?")
        shutil.rmtree(root)
        if not died:
            break
        deaths += 1
    assert [record[1:] for record in found] == [record[1:] for record in FINAL]
    assert outcomes == {"old", "new"}
    assert deaths > 20


def test_a_finished_restart_dies_at_every_operation_too(bench: Workbench) -> None:
    """A restart that finishes a swap may itself be killed."""
    log = written(bench)
    expected = {key: value for _, key, value in contents(log)}
    cleaning = Cleaning(bench.disk, plan_cleaning(cleanable(log, 0, bench.clock.wall_ms())), 1 << 20)
    steps = cleaning.steps()
    swap = next(step for step in steps if isinstance(step, Swap))
    swap.begin()
    log.close_files()
    deaths = 0
    while True:
        root = bench.directory.parent / f"dies-{deaths}"
        shutil.copytree(bench.directory, root)
        mortal = Workbench(MortalDisk(bench.disk, deaths), root)  # type: ignore[arg-type]
        try:
            mortal.open(CONFIG, clean=False, recovery_point=log.recovery_point).close_files()
            break
        except Killed:
            deaths += 1
        again = bench.open(CONFIG, directory=root, clean=False, recovery_point=log.recovery_point)
        assert {key: value for _, key, value in contents(again)} == expected
        again.close_files()
    assert deaths > 5


@pytest.mark.parametrize("stripped", range(4))
def test_a_jvm_died_while_it_took_the_suffix_off(bench: Workbench, stripped: int) -> None:
    """The JVM begins with the log. Any of the remaining indexes may be the old one, so all are rebuilt."""
    log = bench.open(TopicConfig(cleanup_policy=("compact",)))
    put(log, ("a", "1"))
    put(log, ("b", "aborted"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    end_transaction(log, 5, ControlType.ABORT)
    seal(log)
    log.close()
    base = "0" * 20
    for suffix in (".log", ".index", ".timeindex", ".txnindex")[1 + stripped :]:
        path = bench.directory / (base + suffix)
        path.rename(f"{path}{SWAP_SUFFIX}")
    again = bench.open(log.config)
    assert [tuple(entry) for entry in again.aborted_transactions(0, 3)] == [(5, 1)]
    assert not list(bench.directory.glob("*" + SWAP_SUFFIX))


def test_a_truncation_finishes_the_swap_first(bench: Workbench, tmp_path: Path) -> None:
    """Otherwise a crash afterwards would bring back what was truncated."""
    log = written(bench)
    cleaning = Cleaning(bench.disk, plan_cleaning(cleanable(log, 0, bench.clock.wall_ms())), 1 << 20)
    steps = cleaning.steps()
    swap = next(step for step in steps if isinstance(step, Swap))
    log.begin_swap(swap)
    cut = swap.sources[-1].base_offset + 1
    log.truncate_to(cut)
    steps.close()
    copy = tmp_path / "crashed"
    shutil.copytree(bench.directory, copy)
    again = bench.open(CONFIG, directory=copy, clean=False, recovery_point=log.recovery_point)
    for survivor in (log, again):
        assert all(header.last_offset < cut for header, _ in batches(survivor))
    assert not list(bench.directory.glob("*.swap")) + list(bench.directory.glob("*.cleaned"))
    log.finish_swap()  # the cleaner calls it later and finds nothing to do
    assert contents(log) == contents(again)


def opened_on(disk: SimulatedDisk, recovery_point: int, *, clean: bool) -> Log:
    clock = SetClock()
    loaded = load_log(
        disk,
        "/data/1/t-0",
        CONFIG,
        log_start_offset=0,
        recovery_point=recovery_point,
        clean=clean,
        now_ms=clock.wall_ms(),
    )
    return Log(disk, clock, random.Random(1), PARTITION, CONFIG, loaded, Owner())


def latest(log: Log) -> dict[str, str]:
    return {key: value for _, key, value in contents(log)}


@pytest.mark.parametrize("seed", range(3))
def test_the_power_is_cut_at_every_change_of_a_cleaning(seed: int) -> None:
    """Whatever of it reached the disk, the last record of each key is there, and the next start opens the log."""
    cut_at, is_over = 0, False
    while not is_over:
        disk = new_disk(seed)
        disk.make_directories("/data/1/t-0")
        disk.sync_directory("/data/1")
        bench = SimpleNamespace(open=lambda config, disk=disk: opened_on(disk, 0, clean=True))
        log = written(bench)  # type: ignore[arg-type]
        log.update_high_watermark(log.log_end_offset)
        log.close()
        log = opened_on(disk, log.log_end_offset, clean=True)
        log.update_high_watermark(log.log_end_offset)
        before, left = latest(log), cut_at

        def cut(operation: str, _path: str, disk: SimulatedDisk = disk) -> None:
            nonlocal left
            if operation in ("rename", "remove", "sync", "sync_directory", "write", "truncate") and disk.has_power:
                left -= 1
                if left < 0:
                    disk.cut_power()

        disk.before = cut
        with suppress(OSError, KafkaError):
            steps_of(log, disk, SetClock().wall_ms())
        disk.before = None
        is_over = disk.has_power
        if is_over:
            disk.cut_power()
        disk.restore_power()
        again = opened_on(disk, log.log_end_offset, clean=False)
        assert (again.log_end_offset, latest(again)) == (log.log_end_offset, before), cut_at
        disk.cut_power()  # what the start finished must not be undone
        disk.restore_power()
        assert latest(opened_on(disk, log.log_end_offset, clean=False)) == before, cut_at
        cut_at += 1
    assert cut_at > 20
