"""A broker process whose session ends while it starts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from klamm.broker.broker import BrokerNode
from klamm.model.config import read_broker_config
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.server.broker_server import BrokerServer
from klamm.server.runtime import real_ports
from klamm.zookeeper.server.memory import MemoryZooKeeper


async def test_a_session_that_ends_between_registration_and_controller_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker would hold /controller and not be registered."""
    running = BrokerNode.running
    async with MemoryZooKeeper(AsyncioNetwork(), SystemClock(), random.Random(1)).running() as server:
        nodes = server.service.database.tree.nodes

        @asynccontextmanager
        async def after_an_expiry(self: BrokerNode) -> AsyncIterator[BrokerNode]:
            former = nodes["/brokers/ids/1"].owner
            server.expire(former)
            while self.replicas._zk.session_id in (0, former):
                await asyncio.sleep(0.01)
            async with running(self) as node:
                yield node

        monkeypatch.setattr(BrokerNode, "running", after_an_expiry)
        settings = {
            "broker.id": "1",
            "zookeeper.connect": f"127.0.0.1:{server.port}",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(tmp_path / "logs"),
            "controlled.shutdown.enable": "false",
        }
        async with asyncio.timeout(20), BrokerServer(read_broker_config(settings)[0], real_ports()).running():
            while "/brokers/ids/1" not in nodes or "/controller" not in nodes:
                await asyncio.sleep(0.01)
            assert nodes["/brokers/ids/1"].owner == nodes["/controller"].owner
