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
IN_A_DIRECTORY: Final = 2
"""Slashes in the path of a log directory."""
NAMES: Final = ("make_directories", "rename", "remove", "truncate")
"""What a file system may forget, or remember in part, until the directory is synced."""
SOON_SECONDS: Final = (0.0, 0.02, 0.3, 1.0)
AGAIN: Final = 0.25
"""How often power comes back only to go again."""


class DiskFailures:
    def __init__(self, cluster: SimulatedCluster, failures: Failures) -> None:
        self._cluster = cluster
        self._failures = failures
        self._random = cluster.random

    def kinds(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return {
            "power cut": self.power_cut,
            "power cut at a write": self.power_cut_at_a_write,
            "power cut after a change of names": self.power_cut_after_names,
            "power cut everywhere": self.power_cut_everywhere,
            "power cut after a clean restart": self.power_cut_after_restart,
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
            if left <= 0:
                victim.disk.before = None
                self._cut_now(victim)

        victim.disk.before = count

    async def power_cut_after_names(self) -> None:
        """A log was created, deleted or truncated, or a segment was: what is acknowledged next needs those names."""
        victims = self._running()
        if not victims:
            return
        victim, operation = self._random.choice(victims), self._random.choice(NAMES)
        seconds = self._random.uniform(0, self._random.choice(SOON_SECONDS))

        def wait(done: str, path: str) -> None:
            if done == operation and path.count("/") > IN_A_DIRECTORY and not path.endswith(".tmp"):
                victim.disk.before = None
                self._failures.later(seconds, partial(self._cut_now, victim))

        victim.disk.before = wait

    async def power_cut_after_restart(self) -> None:
        """Nothing may count as clean that was written since."""
        if victims := self._running():
            victim = self._random.choice(victims)
            await victim.leave()
            victim.start_later(self._random.choice((0.0, 0.5)))
            self._failures.later(self._random.uniform(0.2, 5), partial(self._cut_now, victim))

    async def _cut(self, victim: BrokerProcess) -> None:
        await victim.lose_power()
        seconds = self._random.uniform(*DARK_SECONDS)
        victim.start_later(seconds)
        if self._random.random() < AGAIN:
            self._failures.later(seconds + self._random.uniform(0, 1.5), partial(self._cut_now, victim))

    def _cut_now(self, victim: BrokerProcess) -> None:
        if victim.runs and victim.disk.has_power and not self._failures.have_ended:
            victim.black_out()
            self._failures.spawn(self._cut(victim))

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
