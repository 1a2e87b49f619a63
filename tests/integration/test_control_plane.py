"""A separate listener for control requests (KIP-291): they arrive there and nowhere else."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from klamm.model.config import read_broker_config
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.server.broker_server import BrokerServer
from klamm.server.runtime import real_ports
from klamm.zookeeper.server.memory import MemoryZooKeeper

LISTENERS = ("CLIENT", "INTERNAL", "CONTROL")


@pytest.mark.case("CTL-04")
async def test_the_first_word_of_the_controller_comes_by_the_control_plane(tmp_path: Path) -> None:
    async with MemoryZooKeeper(AsyncioNetwork(), SystemClock(), random.Random(1)).running() as zookeeper:
        config, unknown = read_broker_config(
            {
                "broker.id": "1",
                "zookeeper.connect": f"127.0.0.1:{zookeeper.port}",
                "listeners": ",".join(f"{name}://127.0.0.1:0" for name in LISTENERS),
                "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in LISTENERS),
                "inter.broker.listener.name": "INTERNAL",
                "control.plane.listener.name": "CONTROL",
                "log.dirs": str(tmp_path / "data"),
            }
        )
        assert not unknown
        async with BrokerServer(config, real_ports()).running() as server:

            def total(listener: str, name: str) -> float:
                labels = {"listener": listener, "networkProcessor": "0"}
                return server.metrics.value("kafka.server", "socket-server-metrics", name, **labels)

            async with asyncio.timeout(30):
                while not total("CONTROL", "outgoing-byte-total"):
                    await asyncio.sleep(0.01)
            assert total("CONTROL", "request-total") >= 1
            for listener in ("CLIENT", "INTERNAL"):
                assert total(listener, "request-total") == 0
