"""Follows the leaderships of `__consumer_offsets`: loads the groups of a partition, and lets go of them.

A partition is marked as loading in the step that makes this broker its leader, and owned only when its whole log was
read; a load that fails is repeated, and until then the groups are not served from half of their state. Partitions are
read one after another, and completed one after another, so that the loop stays free however many there are. They wait
for ZooKeeper and for their followers together.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from klamm.broker.coordinators.groups.events import Timer, TimerKind
from klamm.broker.coordinators.groups.execution import Execution
from klamm.broker.coordinators.groups.group import Group
from klamm.broker.coordinators.groups.group_log import GroupLog
from klamm.broker.coordinators.groups.rebalance import die, maybe_prepare
from klamm.broker.coordinators.groups.registry import GroupRegistry
from klamm.broker.coordinators.groups.replay import Replay
from klamm.broker.coordinators.state_loading import StateLoading
from klamm.model.errors import ErrorCode, KafkaError, ZNodeError, ZooKeeperError
from klamm.model.guard import Guard
from klamm.model.ids import LeaderEpoch, TopicPartition
from klamm.model.ports import Clock

RETRY_SECONDS: Final = 1.0
MEMBERS_PER_SLICE: Final = 200
GROUPS_PER_SLICE: Final = 200

log = logging.getLogger(__name__)


class GroupLoading:
    """The listener for leaderships of the topic."""

    def __init__(
        self,
        registry: GroupRegistry,
        group_log: GroupLog,
        execution: Execution,
        clock: Clock,
        guard: Guard,
        buffer_bytes: int,
    ) -> None:
        self._registry = registry
        self._guard = guard
        self._log = group_log
        self._execution = execution
        self._clock = clock
        self._buffer_bytes = buffer_bytes
        self._one_reads = asyncio.Lock()
        self._one_completes = asyncio.Lock()
        self._unloading: dict[int, list[Group]] = {}
        """By partition: groups whose parked calls are not answered yet."""
        self.damaged = 0
        """Records that were left out, since the start."""
        self.load_times_ms: list[float] = []

    def became_leader(self, partition: TopicPartition, leader_epoch: LeaderEpoch) -> None:
        number = partition.partition
        if self._registry.ownership.begin_loading(number, leader_epoch):
            self._unload(number)
            self._guard.start("group-load", partition, lambda: self._load(number, leader_epoch))

    def resigned(self, partition: TopicPartition, leader_epoch: LeaderEpoch | None) -> None:
        if self._registry.ownership.resign(partition.partition, leader_epoch):
            self._unload(partition.partition)

    def _unload(self, partition: int) -> None:
        """The groups are removed in one step, so that no request sees a part of it. Parked calls are told afterwards,
        in slices, to look for the new coordinator."""
        groups = self._registry.take_partition(partition)
        if groups:
            self._unloading[partition] = [*self._unloading.get(partition, ()), *groups]
            self._guard.start("group-unload", partition, lambda: self._let_go(partition))

    async def _let_go(self, partition: int) -> None:
        while groups := self._unloading.get(partition):
            some = [groups.pop() for _ in range(min(GROUPS_PER_SLICE, len(groups)))]
            for group in some:
                turn = self._execution.turn()
                die(group, ErrorCode.NOT_COORDINATOR, turn)
                self._registry.forget_transactions(group)
                self._execution.carry_out(group, turn)
            await asyncio.sleep(0)
        self._unloading.pop(partition, None)

    async def _load(self, partition: int, epoch: LeaderEpoch) -> None:
        ownership, begun = self._registry.ownership, self._clock.monotonic()
        await self._let_go(partition)  # the timers of groups that come back have the names of their former ones
        while ownership.is_wanted(partition, epoch):
            try:
                replay = await self._read(partition, epoch)
                if ownership.loaded(partition, epoch):
                    self._publish(replay)
                    await self._start_sessions(list(replay.groups.values()))
                    self.load_times_ms = [*self.load_times_ms[-99:], 1000 * (self._clock.monotonic() - begun)]
                    log.info("loaded %d groups of partition %d in epoch %d", len(replay.groups), partition, epoch)
                return
            except (KafkaError, ZooKeeperError, ZNodeError) as error:
                log.error("cannot load the groups of partition %d yet: %s", partition, error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _read(self, partition: int, epoch: LeaderEpoch) -> Replay:
        """Returns without waiting after the last record, so nothing is appended between that and what follows.

        What this leader holds must be on all replicas in sync before it is shown: otherwise the next fail-over takes
        back an offset that a client has read. Meanwhile only markers are appended. Those that are acknowledged are
        read; the others take effect with their acknowledgement.
        """

        def is_wanted() -> bool:
            return self._registry.ownership.is_wanted(partition, epoch)

        await self._registry.topic.read_count()
        state_log = self._log.log_of(partition)
        if state_log is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker does not lead it now")
        name = TopicPartition(self._registry.topic.name, partition)
        loading = StateLoading(name, state_log, self._buffer_bytes, is_wanted)
        replay = Replay(partition, loading.leave_out)
        async with self._one_reads:
            async for header, records in loading.read():
                replay.add(header, records)
            for _ in replay.finish():
                await asyncio.sleep(0)
        await self._log.replicated(partition, loading.position, is_wanted)
        async with self._one_completes:
            await asyncio.sleep(0)  # followers often catch up with many partitions in one turn
            async for header, records in loading.read(committed=True):
                replay.add(header, records)
        self.damaged += loading.damaged
        if replay.foreign_keys:
            log.warning("%s: skipped %d records of newer kinds of groups", name, replay.foreign_keys)
        return replay

    def _publish(self, replay: Replay) -> None:
        for group in replay.groups.values():
            self._registry.add(group)
        for producer, names in replay.open_transactions.items():
            self._registry.open_transactions.setdefault(producer, set()).update(names)

    async def _start_sessions(self, groups: list[Group]) -> None:
        """Every member gets a whole session from now on. One that was heard of meanwhile has its timer already."""
        started = 0
        for group in groups:
            if not self._registry.holds(group):
                continue
            if len(group.members) > self._execution.rules.max_size:
                turn = self._execution.turn()
                maybe_prepare(group, self._execution.rules, turn)
                self._execution.carry_out(group, turn)
            for member in list(group.members.values()):
                timer = Timer(TimerKind.SESSION, member.id)
                if (group.id, timer) not in self._execution.timers:
                    self._execution.set_timer(group, timer, member.session_timeout_ms)
                started += 1
            if started >= MEMBERS_PER_SLICE:
                started = 0
                await asyncio.sleep(0)
