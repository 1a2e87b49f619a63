"""What an operator asks of the office, written to ZooKeeper where every klamm broker watches: who is preferred, and who
shall hold it now.

A move is an ephemeral request (`znodes.controller_move`): the broker that it names takes over in one transaction,
whoever holds the office, klamm or not. It is waited for, and gone with this session in any case.
"""

from __future__ import annotations

import asyncio
from typing import Any

from klamm.model.errors import KlammError, NodeExists, NoNode
from klamm.model.ids import BrokerId
from klamm.model.ports import CreateMode
from klamm.server.inspection import holder, live_brokers, preferred_brokers, zookeeper
from klamm.zookeeper.znodes import candidates, controller_move

LOOK_EVERY_S = 0.05


class RequestRefused(KlammError):
    """Not done, and why."""


async def add_candidate(connect: str, broker: int) -> bool:
    """False: it was one already."""
    async with zookeeper(connect) as zk:
        await zk.ensure_path(candidates.PARENT)
        try:
            await zk.create(candidates.path(BrokerId(broker)))
        except NodeExists:
            return False
        return True


async def remove_candidate(connect: str, broker: int) -> None:
    async with zookeeper(connect) as zk:
        try:
            await zk.delete(candidates.path(BrokerId(broker)))
        except NoNode:
            raise RequestRefused(f"broker {broker} is not a candidate") from None


async def move_controller(connect: str, broker: int | None, timeout_s: float) -> dict[str, Any]:
    """To this broker, or to the first live candidate."""
    async with zookeeper(connect) as zk:
        live, preferred, former = await live_brokers(zk), await preferred_brokers(zk), await holder(zk)
        alive = [candidate for candidate in preferred if candidate in live]
        target = _target(broker, former, live, alive)
        if former != target:
            await zk.ensure_path(controller_move.PARENT)
            try:
                await zk.create(controller_move.PATH, controller_move.encode(target), CreateMode.EPHEMERAL)
            except NodeExists:
                raise RequestRefused("another move is under way") from None
            try:
                async with asyncio.timeout(timeout_s):
                    while await holder(zk) != target:
                        await asyncio.sleep(LOOK_EVERY_S)
            except TimeoutError:
                raise RequestRefused(
                    f"broker {target} did not take over within {timeout_s:g} s: only a klamm broker does"
                ) from None
        return {"from": former, "to": target, "moved": former != target}


def _target(broker: int | None, former: BrokerId | None, live: list[BrokerId], alive: list[BrokerId]) -> BrokerId:
    if broker is None:
        others = [candidate for candidate in alive if candidate != former]
        if not others and former in alive:
            return former
        if not others:
            raise RequestRefused("no candidate is alive: name a broker")
        return others[0]
    target = BrokerId(broker)
    if target not in live:
        raise RequestRefused(f"broker {target} is not registered; alive are {live}")
    if alive and target not in alive:
        raise RequestRefused(
            f"broker {target} is no candidate, and candidates {alive} would take it back: add it first"
        )
    return target
