"""One log directory: its lock, its checkpoints, its clean-shutdown marker, and the names of its partition directories.

A directory that fails once stays offline until the next start. A partition lives in `<topic>-<partition>`; the suffix
`.<32 hex>-delete` marks a directory that waits for removal, `.<32 hex>-future` the copy of a replica that moves between
directories, `.<32 hex>-stray-0` a log that was set aside: Kafka 2.5 takes it for a topic, because it stops at any other
name. Other files that later Kafka versions write there are skipped.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from enum import Enum
from itertools import count
from typing import Final, NamedTuple

from klamm.log.directories.checkpoints import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOCK,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    RECOVERY_POINTS,
    MetaProperties,
    read_meta,
    read_offsets,
    write_meta,
    write_offsets,
)
from klamm.model.errors import ConfigError, ErrorCode, KafkaError
from klamm.model.ids import BrokerId, TopicPartition
from klamm.model.ports import Disk, DiskSpace

logger = logging.getLogger(__name__)

_NAME = re.compile(
    r"(?P<topic>.+?)-(?P<partition>\d+)(\.(?P<unique>[0-9a-f]{32})-(?P<kind>delete|future|stray)(?:-0)?)?"
)
_SKIPPED: Final = frozenset({"remote-log-index-cache", "lost+found"})
MOVED_HERE: Final = "klamm-moved-here"
"""A file in the directory of a log that has come from another log directory, until the old one is gone for good."""
NAME_MAX: Final = 255
TOPIC_NAME_MAX: Final = 249


class DirectoryKind(Enum):
    CURRENT = "current"
    DELETE = "delete"
    FUTURE = "future"
    STRAY = "stray"


class PartitionDirectory(NamedTuple):
    partition: TopicPartition
    kind: DirectoryKind


def parse_name(name: str) -> PartitionDirectory | None:
    """
    >>> parse_name("a-b-3")
    PartitionDirectory(partition=TopicPartition(topic='a-b', partition=3), kind=<DirectoryKind.CURRENT: 'current'>)
    >>> parse_name("no partition") is None
    True
    >>> parse_name(stray_name(TopicPartition("a-b", 3), "0" * 32)).kind
    <DirectoryKind.STRAY: 'stray'>
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    partition = TopicPartition(match["topic"], int(match["partition"]))
    return PartitionDirectory(partition, DirectoryKind(match["kind"] or "current"))


def deleted_name(partition: TopicPartition, unique: str) -> str:
    """The topic is shortened so that the name is valid on any file system.

    >>> len(deleted_name(TopicPartition("t" * 249, 0), "0" * 32))
    255
    """
    return _shortened(partition, f".{unique}-delete", NAME_MAX)


def stray_name(partition: TopicPartition, unique: str) -> str:
    return _shortened(partition, f".{unique}-stray-0", TOPIC_NAME_MAX + len("-0"))


def _shortened(partition: TopicPartition, suffix: str, longest: int) -> str:
    end = f"-{partition.partition}{suffix}"
    return partition.topic[: longest - len(end)] + end


def future_name(partition: TopicPartition, unique: str) -> str:
    """Not shortened, since the partition is read from it. Raises INVALID_TOPIC_EXCEPTION if the name is too long."""
    name = f"{partition}.{unique}-future"
    if len(name) > NAME_MAX:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is longer than {NAME_MAX} characters")
    return name


class PreviousRun(NamedTuple):
    """What the previous run of the broker left next to the logs."""

    clean: bool
    recovery_points: dict[TopicPartition, int]
    log_start_offsets: dict[TopicPartition, int]
    high_watermarks: dict[TopicPartition, int]
    cleaner_offsets: dict[TopicPartition, int]


class LogDirectory:
    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self.failure: OSError | None = None
        """Why it is offline."""
        self.loaded = False
        """Until all logs are loaded, its checkpoints must not be written: they would lose the others."""
        self.log_count = 0
        self._release: Callable[[], None] | None = None

    def file(self, name: str) -> str:
        return f"{self.path}/{name}"

    def lock(self) -> None:
        """Raises BlockingIOError if another process holds the lock."""
        self._disk.make_directories(self.path)
        self._release = self._disk.lock(self.file(LOCK))

    def unlock(self) -> None:
        if self._release is not None:
            self._release()
            self._release = None

    def read_meta(self) -> MetaProperties | None:
        return read_meta(self._disk, self.file(META_PROPERTIES))

    def write_meta(self, broker_id: BrokerId, cluster_id: str) -> None:
        if self.read_meta() != MetaProperties(broker_id, cluster_id):
            write_meta(self._disk, self.file(META_PROPERTIES), broker_id, cluster_id)

    def take_previous_run(self) -> PreviousRun:
        """Removes the clean-shutdown marker *before* loading (KAFKA-10471): a crash while loading is unclean."""
        path = self.file(CLEAN_SHUTDOWN)
        clean = self._disk.exists(path)
        if clean:
            self._disk.remove(path)
            self._disk.sync_directory(self.path)
        return PreviousRun(
            clean,
            self._read_tolerantly(RECOVERY_POINTS),
            self._read_tolerantly(LOG_START_OFFSETS),
            self._read_tolerantly(HIGH_WATERMARKS),
            self._read_tolerantly(CLEANER_OFFSETS),
        )

    def _read_tolerantly(self, name: str) -> dict[TopicPartition, int]:
        """An unreadable checkpoint counts as empty: recovery and cleaning begin at the log start, and so does the high
        watermark."""
        try:
            return read_offsets(self._disk, self.file(name))
        except KafkaError as error:
            logger.error("%s; continuing without it", error)
            return {}

    async def space(self) -> DiskSpace:
        """Raises OSError if the volume does not say."""
        return await self._disk.run(lambda: self._disk.space(self.path))

    def leave_clean_marker(self) -> None:
        self._disk.write_atomically(self.file(CLEAN_SHUTDOWN), b"")

    def partitions(self) -> list[tuple[str, PartitionDirectory]]:
        """Path and meaning of every partition directory. Raises ConfigError for any other directory, as Kafka does."""
        found = []
        for name in self._disk.list(self.path):
            path = self.file(name)
            if name in _SKIPPED or not self._disk.is_directory(path):
                continue
            parsed = parse_name(name)
            if parsed is None:
                raise ConfigError(f"{path} is not a partition directory: remove it from the log directory")
            found.append((path, parsed))
        return found

    def discard(self, path: str, partition: TopicPartition) -> str:
        """Rename the directory of a partition for deletion; returns its new path."""
        free = (self.file(deleted_name(partition, f"{number:032x}")) for number in count())
        trash = next(name for name in free if not self._disk.exists(name))
        self._disk.rename(path, trash)
        self._disk.sync_directory(self.path)
        return trash

    def write_offsets(self, name: str, offsets: Mapping[TopicPartition, int], turn: int = 0) -> None:
        """`name` is that of the checkpoint."""
        write_offsets(self._disk, self.file(name), offsets, turn)
