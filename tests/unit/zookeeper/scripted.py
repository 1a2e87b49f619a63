"""A scripted server in memory and in virtual time, for tests of the client. All times are exact."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from klamm.model.ports import Listening, ProtocolFactory, Stat
from klamm.simulation.loop import run_in_virtual_time
from klamm.zookeeper import jute
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.jute import OpCode

TIMEOUT_MS = 6000
STAT = Stat(1, 2, 3, 4, 5, 6, 7, 0, 8, 9, 10)


class LoopClock:
    def wall_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class Link(asyncio.Transport):
    """The client's transport. It passes what the client writes to the server as whole frames."""

    def __init__(self, server: ScriptedServer, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.server = server
        self.protocol = protocol
        self.shaken = False
        self.frames: list[tuple[int, OpCode, bytes]] = []
        self.open = True

    def write(self, data: Any) -> None:
        position = 0
        while position < len(data):
            length = jute.INT.unpack_from(data, position)[0]
            self.server.receive(self, bytes(data[position + 4 : position + 4 + length]))
            position += 4 + length

    def send(self, *frames: bytes) -> None:
        """Send all of it in one packet."""
        asyncio.get_running_loop().call_soon(self._arrive, b"".join(frames))

    def _arrive(self, data: bytes) -> None:
        if self.open:
            self.protocol.data_received(data)

    def abort(self) -> None:
        if self.open:
            self.open = False
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    close = abort

    def opcodes(self) -> list[OpCode]:
        return [opcode for _, opcode, _ in self.frames]


Answer = Callable[[Link, int, bytes], None]


class ScriptedServer:
    """Answers the handshake and pings; `answers` answers the rest. It is also the Network that leads to it."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.connects: list[tuple[float, str, jute.ConnectRequest]] = []
        self.pings: list[float] = []
        self.down = False
        self.mute = False
        self.mute_pings = False
        self.next_session = 100
        self.gone: set[int] = set()
        self.zxid = 10
        self.answers: dict[OpCode, Answer] = {OpCode.MULTI_READ: reply(jute.MULTI_END)}

    async def connect(self, factory: ProtocolFactory, host: str, port: int) -> asyncio.Transport:
        if self.down:
            raise ConnectionRefusedError(f"{host}:{port}")
        protocol = factory()
        assert isinstance(protocol, asyncio.Protocol)
        link = Link(self, protocol)
        self.links.append(link)
        self.host = host
        protocol.connection_made(link)
        return link

    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> Listening:
        raise NotImplementedError

    def receive(self, link: Link, payload: bytes) -> None:
        if not link.shaken:
            link.shaken = True
            self._shake_hands(link, jute.ConnectRequest.unpack(payload))
            return
        xid, opcode = jute.REQUEST_HEADER.unpack_from(payload)
        if opcode == OpCode.PING:
            self.pings.append(asyncio.get_running_loop().time())
            if not (self.mute or self.mute_pings):
                link.send(jute.reply_frame(xid, self.zxid, 0))
            return
        link.frames.append((xid, OpCode(opcode), payload[8:]))
        answer = self.answers.get(OpCode(opcode))
        if answer is not None and not self.mute:
            answer(link, xid, payload[8:])

    def _shake_hands(self, link: Link, request: jute.ConnectRequest) -> None:
        self.connects.append((asyncio.get_running_loop().time(), self.host, request))
        if self.mute:
            return
        if request.session_id in self.gone:
            link.send(jute.frame(jute.ConnectResponse(0, 0, bytes(16)).pack()))
            return
        session_id = request.session_id
        if session_id == 0:
            session_id, self.next_session = self.next_session, self.next_session + 1
        link.send(jute.frame(jute.ConnectResponse(request.timeout_ms, session_id, b"p" * 16).pack()))


def reply(body: bytes = b"", code: int = 0) -> Answer:
    return lambda link, xid, _: link.send(jute.reply_frame(xid, link.server.zxid, code, body))


def drop(link: Link, xid: int, body: bytes) -> None:
    link.abort()


def get_reply(data: bytes, stat: Stat = STAT) -> bytes:
    return jute.pack_buffer(data) + jute.pack_stat(stat)


class Listener:
    def __init__(self, server: ScriptedServer) -> None:
        self.server = server
        self.seen: list[str] = []
        self.then: Callable[[], Coroutine[Any, Any, Any]] | None = None

    async def before_new_session(self) -> None:
        self.seen.append(f"before, {self.server.next_session - 100} made")

    async def after_new_session(self) -> None:
        if self.then is not None:
            await self.then()
        self.seen.append(f"after, {self.server.next_session - 100} made")

    async def on_auth_failure(self) -> None:
        self.seen.append("auth failure")


def client_of(server: ScriptedServer, connect: str = "zk:2181", **options: Any) -> ZooKeeperClient:
    return ZooKeeperClient(server, LoopClock(), Random(1), connect, TIMEOUT_MS, **options)


def now() -> float:
    return asyncio.get_running_loop().time()


Scenario = Callable[[ScriptedServer, ZooKeeperClient], Coroutine[Any, Any, None]]


def play(scenario: Scenario, connect: str = "zk:2181") -> ScriptedServer:
    server = ScriptedServer()

    async def main() -> None:
        client = client_of(server, connect)
        server.answers[OpCode.CLOSE_SESSION] = lambda link, xid, _: (
            link.send(jute.reply_frame(xid, server.zxid, 0)),
            asyncio.get_running_loop().call_later(0.001, link.abort),
        )[0]
        async with asyncio.timeout(3600), client.running():  # in virtual time: pings alone would go on for ever
            await scenario(server, client)

    run_in_virtual_time(main())
    return server
