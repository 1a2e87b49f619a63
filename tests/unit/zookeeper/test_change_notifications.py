"""Change notifications in virtual time, on our server: old ones are deleted, new ones survive lost sessions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from klamm.model.errors import ConnectionLoss
from klamm.simulation.loop import VirtualClock, VirtualTimeLoop, run_in_virtual_time
from klamm.simulation.network import SimulatedNetwork
from klamm.zookeeper.change_notifications import PURGED_AFTER_MS, ChangeNotifications, announce
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.server.memory import MemoryZooKeeper

PREFIX = "/changes/change_"
Scenario = Callable[[MemoryZooKeeper, ZooKeeperClient, ZooKeeperClient, VirtualClock], Awaitable[None]]


def play(scenario: Scenario) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        clock, network = VirtualClock(loop), SimulatedNetwork(random.Random(7))
        server = MemoryZooKeeper(network.host("zk"), clock, random.Random(7))
        one, other = (
            ZooKeeperClient(network.host(name), clock, random.Random(3), "zk", 8000) for name in ("one", "other")
        )
        async with server.running("zk", 2181), one.running(), other.running():
            await scenario(server, one, other, clock)

    run_in_virtual_time(main())


@asynccontextmanager
async def running(notifications: ChangeNotifications) -> AsyncIterator[None]:
    task = asyncio.create_task(notifications.run())
    yield
    task.cancel()


class Handler:
    def __init__(self) -> None:
        self.seen: list[bytes | None] = []
        self.fail_next: Exception | None = None

    async def __call__(self, path: str, data: bytes | None) -> None:
        error, self.fail_next = self.fail_next, None
        if error is not None:
            raise error
        self.seen.append(data)


@pytest.mark.case("ZKC-19")
def test_old_ones_are_removed_by_whoever_looks_next() -> None:
    async def scenario(
        server: MemoryZooKeeper, zk: ZooKeeperClient, writer: ZooKeeperClient, clock: VirtualClock
    ) -> None:
        handler = Handler()
        async with running(ChangeNotifications(zk, clock, PREFIX, handler)):
            await announce(writer, PREFIX, b"old")
            await asyncio.sleep(PURGED_AFTER_MS / 1000 + 1)
            await announce(writer, PREFIX, b"new")
            await asyncio.sleep(1)
            assert await zk.children("/changes") == ["change_0000000001"]
            assert handler.seen == [b"old", b"new"]

    play(scenario)


@pytest.mark.case("ZKC-19")
def test_a_new_session_goes_on_where_the_old_one_stopped() -> None:
    async def scenario(
        server: MemoryZooKeeper, zk: ZooKeeperClient, writer: ZooKeeperClient, clock: VirtualClock
    ) -> None:
        handler = Handler()
        async with running(ChangeNotifications(zk, clock, PREFIX, handler)):
            await announce(writer, PREFIX, b"1")
            await asyncio.sleep(1)
            server.expire(zk.session_id)
            await announce(writer, PREFIX, b"2")
            await asyncio.sleep(5)
            await announce(writer, PREFIX, b"3")
            await asyncio.sleep(1)
            assert (handler.seen, zk.expirations) == ([b"1", b"2", b"3"], 1)

    play(scenario)


@pytest.mark.case("ZKC-19")
@pytest.mark.parametrize(("error", "seen"), [(ValueError("a bug"), [b"2"]), (ConnectionLoss("/x"), [b"1", b"2"])])
def test_a_failed_one_is_passed_over_a_lost_connection_is_not_its_fault(error: Exception, seen: list[bytes]) -> None:
    async def scenario(
        server: MemoryZooKeeper, zk: ZooKeeperClient, writer: ZooKeeperClient, clock: VirtualClock
    ) -> None:
        handler = Handler()
        handler.fail_next = error
        async with running(ChangeNotifications(zk, clock, PREFIX, handler)):
            await announce(writer, PREFIX, b"1")
            await announce(writer, PREFIX, b"2")
            await asyncio.sleep(5)
            assert handler.seen == seen

    play(scenario)


def test_strangers_below_the_parent_are_left_alone() -> None:
    async def scenario(
        server: MemoryZooKeeper, zk: ZooKeeperClient, writer: ZooKeeperClient, clock: VirtualClock
    ) -> None:
        handler = Handler()
        for name in ("other_0000000007", "change_", "change_x", "change_00000000011"):
            await writer.ensure_path(f"/changes/{name}")
        notifications = ChangeNotifications(zk, clock, PREFIX, handler)
        await notifications.look()
        assert (handler.seen, notifications.last_handled) == ([], -1)

    play(scenario)
