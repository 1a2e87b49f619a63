"""Our client on a real ensemble of three, while the server that it is connected to is killed again and again.

A writer on its own session changes nodes all the time and logs the version of each acknowledged write. The client under
test learns of the changes only by watches. After each kill the writer pauses, and the client's state of every node must
become that of the last write: a change between the client's last read and the lost connection must fire when the
watches are set again. (A check at the end would be too late: the next write to a node hides that one was missed.)

Every second kill comes at the worst moment: the client has read another thousand nodes in many batches and is about to
set the watches of the first batch. Then those batches must be watched on the next server, each from its own zxid.
"""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest

from klamm.model.errors import ConnectionLoss
from klamm.model.ports import Create, ProtocolFactory, Stat, WatchEvent
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.zookeeper.client import SessionState, ZooKeeperClient, bulk
from klamm.zookeeper.client.bulk_operations import READS_IN_FLIGHT
from klamm.zookeeper.jute import OpCode
from klamm.zookeeper.server.embedded import EmbeddedZooKeeper, available
from klamm.zookeeper.server.embedded_ensemble import EmbeddedEnsemble

NODES = 1000
BATCH = NODES // READS_IN_FLIGHT
"""Nodes per multi-read, instead of 500, so that something is written between the eight multi-reads."""
SESSION_TIMEOUT_MS = 10_000
R = TypeVar("R")


class Tap(asyncio.Transport):
    """A connection's transport that can cut the connection before watches are set.

    A read that is cut half-way is simply repeated, so all its answers must have arrived by then: the loop blocks for a
    moment after the reads have left and then finds all answers in the socket. The reads leave one after the other,
    while writes arrive at the server, so that something changes between any two of them.
    """

    def __init__(self, transport: asyncio.Transport, network: TappedNetwork) -> None:
        super().__init__()
        self._transport = transport
        self._network = network

    def write(self, data: Any) -> None:
        frames = list(frames_in(data))
        opcodes = {opcode for opcode, _ in frames}
        before = self._network.before_set_watches
        if before is not None and OpCode.SET_WATCHES in opcodes:
            self._network.before_set_watches = None
            before()
            self._transport.abort()
        elif before is not None and OpCode.MULTI_READ in opcodes:
            for _, frame in frames:
                self._transport.write(frame)
                time.sleep(0.005)
            time.sleep(0.1)
        else:
            self._transport.write(data)

    def abort(self) -> None:
        self._transport.abort()


def frames_in(packet: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position < len(packet):
        length, _xid, opcode = struct.unpack_from(">iii", packet, position)
        yield opcode, packet[position : position + 4 + length]
        position += 4 + length


class TappedNetwork(AsyncioNetwork):
    """Calls a function once, before a SetWatches leaves, and drops that packet."""

    def __init__(self) -> None:
        super().__init__()
        self.before_set_watches: Callable[[], None] | None = None

    async def connect(self, factory: ProtocolFactory, host: str, port: int) -> asyncio.Transport:
        protocol = factory()
        made = protocol.connection_made
        protocol.connection_made = lambda transport: made(Tap(transport, self))  # type: ignore[method-assign,arg-type]
        return await super().connect(lambda: protocol, host, port)


class Mirror:
    """The versions of many nodes, known from watches and the reads that follow them."""

    def __init__(self, client: ZooKeeperClient) -> None:
        self.versions: dict[str, int] = {}
        self.events = 0
        self._client = client
        self._stale: set[str] = set()
        self._wake = asyncio.Event()

    def _on_event(self, event: WatchEvent) -> None:
        self.events += 1
        self._stale.add(event.path)
        self._wake.set()

    def add(self, paths: list[str]) -> None:
        self._stale.update(paths)
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
    """Writes almost without a pause. A write with unknown outcome is not logged, but may have been applied."""

    def __init__(self, client: ZooKeeperClient) -> None:
        self.logged: dict[str, int] = {}
        self.paths: list[str] = []
        self.going = asyncio.Event()
        self._resting = asyncio.Event()
        self._client = client

    async def rest(self) -> None:
        """Returns when no write is in flight."""
        self.going.clear()
        await self._resting.wait()

    async def write(self) -> None:
        random = Random(3)
        while True:
            if not self.going.is_set():
                self._resting.set()
                await self.going.wait()
                self._resting.clear()
            # One transaction per write, many in flight: something must change between any two batches of a read.
            chosen = random.sample(self.paths, 100)
            results = await asyncio.gather(
                *(self._client.set(path, b"x" * 80) for path in chosen), return_exceptions=True
            )
            for path, result in zip(chosen, results, strict=True):
                assert isinstance(result, Stat | ConnectionLoss)
                if isinstance(result, Stat):
                    self.logged[path] = result.version


def server_of(client: ZooKeeperClient, ensemble: EmbeddedEnsemble) -> EmbeddedZooKeeper:
    port = client._session._servers[0].port
    return next(member for member in ensemble.members if member.port == port)


def kill_and_rest(pid: int, writer: Writer) -> None:
    os.kill(pid, signal.SIGKILL)
    writer.going.clear()


async def until_done(call: Callable[[], Coroutine[Any, Any, R]]) -> R:
    """Repeats a call after a lost connection; the call must be safe to repeat."""
    while True:
        try:
            return await call()
        except ConnectionLoss:
            continue


async def state_of(client: ZooKeeperClient, paths: list[str]) -> dict[str, int]:
    await until_done(lambda: client.sync("/"))
    nodes = await until_done(lambda: client.get_many(paths))
    return {path: node.stat.version for path, node in zip(paths, nodes, strict=True) if node is not None}


async def until(what: str, condition: Callable[[], bool], timeout: float = 60) -> None:
    try:
        async with asyncio.timeout(timeout):
            while not condition():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"{what}: not within {timeout:g} s") from None


@pytest.mark.timeout(900)
async def test_no_change_is_missed_while_servers_are_killed(
    tmp_path: Path, scaled: Callable[[int, int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "READ_FRAME", bulk.READ_FRAME._replace(operations=BATCH))
    if why := available():
        pytest.fail(why)
    kills, random = scaled(4, 20), Random(5)
    ensemble = EmbeddedEnsemble(tmp_path, force_sync=False)

    def connect(network: AsyncioNetwork, seed: int) -> ZooKeeperClient:
        address = ensemble.connect_string
        return ZooKeeperClient(network, SystemClock(), Random(seed), address, SESSION_TIMEOUT_MS)

    async with ensemble.running(), AsyncExitStack() as stack:
        network = TappedNetwork()
        client = await stack.enter_async_context(connect(network, 1).running())
        other = await stack.enter_async_context(connect(AsyncioNetwork(), 2).running())
        session, paths = client.session_id, list[str]()
        mirror, writer = Mirror(client), Writer(other)
        following, writing = asyncio.create_task(mirror.follow()), asyncio.create_task(writer.write())
        for kill in range(1, kills + 1):
            if kill % 2:
                writer.paths = [f"/{kill}-{number:04d}" for number in range(NODES)]
                paths += writer.paths
                await until_done(lambda: other.write_many([Create(path, b"") for path in writer.paths]))
                await until_done(lambda: client.sync("/"))
            writer.going.set()
            await asyncio.sleep(random.uniform(0.05, 0.5))
            await until("a connection", lambda: client.state is SessionState.CONNECTED)
            victim = server_of(client, ensemble)
            if kill % 2:
                assert victim.pid is not None
                network.before_set_watches = partial(kill_and_rest, victim.pid, writer)
                mirror.add(writer.paths)
            else:
                await victim.kill()
            await until(
                "another server",
                lambda kill=kill: client.disconnections >= kill and client.state is SessionState.CONNECTED,
            )
            await writer.rest()
            last = await state_of(other, paths)
            assert all(last[path] >= version for path, version in writer.logged.items()), (
                "an acknowledged write is lost"
            )
            await until("the state of the last write everywhere", lambda last=last: mirror.versions == last)
            await victim.restart()
        assert not following.done()
        for task in (following, writing):
            task.cancel()
        assert (client.session_id, client.expirations) == (session, 0)
        assert mirror.events > NODES
