"""The lagging follower in virtual time: what it shows at which time, and that a seed repeats a run."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from klamm.model.ports import CreateMode, WatchEvent
from klamm.simulation.loop import VirtualClock, VirtualTimeLoop, run_in_virtual_time
from klamm.simulation.network import SimulatedNetwork
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.server.follower import LaggingFollower
from klamm.zookeeper.server.memory import MemoryZooKeeper

Connect = Callable[[str], Awaitable[ZooKeeperClient]]
Scenario = Callable[[MemoryZooKeeper, LaggingFollower, Connect], Awaitable[None]]


def play(scenario: Scenario, seed: int = 1) -> None:
    """A leader that has nodes already, and a follower that lags by 1 to 2 seconds."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        clock, network = VirtualClock(loop), SimulatedNetwork(random.Random(7))
        clients: list[ZooKeeperClient] = []

        async def connect(servers: str) -> ZooKeeperClient:
            client = ZooKeeperClient(network.host("client"), clock, random.Random(3), servers, 8000)
            clients.append(client)
            await client.start()
            return client

        leader = MemoryZooKeeper(network.host("leader"), clock, random.Random(7))
        async with leader.running("leader", 2181):
            await (await connect("leader")).create("/old", b"0")
            follower = LaggingFollower(
                leader, network.host("follower"), clock, random.Random(seed), delay_min=1.0, delay_max=2.0
            )
            async with follower.running("follower", 2181):
                await scenario(leader, follower, connect)
                for client in clients:
                    await client.close()

    run_in_virtual_time(main())


def test_reads_are_old_and_sync_makes_them_current() -> None:
    async def scenario(leader: MemoryZooKeeper, follower: LaggingFollower, connect: Connect) -> None:
        writer, reader = await connect("leader"), await connect("follower")
        assert (await reader.get("/old")).data == b"0"
        await writer.set("/old", b"1")
        assert (await reader.get("/old")).data == b"0"
        await reader.sync("/")
        assert (await reader.get("/old")).data == b"1"

    play(scenario)


def test_ones_own_writes_are_seen_at_once_and_in_order() -> None:
    async def scenario(leader: MemoryZooKeeper, follower: LaggingFollower, connect: Connect) -> None:
        client = await connect("follower")
        await client.create("/mine", b"")
        asked = []
        for number in range(20):
            asked += [client.set("/mine", b"%d" % number), client.get("/mine")]
        answers = await asyncio.gather(*asked)
        assert [node.data for node in answers[1::2]] == [b"%d" % number for number in range(20)]

    play(scenario)


def test_a_watch_fires_when_the_follower_learns_of_the_change() -> None:
    async def scenario(leader: MemoryZooKeeper, follower: LaggingFollower, connect: Connect) -> None:
        writer, reader = await connect("leader"), await connect("follower")
        loop, fired = asyncio.get_running_loop(), list[float]()

        def note(event: WatchEvent) -> None:
            fired.append(loop.time())

        await reader.get("/old", note)
        written = loop.time()
        await writer.set("/old", b"1")
        await asyncio.sleep(3)
        assert 1 <= fired[0] - written <= 2.1
        assert (await reader.get("/old")).data == b"1"

    play(scenario)


def test_a_client_that_has_seen_more_than_the_follower_is_refused_until_it_has_caught_up() -> None:
    async def scenario(leader: MemoryZooKeeper, follower: LaggingFollower, connect: Connect) -> None:
        client = await connect("leader,follower")
        while client._session._servers[0].host != "leader":
            client.drop_connection()
            await client.sync("/")
        await client.create("/e", b"", CreateMode.EPHEMERAL)
        follower.hold()
        await client.set("/old", b"1")
        await leader.stop()
        await asyncio.sleep(0.1)
        waiting = asyncio.create_task(client.get("/old"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 3)
        follower.release()
        assert (await waiting).data == b"1"
        await leader.start("leader", 2181)

    play(scenario)


def test_an_expired_session_is_cut_on_the_follower_too_and_its_ephemerals_go_there_later() -> None:
    async def scenario(leader: MemoryZooKeeper, follower: LaggingFollower, connect: Connect) -> None:
        client, reader = await connect("follower"), await connect("follower")
        await client.create("/e", b"", CreateMode.EPHEMERAL)
        leader.expire(client.session_id)
        assert await reader.exists("/e") is not None
        await reader.sync("/")
        assert await reader.exists("/e") is None
        await asyncio.sleep(1)
        assert client.expirations == 1

    play(scenario)


def test_a_seed_repeats_the_delays() -> None:
    runs: list[list[float]] = []

    async def scenario(leader: MemoryZooKeeper, follower: LaggingFollower, connect: Connect) -> None:
        client = await connect("follower")
        loop, times = asyncio.get_running_loop(), list[float]()
        for number in range(10):
            await client.set("/old", b"%d" % number)
            times.append(loop.time())
        runs.append(times)

    for seed in (1, 1, 2):
        play(scenario, seed)
    assert runs[0] == runs[1] != runs[2]


def test_each_says_what_it_is() -> None:
    async def scenario(leader: MemoryZooKeeper, follower: LaggingFollower, connect: Connect) -> None:
        assert "Mode: leader\n" in leader.service.answer_word("srvr")
        assert "Mode: follower\n" in follower.service.answer_word("srvr")

    play(scenario)
