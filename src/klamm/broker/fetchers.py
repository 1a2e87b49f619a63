"""All fetchers of this broker, one for each leader that it follows: Kafka's ReplicaFetcherManager."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from klamm.broker.fetcher import Fetcher
from klamm.broker.partition import Partition
from klamm.model.ids import BrokerId, TopicPartition


class Fetchers:
    def __init__(self, fetcher_for: Callable[[BrokerId], Fetcher]) -> None:
        self._fetcher_for = fetcher_for
        self._fetchers: dict[BrokerId, Fetcher] = {}
        self._tasks: dict[BrokerId, asyncio.Task[None]] = {}

    def add(self, partitions: Iterable[Partition], tasks: asyncio.TaskGroup) -> None:
        """Follow each partition's leader; a leader's fetcher starts with its first partition."""
        for partition in partitions:
            leader = partition.leader
            fetcher = self._fetchers.get(leader)
            if fetcher is None:
                fetcher = self._fetchers[leader] = self._fetcher_for(leader)
                self._tasks[leader] = tasks.create_task(fetcher.run(), name=f"fetcher-{leader}")
            fetcher.add(partition)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            for fetcher in self._fetchers.values():
                fetcher.remove(partition)

    def stop_idle(self) -> None:
        for leader in [leader for leader, fetcher in self._fetchers.items() if not (len(fetcher) or fetcher.failed)]:
            del self._fetchers[leader]
            self._tasks.pop(leader).cancel()

    def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        self._fetchers.clear()
        self._tasks.clear()

    @property
    def failed_count(self) -> int:
        return sum(len(fetcher.failed) for fetcher in self._fetchers.values())
