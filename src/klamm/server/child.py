"""A klamm server as a child process: started, awaited until it says that it is ready, stopped, killed, no orphan."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from klamm.model.errors import KlammError

READY = re.compile(r"^(\w+)(?: (\d+))? ready: (.*)$")
STOP_TIMEOUT = 40.0
"""Seconds for a controlled shutdown: three attempts five seconds apart, and the flush of the logs."""


class ChildFailed(KlammError):
    """The process ended or never became ready; the message carries its own last words."""


class Child:
    """`klamm <arguments>` in its own process group, its stderr in a file."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path) -> None:
        self.name = name
        self._arguments = list(arguments)
        self.log = log
        self._process: asyncio.subprocess.Process | None = None
        self.ready_line = ""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self.alive and self._process is not None else None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self, timeout: float = 60.0) -> str:
        """Returns what it said on its ready line, which is the first thing a server prints."""
        assert not self.alive, f"{self.name} runs already"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "klamm",
                *self._arguments,
                "--die-with-parent",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # a Ctrl-C in the terminal is for the parent, who stops its children in order
            )
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(timeout):
                line = (await self._process.stdout.readline()).decode().strip()
        except TimeoutError:
            await self.kill()
            raise ChildFailed(f"{self.name} was not ready after {timeout:.0f} s; see {self.log}") from None
        match = READY.match(line)
        if match is None:
            code = await self._process.wait()
            raise ChildFailed(f"{self.name} ended with code {code}: {self._last_words()}")
        self.ready_line = match[3]
        return self.ready_line

    async def stop(self, timeout: float = STOP_TIMEOUT) -> int:
        """SIGTERM and wait; SIGKILL when it takes too long. Returns the exit code."""
        if not self.alive or self._process is None:
            return self._process.returncode or 0 if self._process else 0
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(timeout):
                return await self._process.wait()
        except TimeoutError:
            return await self.kill()

    async def kill(self) -> int:
        if self._process is None:
            return 0
        if self.alive:
            self.signal(signal.SIGKILL)
        return await self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def _last_words(self) -> str:
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1].removeprefix("klamm: ") if lines else f"see {self.log}"
