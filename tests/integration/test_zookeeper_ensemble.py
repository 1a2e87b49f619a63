"""Our client on a real ensemble of three, while the very server that it is connected to is killed again and again.

A writer on a session of its own changes nodes all the time and logs the version of each write it was told of. The
client under test learns of them by watches alone. At the end its state of every node is that of the last write: what
changed between its last read and a lost connection must fire when the watches are set again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import pytest

from klamm.model.errors import ConnectionLoss
from klamm.model.ports import Create, Set, Stat, WatchEvent
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.zookeeper.client import SessionState, ZooKeeperClient
from klamm.zookeeper.server.embedded import EmbeddedEnsemble, EmbeddedZooKeeper, available

NODES = 1000
SESSION_TIMEOUT_MS = 10_000


class Mirror:
    """The versions of many nodes as watches and the reads after them tell."""

    def __init__(self, client: ZooKeeperClient, paths: list[str]) -> None:
        self.versions: dict[str, int] = {}
        self.events = 0
        self._client = client
        self._stale = set(paths)
        self._wake = asyncio.Event()
        self._wake.set()

    def _on_event(self, event: WatchEvent) -> None:
        self.events += 1
        self._stale.add(event.path)
        self._wake.set()

    async def follow(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            paths = sorted(self._stale)
            self._stale.clear()
            try:
                nodes = await self._client.get_many_and_watch(paths, self._on_event)
            except ConnectionLoss:
                self._stale.update(paths)
                self._wake.set()
                continue
            for path, node in zip(paths, nodes, strict=True):
                assert node is not None
                self.versions[path] = node.stat.version


class Writer:
    """Writes without a pause to speak of; a write of unknown outcome is not logged, but may have happened."""

    def __init__(self, client: ZooKeeperClient, paths: list[str]) -> None:
        self.logged: dict[str, int] = dict.fromkeys(paths, 0)
        self.going = True
        self._client = client
        self._paths = paths

    async def write(self) -> None:
        random = Random(3)
        while self.going:
            chosen = random.sample(self._paths, 20)
            try:
                results = await self._client.write_many([Set(path, b"x" * 80) for path in chosen])
            except ConnectionLoss:
                continue
            for path, result in zip(chosen, results, strict=True):
                assert isinstance(result, Stat)
                self.logged[path] = result.version
            await asyncio.sleep(random.uniform(0, 0.01))


def server_of(client: ZooKeeperClient, ensemble: EmbeddedEnsemble) -> EmbeddedZooKeeper:
    port = client._session._servers[0].port
    return next(member for member in ensemble.members if member.port == port)


async def until(what: str, condition: Callable[[], bool], timeout: float = 60) -> None:
    try:
        async with asyncio.timeout(timeout):
            while not condition():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"{what}: not within {timeout:g} s") from None


@pytest.mark.timeout(900)
async def test_no_change_is_missed_while_servers_are_killed(tmp_path: Path, scaled: Callable[[int, int], int]) -> None:
    if why := available():
        pytest.fail(why)
    kills = scaled(3, 20)
    random = Random(5)
    paths = [f"/{number:04d}" for number in range(NODES)]

    ensemble = EmbeddedEnsemble(tmp_path, force_sync=False)

    def connect(seed: int) -> ZooKeeperClient:
        address = ensemble.connect_string
        return ZooKeeperClient(AsyncioNetwork(), SystemClock(), Random(seed), address, SESSION_TIMEOUT_MS)

    async with ensemble.running(), AsyncExitStack() as stack:
        client = await stack.enter_async_context(connect(1).running())
        other = await stack.enter_async_context(connect(2).running())
        await other.write_many([Create(path, b"") for path in paths])
        await client.sync("/")
        session = client.session_id
        mirror, writer = Mirror(client, paths), Writer(other, paths)
        following = asyncio.create_task(mirror.follow())
        await until("the first read", lambda: len(mirror.versions) == NODES)
        writing = asyncio.create_task(writer.write())
        for kill in range(1, kills + 1):
            await asyncio.sleep(random.uniform(0.05, 0.5))
            await until("a connection", lambda: client.state is SessionState.CONNECTED)
            victim = server_of(client, ensemble)
            await victim.kill()
            await until(
                "another server",
                lambda kill=kill: client.disconnections >= kill and client.state is SessionState.CONNECTED,
            )
            await victim.restart()
        writer.going = False
        await writing
        await other.sync("/")
        nodes = await other.get_many(paths)
        last = {path: node.stat.version for path, node in zip(paths, nodes, strict=True) if node is not None}
        assert all(last[path] >= version for path, version in writer.logged.items()), "an acknowledged write is lost"
        await until("the state of the last write everywhere", lambda: mirror.versions == last)
        assert not following.done()
        following.cancel()
        assert (client.session_id, client.expirations) == (session, 0)
        assert mirror.events > NODES
