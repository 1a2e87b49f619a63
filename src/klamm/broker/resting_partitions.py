"""Partitions of a follower's session that cost nothing while nothing changes.

A follower fetches all its partitions in every round. If it is in sync and has everything of a partition, and knows its
high watermark and log start, then the partition rests: it is not read until it changes (append, high watermark, role,
another entry of the follower). So a round costs what has changed, not what the follower follows.

A resting partition counts as fetched in every round: when it wakes, the follower is credited with the last round, in
which it still had everything. Otherwise it would seem to lag since the partition came to rest. Changes that no code
reports, such as a new log start by retention, are seen by a visit every few seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from klamm.broker.isr import Follower
from klamm.broker.replica_manager import ReplicaManager
from klamm.model.ids import BrokerId, LeaderEpoch, TopicPartition
from klamm.wire.fetch import FetchPartition

VISITED_AFTER_S: Final = 5.0
VISITED_PER_ROUND: Final = 250


class Rest(NamedTuple):
    entry: FetchPartition
    follower: Follower
    leader_epoch: LeaderEpoch
    since: float


class RestingPartitions:
    """Those of one session. Close it with the session."""

    def __init__(self, replicas: ReplicaManager, broker: BrokerId) -> None:
        self._replicas = replicas
        self._broker = broker
        self._resting: dict[TopicPartition, Rest] = {}
        """The longest at rest come first."""
        self._woken: dict[TopicPartition, FetchPartition] = {}
        """Since the last round began."""
        self._last_round = replicas.clock.monotonic()
        self._listener: Callable[[FetchPartition], None] | None = None

    def __len__(self) -> int:
        return len(self._resting)

    def __contains__(self, name: TopicPartition) -> bool:
        return name in self._resting

    def begin_round(self) -> list[TopicPartition]:
        """The follower has asked again. Returns the partitions that have woken since the last round, or are due."""
        now = self._replicas.clock.monotonic()
        due: list[TopicPartition] = []
        for name, rest in self._resting.items():
            if len(due) == VISITED_PER_ROUND or now - rest.since < VISITED_AFTER_S:
                break
            due.append(name)
        for name in due:
            self.wake(name)
        self._last_round = now
        woken, self._woken = list(self._woken), {}
        return woken

    def listen(self, listener: Callable[[FetchPartition], None]) -> None:
        """Tell a fetch that waits of each partition that wakes, or has woken since the round began."""
        self._listener = listener
        for entry in self._woken.values():
            listener(entry)

    def stop_listening(self, listener: Callable[[FetchPartition], None]) -> None:
        if self._listener == listener:  # else another request has continued the session
            self._listener = None

    def rest(self, entry: FetchPartition, high_watermark: int, log_start_offset: int) -> bool:
        """Lets the partition rest if it may. The last two are what the follower has been told."""
        name = entry.partition
        partition = self._replicas.partitions.get(name)
        if partition is None or not partition.is_leader or partition.log is None or self._broker not in partition.isr:
            return False
        log, follower = partition.log, partition.followers.get(self._broker)
        if follower is None or entry.current_leader_epoch != partition.leader_epoch:
            return False
        if not follower.log_end_offset == entry.fetch_offset == log.log_end_offset or log.failed:
            return False
        if (log.high_watermark, log.log_start_offset) != (high_watermark, log_start_offset):
            return False
        self._resting[name] = Rest(entry, follower, partition.leader_epoch, self._replicas.clock.monotonic())
        self._replicas.waiting_fetches.add(name, self)
        return True

    def wake(self, name: TopicPartition) -> None:
        rest = self._forget(name)
        if rest is None:
            return
        partition = self._replicas.partitions.get(name)
        if (
            partition is not None
            and partition.leader_epoch == rest.leader_epoch
            and partition.followers.get(self._broker) is rest.follower
        ):
            rest.follower.had_everything_at(self._last_round)
        self._woken[name] = rest.entry
        if self._listener is not None:
            self._listener(rest.entry)

    def check(self, key: TopicPartition) -> None:
        """The partition has changed."""
        self.wake(key)

    def close(self) -> None:
        for name in list(self._resting):
            self._forget(name)

    def _forget(self, name: TopicPartition) -> Rest | None:
        rest = self._resting.pop(name, None)
        if rest is not None:
            self._replicas.waiting_fetches.remove(name, self)
        return rest
