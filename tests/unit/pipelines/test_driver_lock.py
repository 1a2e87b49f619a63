"""Hole 5: a table has one writer, and one program commits to it at a time. The JVM's file locks are replaced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from klamm.pipelines import driver_lock as locks
from klamm.pipelines import ingest
from klamm.pipelines.ingest_options import IngestOptions
from klamm.pipelines.lake_directory import LocalDirectory
from klamm.pipelines.lake_state import LakeError, LakeRefusal


class Channel:
    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path

    def tryLock(self) -> object | None:
        if self._path in self._files.locked:
            self._path = ""
            return None
        self._files.locked.add(self._path)
        return self

    def close(self) -> None:
        self._files.locked.discard(self._path)


class Files:
    """The lock files of a machine, and which of them are locked."""

    def __init__(self) -> None:
        self.locked: set[str] = set()
        opened = lambda path, _mode: SimpleNamespace(getChannel=lambda: Channel(self, path))  # noqa: E731
        self.spark = cast(
            Any,
            SimpleNamespace(_jvm=SimpleNamespace(java=SimpleNamespace(io=SimpleNamespace(RandomAccessFile=opened)))),
        )


def test_hole_5_a_table_that_another_driver_has_is_refused(tmp_path: Path) -> None:
    files, lake = Files(), LocalDirectory(tmp_path)
    other = str(tmp_path / "_klamm" / "locks" / "b.lock")
    files.locked.add(other)
    with (
        pytest.raises(LakeRefusal, match=f"another ingest writes to {tmp_path / 'b'}"),
        locks.driver_lock(files.spark, lake, ["a", "b"], wait=False),
    ):
        raise AssertionError("it must not start")
    assert files.locked == {other}, "what it had is free again"


def test_hole_5_a_take_over_waits_for_the_end_of_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, lake = Files(), LocalDirectory(tmp_path)
    files.locked.add(str(tmp_path / "_klamm" / "locks" / "a.lock"))
    monkeypatch.setattr(locks.time, "sleep", lambda _seconds: files.locked.clear())
    with locks.driver_lock(files.spark, lake, ["a"], wait=True):
        assert len(files.locked) == 1


def test_hole_5_after_a_signal_the_locks_end_with_the_jvm(tmp_path: Path) -> None:
    """The JVM may still commit."""
    files, lake = Files(), LocalDirectory(tmp_path)
    for lock in (
        lambda: locks.driver_lock(files.spark, lake, ["a"], wait=False),
        lambda: locks.commit_lock(files.spark, lake, "a"),
    ):
        with pytest.raises(SystemExit), lock():
            raise SystemExit(130)
        assert len(files.locked) == 1
        files.locked.clear()
        with pytest.raises(ValueError, match="x"), lock():
            raise ValueError("x")
        assert not files.locked


def test_one_program_commits_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, lake = Files(), LocalDirectory(tmp_path)
    now = [0.0]
    monkeypatch.setattr(locks.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(locks.time, "sleep", lambda _seconds: now.__setitem__(0, now[0] + 100))
    with (
        locks.commit_lock(files.spark, lake, "a"),
        locks.commit_lock(files.spark, lake, "b"),
        pytest.raises(LakeError, match=f"committing to {tmp_path / 'a'} for minutes"),
        locks.commit_lock(files.spark, lake, "a"),
    ):
        raise AssertionError("it must wait")
    assert not files.locked


class Refused(Exception):
    pass


def test_hole_5_an_ingest_has_the_locks_before_it_looks_at_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[object] = []

    @contextmanager
    def lock(_spark: object, _lake: object, topics: object, *, wait: bool) -> Iterator[None]:
        events.append((topics, wait))
        yield

    @contextmanager
    def kafka(_server: str) -> Iterator[None]:
        yield

    def check() -> None:
        events.append("check")
        raise Refused

    monkeypatch.setattr(ingest, "driver_lock", lock)
    monkeypatch.setattr(ingest, "KafkaTopics", kafka)
    monkeypatch.setattr(ingest, "TopicIngest", lambda *_: SimpleNamespace(check=check))
    with pytest.raises(Refused):
        ingest.ingest_topics(cast(Any, None), IngestOptions("b:1", ["t"], str(tmp_path), take_over=True))
    assert events == [(["t"], True), "check"]
