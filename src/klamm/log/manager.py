"""All logs of one broker over its log directories: which exist, where a new one goes, which directory still works."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

from klamm.log.log import Log
from klamm.model.config import BrokerConfig, TopicConfig
from klamm.model.ids import BrokerId, TopicPartition
from klamm.model.ports import Clock, Disk

OfflineCallback = Callable[[str, list[TopicPartition]], None]
"""A log directory went offline, with the partitions that lived in it. Called in the loop, once per directory."""


class MetaProperties(NamedTuple):
    broker_id: BrokerId | None
    cluster_id: str | None


class LogManager:
    def __init__(self, disk: Disk, clock: Clock, config: BrokerConfig, random: random.Random) -> None: ...

    on_offline: OfflineCallback | None

    def lock_directories(self) -> None:
        """Take `.lock` in every log directory (made if absent); ConfigError if another process has one."""

    def read_meta(self) -> MetaProperties:
        """What the directories agree on; ConfigError where they contradict each other."""
        ...

    def verify_and_write_meta(self, broker_id: BrokerId, cluster_id: str) -> None:
        """ConfigError for a directory of another broker or cluster; written where it is missing."""

    async def load(self, topic_config: Callable[[str], TopicConfig]) -> None:
        """Open every log, recovering where the last stop was not clean; high watermarks come from their checkpoint."""

    def get(self, partition: TopicPartition) -> Log | None: ...

    def logs(self) -> Iterator[Log]:
        """In order of topic and partition."""
        ...

    def is_offline(self, partition: TopicPartition) -> bool:
        """Known to have lived in a directory that failed, or could not be opened."""
        ...

    def offline_directories(self) -> list[str]: ...

    def get_or_create(self, partition: TopicPartition, config: TopicConfig, *, is_new: bool) -> Log:
        """KAFKA_STORAGE_ERROR if it is offline, or absent while some directory is offline and it is not new."""
        ...

    async def create_many(
        self, partitions: Iterable[tuple[TopicPartition, TopicConfig, bool]]
    ) -> dict[TopicPartition, Log | Exception]:
        """(partition, config, is_new) in bulk, files made in the pool; a failure is a value, per partition."""
        ...

    def delete(self, partition: TopicPartition) -> None:
        """Renamed at once, so that a topic of the same name starts empty; removed after file.delete.delay.ms."""

    def checkpoint_high_watermarks(self) -> None: ...

    def checkpoint_recovery_points(self) -> None: ...

    async def apply_retention(self) -> int:
        """One pass over all logs; returns the number of segments deleted."""
        ...

    def running(self) -> AbstractAsyncContextManager[LogManager]:
        """The timers: retention, flush, checkpoints, delayed removal. On exit `close`."""
        ...

    async def close(self) -> None: ...
