"""Our server with a journal runs as a process and is killed during writes: all acknowledged writes survive."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SERVER = """
import asyncio, random, sys
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.zookeeper.server.journal import FileJournal
from klamm.zookeeper.server.memory import MemoryZooKeeper

async def main():
    journal = FileJournal(sys.argv[1], segment_bytes_max=200_000)
    server = MemoryZooKeeper(AsyncioNetwork(), SystemClock(), random.SystemRandom(), journal=journal)
    async with server.running():
        print(server.port, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
PATH = b"/counter"


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def receive(self) -> bytes:
        (length,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(length)

    def set(self, xid: int, value: int) -> None:
        body = struct.pack(">i", len(PATH)) + PATH + struct.pack(">iqi", 8, value, -1)
        self.writer.write(frame(struct.pack(">ii", xid, 5) + body))

    async def get(self) -> int:
        self.writer.write(frame(struct.pack(">iii", 1, 4, len(PATH)) + PATH + b"\0"))
        reply = await self.receive()
        assert struct.unpack_from(">iqi", reply)[2] == 0
        return struct.unpack_from(">q", reply, 20)[0]


async def start(directory: Path) -> tuple[asyncio.subprocess.Process, int]:
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVER, str(directory), stdout=asyncio.subprocess.PIPE
    )
    assert server.stdout is not None
    async with asyncio.timeout(20):
        line = await server.stdout.readline()
    assert line, "the server did not start"
    return server, int(line)


async def open_session(port: int, session: int, password: bytes, last_zxid: int) -> tuple[Connection, int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    connection = Connection(reader, writer)
    request = struct.pack(">iqiqi", 0, last_zxid, 10_000, session, 16) + password + b"\0"
    writer.write(frame(request))
    response = await connection.receive()
    timeout_ms, session = struct.unpack_from(">iq", response, 4)
    assert timeout_ms == 10_000
    return connection, session, response[20:36]


@pytest.mark.timeout(900)
async def test_no_acknowledged_write_is_lost(tmp_path: Path, scaled: Callable[[int, int], int]) -> None:
    kills = scaled(8, 100)
    choice = random.Random(5)
    session, password, last_zxid = 0, bytes(16), 0
    acknowledged = sent = 0
    for life in range(kills + 1):
        server, port = await start(tmp_path)
        try:
            # The same session each time: the session and its zxid must survive too.
            connection, session, password = await open_session(port, session, password, last_zxid)
            if life == 0:
                owner_acl = (
                    struct.pack(">ii", 1, 31) + struct.pack(">i", 5) + b"world" + struct.pack(">i", 6) + b"anyone"
                )
                body = struct.pack(">i", len(PATH)) + PATH + struct.pack(">iq", 8, 0) + owner_acl + struct.pack(">i", 1)
                connection.writer.write(frame(struct.pack(">ii", 1, 1) + body))
                await connection.receive()
            value = await connection.get()
            assert acknowledged <= value <= sent
            acknowledged = sent = value
            kill_at: asyncio.TimerHandle | None = None
            try:
                while life < kills:
                    for _ in range(20):
                        sent += 1
                        connection.set(sent, sent)
                    for _ in range(20):
                        xid, last_zxid, error = struct.unpack_from(">iqi", await connection.receive())
                        assert error == 0
                        acknowledged = xid
                    if kill_at is None:  # not before the first answers: a slow machine would send none in this life
                        kill_at = asyncio.get_running_loop().call_later(
                            choice.uniform(0.0, 0.15), os.kill, server.pid, signal.SIGKILL
                        )
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                if kill_at is not None:
                    kill_at.cancel()
            connection.writer.close()
        finally:
            if server.returncode is None:
                try:
                    server.kill()
                except ProcessLookupError:
                    pass
            await server.wait()
    assert acknowledged >= 20 * kills
