"""A gate in front of a listener: open, it forwards; shut, it refuses new connections and has cut those it had.

To the world outside, a broker behind a shut gate is dead, though it lives, reaches everybody itself, and keeps its
ZooKeeper session: what fast fail-over must survive. A thread of its own runs it, so that any test may use it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

HOST = "127.0.0.1"


class Gate:
    def __init__(self, port: int, target: int, loop: asyncio.AbstractEventLoop) -> None:
        self.port = port
        self._target = target
        self._loop = loop
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    def open(self) -> None:
        self._call(self._open())

    def shut(self) -> None:
        self._call(self._shut())

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._forward, HOST, self.port)

    async def _shut(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection(HOST, self._target)
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, inner_writer}
        self._writers |= pair
        try:
            await asyncio.gather(_pump(reader, inner_writer), _pump(inner_reader, writer))
        finally:
            self._writers -= pair
            for each in pair:
                each.transport.abort()

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until either side ends; that ends the other."""
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.transport.abort()


@contextmanager
def gate_before(target: int, port: int) -> Iterator[Gate]:
    """Open on entry: whoever connects to `port` reaches `target`."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="gate", daemon=True)
    thread.start()
    gate = Gate(port, target, loop)
    try:
        gate.open()
        yield gate
        gate.shut()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
