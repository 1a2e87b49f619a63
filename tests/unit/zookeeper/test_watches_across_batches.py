"""Each batch of a bulk read is watched from its own zxid on, so no change between two batches is missed.

The server is ours, in virtual time. Before it handles the second and every later batch of a read, it changes a node of
the batch before. So the batches have different zxids, and one node of each is stale when the next batch is read. If all
watches were set with the zxid of the last batch, none of these changes would ever fire.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from klamm.model.ports import OPEN_ACL, Create, WatchEvent, WatchKind
from klamm.simulation.loop import VirtualClock, VirtualTimeLoop, run_in_virtual_time
from klamm.simulation.network import SimulatedNetwork
from klamm.zookeeper import jute
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.jute import OpCode
from klamm.zookeeper.server.access import Caller
from klamm.zookeeper.server.client_connection import ServedConnection
from klamm.zookeeper.server.memory import MemoryZooKeeper
from klamm.zookeeper.server.rules import CreateNode, DeleteNode, SetData

BATCH = 500
PATHS = [f"/{number:04d}" for number in range(5 * BATCH)]
MISSING = PATHS[BATCH + 2]
"""Does not exist when it is read; created before the next batch."""
CHANGED = [*PATHS[: 4 * BATCH : BATCH], PATHS[BATCH + 1], MISSING]


class Between:
    """A service that changes nodes between the batches of a read, and can cut the connection before the n-th
    SetWatches. The answers to one packet still leave in one packet."""

    def __init__(self, server: MemoryZooKeeper, cut_before: int | None) -> None:
        self.database = server.service.database
        self.cut_before = cut_before
        self.reads = self.set_watches = 0
        self._serve = server.service.request
        server.service.request = self.request  # type: ignore[method-assign]

    def request(self, connection: ServedConnection, payload: bytes) -> None:
        _xid, opcode = jute.REQUEST_HEADER.unpack_from(payload)
        if opcode == OpCode.MULTI_READ:
            self.reads += 1
            if 1 < self.reads <= 5:
                self._change(batch=self.reads - 2)
        if opcode == OpCode.SET_WATCHES:
            self.set_watches += 1
            if self.set_watches == self.cut_before:
                connection.close()
                return
        self._serve(connection, payload)

    def _change(self, batch: int) -> None:
        stranger = Caller(session_id=1)
        self.database.write(SetData(PATHS[batch * BATCH], b"new", -1), stranger)
        if batch == 1:
            self.database.write(DeleteNode(PATHS[BATCH + 1], -1), stranger)
            self.database.write(CreateNode(OpCode.CREATE, MISSING, b"", OPEN_ACL, 0), stranger)


def play(scenario: Callable[[MemoryZooKeeper, ZooKeeperClient], Awaitable[None]]) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        clock, network = VirtualClock(loop), SimulatedNetwork(random.Random(7))
        server = MemoryZooKeeper(network.host("zk"), clock, random.Random(7))
        client = ZooKeeperClient(network.host("client"), clock, random.Random(3), "zk", 8000)
        async with server.running("zk", 2181), client.running():
            await client.write_many([Create(path, b"old") for path in PATHS if path != MISSING])
            await scenario(server, client)

    run_in_virtual_time(main())


@pytest.mark.case("ZK-91")
@pytest.mark.parametrize("cut_before", [None, 1, 2, 4, 5])
def test_a_change_between_two_batches_is_told(cut_before: int | None) -> None:
    """Without a cut, the read's own SetWatches report the changes; after a cut, those of the next connection do."""

    async def scenario(server: MemoryZooKeeper, client: ZooKeeperClient) -> None:
        events: list[WatchEvent] = []
        between = Between(server, cut_before)
        nodes = await client.get_many_and_watch(PATHS, events.append)
        assert between.reads == 5
        assert {node.data for node in nodes if node is not None} == {b"old"}  # every change came after its read
        await client.sync("/")
        assert client.disconnections == (cut_before is not None)
        assert sorted(event.path for event in events) == sorted(CHANGED)
        kinds = {event.path: event.kind for event in events}
        assert kinds.pop(PATHS[BATCH + 1]) is WatchKind.DELETED
        assert kinds.pop(MISSING) is WatchKind.CREATED
        assert set(kinds.values()) == {WatchKind.DATA_CHANGED}
        assert client.watch_count == len(PATHS) - len(CHANGED)

    play(scenario)


@pytest.mark.case("ZK-91")
def test_and_told_once_by_the_second_connection_of_two_that_were_cut() -> None:
    async def scenario(server: MemoryZooKeeper, client: ZooKeeperClient) -> None:
        events: list[WatchEvent] = []
        between = Between(server, cut_before=1)
        await client.get_many_and_watch(PATHS, events.append)
        between.cut_before = between.set_watches + 1  # and the first one of the next connection
        await asyncio.sleep(1)
        assert client.disconnections == 2
        assert sorted(event.path for event in events) == sorted(CHANGED)

    play(scenario)
