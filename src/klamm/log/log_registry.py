"""Which logs a broker has, in which directory each of them lives, and which partitions are offline.

A file operation that fails takes its whole directory offline, once, with all partitions in it. A partition whose log
cannot be opened, or contradicts itself, is offline alone (`log_reopening`). An error that passes takes nothing offline.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping

from klamm.log.directories.log_directories import LogDirectories
from klamm.log.directories.log_directory import LogDirectory
from klamm.log.log import Log
from klamm.log.storage_errors import is_passing
from klamm.model.ids import TopicPartition

logger = logging.getLogger(__name__)

OfflineCallback = Callable[[str, list[TopicPartition]], None]
"""These partitions went offline: all of a log directory, whose path is given, or one alone. Called in the loop."""


class LogRegistry:
    def __init__(
        self, directories: LogDirectories, on_offline: OfflineCallback, on_all_offline: Callable[[], None]
    ) -> None:
        self.directories = directories
        self._logs: dict[TopicPartition, Log] = {}
        self._home: dict[TopicPartition, LogDirectory] = {}
        """Includes logs that are still being opened or could not be opened."""
        self._offline: dict[TopicPartition, str] = {}
        """With the reason."""
        self._on_offline = on_offline
        self._on_all_offline = on_all_offline

    def get(self, partition: TopicPartition) -> Log | None:
        return self._logs.get(partition)

    def home_of(self, partition: TopicPartition) -> LogDirectory | None:
        return self._home.get(partition)

    def is_offline(self, partition: TopicPartition) -> bool:
        return partition in self._offline

    @property
    def offline(self) -> Mapping[TopicPartition, str]:
        """The partitions that are offline, each with the reason."""
        return self._offline

    def logs(self) -> Iterator[Log]:
        """In order of topic and partition. The registry may change during the iteration."""
        return iter([self._logs[partition] for partition in sorted(self._logs)])

    def logs_of(self, topic: str) -> list[Log]:
        return [log for partition, log in self._logs.items() if partition.topic == topic]

    def logs_in(self, directory: LogDirectory) -> list[Log]:
        return [log for partition, log in self._logs.items() if self._home[partition] is directory]

    def has_offline_in(self, directory: LogDirectory) -> bool:
        return any(self._home.get(partition) is directory for partition in self._offline)

    def expect(self, partition: TopicPartition, directory: LogDirectory) -> None:
        """The log in `directory` is about to be opened, or moves there."""
        self._home[partition] = directory

    def add(self, log: Log, directory: LogDirectory) -> None:
        self._logs[log.topic_partition] = log
        self._home[log.topic_partition] = directory
        directory.log_count += 1
        if directory.failure is not None:
            log.fail(directory.failure)

    def remove(self, partition: TopicPartition) -> tuple[Log, LogDirectory] | None:
        """None if there is no such log; if the partition was offline it is forgotten."""
        log = self._logs.pop(partition, None)
        directory = self._home.pop(partition, None)
        if log is None or directory is None:
            self._offline.pop(partition, None)
            return None
        directory.log_count -= 1
        return log, directory

    def mark_offline(self, partition: TopicPartition, reason: Exception) -> None:
        """Its log could not be opened."""
        self._offline[partition] = str(reason)

    def take_log_offline(self, log: Log, reason: Exception) -> None:
        """The log cannot be used any more, although its directory works."""
        partition = log.topic_partition
        logger.error("%s is offline: %s: %s", partition, type(reason).__name__, reason)
        self._offline[partition] = str(reason)
        if self._logs.get(partition) is log:
            del self._logs[partition]
            self._home[partition].log_count -= 1
        log.close_files()
        self._on_offline(log.directory, [partition])

    def back_online(self, partition: TopicPartition) -> None:
        """What was wrong with its log has passed."""
        self._offline.pop(partition, None)

    def storage_error(self, directory: LogDirectory, error: OSError) -> None:
        """A file operation failed in this directory, which goes offline unless the error passes."""
        if is_passing(error):
            logger.error("log directory %s: %s (trying again)", directory.path, error)
        else:
            self.take_offline(directory, error)

    def take_offline(self, directory: LogDirectory, error: OSError) -> None:
        """Does nothing if the directory is offline already."""
        if directory.failure is not None:
            return
        directory.failure = error
        gone = sorted(partition for partition, home in self._home.items() if home is directory)
        logger.error("log directory %s is offline with %d partitions: %s", directory.path, len(gone), error)
        for partition in gone:
            self._offline[partition] = f"log directory {directory.path}: {error}"
            log = self._logs.pop(partition, None)
            if log is not None:
                log.fail(error)
                log.close_files()
        self._on_offline(directory.path, gone)
        if not self.directories.online():
            self._on_all_offline()
