"""A process that ends is started again, with a pause that grows while it keeps dying."""

from __future__ import annotations

import asyncio

import pytest

from klamm.server import supervision
from klamm.server.server_process import ServerNotStarted


class Dying:
    """Ends at once after each start; the second start fails."""

    alive = True

    def __init__(self) -> None:
        self.starts = 0

    async def start(self) -> str:
        self.starts += 1
        if self.starts == 2:
            raise ServerNotStarted("no port")
        return ""

    async def wait_ended(self) -> int:
        if self.starts == 3:
            await asyncio.Event().wait()
        return -9


class Cluster:
    def __init__(self, server: Dying) -> None:
        self.brokers: dict[int, object] = {}
        self.zookeeper_server = server


async def test_each_death_and_each_start_is_said() -> None:
    said: list[str] = []
    server = Dying()
    async with supervision.supervised(Cluster(server), said.append, 0.01):  # type: ignore[arg-type]
        async with asyncio.timeout(10):
            while len(said) < 5:
                await asyncio.sleep(0.01)
    assert [line.split(" after ")[0] for line in said] == [
        "ZooKeeper was killed by SIGKILL; it starts again in 0.01 s",
        "ZooKeeper is back",
        "ZooKeeper was killed by SIGKILL; it starts again in 0.02 s",
        "ZooKeeper did not start: no port; next attempt in 0.04 s",
        "ZooKeeper is back",
    ]


@pytest.mark.parametrize(("code", "said"), [(-15, "was killed by SIGTERM"), (3, "ended with code 3")])
def test_how_it_ended(code: int, said: str) -> None:
    assert supervision._how(code) == said
