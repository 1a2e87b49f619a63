"""The driver of the contract tests: raw sockets and a separate jute codec, so that an error in ours cannot hide.

Every test runs on each server of `SERVERS`. The fixture `zk` is a connected client with a new `zk.root` for each test;
`connect` opens further clients, also with an unusual handshake.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.zookeeper.server.embedded import EmbeddedZooKeeper, available
from klamm.zookeeper.server.embedded_ensemble import EmbeddedEnsemble
from klamm.zookeeper.server.follower import LaggingFollower
from klamm.zookeeper.server.memory import MemoryZooKeeper

SERVERS = ("ours", "lagging", "real", "ensemble")
"""`lagging` is a follower of our server that lags by up to LAG seconds; `ensemble` is a follower in a real ensemble."""
LAG = 0.004
TICK_MS = 500
PATIENCE = 10.0
OPEN = ((31, "world", "anyone"),)
NEW_PASSWORD = bytes(16)


# --- codec -----------------------------------------------------------------------------------------------------------


def int32(value: int) -> bytes:
    return struct.pack(">i", value)


def int64(value: int) -> bytes:
    return struct.pack(">q", value)


def buffer(data: bytes | None) -> bytes:
    return int32(-1) if data is None else int32(len(data)) + data


def text(value: str) -> bytes:
    return buffer(value.encode())


def vector(items: list[bytes]) -> bytes:
    return int32(len(items)) + b"".join(items)


def texts(*values: str) -> bytes:
    return vector([text(value) for value in values])


def acls(entries: Any) -> bytes:
    return vector([int32(perms) + text(scheme) + text(id_) for perms, scheme, id_ in entries])


class Stat(NamedTuple):
    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    owner: int
    length: int
    children: int
    pzxid: int


class Parser:
    def __init__(self, body: bytes) -> None:
        self.body = body
        self.at = 0

    def unpack(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(layout, self.body, self.at)
        self.at += struct.calcsize(layout)
        return values

    def int32(self) -> int:
        return self.unpack(">i")[0]

    def buffer(self) -> bytes | None:
        length = self.int32()
        if length < 0:
            return None
        self.at += length
        data = self.body[self.at - length : self.at]
        assert len(data) == length
        return data

    def text(self) -> str:
        data = self.buffer()
        assert data is not None
        return data.decode()

    def texts(self) -> list[str]:
        return [self.text() for _ in range(self.int32())]

    def stat(self) -> Stat:
        return Stat(*self.unpack(">qqqqiiiqiiq"))

    def end(self) -> None:
        assert self.at == len(self.body), f"{len(self.body) - self.at} bytes left over"


class Reply(NamedTuple):
    xid: int
    zxid: int
    err: int
    body: bytes

    def _all(self, read: Callable[[Parser], Any]) -> Any:
        assert self.err == 0, f"error {self.err}"
        parser = Parser(self.body)
        value = read(parser)
        parser.end()
        return value

    @property
    def path(self) -> str:
        return self._all(Parser.text)

    @property
    def stat(self) -> Stat:
        return self._all(Parser.stat)

    @property
    def path_and_stat(self) -> tuple[str, Stat]:
        return self._all(lambda parser: (parser.text(), parser.stat()))

    @property
    def node(self) -> tuple[bytes | None, Stat]:
        return self._all(lambda parser: (parser.buffer(), parser.stat()))

    @property
    def names(self) -> list[str]:
        return self._all(Parser.texts)

    @property
    def names_and_stat(self) -> tuple[list[str], Stat]:
        return self._all(lambda parser: (parser.texts(), parser.stat()))

    @property
    def acl_and_stat(self) -> tuple[list[tuple[int, str, str]], Stat]:
        def read(parser: Parser) -> Any:
            entries = [(parser.int32(), parser.text(), parser.text()) for _ in range(parser.int32())]
            return entries, parser.stat()

        return self._all(read)

    @property
    def identities(self) -> list[tuple[str, str]]:
        return self._all(lambda parser: [(parser.text(), parser.text()) for _ in range(parser.int32())])

    @property
    def results(self) -> list[tuple[int, int, Any]]:
        """The results of a multi or multi-read as (type, error, value), with nothing after the terminator."""

        def read(parser: Parser) -> Any:
            found: list[tuple[int, int, Any]] = []
            while True:
                kind, done, err = parser.unpack(">i?i")
                if done:
                    assert (kind, err) == (-1, -1)
                    return found
                found.append((kind, err, RESULT_BODY[kind](parser)))

        return self._all(read)

    @property
    def codes(self) -> list[int]:
        """The error codes of a failed multi; header and body must agree."""
        assert all(kind == -1 and err == value for kind, err, value in self.results)
        return [err for _kind, err, _value in self.results]


RESULT_BODY: dict[int, Callable[[Parser], Any]] = {
    -1: Parser.int32,
    1: Parser.text,
    2: lambda parser: None,
    4: lambda parser: (parser.buffer(), parser.stat()),
    5: Parser.stat,
    8: Parser.texts,
    13: lambda parser: None,
    15: lambda parser: (parser.text(), parser.stat()),
}


class Event(NamedTuple):
    type: int
    path: str
    zxid: int


class Op:
    """Opcodes and bodies of requests, for single requests and for use in a multi."""

    @staticmethod
    def create(
        path: str, data: bytes | None = b"", flags: int = 0, acl: Any = OPEN, code: int = 1
    ) -> tuple[int, bytes]:
        ttl = int64(1000) if code == 21 else b""
        return code, text(path) + buffer(data) + acls(acl) + int32(flags) + ttl

    @staticmethod
    def delete(path: str, version: int = -1) -> tuple[int, bytes]:
        return 2, text(path) + int32(version)

    @staticmethod
    def set(path: str, data: bytes | None = b"", version: int = -1) -> tuple[int, bytes]:
        return 5, text(path) + buffer(data) + int32(version)

    @staticmethod
    def check(path: str, version: int = -1) -> tuple[int, bytes]:
        return 13, text(path) + int32(version)

    @staticmethod
    def set_acl(path: str, acl: Any, version: int = -1) -> tuple[int, bytes]:
        return 7, text(path) + acls(acl) + int32(version)

    @staticmethod
    def get(path: str, watch: bool = False) -> tuple[int, bytes]:
        return 4, text(path) + bytes([watch])

    @staticmethod
    def exists(path: str, watch: bool = False) -> tuple[int, bytes]:
        return 3, text(path) + bytes([watch])

    @staticmethod
    def children(path: str, watch: bool = False, code: int = 8) -> tuple[int, bytes]:
        return code, text(path) + bytes([watch])

    @staticmethod
    def multi(*ops: tuple[int, bytes], code: int = 14) -> tuple[int, bytes]:
        items = [struct.pack(">i?i", kind, False, -1) + body for kind, body in ops]
        return code, b"".join(items) + struct.pack(">i?i", -1, True, -1)

    @staticmethod
    def set_watches(
        zxid: int,
        data: tuple[str, ...] = (),
        exist: tuple[str, ...] = (),
        child: tuple[str, ...] = (),
        more: tuple[tuple[str, ...], tuple[str, ...]] | None = None,
    ) -> tuple[int, bytes]:
        body = int64(zxid) + texts(*data) + texts(*exist) + texts(*child)
        return (101, body) if more is None else (105, body + texts(*more[0]) + texts(*more[1]))


# --- client ----------------------------------------------------------------------------------------------------------


class Client:
    """One connection. `call` does one request; `send` and `receive` do pipelines. Events are kept in `events`."""

    op = Op

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, root: str) -> None:
        self.reader = reader
        self.writer = writer
        self.root = root
        self.events: list[Event] = []
        self.handshake = b""
        self.timeout_ms = 0
        self.session = 0
        self.password = b""
        self._xid = 0

    # handshake

    @staticmethod
    def connect_request(
        timeout_ms: int, session: int, password: bytes | None, last_zxid: int, read_only: bool | None
    ) -> bytes:
        body = struct.pack(">iqiq", 0, last_zxid, timeout_ms, session) + buffer(password)
        body += b"" if read_only is None else bytes([read_only])
        return buffer(body)

    async def read_handshake(self) -> None:
        self.handshake = await self.frame()
        protocol, self.timeout_ms, self.session = struct.unpack_from(">iiq", self.handshake)
        assert protocol == 0
        self.password = Parser(self.handshake[16:]).buffer() or b""

    # frames

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def send(self, request: tuple[int, bytes], xid: int | None = None) -> int:
        if xid is None:
            self._xid += 1
            xid = self._xid
        code, body = request
        self.write(buffer(struct.pack(">ii", xid, code) + body))
        return xid

    async def frame(self) -> bytes:
        async with asyncio.timeout(PATIENCE):
            (length,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(length)

    async def _message(self) -> Reply | Event:
        payload = await self.frame()
        xid, zxid, err = struct.unpack_from(">iqi", payload)
        if xid != -1:
            return Reply(xid, zxid, err, payload[16:])
        parser = Parser(payload[16:])
        kind, state, path = parser.int32(), parser.int32(), parser.text()
        parser.end()
        assert state == 3
        return Event(kind, path, zxid)

    async def receive(self) -> Reply:
        while True:
            message = await self._message()
            if isinstance(message, Reply):
                return message
            self.events.append(message)

    async def call(self, request: tuple[int, bytes], xid: int | None = None) -> Reply:
        sent = self.send(request, xid)
        reply = await self.receive()
        assert reply.xid == sent
        return reply

    async def event(self) -> tuple[int, str]:
        """The next event: a kept one, or else wait for one."""
        if not self.events:
            message = await self._message()
            assert isinstance(message, Event), message
            self.events.append(message)
        event = self.events.pop(0)
        return event.type, event.path

    async def drain(self) -> list[tuple[int, str]]:
        """All events so far, that is, before the answer to a request sent now."""
        await self.ping()
        events, self.events = self.events, []
        return [(event.type, event.path) for event in events]

    async def eof(self) -> None:
        """The server closes without sending another byte."""
        try:
            async with asyncio.timeout(PATIENCE):
                assert await self.reader.read(1) == b""
        except ConnectionError:
            pass

    async def drop(self) -> None:
        """Close the socket but not the session."""
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass

    # requests

    async def create(
        self, path: str, data: bytes | None = b"", flags: int = 0, acl: Any = OPEN, code: int = 1
    ) -> Reply:
        return await self.call(Op.create(path, data, flags, acl, code))

    async def delete(self, path: str, version: int = -1) -> Reply:
        return await self.call(Op.delete(path, version))

    async def set(self, path: str, data: bytes | None = b"", version: int = -1) -> Reply:
        return await self.call(Op.set(path, data, version))

    async def get(self, path: str, watch: bool = False) -> Reply:
        return await self.call(Op.get(path, watch))

    async def exists(self, path: str, watch: bool = False) -> Reply:
        return await self.call(Op.exists(path, watch))

    async def children(self, path: str, watch: bool = False) -> Reply:
        return await self.call(Op.children(path, watch))

    async def children2(self, path: str, watch: bool = False) -> Reply:
        return await self.call(Op.children(path, watch, code=12))

    async def get_acl(self, path: str) -> Reply:
        return await self.call((6, text(path)))

    async def set_acl(self, path: str, acl: Any, version: int = -1) -> Reply:
        return await self.call(Op.set_acl(path, acl, version))

    async def sync(self, path: str) -> Reply:
        return await self.call((9, text(path)))

    async def multi(self, *ops: tuple[int, bytes]) -> Reply:
        return await self.call(Op.multi(*ops))

    async def multi_read(self, *ops: tuple[int, bytes]) -> Reply:
        return await self.call(Op.multi(*ops, code=22))

    async def set_watches(self, zxid: int, **paths: Any) -> Reply:
        return await self.call(Op.set_watches(zxid, **paths))

    async def add_watch(self, path: str, mode: int) -> Reply:
        return await self.call((106, text(path) + int32(mode)))

    async def check_watches(self, path: str, kind: int) -> Reply:
        return await self.call((17, text(path) + int32(kind)))

    async def remove_watches(self, path: str, kind: int) -> Reply:
        return await self.call((18, text(path) + int32(kind)))

    async def get_ephemerals(self, prefix: str) -> Reply:
        return await self.call((103, text(prefix)))

    async def who_am_i(self) -> Reply:
        return await self.call((107, b""))

    async def auth(self, scheme: str, credential: bytes) -> Reply:
        return await self.call((100, int32(0) + text(scheme) + buffer(credential)), xid=-4)

    async def ping(self) -> Reply:
        return await self.call((11, b""), xid=-2)

    async def close_session(self) -> Reply:
        return await self.call((-11, b""))

    # shorthands

    def at(self, name: str) -> str:
        return f"{self.root}/{name}"

    async def make(self, name: str, data: bytes | None = b"") -> str:
        """Create a persistent node below the root of this test."""
        return (await self.create(self.at(name), data)).path

    async def stat_of(self, path: str) -> Stat:
        return (await self.exists(path)).stat


# --- fixtures --------------------------------------------------------------------------------------------------------

Connect = Callable[..., Awaitable[Client]]
_roots = itertools.count(1)


class Target(NamedTuple):
    """A running server and its settings."""

    port: int
    timeout_ms_max: int
    mode: str
    members: Mapping[str, Sequence[int]] = {}
    """The ports by role, if there are several servers."""


@asynccontextmanager
async def _running(kind: str, directory: Path) -> AsyncIterator[Target]:
    if kind == "ours":
        async with MemoryZooKeeper(
            AsyncioNetwork(), SystemClock(), random.Random(1), tick_ms=TICK_MS
        ).running() as ours:
            yield Target(ours.port, 20 * TICK_MS, "standalone")
    elif kind == "lagging":
        async with AsyncExitStack() as stack:
            ours = MemoryZooKeeper(AsyncioNetwork(), SystemClock(), random.Random(1), tick_ms=TICK_MS)
            await stack.enter_async_context(ours.running())
            ports = []
            for seed in (1, 2):
                follower = LaggingFollower(ours, AsyncioNetwork(), SystemClock(), random.Random(seed), delay_max=LAG)
                ports.append((await stack.enter_async_context(follower.running())).port)
            yield Target(ports[0], 20 * TICK_MS, "follower", {"leader": [ours.port], "follower": ports})
    elif (reason := available()) is not None:
        pytest.fail(reason)
    elif kind == "real":
        real = EmbeddedZooKeeper(directory, tick_ms=TICK_MS, max_session_timeout_ms=20 * TICK_MS, force_sync=False)
        async with real.running():
            yield Target(real.port, 20 * TICK_MS, "standalone")
    else:
        async with EmbeddedEnsemble(directory, tick_ms=TICK_MS, force_sync=False).running() as ensemble:
            members: dict[str, list[int]] = {"leader": [], "follower": []}
            for member in ensemble.members:
                members[await member.mode() or "lost"].append(member.port)
            # A follower, because it handles reads itself and passes writes to the leader.
            yield Target(members["follower"][0], 60_000, "follower", members)


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=SERVERS)
async def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Target]:
    async with _running(request.param, tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture
def port(target: Target) -> int:
    return target.port


@pytest_asyncio.fixture(loop_scope="session")
async def connect(port: int) -> AsyncIterator[Connect]:
    """Opens clients. Closes their sessions at the end of the test, so that no expiry disturbs another test."""
    clients: list[Client] = []
    root = f"/contract-{next(_roots)}"

    async def open_client(
        timeout_ms: int = 10_000,
        session: int = 0,
        password: bytes | None = NEW_PASSWORD,
        last_zxid: int = 0,
        read_only: bool | None = False,
        behind: bytes = b"",
        resume: Client | None = None,
        handshake: bool = True,
        at: int = port,
    ) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", at, limit=64 << 20)
        client = Client(reader, writer, root)
        clients.append(client)
        if resume is not None:
            session, password = resume.session, resume.password
        if handshake:
            client.write(Client.connect_request(timeout_ms, session, password, last_zxid, read_only) + behind)
            await client.read_handshake()
        return client

    yield open_client
    for client in clients:
        await client.drop()
    for session, password in {client.session: client.password for client in clients if client.session}.items():
        await _close_session(port, session, password)


async def _close_session(port: int, session: int, password: bytes) -> None:
    """Uses a new connection, because the server may have closed the client's. The session may be gone already."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(Client.connect_request(10_000, session, password, 0, False) + buffer(struct.pack(">ii", 1, -11)))
    try:
        async with asyncio.timeout(PATIENCE):
            await reader.read()
    except ConnectionError:
        pass
    writer.close()


@pytest_asyncio.fixture(loop_scope="session")
async def zk(connect: Connect) -> Client:
    """A client with its own root node."""
    client = await connect()
    assert (await client.create(client.root)).err == 0
    return client
