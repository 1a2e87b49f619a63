"""Broker processes under test: one set of verbs for klamm's and Apache Kafka's, so that any mix makes a cluster.

A broker is a properties file, a directory and a process. It keeps its ports over restarts, appends to one log, and ends
with the test run whatever happens to that: the kernel sees to it (`klamm.zookeeper.server.child`).

Both kinds have the same two listeners by the same names. That is not taste: a JVM controller looks up each broker's
endpoint by the name of its own inter-broker listener, and finds no broker that names it otherwise.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from klamm.zookeeper.server.child import Child, release_port, reserve_port, start_child

HOST = "127.0.0.1"
READY_TIMEOUT = 60.0
STOP_GRACE = 40.0
LOOK_EVERY = 0.02


class BrokerNotReady(AssertionError):
    """It ended or never became ready; the message carries the end of its log."""


class BrokerProcess(ABC):
    """`directory` holds server.properties, output.log and, in data/, the log directory."""

    def __init__(
        self, broker_id: int, zookeeper: str, directory: Path, properties: Mapping[str, str | int] | None = None
    ) -> None:
        self.id = broker_id
        self.zookeeper = zookeeper
        self.directory = directory
        self.port = 0
        self.internal_port = 0
        self.properties: dict[str, str | int] = dict(properties or {})
        """May be changed between two starts."""
        self._child: Child | None = None
        self._log_start = 0

    @abstractmethod
    def command(self) -> Sequence[str]: ...

    @abstractmethod
    def ready_text(self) -> str:
        """What its output says once it serves."""

    def default_properties(self) -> dict[str, str | int]:
        """Small and quick, for one machine; of the broker's kind where the kinds differ."""
        return {
            "broker.id": self.id,
            "zookeeper.connect": self.zookeeper,
            "zookeeper.session.timeout.ms": 6000,
            "listeners": f"CLIENT://{HOST}:{self.port},INTERNAL://{HOST}:{self.internal_port}",
            "listener.security.protocol.map": "CLIENT:PLAINTEXT,INTERNAL:PLAINTEXT",
            "inter.broker.listener.name": "INTERNAL",
            "log.dirs": str(self.data_directory),
        }

    # --- what one sees

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def data_directory(self) -> Path:
        return self.directory / "data"

    @property
    def properties_file(self) -> Path:
        return self.directory / "server.properties"

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.returncode is None

    @property
    def pid(self) -> int:
        assert self._child is not None, f"broker {self.id} was never started"
        return self._child.pid

    def log_text(self) -> str:
        """All that it printed, over all its lives."""
        return self._child.log_text() if self._child is not None else ""

    # --- what one does

    async def start(self, timeout: float = READY_TIMEOUT) -> None:
        self.launch()
        await self.wait_ready(timeout)

    def launch(self) -> None:
        """Start without waiting, for a test that watches the start itself."""
        assert not self.alive, f"broker {self.id} runs already"
        self.port = self.port or reserve_port()
        self.internal_port = self.internal_port or reserve_port()
        self.data_directory.mkdir(parents=True, exist_ok=True)
        settings = {**self.default_properties(), **self.properties}
        self.properties_file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self._log_start = len(self.log_text())
        self._child = start_child(self.command(), log_path=self.directory / "output.log", cwd=self.directory)

    async def wait_ready(self, timeout: float = READY_TIMEOUT) -> None:
        """A file has no event to await, so the log is looked at; a death ends the wait at once."""
        assert self._child is not None
        deadline = asyncio.get_running_loop().time() + timeout
        while self.ready_text() not in self.log_text()[self._log_start :]:
            if (code := self._child.returncode) is not None:
                raise BrokerNotReady(f"broker {self.id} ended with code {code}:\n{self._last_lines()}")
            if asyncio.get_running_loop().time() > deadline:
                await self.kill()
                raise BrokerNotReady(f"broker {self.id} was not ready after {timeout:g} s:\n{self._last_lines()}")
            await asyncio.sleep(LOOK_EVERY)

    async def stop(self, grace: float = STOP_GRACE) -> int | None:
        """SIGTERM: a controlled shutdown. Returns the exit code, None if it was never started."""
        return await self._child.stop(grace) if self._child is not None else None

    async def kill(self) -> None:
        """SIGKILL: nothing is handed over, the session ends by itself."""
        if self._child is not None:
            await self._child.kill()

    def pause(self) -> None:
        """SIGSTOP: alive for the kernel, silent for everybody else."""
        assert self._child is not None
        self._child.signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._child is not None
        self._child.signal(signal.SIGCONT)

    def release_ports(self) -> None:
        release_port(self.port)
        release_port(self.internal_port)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[BrokerProcess]:
        try:
            await self.start()
            yield self
        finally:
            await self.kill()
            self.release_ports()

    def _last_lines(self) -> str:
        return "\n".join(self.log_text()[self._log_start :].splitlines()[-15:])


class KlammBroker(BrokerProcess):
    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", "klamm", "broker", str(self.properties_file)]

    def ready_text(self) -> str:
        return f"broker {self.id} ready: "
