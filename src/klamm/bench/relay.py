"""A relay in front of ZooKeeper that counts what goes through it, by kind: the same eyes for any controller.

A multi or a multi-read counts once as a request, and each operation inside it under its own name. Watches set in bulk
count one each. Pings are left out: they count time, not work. What is relayed is slower than what is not, so nothing
is timed while it is in the way.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from klamm.zookeeper.jute import INT, OpCode, Reader
from klamm.zookeeper.server.rules import read_multi

HOST: Final = "127.0.0.1"
CHUNK_BYTES: Final = 1 << 18

_NAMES: Final = {
    OpCode.CREATE: "create",
    OpCode.CREATE2: "create",
    OpCode.DELETE: "delete",
    OpCode.EXISTS: "exists",
    OpCode.GET_DATA: "get",
    OpCode.SET_DATA: "set",
    OpCode.GET_CHILDREN: "children",
    OpCode.GET_CHILDREN2: "children",
    OpCode.SYNC: "sync",
    OpCode.CHECK: "check",
}
_OF_A_CLASS: Final = {"Create": "create", "Delete": "delete", "SetData": "set", "Check": "check", "SetAcl": "set_acl"}


class OperationCounter:
    """Fed with the bytes of one connection from the client on, in any pieces."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._pending = bytearray()
        self._greeted = False

    def feed(self, data: bytes) -> None:
        self._pending += data
        start = 0
        while len(self._pending) - start >= INT.size:
            end = start + INT.size + INT.unpack_from(self._pending, start)[0]
            if len(self._pending) < end:
                break
            self._count(bytes(self._pending[start + INT.size : end]))
            start = end
        del self._pending[:start]

    def _count(self, frame: bytes) -> None:
        if not self._greeted:
            self._greeted = True  # the first frame asks for a session and has no operation
            return
        reader = Reader(frame)
        reader.int32()
        opcode = reader.int32()
        if opcode in (OpCode.PING, OpCode.CLOSE_SESSION, OpCode.AUTH):
            return
        self._counts["requests"] += 1
        if opcode == OpCode.MULTI:
            self._counts.update(_OF_A_CLASS[type(operation).__name__] for operation in read_multi(reader))
        elif opcode == OpCode.MULTI_READ:
            self._counts.update(_reads_in(reader))
        elif opcode in (OpCode.SET_WATCHES, OpCode.SET_WATCHES2):
            reader.int64()
            self._counts["watch"] += sum(len(reader.strings()) for _ in range(3))
        else:
            self._counts[_NAMES.get(OpCode(opcode), OpCode(opcode).name.lower())] += 1


def _reads_in(reader: Reader) -> Counter[str]:
    found: Counter[str] = Counter()
    while True:
        opcode, done, _ = reader.multi_header()
        if done:
            return found
        found[_NAMES[OpCode(opcode)]] += 1
        reader.buffer()
        reader.boolean()


class CountingRelay:
    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.counts: Counter[str] = Counter()

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"{HOST}:{self._server.sockets[0].getsockname()[1]}"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[CountingRelay]:
        self._server = await asyncio.start_server(self._accept, HOST, 0)
        try:
            yield self
        finally:
            self._server.close()
            for connection in self._connections:
                connection.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            server_reader, server_writer = await asyncio.open_connection(HOST, self._target_port)
        except OSError:
            writer.close()
            return
        counter = OperationCounter(self.counts)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_pump(reader, server_writer, counter))
                tasks.create_task(_pump(server_reader, writer, None))
        finally:
            writer.close()
            server_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counter: OperationCounter | None) -> None:
    """Until either side ends, upon which the other is told."""
    try:
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            if counter is not None:
                counter.feed(data)
            await writer.drain()
    except OSError:
        pass  # a reset is an end like any other
    finally:
        writer.close()
