"""Servers that are down, slow, or speak another protocol: every call ends with a typed error within its timeout.

There are two tables. Before there is a session, `start` raises ConnectionLoss within the connection timeout and leaves
no task and no socket behind. Later, a request ends with a ZooKeeperError within the session timeout, and when the
server works again, the same client goes on with the same session. All runs in virtual time, so "within" is exact.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from klamm.model.errors import ConnectionLoss, MarshallingError, ZooKeeperError
from klamm.model.ports import ProtocolFactory, Set, WatchEvent, WatchKind
from klamm.simulation.loop import run_in_virtual_time
from klamm.zookeeper import jute
from klamm.zookeeper.client import SessionState, ZooKeeperClient
from klamm.zookeeper.client.connection import REPLY_BYTES_MAX
from klamm.zookeeper.jute import OpCode

from .scripted import STAT, TIMEOUT_MS, Answer, Link, ScriptedServer, client_of, get_reply, now, play, reply

WITHIN = 2.0
HANDSHAKE = jute.frame(jute.ConnectResponse(TIMEOUT_MS, 100, b"p" * 16).pack())

Speak = Callable[[Link, bytes], None]
"""What the server sends instead of the correct answer."""


def says(data: bytes) -> Speak:
    return lambda link, sane: link.send(data)


def nothing(link: Link, sane: bytes) -> None:
    pass


def byte_by_byte(link: Link, sane: bytes, every: float = 0.3) -> None:
    for number in range(len(sane)):
        asyncio.get_running_loop().call_later(number * every, link._arrive, sane[number : number + 1])


def without_end(link: Link, sane: bytes) -> None:
    """A reply of 60 MB at three bytes per second."""
    byte_by_byte(link, jute.INT.pack(60_000_000) + bytes(100))


def cut(keep: int, *, then_close: bool) -> Speak:
    def speak(link: Link, sane: bytes) -> None:
        link.send(sane[:keep])
        if then_close:
            asyncio.get_running_loop().call_later(0.001, link.abort)

    return speak


def closes(link: Link, sane: bytes) -> None:
    link.abort()


GARBAGE: dict[str, Speak] = {
    "HTTP": says(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
    "SSH": says(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "a TLS alert": says(b"\x15\x03\x03\x00\x02\x02\x46"),
    "a Kafka reply": says(jute.frame(b"\x00\x00\x00\x01\x00\x23\x00\x00\x00\x00")),
    "a huge length": says(b"\x7f\xff\xff\xff" + bytes(100)),
    "a length just too large": says(jute.INT.pack(REPLY_BYTES_MAX + 1) + bytes(100)),
    "a negative length": says(b"\xff\xff\xff\xff" + bytes(100)),
    "the most negative length": says(b"\x80\x00\x00\x00"),
    "an empty frame": says(b"\x00\x00\x00\x00" + bytes(100)),
    "a frame shorter than any": says(jute.frame(b"ab")),
    **{f"random bytes {seed}": says(Random(seed).randbytes(1 + 50 * seed)) for seed in range(12)},
}
SILENCE: dict[str, Speak] = {
    "never answers": nothing,
    "closes": closes,
    "half a frame, then silence": cut(20, then_close=False),
    "half a frame, then the end": cut(20, then_close=True),
    "half a length, then silence": cut(2, then_close=False),
    "half a length, then the end": cut(2, then_close=True),
    "byte by byte without end": without_end,
}


def table(entries: dict[str, Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("how", entries.values(), ids=entries.keys())


# --- while the session is being made ---


def start_fails(server: ScriptedServer, *, within: float = WITHIN, match: str = "no session with") -> None:
    async def main() -> None:
        with pytest.raises(ConnectionLoss, match=match):
            await client_of(server, "a:1,b:2", connection_timeout_ms=int(1000 * WITHIN)).start()
        assert now() <= within
        await asyncio.sleep(0.01)
        assert not any(link.open for link in server.links)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_in_virtual_time(main())


@table({**GARBAGE, **SILENCE, "byte by byte, too slowly": byte_by_byte})
def test_no_handshake(how: Speak) -> None:
    server = ScriptedServer()
    server._shake_hands = lambda link, request: how(link, HANDSHAKE)  # type: ignore[method-assign]
    start_fails(server)


@table({**GARBAGE, **SILENCE})
def test_a_handshake_and_nothing_sane_after_it(how: Speak) -> None:
    """The first request is the probe for multi-read."""
    server = ScriptedServer()
    sane = jute.reply_frame(1, 10, 0, jute.MULTI_END)
    server.answers[OpCode.MULTI_READ] = lambda link, xid, body: how(link, sane)
    start_fails(server)


class Unreachable(ScriptedServer):
    def __init__(self, error: OSError | None) -> None:
        super().__init__()
        self.error = error

    async def connect(self, factory: ProtocolFactory, host: str, port: int) -> asyncio.Transport:
        if self.error is None:
            await asyncio.sleep(3600)  # packets vanish
        assert self.error is not None
        raise self.error


@pytest.mark.case("ZKC-16")
@table(
    {
        "no listener": ConnectionRefusedError(111, "refused"),
        "no such name": socket.gaierror(-2, "Name or service not known"),
        "no route": OSError(113, "No route to host"),
        "packets vanish": None,
    }
)
def test_unreachable(how: OSError | None) -> None:
    start_fails(Unreachable(how), match="no answer" if how is None else str(how.strerror))


def test_a_new_session_refused() -> None:
    server = ScriptedServer()
    gone = jute.frame(jute.ConnectResponse(0, 0, bytes(16)).pack())
    server._shake_hands = lambda link, request: link.send(gone)  # type: ignore[method-assign]
    start_fails(server, match="refused a new session")


# --- a session is there ---


SANE = jute.reply_frame(2, 20, 0, get_reply(b"x"))


def answer(how: Speak) -> Answer:
    return lambda link, xid, body: how(link, jute.reply_frame(xid, 20, 0, get_reply(b"x")))


WRONG: dict[str, Speak] = {
    "the next request's number": lambda link, sane: link.send(jute.reply_frame(3, 20, 0, get_reply(b"x"))),
    "a number never used": lambda link, sane: link.send(jute.reply_frame(77, 20, 0)),
    "a negative number": lambda link, sane: link.send(jute.reply_frame(-7, 20, 0)),
    "a reply to an authentication never sent": lambda link, sane: link.send(jute.reply_frame(-4, 0, 0)),
    "the reply twice, then silence": lambda link, sane: link.send(jute.reply_frame(1, 20, 0), sane),
    "an event of no known type": lambda link, sane: link.send(
        jute.reply_frame(-1, 20, 0, jute.REQUEST_HEADER.pack(77, 3) + jute.pack_string("/a"))
    ),
    "an event without a path": lambda link, sane: link.send(
        jute.reply_frame(-1, 20, 0, jute.REQUEST_HEADER.pack(3, 3) + jute.pack_string(None))
    ),
    "an event cut short": lambda link, sane: link.send(jute.reply_frame(-1, 20, 0, b"\x00\x00")),
    "a reply shorter than its header": lambda link, sane: link.send(jute.frame(bytes(15))),
}


@table({**GARBAGE, **SILENCE, **WRONG})
def test_a_request_to_a_server_gone_mad(how: Speak) -> None:
    async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
        server.answers[OpCode.GET_DATA] = answer(how)
        server.mute_pings = True
        asked = now()
        with pytest.raises(ConnectionLoss):
            await client.get("/a")
        assert now() - asked <= TIMEOUT_MS / 1000
        server.mute_pings = False
        server.answers[OpCode.GET_DATA] = reply(get_reply(b"sane"))
        assert (await client.get("/a")).data == b"sane"
        assert (client.session_id, client.expirations, client.state) == (100, 0, SessionState.CONNECTED)

    play(scenario)


def test_a_slow_reply_is_waited_for_while_it_arrives() -> None:
    async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
        server.mute_pings = True  # one stream: the replies to pings queue behind it
        server.answers[OpCode.GET_DATA] = answer(lambda link, sane: byte_by_byte(link, sane, every=0.05))
        asked = now()
        assert (await client.get("/a")).data == b"x"
        assert 4.0 < now() - asked < 6.0  # after two thirds of the timeout, but before all of it
        assert client.disconnections == 0

    play(scenario)


BODIES = {
    "get": (OpCode.GET_DATA, lambda client: client.get("/a"), get_reply(b"abc")),
    "exists": (OpCode.EXISTS, lambda client: client.exists("/a"), jute.pack_stat(STAT)),
    "children": (
        OpCode.GET_CHILDREN2,
        lambda client: client.children("/a"),
        jute.pack_strings(["b", "c"]) + jute.pack_stat(STAT),
    ),
    "create": (OpCode.CREATE2, lambda client: client.create("/a"), jute.pack_string("/a") + jute.pack_stat(STAT)),
    "set": (OpCode.SET_DATA, lambda client: client.set("/a", b""), jute.pack_stat(STAT)),
    "get_acl": (
        OpCode.GET_ACL,
        lambda client: client.get_acl("/a"),
        jute.INT.pack(1) + jute.INT.pack(31) + jute.pack_string("world") + jute.pack_string("x") + jute.pack_stat(STAT),
    ),
    "get_many": (
        OpCode.MULTI_READ,
        lambda client: client.get_many(["/a"]),
        jute.MULTI_HEADER.pack(OpCode.GET_DATA, False, 0) + get_reply(b"v") + jute.MULTI_END,
    ),
    "write_many": (
        OpCode.MULTI,
        lambda client: client.write_many([Set("/a", b"")]),
        jute.MULTI_HEADER.pack(OpCode.SET_DATA, False, 0) + jute.pack_stat(STAT) + jute.MULTI_END,
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_cut_at_any_byte_is_a_typed_error_of_that_request(name: str) -> None:
    """The frame is complete, so the connection goes on; only the request fails."""
    opcode, call, body = BODIES[name]

    async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
        for length in range(len(body)):
            server.answers[opcode] = reply(body[:length])
            with pytest.raises(MarshallingError):
                await call(client)
        server.answers[opcode] = reply(body)
        await call(client)
        assert client.disconnections == 0

    play(scenario)


def test_random_bodies_are_typed_errors_or_values() -> None:
    async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
        random = Random(5)
        for _ in range(1000):
            opcode, call, body = BODIES[random.choice(sorted(BODIES))]
            mutated = bytearray(body)
            for _ in range(random.randint(1, 4)):
                mutated[random.randrange(len(mutated))] = random.randrange(256)
            server.answers[opcode] = reply(bytes(mutated))
            try:
                await call(client)
            except ZooKeeperError:
                pass
        assert client.disconnections == 0

    play(scenario)


def test_an_event_for_nobody_is_no_error() -> None:
    async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
        server.links[0].send(jute.event_frame(WatchEvent(WatchKind.DATA_CHANGED, "/unasked")))
        server.answers[OpCode.GET_DATA] = reply(get_reply(b"x"))
        assert (await client.get("/a")).data == b"x"
        assert client.disconnections == 0

    play(scenario)
