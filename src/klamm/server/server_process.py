"""A server as a child process: starts it, waits until it prints that it is ready, stops or kills it.

It never outlives its owner (`klamm.zookeeper.server.child`).
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from klamm.model.errors import KlammError
from klamm.server import fork_server
from klamm.zookeeper.server.child import Child, start_child

READY: Final = re.compile(r"^\w+(?: \d+)? ready: (.*)$", re.MULTILINE)
READY_TIMEOUT: Final = 60.0
POLL: Final = 0.005
STOP_GRACE: Final = 40.0
"""Seconds for a controlled shutdown: three attempts, five seconds apart, and the flush of the logs."""


class ServerNotStarted(KlammError):
    """The process ended or never became ready; the message ends with the last line that it printed."""


class ServerProcess(ABC):
    """Can be started again after it has ended. It appends its output to `log` and runs in that directory."""

    ready = READY
    """The line that it prints once it serves; the first group is what `start` returns."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.log = log
        self._child: Child | None = None
        self._log_bytes_before = 0
        self._paused = False
        self._has_said_ready = False

    @abstractmethod
    def command(self) -> Sequence[str]: ...

    @property
    def modules(self) -> Sequence[str]:
        """What a fork server imports for the process, which it then starts. Without any, the process is executed."""
        return ()

    @property
    def _is_forked(self) -> bool:
        return fork_server.CAN_FORK and bool(self.modules)

    @property
    def pid(self) -> int:
        return self._started().pid

    @property
    def exit_code(self) -> int | None:
        return None if self._child is None else self._child.returncode

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.returncode is None

    @property
    def is_ready(self) -> bool:
        """Whether it serves: it is alive, and its start was awaited to the end."""
        return self.alive and self._has_said_ready

    def log_text(self, last_bytes: int | None = None) -> str:
        """Everything that it has printed since its first start, or the end of that."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            if last_bytes is not None:
                file.seek(max(0, file.seek(0, os.SEEK_END) - last_bytes))
            return file.read().decode(errors="replace")

    async def start(self, timeout: float = READY_TIMEOUT) -> str:
        """Start and wait; return what its ready line says."""
        if self._is_forked:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            await asyncio.to_thread(fork_server.prepare, self.modules, self.log)
        self.launch()
        return await self.wait_ready(timeout)

    def launch(self) -> None:
        """Start without waiting."""
        assert not self.alive, f"{self.name} is already running"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._log_bytes_before = self.log.stat().st_size if self.log.exists() else 0
        self._paused = False
        self._has_said_ready = False
        start = fork_server.start_forked if self._is_forked else start_child
        self._child = start(self.command(), log_path=self.log, cwd=self.log.parent)

    async def wait_ready(self, timeout: float = READY_TIMEOUT) -> str:
        """Poll the log, because a file has no event to await. The end of the process ends the wait at once."""
        try:
            async with asyncio.timeout(timeout):
                said = await self._ready(self._started())
        except TimeoutError:
            await self.kill()
            raise ServerNotStarted(f"{self.name} was not ready after {timeout:.0f} s; see {self.log}") from None
        self._has_said_ready = True
        return said

    async def _ready(self, child: Child) -> str:
        while True:
            ended = child.returncode
            output = self.log.read_bytes()[self._log_bytes_before :].decode(errors="replace")
            if match := self.ready.search(output):
                return match[1]
            if ended is not None:
                raise ServerNotStarted(f"{self.name} ended with code {ended}: {self.last_words(output)}")
            await asyncio.sleep(POLL)

    def last_words(self, output: str) -> str:
        """The part of its output that tells why it ended."""
        lines = [line for line in output.splitlines() if line.strip()]
        return lines[-1].removeprefix("klamm: ") if lines else f"see {self.log}"

    async def stop(self, grace: float = STOP_GRACE) -> int:
        """Send SIGTERM, and SIGKILL if it is still there after `grace` seconds. Return the exit code."""
        return 0 if self._child is None else await self._child.stop(grace)

    async def wait_ended(self) -> int:
        """Return the exit code when the process has ended; negative for a signal."""
        return await self._started().wait()

    async def kill(self) -> int:
        return 0 if self._child is None else await self._child.kill()

    def pause(self) -> None:
        """SIGSTOP: alive for the kernel, silent for everyone else."""
        self.signal(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        self.signal(signal.SIGCONT)
        self._paused = False

    @property
    def paused(self) -> bool:
        return self.alive and self._paused

    def signal(self, number: signal.Signals) -> None:
        self._started().signal(number)

    def _started(self) -> Child:
        assert self._child is not None, f"{self.name} was not started"
        return self._child


def klamm_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "klamm", *arguments]
