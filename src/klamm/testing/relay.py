"""A relay in front of a server that can fail like the network between two processes.

It forwards bytes in both directions between its own port and the server's. It can fall silent without closing anything;
when shut, it cuts its connections and refuses new ones. A subclass that inspects or delays the bytes overrides `ways`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, Self

HOST: Final = "127.0.0.1"
CHUNK_BYTES: Final = 1 << 18

Ways = tuple[Coroutine[Any, Any, None], Coroutine[Any, Any, None]]


class End(NamedTuple):
    """One end of a relayed connection: the stream that comes from there and the one that goes there."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Relay:
    def __init__(self, target_port: int, port: int = 0) -> None:
        """`port` is the relay's own; 0 takes any free port."""
        self._target_port = target_port
        self._wanted_port = port
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._open: set[asyncio.Task[None]] = set()
        """The tasks of both directions of each connection. Only these are cancelled, because asyncio logs an error when
        the task of the connection itself is cancelled."""
        self._may_pass = asyncio.Event()
        self._may_pass.set()

    @property
    def is_open(self) -> bool:
        return self._server is not None

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def silence(self) -> None:
        self._may_pass.clear()

    def speak(self) -> None:
        self._may_pass.set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, HOST, self._wanted_port)

    async def shut(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
            for way in self._open:
                way.cancel()
            await asyncio.gather(*self._connections)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        await self.open()
        try:
            yield self
        finally:
            await self.shut()

    def ways(self, client: End, server: End) -> Ways:
        """One coroutine per direction. The end of either ends the connection."""
        return self.pump(client, server), self.pump(server, client)

    async def pump(self, source: End, target: End, see: Callable[[bytes], None] | None = None) -> None:
        while data := await source.reader.read(CHUNK_BYTES):
            await self._may_pass.wait()
            if see is not None:
                see(data)
            target.writer.write(data)
            await target.writer.drain()
        await self._may_pass.wait()  # while silent, do not pass on the end of the stream either

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        ends = [End(reader, writer)]
        try:
            ends.append(End(*await asyncio.open_connection(HOST, self._target_port)))
            if self._server is not None:  # it has not been shut in the meantime
                await self._pass_on(*ends)
        except OSError:
            pass  # the server is not there: cut the client's connection
        finally:  # also for a connection that arrived during the shutdown and is cancelled with the loop
            for end in ends:
                end.writer.transport.abort()
        await asyncio.gather(*(end.writer.wait_closed() for end in ends), return_exceptions=True)

    async def _pass_on(self, client: End, server: End) -> None:
        ways = {asyncio.create_task(work) for work in self.ways(client, server)}
        self._open |= ways
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        self._open -= ways
