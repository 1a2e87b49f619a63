"""All fetchers of this broker, one for each leader that it follows: Kafka's ReplicaFetcherManager."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from klamm.broker.fetcher import Fetcher
from klamm.broker.partition import Partition
from klamm.model.guard import Guard
from klamm.model.ids import BrokerId, TopicPartition


class Fetchers:
    def __init__(self, fetcher_for: Callable[[BrokerId], Fetcher], guard: Guard) -> None:
        self._fetcher_for = fetcher_for
        self._guard = guard
        self._fetchers: dict[BrokerId, Fetcher] = {}
        self._tasks: dict[BrokerId, asyncio.Task[None] | None] = {}

    def of(self, leader: BrokerId) -> Fetcher | None:
        return self._fetchers.get(leader)

    def add(self, partitions: Iterable[Partition]) -> None:
        """Follow each partition's leader; a leader's fetcher starts with its first partition."""
        for partition in partitions:
            leader = partition.leader
            fetcher = self._fetchers.get(leader)
            if fetcher is None:
                fetcher = self._fetchers[leader] = self._fetcher_for(leader)
                self._tasks[leader] = self._guard.start("fetcher", leader, fetcher.run)
            fetcher.add(partition)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            for fetcher in self._fetchers.values():
                fetcher.remove(partition)

    def wake(self, partition: TopicPartition) -> None:
        """What held the partition back is over: its log was flushed."""
        for fetcher in self._fetchers.values():
            fetcher.wake(partition)

    def stop_idle(self) -> None:
        for leader in [leader for leader, fetcher in self._fetchers.items() if not (len(fetcher) or fetcher.failed)]:
            del self._fetchers[leader]
            task = self._tasks.pop(leader)
            if task is not None:
                task.cancel()

    @property
    def max_lag(self) -> int:
        """The largest lag among all replicas that follow."""
        return max((fetcher.max_lag for fetcher in self._fetchers.values()), default=0)

    @property
    def dead_count(self) -> int:
        """Fetchers that failed as a whole and wait to be started again."""
        return sum(fetcher.is_dead for fetcher in self._fetchers.values())

    @property
    def failed_count(self) -> int:
        return sum(len(fetcher.failed) for fetcher in self._fetchers.values())
