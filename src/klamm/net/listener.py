"""A listener: accepts connections, hands each request to a handler, sends the answers in order.

A connection has one request at a time (`wire/server_connection.py`). While it is handled nothing more is read from the
socket, so TCP slows a client that pipelines, and memory stays bounded. Other connections go on, each in its own task.
Answers leave by `writelines`; their record data is never joined.

A client that disconnects does not cancel its request: an append that has begun is finished and its answer dropped, but
a wait ends early (`ClientConnection`). A throttled client gets its answer at once, and its connection is not read for
as long as the answer says (KIP-219). A connection that is silent for `idle_seconds` is closed, even while a request is
handled. Every connection that the listener closes leaves one line in the log.

Clients' requests share a budget of bytes (`queued.max.request.bytes`): while it is used up, no new request is read, but
one that has begun is read to its end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, cast

from klamm.model.byte_budget import ByteBudget
from klamm.model.ports import Buffer, Listening, Network
from klamm.model.requests import ANONYMOUS, ClientConnection, RequestContext
from klamm.net.connections import Admission, ConnectionLimits
from klamm.telemetry.metrics import MetricsRegistry
from klamm.telemetry.request_times import RequestTimes
from klamm.wire.errors import CloseConnection, ProtocolError
from klamm.wire.server_connection import ReceivedRequest, RequestHeader, ServerConnection, response_head

logger = logging.getLogger(__name__)

IDLE_SWEEP_SECONDS_MIN: Final = 0.05
CLOSED_PER_SWEEP: Final = 100
"""Connections that began together are idle together."""

Handler = Callable[[RequestContext, RequestHeader, memoryview], Awaitable[Sequence[Buffer] | None]]
"""Returns the chunks of a response body, or None for no response at all (Produce with acks=0)."""


class Listener:
    def __init__(
        self,
        network: Network,
        name: str,
        host: str,
        port: int,
        handler: Handler,
        *,
        privileged: bool,
        frame_bytes_max: int,
        limits: ConnectionLimits | None = None,
        idle_seconds: float | None = None,
        is_protected: bool = False,
        requests: ByteBudget | None = None,
        times: RequestTimes | None = None,
    ) -> None:
        """A broker's listeners share `limits`. `is_protected` means that only brokers use the listener, which is then
        exempt from the total. `requests` limits the bytes of requests that are read and not answered. `times` is told
        of every request."""
        self._network = network
        self.name = name
        self._host = host
        self._wanted_port = port
        self._handler = handler
        self._privileged = privileged
        self._frame_bytes_max = frame_bytes_max
        self.limits = limits or ConnectionLimits()
        self._idle_seconds = idle_seconds
        self._idle_sweep: asyncio.TimerHandle | None = None
        self.is_protected = is_protected
        self.request_budget = requests if requests is not None and requests.is_limited else None
        self.times = times
        self.accepted = 0
        self.closed = 0
        self.requests = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self._listening: Listening | None = None
        self._connections: dict[_Connection, None] = {}
        self._serving = asyncio.Event()
        self.is_closed = False
        """Connections that are still being accepted then are dropped."""

    @property
    def port(self) -> int:
        assert self._listening is not None, "not bound yet"
        return self._listening.port

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    async def bind(self) -> None:
        """Take the port. Requests wait until `serve`: a broker knows its address before it is ready to answer."""
        self._listening = await self._network.listen(self._accept, self._host, self._wanted_port)

    def serve(self) -> None:
        self._serving.set()

    async def close(self) -> None:
        """Stop accepting, drop waiting requests, close every connection. Clients see a reset, not an error."""
        self.is_closed = True
        if self._listening is not None:
            self._listening.close()
        if self._idle_sweep is not None:
            self._idle_sweep.cancel()
        connections = list(self._connections)
        for connection in connections:
            connection.end()
        await asyncio.gather(*(connection.ended() for connection in connections))
        if self._listening is not None:
            await self._listening.wait_closed()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Listener]:
        await self.bind()
        self.serve()
        try:
            yield self
        finally:
            await self.close()

    def register_metrics(self, metrics: MetricsRegistry) -> None:
        """The names are those of Kafka's selectors; there is only one here, network processor 0."""

        def read(name: str, value: Callable[[], int]) -> None:
            metrics.read("kafka.server", "socket-server-metrics", name, value, listener=self.name, networkProcessor="0")

        read("connection-count", lambda: len(self._connections))
        read("connection-creation-total", lambda: self.accepted)
        read("connection-close-total", lambda: self.closed)
        read("request-total", lambda: self.requests)
        read("incoming-byte-total", lambda: self.bytes_in)
        read("outgoing-byte-total", lambda: self.bytes_out)

    def _accept(self) -> asyncio.Protocol:
        connection = _Connection(self)
        self._connections[connection] = None
        self.accepted += 1
        if self._idle_sweep is None and self._idle_seconds is not None:
            self._idle_sweep = asyncio.get_running_loop().call_later(self._idle_seconds, self._close_idle)
        return connection

    def forget(self, connection: _Connection) -> None:
        if connection in self._connections:
            del self._connections[connection]
            self.closed += 1

    def _close_idle(self) -> None:
        """Close connections that were silent too long, and schedule the next check for when the next one may be."""
        assert self._idle_seconds is not None
        loop = asyncio.get_running_loop()
        now, self._idle_sweep = loop.time(), None
        oldest, closed = now, 0
        for connection in list(self._connections):
            if closed < CLOSED_PER_SWEEP and now - connection.last_active >= self._idle_seconds:
                closed += 1
                connection.close(f"idle for {now - connection.last_active:.1f} s")
            else:
                oldest = min(oldest, connection.last_active)
        if self._connections:
            wait = max(oldest + self._idle_seconds - now, IDLE_SWEEP_SECONDS_MIN)
            self._idle_sweep = loop.call_later(wait, self._close_idle)

    def context(self, peer: str, client_id: str | None, connection: ClientConnection) -> RequestContext:
        return RequestContext(ANONYMOUS, self.name, client_id, peer, self._privileged, connection)

    def sans_io(self) -> ServerConnection:
        """Only a controller sends large requests without records: it may describe a million partitions at once."""
        if self._privileged:
            return ServerConnection(self._frame_bytes_max, recordless_bytes_max=self._frame_bytes_max)
        return ServerConnection(self._frame_bytes_max)

    async def handle(self, context: RequestContext, request: ReceivedRequest) -> Sequence[Buffer] | None:
        self.requests += 1
        await self._serving.wait()
        return await self._handler(context, request.header, request.body)


class _Connection(asyncio.Protocol):
    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._wire = listener.sans_io()
        self._transport: asyncio.Transport | None = None
        self._peer = "?"
        self.host = "?"
        self._client = ClientConnection()
        self._admission = Admission.REFUSED
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._lost = asyncio.Event()
        self._arrived = 0.0
        """When the last bytes came."""
        self._charged: int | None = None
        """Bytes of the current request that count in the budget."""
        self._no_room: Callable[[], None] | None = None
        """Cancels the wait for room in the budget."""
        self._time = asyncio.get_running_loop().time
        self._now = self._time if listener.times is None else listener.times.now
        self.last_active = self._time()

    @property
    def is_protected(self) -> bool:
        return self._listener.is_protected

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport does not inherit from it
        address = transport.get_extra_info("peername")
        if address:
            self.host, self._peer = address[0], f"{address[0]}:{address[1]}"
        if self._listener.is_closed:
            self._transport.abort()
            return
        self._admission = self._listener.limits.entered(self)
        if self._admission is Admission.REFUSED:
            limit = self._listener.limits.allowed_from(self.host)
            self.close(f"more than {limit} connections from {self.host}, or too many are waiting")

    def admit(self) -> None:
        self._admission = Admission.ADMITTED
        if self._transport is not None:
            self._transport.resume_reading()
            self.data_received(b"")  # handle what has arrived meanwhile

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._writable.set()  # a pending write finds the transport gone
        self._client.gone()
        self._lost.set()
        if self._no_room is not None:
            self._no_room()
        if self._task is None:
            self._release()
        if self._admission is not Admission.REFUSED:
            self._listener.limits.left(self)
        if self._task is None:
            self._listener.forget(self)

    def data_received(self, data: bytes) -> None:
        self.last_active, self._arrived = self._time(), self._now()
        self._listener.bytes_in += len(data)
        self._wire.feed(data)
        if self._admission is Admission.WAITS:
            # Pausing in connection_made has no effect: uvloop begins to read only after it.
            if self._transport is not None:
                self._transport.pause_reading()
        elif self._task is None and self._has_room():
            self._task = asyncio.create_task(self._serve(), name=f"connection {self._peer}")
        elif self._transport is not None:
            self._transport.pause_reading()  # resumed when the current request is answered

    def _has_room(self) -> bool:
        """Charge the budget with the request that comes next. False if it must wait."""
        budget, size = self._listener.request_budget, self._wire.frame_bytes
        if budget is None or size is None or self._charged is not None:
            return True
        if budget.has_room:
            self._charged = max(0, size)
            budget.take(self._charged)
            return True
        if self._no_room is None:
            self._no_room = budget.when_room(self._on_room)
        return False

    def _on_room(self) -> None:
        self._no_room = None
        if self._transport is not None:
            self._transport.resume_reading()
            self.data_received(b"")

    def _release(self) -> None:
        """The request is answered, or never will be."""
        self._client.answered()
        budget = self._listener.request_budget
        if budget is not None and self._charged is not None:
            charged, self._charged = self._charged, None
            budget.give_back(charged)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def close(self, reason: str) -> None:
        """Close for a reason other than its bytes. Its current request is finished, but not answered."""
        logger.info("listener %s: closing connection of %s: %s", self._listener.name, self._peer, reason)
        if self._transport is not None:
            self._transport.abort()

    def end(self) -> None:
        """End the connection, because the listener closes."""
        if self._transport is not None:
            self._transport.abort()
        if self._task is not None:
            self._task.cancel()

    async def ended(self) -> None:
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        if self._transport is not None:
            await self._lost.wait()

    async def _serve(self) -> None:
        """Serve until nothing more has arrived. This is a connection's outermost loop: any error here closes it."""
        name = self._listener.name
        try:
            while self._has_room() and (request := self._wire.next_request()) is not None:
                self._client.throttle_ms = 0
                self._client.held_seconds = 0.0
                context = self._listener.context(self._peer, request.header.client_id, self._client)
                began = self._now()
                chunks = await self._listener.handle(context, request)
                ended = self._now()
                if chunks is not None:
                    await self._send(request.header, chunks)
                self._record_times(request.header.api_key, began, ended)
                if self._client.throttle_ms > 0:
                    await self._mute(self._client.throttle_ms / 1000)
                self._wire.answered()
                self._release()
        except ProtocolError as error:
            logger.warning("listener %s: closing connection of %s: %s", name, self._peer, error)
            self._refuse()
        except CloseConnection as error:
            logger.info("listener %s: closing connection of %s: %s", name, self._peer, error)
            self._refuse()
        except Exception:
            logger.exception("listener %s: closing connection of %s: its request failed", name, self._peer)
            self._refuse()
        finally:
            self._task = None
            if self._transport is None:
                self._release()
                self._listener.forget(self)
            elif self._transport.is_closing():
                self._release()
            elif self._no_room is None:
                self._transport.resume_reading()

    async def _send(self, header: RequestHeader, chunks: Sequence[Buffer]) -> None:
        if self._transport is None:
            return
        size = sum(map(len, chunks))
        self._listener.bytes_out += size
        self._transport.writelines([response_head(header, size), *chunks])
        await self._writable.wait()
        self.last_active = self._time()

    def _record_times(self, key: int, began: float, ended: float) -> None:
        times = self._listener.times
        if times is not None:
            held = self._client.held_seconds
            waited = max(0.0, ended - began - held)
            times.record(key, max(0.0, began - self._arrived), held, waited, self._now() - ended)

    async def _mute(self, seconds: float) -> None:
        over = asyncio.get_running_loop().create_future()
        stay = self._client.when_gone(lambda: over.set_result(None))
        try:
            await asyncio.wait((over,), timeout=seconds)
        finally:
            stay()

    def _refuse(self) -> None:
        """Earlier answers still go out; nothing more is read."""
        if self._transport is not None:
            self._transport.close()
