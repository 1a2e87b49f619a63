"""A broker ends the session of its killed predecessor, and never that of a living broker."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from random import Random

import pytest

from klamm.log.disk import FileDisk
from klamm.model.ports import CreateMode, Ports
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.server.session_file import SessionFile
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.server.memory import MemoryZooKeeper


def client(connect: str) -> ZooKeeperClient:
    return ZooKeeperClient(AsyncioNetwork(), SystemClock(), Random(1), connect, 60_000)


async def test_the_former_session_ends_at_once_and_only_in_its_own_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    ports = Ports(SystemClock(), AsyncioNetwork(), FileDisk(1), Random(1))
    own, copied = tmp_path / "own", tmp_path / "copied"
    own.mkdir()
    server = MemoryZooKeeper(AsyncioNetwork(), SystemClock(), Random(1), session_timeout_ms_max=60_000)
    async with (
        server.running(),
        asyncio.timeout(20),
        client(server.address).running() as killed,
        client(server.address).running() as observer,
    ):
        await killed.create("/registration", b"", CreateMode.EPHEMERAL)
        file = SessionFile(str(own))
        file.remember(killed)
        assert os.stat(file.path).st_mode & 0o777 == 0o600

        shutil.copytree(own, copied)
        await SessionFile(str(copied)).end_former(ports, server.address)
        assert await observer.exists("/registration") is not None, "a copy proves nothing"

        await SessionFile(str(own)).end_former(ports, server.address)
        assert await observer.exists("/registration") is None
        assert "left behind" in caplog.text
        assert not os.path.exists(file.path)
        await SessionFile(str(own)).end_former(ports, server.address)


async def test_a_torn_file_and_a_dead_server_only_cost_time(tmp_path: Path) -> None:
    ports = Ports(SystemClock(), AsyncioNetwork(), FileDisk(1), Random(1))
    file = SessionFile(str(tmp_path))
    Path(file.path).write_text('{"session_id"')
    await file.end_former(ports, "127.0.0.1:1")
    server = MemoryZooKeeper(AsyncioNetwork(), SystemClock(), Random(1))
    async with server.running(), client(server.address).running() as zk:
        file.remember(zk)
    await file.end_former(ports, "127.0.0.1:1")
    assert not os.path.exists(file.path)
