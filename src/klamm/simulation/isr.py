"""How a leader maintains its ISRs in ZooKeeper, like klamm's own broker (`broker/isr_writer.py`).

It adds replicas that fetch, removes those that do not, and sometimes removes one that is only slow. Each write is
conditional and raises the version, so a controller runs into versions that it does not expect. A write of unknown
outcome is retried with the same version, and after a conflict the state is read. A notification informs the controller
about the changes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from klamm.model.errors import BadVersion, NoNode, ZNodeError, ZooKeeperError
from klamm.model.ids import BrokerId, LeaderEpoch, TopicPartition
from klamm.model.ports import CreateMode, ZooKeeper
from klamm.simulation.broker import Role, SimulatedBroker
from klamm.simulation.checker import Checker
from klamm.zookeeper.znodes import isr_change, partition_state

EVERY_SECONDS: Final = (0.8, 2.5)
SLOW_FOLLOWER: Final = 0.03
"""Probability, per check of a partition, that a healthy follower counts as lagging."""

Fetches = Callable[[BrokerId, BrokerId, TopicPartition, LeaderEpoch], bool]
"""Does this follower fetch from this leader in this epoch?"""


class IsrUpkeep:
    def __init__(
        self, broker: SimulatedBroker, zk: ZooKeeper, rng: random.Random, checker: Checker, fetches: Fetches
    ) -> None:
        self._broker = broker
        self._zk = zk
        self._random = rng
        self._checker = checker
        self._fetches = fetches
        self._untold: set[TopicPartition] = set()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._random.uniform(*EVERY_SECONDS))
            for name in self._broker.led():
                role = self._broker.roles.get(name)
                if role is not None and role.state.leader == self._broker.id:
                    await self._look_after(name, role)
            await self._notify()

    async def _look_after(self, name: TopicPartition, role: Role) -> None:
        isr = self._wanted(name, role)
        if isr == role.state.isr:
            return
        wanted = role.state._replace(isr=isr)
        try:
            stat = await self._zk.set(partition_state.path(name), partition_state.encode(wanted), role.zk_version)
        except BadVersion:
            await self._read_back(name, role)
        except NoNode:
            return  # the topic is gone, and StopReplica will follow
        except ZooKeeperError:
            self._checker.reached("ISR write of unknown outcome")
        else:
            self._settle(name, role, Role(wanted, stat.version, role.replicas))

    def _wanted(self, name: TopicPartition, role: Role) -> tuple[BrokerId, ...]:
        me, epoch = self._broker.id, role.state.leader_epoch
        followers = [b for b in role.replicas if b != me and self._fetches(b, me, name, epoch)]
        if followers and self._random.random() < SLOW_FOLLOWER:
            followers.remove(self._random.choice(followers))
        staying = tuple(b for b in role.state.isr if b == me or b in followers)
        return (*staying, *(b for b in followers if b not in role.state.isr))

    async def _read_back(self, name: TopicPartition, role: Role) -> None:
        path = partition_state.path(name)
        try:
            node = await self._zk.get(path)
            found = partition_state.decode(path, node.data)
        except (ZooKeeperError, ZNodeError):
            return
        if (found.leader, found.leader_epoch) == (self._broker.id, role.state.leader_epoch):
            self._checker.reached("ISR write found by reading back")
            self._settle(name, role, Role(found, node.stat.version, role.replicas))

    def _settle(self, name: TopicPartition, before: Role, after: Role) -> None:
        if self._broker.roles.get(name) is before:
            self._broker.roles[name] = after
        self._untold.add(name)

    async def _notify(self) -> None:
        if not self._untold:
            return
        told = sorted(self._untold)
        try:
            await self._zk.create(isr_change.PREFIX, isr_change.encode(told), CreateMode.PERSISTENT_SEQUENTIAL)
        except ZooKeeperError:
            return  # retried at the next check; a repeated notification does no harm
        self._untold.difference_update(told)
