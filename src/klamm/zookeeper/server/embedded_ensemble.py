"""An ensemble of three real ZooKeeper servers (design D7)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from klamm.zookeeper.server.child import release_port, reserve_port
from klamm.zookeeper.server.embedded import HOST, EmbeddedZooKeeper


class EmbeddedEnsemble:
    """Each member has the methods of a single server."""

    def __init__(
        self, data_dir: Path | str, *, tick_ms: int = 500, force_sync: bool = True, ready_timeout: float = 40.0
    ) -> None:
        self.data_dir = Path(data_dir)
        self._tick_ms = tick_ms
        self._force_sync = force_sync
        self._ready_timeout = ready_timeout
        self.members: list[EmbeddedZooKeeper] = []
        self._peer_ports: list[int] = []

    @property
    def connect_string(self) -> str:
        return ",".join(member.connect_string for member in self.members)

    async def start(self) -> None:
        if not self.members:
            self._make_members()
        for member in self.members:
            if not member.alive:
                member.launch()
        try:
            async with asyncio.TaskGroup() as tasks:
                for member in self.members:
                    tasks.create_task(member.wait_ready())
        except BaseException:
            await self.kill()
            raise

    def _make_members(self) -> None:
        self._peer_ports = [reserve_port() for _ in range(6)]
        quorum: dict[str, str | int] = {"initLimit": 20, "syncLimit": 10}
        for number in (1, 2, 3):
            peer, election = self._peer_ports[2 * number - 2 : 2 * number]
            quorum[f"server.{number}"] = f"{HOST}:{peer}:{election}"
        for number in (1, 2, 3):
            directory = self.data_dir / str(number)
            (directory / "data").mkdir(parents=True, exist_ok=True)
            (directory / "data" / "myid").write_text(f"{number}\n")
            member = EmbeddedZooKeeper(
                directory,
                port=reserve_port(),
                tick_ms=self._tick_ms,
                force_sync=self._force_sync,
                settings=quorum,
                ready_timeout=self._ready_timeout,
            )
            self.members.append(member)

    async def leader(self) -> EmbeddedZooKeeper | None:
        for member in self.members:
            if await member.mode() == "leader":
                return member
        return None

    async def stop(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for member in self.members:
                tasks.create_task(member.stop())

    async def kill(self) -> None:
        for member in self.members:
            await member.kill()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[EmbeddedEnsemble]:
        await self.start()
        try:
            yield self
        finally:
            await self.stop()
            for port in [*self._peer_ports, *(member.port for member in self.members)]:
                release_port(port)
