"""Helpers around ZooKeeper calls: repeat a call while the connection is lost, and read the children of a parent that
may be absent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

from klamm.model.errors import ConnectionLoss, NoNode
from klamm.model.ports import Watcher

T = TypeVar("T")

RECONNECT_PAUSE_S: Final = 0.1


async def until_connected(call: Callable[[], Awaitable[T]], pause_s: float | None = None) -> T:
    """Repeat `call` while it ends in ConnectionLoss: for reads, and for writes that may happen twice. Other errors,
    such as SessionExpired, are raised.

    The pause, RECONNECT_PAUSE_S by default, protects ZooKeeper from a call that breaks every connection. A single small
    request needs no pause, because the client itself waits for the next connection."""
    while True:
        try:
            return await call()
        except ConnectionLoss:
            await asyncio.sleep(RECONNECT_PAUSE_S if pause_s is None else pause_s)


class ReadsChildren(Protocol):
    async def children(self, path: str, watch: Watcher | None = None) -> list[str]: ...


async def children_or_none(zk: ReadsChildren, parent: str, watch: Watcher | None = None) -> list[str] | None:
    """The names of the children, sorted. None if the parent does not exist; then no watch is set."""
    try:
        return sorted(await zk.children(parent, watch))
    except NoNode:
        return None
