"""All log directories of a broker: their locks, whether they belong to one broker and cluster, and which are online."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from klamm.log.directories.checkpoints import MetaProperties
from klamm.log.directories.log_directory import MOVED_HERE, DirectoryKind, LogDirectory, PartitionDirectory
from klamm.model.errors import ConfigError
from klamm.model.ids import BrokerId, TopicPartition
from klamm.model.ports import Disk

logger = logging.getLogger(__name__)

Found = dict[LogDirectory, list[tuple[str, PartitionDirectory]]]
"""Path and meaning of every partition directory."""


class LogDirectories:
    def __init__(self, disk: Disk, paths: tuple[str, ...]) -> None:
        self._disk = disk
        self._all = {path: LogDirectory(disk, path) for path in paths}

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[LogDirectory]:
        return iter(self._all.values())

    def online(self) -> list[LogDirectory]:
        return [directory for directory in self if directory.failure is None]

    def loaded(self) -> list[LogDirectory]:
        return [directory for directory in self.online() if directory.loaded]

    def offline(self) -> list[str]:
        return [directory.path for directory in self if directory.failure is not None]

    def lock(self) -> None:
        """Raises ConfigError if another process holds a directory or none is usable. An unusable one goes offline."""
        for directory in self:
            try:
                directory.lock()
            except BlockingIOError:
                self.unlock()
                raise ConfigError(
                    f"log.dirs: {directory.path} is in use by another process, which holds its .lock: "
                    f"every broker needs its own directories"
                ) from None
            except OSError as error:
                self._unusable(directory, error)
        self._check_one_is_online()

    def unlock(self) -> None:
        for directory in self:
            directory.unlock()

    def read_meta(self) -> MetaProperties:
        """The content of meta.properties, on which all must agree; ConfigError if they do not. A directory that cannot
        be read goes offline."""
        known: dict[MetaProperties, str] = {}
        for directory in self.online():
            try:
                meta = directory.read_meta()
            except OSError as error:
                self._unusable(directory, error)
                continue
            if meta is not None:
                known.setdefault(meta, directory.path)
        if len(known) > 1:
            said = "; ".join(f"{path} of broker {m.broker_id} in cluster {m.cluster_id}" for m, path in known.items())
            raise ConfigError(f"log.dirs: the directories belong to different brokers or clusters: {said}")
        return next(iter(known), MetaProperties(None, None))

    def verify_meta(self, broker_id: BrokerId, cluster_id: str) -> None:
        """ConfigError for directories of another broker or cluster."""
        meta = self.read_meta()
        where = ", ".join(directory.path for directory in self.online())
        if meta.cluster_id is not None and meta.cluster_id != cluster_id:
            raise ConfigError(
                f"log.dirs: {where} belongs to cluster {meta.cluster_id}, but zookeeper.connect leads to cluster "
                f"{cluster_id}: point it at the right cluster, or use empty directories"
            )
        if meta.broker_id is not None and meta.broker_id != broker_id:
            raise ConfigError(
                f"log.dirs: {where} belongs to broker {meta.broker_id}, but broker.id is {broker_id}: "
                f"use that id, or empty directories"
            )

    def survey(self) -> Found:
        """Find every partition directory. If a move between directories was interrupted, it is completed first. Raises
        ConfigError for a partition in two places for another reason, or a directory that is not a partition directory.
        A log directory that cannot be used goes offline."""
        found: Found = {}
        for directory in self.online():
            try:
                found[directory] = directory.partitions()
            except OSError as error:
                self._unusable(directory, error)
        homes: dict[TopicPartition, list[tuple[LogDirectory, str]]] = {}
        for directory, partitions in found.items():
            for path, (partition, kind) in partitions:
                if kind is DirectoryKind.CURRENT:
                    homes.setdefault(partition, []).append((directory, path))
        for partition, places in homes.items():
            if len(places) > 1:
                self._complete_move(found, partition, *self._left_behind(partition, places))
        self._check_one_is_online()
        return found

    def _complete_move(self, found: Found, partition: TopicPartition, directory: LogDirectory, path: str) -> None:
        if directory not in found:
            return  # it failed at the last one
        try:
            trash = directory.discard(path, partition)
        except OSError as error:
            self._unusable(directory, error)
            del found[directory]
            return
        logger.warning("%s has moved to another log directory: %s is deleted", partition, path)
        found[directory].remove((path, PartitionDirectory(partition, DirectoryKind.CURRENT)))
        found[directory].append((trash, PartitionDirectory(partition, DirectoryKind.DELETE)))

    def _left_behind(
        self, partition: TopicPartition, places: list[tuple[LogDirectory, str]]
    ) -> tuple[LogDirectory, str]:
        """The place that a complete move has left. Raises ConfigError if nothing proves that there was one."""
        left = [place for place in places if not self._disk.exists(f"{place[1]}/{MOVED_HERE}")]
        if len(places) != 2 or len(left) != 1:
            paths = " and ".join(path for _, path in places)
            raise ConfigError(f"log.dirs: {partition} exists twice, {paths}: remove one")
        return left[0]

    def _unusable(self, directory: LogDirectory, error: OSError) -> None:
        logger.error("log directory %s cannot be used and is offline: %s", directory.path, error)
        directory.failure = error

    def _check_one_is_online(self) -> None:
        if not self.online():
            reasons = "; ".join(str(directory.failure) for directory in self)
            raise ConfigError(f"log.dirs: none of {', '.join(self._all)} can be used: {reasons}")
