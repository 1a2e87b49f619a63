"""A lock on a table, held by the driver's JVM, so that a stalled writer keeps out its successor.

On a local file system Delta looks whether a version is free and then renames its file there. A writer that stalls
between the two replaces the commit of its successor when it wakes up. So a second writer must not start while the first
one's JVM lives. The JVM must hold the lock, not Python: it can still commit when Python is gone. The kernel frees the
lock when that process ends, however it ends.

Maintenance commits beside a running ingest, so a second lock is held around each commit, by both. On other stores the
store itself keeps commits apart.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from klamm.pipelines.lake_directory import WORK, LakeDirectory, LocalDirectory
from klamm.pipelines.lake_state import LakeError, LakeRefusal
from klamm.pipelines.spark_session import one_line, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_SECONDS = 0.5
_COMMIT_LOOK_SECONDS = 0.05
_COMMIT_SECONDS_MAX = 300
"""The longest commit to wait for: that of a compaction."""


@contextmanager
def driver_lock(spark: SparkSession, lake: LocalDirectory, topics: Sequence[str], *, wait: bool) -> Iterator[None]:
    """Lock the tables of these topics. If another driver has one, wait for its end or raise LakeRefusal.

    After a signal the JVM may still commit until it ends, so the locks then end with the JVM and not with the block.
    """
    directory = lake.child(WORK, "locks")
    directory.make()
    held: list[Any] = []
    try:
        for topic in sorted(topics):
            path = directory.child(f"{topic}.lock").uri
            while (channel := _try_lock(spark, path)) is None:
                if not wait:
                    raise LakeRefusal(
                        f"another ingest writes to {lake.child(topic)}: end it, or wait for its end with --take-over"
                    )
                time.sleep(_LOOK_SECONDS)
            held.append(channel)
        yield
    except Exception:
        _release(held)
        raise
    _release(held)


def commit_lock(spark: SparkSession, lake: LakeDirectory, topic: str) -> AbstractContextManager[None]:
    """Waits until no other driver commits to the table of this topic. Raises LakeError after a long wait."""
    return _commit_lock(spark, lake, topic) if isinstance(lake, LocalDirectory) else nullcontext()


@contextmanager
def _commit_lock(spark: SparkSession, lake: LocalDirectory, topic: str) -> Iterator[None]:
    directory = lake.child(WORK, "locks")
    directory.make()
    path = directory.child(f"{topic}.commit").uri
    deadline = time.monotonic() + _COMMIT_SECONDS_MAX
    while (channel := _try_lock(spark, path)) is None:
        if time.monotonic() > deadline:
            raise LakeError(f"another program of klamm has been committing to {lake.child(topic)} for minutes: end it")
        time.sleep(_COMMIT_LOOK_SECONDS)
    try:
        yield
    except Exception:
        _release([channel])
        raise
    _release([channel])  # not after a signal, as above


def _release(held: Sequence[Any]) -> None:
    for channel in held:
        try:
            channel.close()
        except spark_errors():
            return  # the JVM has ended, and the locks with it


def _try_lock(spark: SparkSession, path: str) -> Any | None:
    jvm = spark._jvm
    assert jvm is not None
    channel = None
    try:
        channel = jvm.java.io.RandomAccessFile(path, "rw").getChannel()
        if channel.tryLock() is not None:
            return channel
    except spark_errors() as e:
        if "OverlappingFileLockException" not in str(e):
            raise LakeError(f"cannot lock {path}: {one_line(e)}") from e
    if channel is not None:
        channel.close()
    return None
