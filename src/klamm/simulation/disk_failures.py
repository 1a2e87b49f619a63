"""Failures of disks and of power, which only real brokers notice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from klamm.simulation.broker_process import BrokerProcess
from klamm.simulation.disk import JOB_SECONDS
from klamm.simulation.invariants import SESSION_TIMEOUT_MS

if TYPE_CHECKING:
    from klamm.simulation.cluster import SimulatedCluster
    from klamm.simulation.failures import Failures

DARK_SECONDS: Final = (0.5, 2.5 * SESSION_TIMEOUT_MS / 1000)
CHANGES: Final = ("write", "sync", "rename", "sync_directory", "truncate")


class DiskFailures:
    def __init__(self, cluster: SimulatedCluster, failures: Failures) -> None:
        self._cluster = cluster
        self._failures = failures
        self._random = cluster.random

    def kinds(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return {
            "power cut": self.power_cut,
            "power cut at a write": self.power_cut_at_a_write,
            "power cut everywhere": self.power_cut_everywhere,
            "full disk": self.full_disk,
            "slow disk": self.slow_disk,
        }

    def _running(self) -> list[BrokerProcess]:
        return [process for process in self._failures.running() if isinstance(process, BrokerProcess)]

    async def power_cut(self) -> None:
        if victims := self._running():
            await self._cut(self._random.choice(victims))

    async def power_cut_everywhere(self) -> None:
        """All brokers at one moment, or all but one."""
        victims = self._running()
        if len(victims) > 1 and self._random.random() < 0.3:
            victims.remove(self._random.choice(victims))
        for victim in victims:
            victim.black_out()
        for victim in victims:
            await self._cut(victim)

    async def power_cut_at_a_write(self) -> None:
        """In the middle of what the broker does with its disk."""
        victims = self._running()
        if not victims:
            return
        victim = self._random.choice(victims)
        left, operation = self._random.randint(1, 12), self._random.choice(CHANGES)

        def count(done: str, _path: str) -> None:
            nonlocal left
            left -= done == operation
            if left <= 0 and victim.runs and victim.disk.has_power:
                victim.disk.before = None
                victim.black_out()
                self._failures.spawn(self._cut(victim))

        victim.disk.before = count

    async def _cut(self, victim: BrokerProcess) -> None:
        await victim.lose_power()
        victim.start_later(self._random.uniform(*DARK_SECONDS))

    async def full_disk(self) -> None:
        if victims := self._running():
            disk = self._random.choice(victims).disk
            disk.room = self._random.choice((0, 100, 1_000))
            self._failures.later(self._random.uniform(1, 8), partial(setattr, disk, "room", None))

    async def slow_disk(self) -> None:
        if victims := self._running():
            disk = self._random.choice(victims).disk
            disk.job_seconds = self._random.choice((0.1, 1.0, 5.0))
            self._failures.later(self._random.uniform(1, 8), partial(setattr, disk, "job_seconds", JOB_SECONDS))
