"""Which topic each log belongs to: a topic that is deleted and created again has the same name and another life.

A life is named by the czxids of /brokers/topics and of the topic's znode; ZooKeeper never uses a zxid twice. Each log
directory has a file with the lives of its logs, in the format of the checkpoints. Kafka ignores the file. A log that a
JVM broker wrote, and a log whose broker crashed at the wrong moment, are not in it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

from klamm.log.directories.checkpoints import decode_lines, encode_lines
from klamm.log.directories.log_directory import LogDirectory
from klamm.log.log_registry import LogRegistry
from klamm.model.errors import KafkaError
from klamm.model.ids import TopicPartition
from klamm.model.ports import Disk

FILE: Final = "klamm-topic-lives"

logger = logging.getLogger(__name__)


class TopicLife(NamedTuple):
    tree: int
    """czxid of /brokers/topics. It changes only if the whole tree was built anew, for example from a backup."""
    topic: int
    """czxid of /brokers/topics/<topic>."""


def may_belong(known: TopicLife | None, now: TopicLife | None, *, is_new: bool) -> bool:
    """Whether a log of the life `known` may hold records of the topic as it is `now` (ADR 0010). Without proof a
    replica that the controller calls new does not get the log; in a tree that was built anew every topic looks new, so
    there it does."""
    if known is None or now is None:
        return not is_new
    return known.tree != now.tree or known.topic == now.topic


class TopicLives:
    def __init__(self, disk: Disk, registry: LogRegistry) -> None:
        self._disk = disk
        self._registry = registry
        self._known: dict[TopicPartition, TopicLife] = {}

    def load(self, directory: LogDirectory) -> None:
        path = directory.file(FILE)
        if not self._disk.exists(path):
            return
        try:
            for topic, partition, *life in decode_lines(path, self._disk.read(path), 4):
                self._known[TopicPartition(topic, int(partition))] = TopicLife(int(life[0]), int(life[1]))
        except (KafkaError, ValueError) as error:
            logger.error("%s is not readable, continuing without it: %s", path, error)

    def of(self, partition: TopicPartition) -> TopicLife | None:
        return self._known.get(partition)

    def forget(self, partition: TopicPartition) -> None:
        """The log is gone. Its line goes with the next write."""
        self._known.pop(partition, None)

    async def remember(self, lives: Mapping[TopicPartition, TopicLife]) -> None:
        """Write the files of the directories whose logs are concerned, in the pool."""
        changed = {partition: life for partition, life in lives.items() if self._known.get(partition) != life}
        self._known |= changed
        for directory in {self._registry.home_of(partition): None for partition in changed}:
            if directory is None or directory.failure is not None:
                continue
            lines = encode_lines(
                (*partition, *life)
                for partition, life in sorted(self._known.items())
                if self._registry.home_of(partition) is directory
            )
            try:
                await self._disk.run(partial(self._disk.write_atomically, directory.file(FILE), lines))
            except OSError as error:
                self._registry.storage_error(directory, error)
