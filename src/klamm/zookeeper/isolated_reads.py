"""Bulk reads in which one node that may not be read does not hide the others.

A bulk read fails as a whole if one node refuses (NoAuth). Then it is repeated in halves, until that node is alone: one
costs log2 rounds. It counts as absent, or as unreadable where that matters, and is reported by the caller's `refused`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from klamm.model.errors import NoAuth, ZNodeError
from klamm.model.partition import LeaderAndIsr
from klamm.model.ports import NO_NODE_VERSION, Node, ZooKeeper
from klamm.zookeeper.znodes import partition_state

T = TypeVar("T")
Refused = Callable[[ZNodeError], None]
States = tuple[list[LeaderAndIsr | ZNodeError | None], list[int]]
"""States and versions of their znodes. The state is None where there is no znode."""


async def read_nodes(
    read: Callable[[Sequence[str]], Awaitable[list[Node | None]]],
    paths: Sequence[str],
    refused: Refused = lambda problem: None,
) -> list[Node | None]:
    return await _isolated(read, paths, refused)


async def read_children(
    zk: ZooKeeper, paths: Sequence[str], refused: Refused = lambda problem: None
) -> list[list[str] | None]:
    return await _isolated(zk.children_many, paths, refused)


async def read_states(zk: ZooKeeper, paths: Sequence[str]) -> States:
    """A state that may not be read is a ZNodeError, like one that cannot be decoded."""
    try:
        contents = await zk.read_many(paths)
    except NoAuth as error:
        if len(paths) == 1:
            return [ZNodeError(paths[0], f"it may not be read: {error}")], [NO_NODE_VERSION]
        middle = len(paths) // 2
        (states, versions), (more, later) = await asyncio.gather(
            read_states(zk, paths[:middle]), read_states(zk, paths[middle:])
        )
        return states + more, versions + later
    return partition_state.decode_many(paths, contents), contents.versions


async def _isolated(
    read: Callable[[Sequence[str]], Awaitable[list[T | None]]], paths: Sequence[str], refused: Refused
) -> list[T | None]:
    try:
        return await read(paths)
    except NoAuth as error:
        if len(paths) == 1:
            refused(ZNodeError(paths[0], f"it may not be read: {error}"))
            return [None]
    middle = len(paths) // 2
    halves = await asyncio.gather(_isolated(read, paths[:middle], refused), _isolated(read, paths[middle:], refused))
    return halves[0] + halves[1]
