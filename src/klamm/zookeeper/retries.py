"""What every user of ZooKeeper needs around a call: trying again while the connection is down, and a parent that may be
absent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from klamm.model.errors import ConnectionLoss, NoNode
from klamm.model.ports import Watcher, ZooKeeper

T = TypeVar("T")

RECONNECT_PAUSE_S: Final = 0.1


async def until_connected(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat `call` while the connection is lost: for reads, and for writes that may be made twice. An expired session
    ends it."""
    while True:
        try:
            return await call()
        except ConnectionLoss:
            await asyncio.sleep(RECONNECT_PAUSE_S)


async def children_or_none(zk: ZooKeeper, parent: str, watch: Watcher | None = None) -> list[str] | None:
    """Names of the children, sorted; None where the parent does not exist, which sets no watch."""
    try:
        return sorted(await zk.children(parent, watch))
    except NoNode:
        return None
