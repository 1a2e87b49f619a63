"""A relay in front of a server that can fail like the network between two processes.

It forwards bytes in both directions between its own port and the server's. It can fall silent without closing anything;
when shut, it cuts its connections and refuses new ones. A subclass that inspects or delays the bytes overrides `ways`.
"""

from __future__ import annotations

import asyncio
import socket
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
        self._listening: socket.socket | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._open: set[asyncio.Task[None]] = set()
        """The tasks of both directions of each connection. Only these are cancelled: the task of a connection itself
        always ends its way, and closes both ends."""
        self._may_pass = asyncio.Event()
        self._may_pass.set()

    @property
    def is_open(self) -> bool:
        return self._listening is not None

    @property
    def port(self) -> int:
        assert self._listening is not None
        return int(self._listening.getsockname()[1])

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def silence(self) -> None:
        self._may_pass.clear()

    def speak(self) -> None:
        self._may_pass.set()

    async def open(self) -> None:
        self._listening = socket.create_server((HOST, self._wanted_port))
        self._listening.setblocking(False)
        asyncio.get_running_loop().add_reader(self._listening, self._accept, self._listening)

    async def shut(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            asyncio.get_running_loop().remove_reader(listening)
            listening.close()
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

    def _accept(self, listening: socket.socket) -> None:
        """From here on `shut` knows the connection. `asyncio.start_server` gives it to its handler a few turns of the
        loop later; if the relay was shut in between, nothing ever closed it."""
        try:
            accepted, _ = listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # the client has given up
        accepted.setblocking(False)
        task = asyncio.create_task(self._serve(accepted))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, accepted: socket.socket) -> None:
        ends = [End(*await asyncio.open_connection(sock=accepted))]
        try:
            ends.append(End(*await asyncio.open_connection(HOST, self._target_port)))
            if self.is_open:  # it has not been shut in the meantime
                await self._pass_on(*ends)
        except OSError:
            pass  # the server is not there: cut the client's connection
        finally:
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
