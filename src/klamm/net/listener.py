"""A listener: accepts connections, hands each request to a handler, sends the answers in order.

One request at a time per connection (klamm.wire.connection). While one is being handled nothing more is read from that
socket, so a client that pipelines is slowed down by TCP itself and our memory stays bounded; other connections go on,
each in its own task. Answers leave by `writelines`, their record data never copied together.

A client that disconnects does not cancel what it asked for: an append that has begun is finished, its answer dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import cast

from klamm.model.ports import Buffer, Listening, Network
from klamm.model.requests import ANONYMOUS, RequestContext
from klamm.wire.connection import Request, RequestHeader, ServerConnection, response_head
from klamm.wire.errors import CloseConnection, ProtocolError

logger = logging.getLogger(__name__)

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
    ) -> None:
        self._network = network
        self.name = name
        self._host = host
        self._wanted_port = port
        self._handler = handler
        self._privileged = privileged
        self._frame_bytes_max = frame_bytes_max
        self._listening: Listening | None = None
        self._connections: dict[_Connection, None] = {}
        self._serving = asyncio.Event()

    @property
    def port(self) -> int:
        assert self._listening is not None, "not bound yet"
        return self._listening.port

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    async def bind(self) -> None:
        """Take the port. Connections queue until `serve`: a broker knows its address before it is ready to answer."""
        self._listening = await self._network.listen(self._accept, self._host, self._wanted_port)

    def serve(self) -> None:
        self._serving.set()

    async def close(self) -> None:
        """Stop accepting, drop what waits, close every connection: clients see a reset, not an error."""
        if self._listening is not None:
            self._listening.close()
        connections = list(self._connections)
        for connection in connections:
            connection.close()
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

    def _accept(self) -> asyncio.Protocol:
        connection = _Connection(self)
        self._connections[connection] = None
        return connection

    def forget(self, connection: _Connection) -> None:
        self._connections.pop(connection, None)

    def context(self, peer: str, client_id: str | None) -> RequestContext:
        return RequestContext(ANONYMOUS, self.name, client_id, peer, self._privileged)

    def sans_io(self) -> ServerConnection:
        return ServerConnection(self._frame_bytes_max)

    async def handle(self, context: RequestContext, request: Request) -> Sequence[Buffer] | None:
        await self._serving.wait()
        return await self._handler(context, request.header, request.body)


class _Connection(asyncio.Protocol):
    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._wire = listener.sans_io()
        self._transport: asyncio.Transport | None = None
        self._peer = "?"
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        address = transport.get_extra_info("peername")
        self._peer = f"{address[0]}:{address[1]}" if address else "?"

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._writable.set()  # whoever waits to write finds that there is nobody to write to
        if self._task is None:
            self._listener.forget(self)

    def data_received(self, data: bytes) -> None:
        self._wire.feed(data)
        if self._task is None:
            self._task = asyncio.create_task(self._serve(), name=f"connection {self._peer}")
        elif self._transport is not None:
            self._transport.pause_reading()  # resumed when the request in work is answered

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        if self._task is not None:
            self._task.cancel()

    async def ended(self) -> None:
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _serve(self) -> None:
        """Until nothing more has arrived. The outermost loop of a connection: what fails here ends the connection."""
        try:
            while (request := self._wire.next_request()) is not None:
                context = self._listener.context(self._peer, request.header.client_id)
                chunks = await self._listener.handle(context, request)
                if chunks is not None:
                    await self._send(request.header, chunks)
                self._wire.answered()
        except ProtocolError as error:
            logger.warning("listener %s: closing connection of %s: %s", self._listener.name, self._peer, error)
            self._abort()
        except CloseConnection as error:
            logger.info("listener %s: closing connection of %s: %s", self._listener.name, self._peer, error)
            self._abort()
        except Exception:
            logger.exception("listener %s: a request of %s failed", self._listener.name, self._peer)
            self._abort()
        finally:
            self._task = None
            if self._transport is None:
                self._listener.forget(self)
            else:
                self._transport.resume_reading()

    async def _send(self, header: RequestHeader, chunks: Sequence[Buffer]) -> None:
        if self._transport is None:
            return
        self._transport.writelines([response_head(header, sum(map(len, chunks))), *chunks])
        await self._writable.wait()

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
