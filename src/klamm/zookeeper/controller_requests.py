"""An operator's requests about the controller: which brokers are preferred, and which one takes over now. They are
written to ZooKeeper, where every klamm broker watches them.

A move is an ephemeral znode (`znodes.controller_move`). The broker that it names takes over in one transaction, whether
the current controller is klamm or Apache Kafka. The caller waits for that; in any case the znode disappears with the
caller's session.
"""

from __future__ import annotations

import asyncio
from typing import Any

from klamm.model.errors import ConnectionLoss, KlammError, NodeExists, NoNode, SessionExpired, ZNodeError
from klamm.model.ids import BrokerId
from klamm.model.ports import CreateMode
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.retries import children_or_none
from klamm.zookeeper.znodes import broker_id, candidates, controller, controller_move

POLL_SECONDS = 0.05


class RequestRefused(KlammError):
    """The request cannot be fulfilled; the message says why."""


async def live_brokers(zk: ZooKeeperClient) -> list[BrokerId]:
    return candidates.ids_of(await children_or_none(zk, broker_id.PARENT) or [])


async def preferred_brokers(zk: ZooKeeperClient) -> list[BrokerId]:
    return candidates.ids_of(await children_or_none(zk, candidates.PARENT) or [])


async def holder(zk: ZooKeeperClient) -> BrokerId | None:
    """The broker named by /controller; None if it is absent or unreadable."""
    (node,) = await zk.get_many([controller.PATH])
    try:
        return None if node is None else controller.decode(controller.PATH, node.data)
    except ZNodeError:
        return None


async def add_candidate(zk: ZooKeeperClient, broker: int) -> bool:
    """Return False if the broker is already a candidate."""
    await zk.ensure_path(candidates.PARENT)
    try:
        await zk.create(candidates.path(BrokerId(broker)))
    except NodeExists:
        return False
    return True


async def remove_candidate(zk: ZooKeeperClient, broker: int) -> None:
    try:
        await zk.delete(candidates.path(BrokerId(broker)))
    except NoNode:
        raise RequestRefused(f"broker {broker} is not a candidate") from None


async def move_controller(zk: ZooKeeperClient, broker: int | None, timeout_s: float) -> dict[str, Any]:
    """Move the controller to this broker, or to the first live candidate if `broker` is None.

    The request is an ephemeral znode: it ends when this returns, or with the session."""
    live, preferred, former = await live_brokers(zk), await preferred_brokers(zk), await holder(zk)
    alive = [candidate for candidate in preferred if candidate in live]
    target = _target(broker, former, live, alive)
    if former != target:
        await zk.ensure_path(controller_move.PARENT)
        try:
            await zk.create(controller_move.PATH, controller_move.encode(target), CreateMode.EPHEMERAL)
        except NodeExists:
            raise RequestRefused("another move is in progress") from None
        try:
            await _until_held_by(zk, target, timeout_s)
        finally:
            await _withdraw(zk)
    return {"from": former, "to": target, "moved": former != target}


async def _until_held_by(zk: ZooKeeperClient, target: BrokerId, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            while await holder(zk) != target:
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise RequestRefused(
            f"broker {target} did not take over within {timeout_s:g} s; only a klamm broker can"
        ) from None


async def _withdraw(zk: ZooKeeperClient) -> None:
    """For an owner whose session goes on. A session that has ended took the request with it."""
    try:
        await zk.delete(controller_move.PATH)
    except (NoNode, ConnectionLoss, SessionExpired):
        pass


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
        raise RequestRefused(f"broker {target} is not registered; the live brokers are {live}")
    if alive and target not in alive:
        raise RequestRefused(
            f"broker {target} is not a candidate, and candidates {alive} would take over again: add it first"
        )
    return target
