"""A klamm server as a child process: started, awaited until it says that it is ready, stopped, killed, no orphan."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from klamm.model.errors import KlammError
from klamm.zookeeper.server.child import Child, start_child

READY: Final = re.compile(r"^\w+(?: \d+)? ready: (.*)$", re.MULTILINE)
POLL: Final = 0.02
STOP_GRACE: Final = 40.0
"""Seconds for a controlled shutdown: three attempts five seconds apart, and the flush of the logs."""


class ChildFailed(KlammError):
    """The process ended or never became ready; the message carries its own last words."""


class ServerProcess:
    """`klamm <arguments>`: output in one file, ready when it has printed its ready line."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path) -> None:
        self.name = name
        self._arguments = list(arguments)
        self.log = log
        self._child: Child | None = None

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None and self.alive else None

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.returncode is None

    async def start(self, timeout: float = 60.0) -> str:
        """Returns what it said on its ready line."""
        assert not self.alive, f"{self.name} runs already"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        said_before = self.log.stat().st_size if self.log.exists() else 0
        self._child = start_child([sys.executable, "-m", "klamm", *self._arguments], log_path=self.log)
        try:
            async with asyncio.timeout(timeout):
                return await self._ready(self._child, said_before)
        except TimeoutError:
            await self.kill()
            raise ChildFailed(f"{self.name} was not ready after {timeout:.0f} s; see {self.log}") from None

    async def _ready(self, child: Child, said_before: int) -> str:
        while True:
            ended = child.returncode
            said = self.log.read_bytes()[said_before:].decode(errors="replace")
            if match := READY.search(said):
                return match[1]
            if ended is not None:
                lines = [line for line in said.splitlines() if line.strip()]
                last_words = lines[-1].removeprefix("klamm: ") if lines else f"see {self.log}"
                raise ChildFailed(f"{self.name} ended with code {ended}: {last_words}")
            await asyncio.sleep(POLL)

    async def stop(self, grace: float = STOP_GRACE) -> int:
        """SIGTERM and wait; SIGKILL when it takes too long. Returns the exit code."""
        return 0 if self._child is None else await self._child.stop(grace)

    async def kill(self) -> int:
        return 0 if self._child is None else await self._child.kill()

    def signal(self, number: signal.Signals) -> None:
        assert self._child is not None, f"{self.name} was never started"
        self._child.signal(number)
