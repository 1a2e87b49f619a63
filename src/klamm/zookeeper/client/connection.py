"""One TCP connection to one server: frames, the order of requests, and the times of the last traffic.

Replies come strictly in the order of the requests, so the requests in flight are a queue. The one exception is the
answer to an opcode that the server does not know: it overtakes earlier replies, and then the server closes the
connection. Events are delivered at once and in order, so an event precedes the reply of any read that shows its change.
When the connection ends, every request in flight fails with ConnectionLoss, whether the server applied it or not. The
owner of the connection runs its timers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, cast

from klamm.model.errors import ConnectionLoss, MarshallingError, Unimplemented, ZooKeeperError
from klamm.model.ports import Clock, WatchEvent
from klamm.zookeeper import jute
from klamm.zookeeper.jute import OpCode

REPLY_BYTES_MAX: Final = 64 * 1024 * 1024
BODY: Final = jute.REPLY_HEADER.size
"""The offset of the body in a reply's payload."""
_PING: Final = jute.request_frame(jute.XID_PING, OpCode.PING)


class Reply(NamedTuple):
    zxid: int
    payload: bytes
    """Includes the header, to avoid a copy. The body starts at BODY."""

    def reader(self) -> jute.JuteReader:
        return jute.JuteReader(self.payload, BODY)


OnReply = Callable[[int, int], None]
"""Called with zxid and error code when the reply arrives, in order with the events around it."""


class PendingRequest:
    """A request from its submission to its end. Every request ends, with a reply or an error."""

    __slots__ = ("asked_at", "body", "future", "on_reply", "opcode", "path", "xid")

    def __init__(self, opcode: OpCode, body: bytes, path: str, on_reply: OnReply | None = None) -> None:
        self.opcode = opcode
        self.body = body
        self.path = path
        self.on_reply = on_reply
        self.xid = 0
        self.asked_at = 0.0
        self.future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def finish(self, reply: Reply, code: int) -> None:
        if self.on_reply is not None:
            self.on_reply(reply.zxid, code)
        if self.future.done():  # its caller was cancelled
            return
        if code == 0:
            self.future.set_result(reply)
        else:
            self.future.set_exception(jute.error_for(code, self.path))

    def fail(self, error: ZooKeeperError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class FrameBuffer:
    """Bytes in, whole payloads out."""

    def __init__(self, payload_bytes_max: int = REPLY_BYTES_MAX) -> None:
        self._rest = bytearray()
        self._max = payload_bytes_max

    def feed(self, data: bytes) -> list[bytes]:
        self._rest += data
        payloads: list[bytes] = []
        position, end = 0, len(self._rest)
        with memoryview(self._rest) as view:
            while position + 4 <= end:
                length = jute.INT.unpack_from(view, position)[0]
                if not 0 < length <= self._max:
                    raise MarshallingError(detail=f"frame of {length} bytes, the limit is {self._max}")
                if position + 4 + length > end:
                    break
                payloads.append(bytes(view[position + 4 : position + 4 + length]))
                position += 4 + length
        del self._rest[:position]
        return payloads


class ZooKeeperConnection(asyncio.Protocol):
    def __init__(self, clock: Clock, on_event: Callable[[WatchEvent], None]) -> None:
        self._clock = clock
        self._on_event = on_event
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._frames = FrameBuffer()
        self._outgoing: list[bytes] = []
        self._in_flight: deque[PendingRequest] = deque()
        self._auths: deque[PendingRequest] = deque()
        self._handshake: asyncio.Future[jute.ConnectResponse] = self._loop.create_future()
        self._xid = 0
        self._lost: str | None = None  # the reason
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.last_zxid = 0
        self.last_sent = self.last_received = self.last_answered = clock.monotonic()
        """Any byte proves that the connection is alive. Only an answer proves that requests arrive; events do not."""
        self.last_asked = self.last_sent
        """When the newest request that has an answer was sent: the session was alive then. When the answer was read
        says nothing, because this process may have been suspended while the answer lay in its socket."""
        self._pings: deque[float] = deque()

    @property
    def is_open(self) -> bool:
        return self._lost is None and not self.closed.done()

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass

    def data_received(self, data: bytes) -> None:
        if self._lost is not None:
            return
        self.last_received = self._clock.monotonic()
        try:
            for payload in self._frames.feed(data):
                if self._handshake.done():
                    self._on_payload(payload)
                else:
                    self._handshake.set_result(jute.ConnectResponse.unpack(payload))
                    self.last_answered = self.last_received
                    self._prove(self._pings.popleft())
        except MarshallingError as error:
            self.abort(f"unreadable data from the server: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(f"connection closed{f': {exc}' if exc else ''}")
        if not self.closed.done():
            self.closed.set_result(None)

    # --- for the session ---

    async def handshake(self, request: jute.ConnectRequest) -> jute.ConnectResponse:
        self._pings.append(self._clock.monotonic())
        self._write(jute.frame(request.pack()))
        return await asyncio.shield(self._handshake)

    def send(self, request: PendingRequest) -> None:
        if self._lost is not None:
            request.fail(ConnectionLoss(request.path, self._lost))
            return
        self._xid = self._xid % jute.MAX_XID + 1
        request.xid = self._xid
        request.asked_at = self._clock.monotonic()
        self._in_flight.append(request)
        self._write(jute.request_frame(request.xid, request.opcode, request.body))

    def authenticate(self, scheme: str, credential: bytes) -> PendingRequest:
        request = PendingRequest(OpCode.AUTH, b"", "")
        request.asked_at = self._clock.monotonic()
        self._auths.append(request)
        self._write(jute.request_frame(jute.XID_AUTH, OpCode.AUTH, jute.pack_auth(scheme, credential)))
        return request

    def ping(self) -> None:
        self._pings.append(self._clock.monotonic())
        self._write(_PING)

    def abort(self, reason: str) -> None:
        """Close at once, without waiting for the other side. The outcome of requests in flight is unknown."""
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()
        elif not self.closed.done():
            self.closed.set_result(None)

    # --- internals ---

    def _end(self, reason: str) -> None:
        if self._lost is None:
            self._lost = reason
        for request in (*self._in_flight, *self._auths):
            request.fail(ConnectionLoss(request.path, self._lost))
        self._in_flight.clear()
        self._auths.clear()
        if not self._handshake.done():
            self._handshake.set_exception(ConnectionLoss(detail=self._lost))
            self._handshake.exception()  # mark it as retrieved, because nothing may be awaiting it

    def _write(self, data: bytes) -> None:
        """Everything sent in one turn of the loop leaves in one write."""
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(data)

    def _flush(self) -> None:
        if self._transport is not None and self._lost is None:
            self.last_sent = self._clock.monotonic()
            self._transport.write(b"".join(self._outgoing))
        self._outgoing.clear()

    def _on_payload(self, payload: bytes) -> None:
        if len(payload) < BODY:
            raise MarshallingError(detail=f"reply of {len(payload)} bytes")
        xid, zxid, code = jute.REPLY_HEADER.unpack_from(payload)
        if xid == jute.XID_EVENT:
            self._on_event(jute.JuteReader(payload, BODY).watch_event())
            return
        self.last_answered = self.last_received
        if zxid > self.last_zxid:
            self.last_zxid = zxid
        if xid == jute.XID_PING:
            if self._pings:
                self._prove(self._pings.popleft())
            return
        request = self._auths.popleft() if xid == jute.XID_AUTH and self._auths else self._take(xid, code)
        self._prove(request.asked_at)
        request.finish(Reply(zxid, payload), code)

    def _prove(self, asked_at: float) -> None:
        self.last_asked = max(self.last_asked, asked_at)

    def _take(self, xid: int, code: int) -> PendingRequest:
        if self._in_flight and self._in_flight[0].xid == xid:
            return self._in_flight.popleft()
        if code == Unimplemented.code:
            for request in self._in_flight:
                if request.xid == xid:
                    self._in_flight.remove(request)
                    return request
        expected = self._in_flight[0].xid if self._in_flight else "none"
        raise MarshallingError(detail=f"reply to request {xid}, expected {expected}")
