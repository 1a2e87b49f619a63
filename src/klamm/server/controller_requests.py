"""An operator's requests about the controller, each in a ZooKeeper session of its own, for the command line."""

from __future__ import annotations

from typing import Any

from klamm.server.inspection import zookeeper
from klamm.zookeeper import controller_requests


async def add_candidate(connect: str, broker: int) -> tuple[bool, bool]:
    """Return whether the broker was added, or is already a candidate, and whether it is alive."""
    async with zookeeper(connect) as zk:
        added = await controller_requests.add_candidate(zk, broker)
        return added, broker in await controller_requests.live_brokers(zk)


async def remove_candidate(connect: str, broker: int) -> None:
    async with zookeeper(connect) as zk:
        await controller_requests.remove_candidate(zk, broker)


async def move_controller(connect: str, broker: int | None, timeout_s: float) -> dict[str, Any]:
    """Move the controller to this broker, or to the first live candidate if `broker` is None."""
    async with zookeeper(connect) as zk:
        return await controller_requests.move_controller(zk, broker, timeout_s)
