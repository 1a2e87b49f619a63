"""What ZooKeeper tells about the controller's term, for the command line."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from klamm.model.errors import NoNode
from klamm.server.runtime import real_ports
from klamm.zookeeper.client import ZooKeeperClient


async def controller_term(connect: str) -> dict[str, Any]:
    """Epoch of the controller, and since when its znode exists."""
    ports = real_ports()
    client = ZooKeeperClient(ports.network, ports.clock, ports.random, connect, session_timeout_ms=10_000)
    async with client.running():
        epoch = await client.get("/controller_epoch")
        try:
            node = await client.get("/controller")
        except NoNode:
            return {"epoch": int(epoch.data or b"0"), "since": None}
        since = datetime.fromtimestamp(node.stat.ctime_ms / 1000, UTC)
        return {"epoch": int(epoch.data or b"0"), "since": since.isoformat(timespec="milliseconds")}
