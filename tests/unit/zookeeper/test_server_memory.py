"""The running server in virtual time: expiry, faults, restart. Nothing here waits for real time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from klamm.model.ports import OPEN_ACL
from klamm.simulation.loop import VirtualClock, VirtualTimeLoop, run_in_virtual_time
from klamm.simulation.network import SimulatedNetwork
from klamm.zookeeper import jute
from klamm.zookeeper.jute import ConnectRequest, ConnectResponse, JuteReader, OpCode
from klamm.zookeeper.server.faults import Fault, RequestInfo, SeededFaults
from klamm.zookeeper.server.memory import MemoryZooKeeper

HOST, PORT = "zookeeper", 2181


class Client(asyncio.Protocol):
    """Sends, and keeps each frame with the time of its arrival."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.frames: list[tuple[float, bytes]] = []
        self.lost_at: float | None = None
        self.xid = 0
        self._input = b""
        self._changed = asyncio.Event()
        self.transport: asyncio.Transport

    @classmethod
    async def connect(cls, network: SimulatedNetwork, **wanted: Any) -> tuple[Client, ConnectResponse]:
        client = cls()
        client.transport = await network.host("client").connect(lambda: client, HOST, PORT)
        client.transport.write(jute.frame(ConnectRequest(0, wanted.pop("timeout_ms", 4000), **wanted).pack()))
        return client, ConnectResponse.unpack(await client.next())

    def data_received(self, data: bytes) -> None:
        self._input += data
        while len(self._input) >= 4:
            length = 4 + int.from_bytes(self._input[:4], "big")
            if len(self._input) < length:
                break
            self.frames.append((self.loop.time(), self._input[4:length]))
            self._input = self._input[length:]
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost_at = self.loop.time()
        self._changed.set()

    async def next(self) -> bytes:
        while not self.frames:
            assert self.lost_at is None, "connection lost"
            self._changed.clear()
            await self._changed.wait()
        return self.frames.pop(0)[1]

    async def lost(self) -> float:
        while self.lost_at is None:
            self._changed.clear()
            await self._changed.wait()
        return self.lost_at

    def send(self, opcode: int, body: bytes = b"") -> None:
        self.xid += 1
        self.transport.write(jute.request_frame(self.xid, opcode, body))

    async def call(self, opcode: int, body: bytes = b"") -> tuple[int, bytes]:
        self.send(opcode, body)
        payload = await self.next()
        _xid, _zxid, error = jute.REPLY_HEADER.unpack_from(payload)
        return error, payload[jute.REPLY_HEADER.size :]

    async def create(self, path: str, flags: int = 0) -> tuple[int, bytes]:
        return await self.call(OpCode.CREATE, jute.pack_create(path, b"", OPEN_ACL, flags))

    async def exists(self, path: str) -> bool:
        return (await self.call(OpCode.EXISTS, jute.pack_path_and_watch(path, False)))[0] == 0


Scenario = Callable[[MemoryZooKeeper, SimulatedNetwork], Awaitable[None]]


def simulate(scenario: Scenario, **options: Any) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        network = SimulatedNetwork(random.Random(7))
        server = MemoryZooKeeper(network.host(HOST), VirtualClock(loop), random.Random(7), **options)
        async with server.running(HOST, PORT):
            await scenario(server, network)

    run_in_virtual_time(main())


@pytest.mark.case("ZK-12")
@pytest.mark.parametrize("timeout_ms", [1000, 1700, 9000])
def test_a_silent_session_ends_within_a_tick_after_its_timeout(timeout_ms: int) -> None:
    async def scenario(server: MemoryZooKeeper, network: SimulatedNetwork) -> None:
        client, _ = await Client.connect(network, timeout_ms=timeout_ms)
        await client.create("/e", flags=1)
        last = client.loop.time()
        lost = await client.lost()
        assert timeout_ms / 1000 - 0.01 < lost - last <= timeout_ms / 1000 + 0.51
        assert client.frames == []
        assert "/e" not in server.service.database.tree.nodes
        assert len(server.service.sessions) == 0

    simulate(scenario)


def test_a_shorter_session_behind_a_longer_one_ends_at_its_own_time() -> None:
    async def scenario(server: MemoryZooKeeper, network: SimulatedNetwork) -> None:
        long, _ = await Client.connect(network, timeout_ms=9000)
        short, _ = await Client.connect(network, timeout_ms=1000)
        assert await short.lost() < 2
        assert await long.lost() > 9

    simulate(scenario)


@pytest.mark.case("ZK-15")
def test_pings_keep_a_session_for_an_hour() -> None:
    async def scenario(server: MemoryZooKeeper, network: SimulatedNetwork) -> None:
        client, _ = await Client.connect(network, timeout_ms=1000)
        for _ in range(3600):
            await asyncio.sleep(0.9)
            assert (await client.call(OpCode.PING))[0] == 0

    simulate(scenario)


def test_a_connection_that_asks_for_nothing_is_closed() -> None:
    async def scenario(server: MemoryZooKeeper, network: SimulatedNetwork) -> None:
        client = Client()
        await network.host("client").connect(lambda: client, HOST, PORT)
        assert 10 <= await client.lost() < 11
        assert not server.service.connections

    simulate(scenario)


@pytest.mark.case("ZK-79")
def test_watches_go_with_their_connection() -> None:
    async def scenario(server: MemoryZooKeeper, network: SimulatedNetwork) -> None:
        client, _ = await Client.connect(network)
        await client.call(OpCode.EXISTS, jute.pack_path_and_watch("/x", True))
        await client.call(OpCode.GET_CHILDREN, jute.pack_path_and_watch("/", True))
        assert len(server.service.watches) == 2
        client.transport.abort()
        await asyncio.sleep(0.1)
        assert len(server.service.watches) == 0

    simulate(scenario)


def test_forced_expiry() -> None:
    async def scenario(server: MemoryZooKeeper, network: SimulatedNetwork) -> None:
        client, session = await Client.connect(network)
        await client.create("/e", flags=1)
        server.expire(session.session_id)
        await client.lost()
        _, again = await Client.connect(network, session_id=session.session_id, password=session.password)
        assert again.timeout_ms == 0
        assert "/e" not in server.service.database.tree.nodes
        server.expire(session.session_id)  # the second call does nothing

    simulate(scenario)


def test_a_stopped_server_goes_on_with_its_sessions() -> None:
    async def scenario(server: MemoryZooKeeper, network: SimulatedNetwork) -> None:
        client, session = await Client.connect(network, timeout_ms=2000)
        await client.create("/e", flags=1)
        await server.stop()
        await client.lost()
        await asyncio.sleep(60)
        await server.start(HOST, PORT)
        await asyncio.sleep(1.5)  # it gets its whole timeout again
        again, resumed = await Client.connect(network, session_id=session.session_id, password=session.password)
        assert resumed.session_id == session.session_id
        assert await again.exists("/e")

    simulate(scenario)


class Script:
    """One fault for each request in turn, then none."""

    def __init__(self, *faults: Fault) -> None:
        self.faults = list(faults)
        self.seen: list[RequestInfo] = []

    def on_request(self, request: RequestInfo) -> Fault:
        self.seen.append(request)
        return self.faults.pop(0) if self.faults else Fault.NONE

    def reply_delay(self) -> float:
        return 0.0


@pytest.mark.parametrize(("fault", "applied"), [(Fault.LOSE_REQUEST, False), (Fault.LOSE_REPLY, True)])
def test_a_cut_with_the_write_applied_or_not(fault: Fault, applied: bool) -> None:
    async def scenario(server: MemoryZooKeeper, network: SimulatedNetwork) -> None:
        server.service.faults = Script(Fault.NONE, fault)
        client, session = await Client.connect(network)
        client.send(OpCode.CREATE, jute.pack_create("/before", b"", OPEN_ACL, 0))
        client.send(OpCode.CREATE, jute.pack_create("/x", b"", OPEN_ACL, 0))
        client.send(OpCode.CREATE, jute.pack_create("/behind", b"", OPEN_ACL, 0))
        await client.lost()
        assert len(client.frames) == 1  # the reply to the first
        again, resumed = await Client.connect(network, session_id=session.session_id, password=session.password)
        assert resumed.session_id == session.session_id
        assert await again.exists("/before")
        assert await again.exists("/x") is applied
        assert not await again.exists("/behind")

    simulate(scenario)


def test_delays_keep_the_order_and_a_seed_repeats_them() -> None:
    runs: list[list[float]] = []

    async def scenario(server: MemoryZooKeeper, network: SimulatedNetwork) -> None:
        client, _ = await Client.connect(network)
        for number in range(50):
            client.send(OpCode.CREATE, jute.pack_create(f"/n{number}", b"", OPEN_ACL, 0))
        await asyncio.sleep(3)
        assert [JuteReader(frame).int32() for _at, frame in client.frames] == list(range(1, 51))
        runs.append([at for at, _frame in client.frames])

    for seed in (1, 1, 2):
        simulate(scenario, faults=SeededFaults(random.Random(seed), delay_min=0.01, delay_max=0.5))
    assert runs[0] == runs[1] != runs[2]
    assert runs[0][-1] > 0.4


def test_every_applied_write_is_recorded() -> None:
    writes: list[tuple[str, str]] = []

    async def scenario(server: MemoryZooKeeper, network: SimulatedNetwork) -> None:
        client, session = await Client.connect(network)
        await client.create("/a")
        await client.create("/a")
        await client.create("/e", flags=1)
        await client.call(OpCode.SET_DATA, jute.pack_set_data("/a", b"1", 0))
        await client.call(OpCode.CLOSE_SESSION)
        assert session.session_id

    simulate(scenario, on_write=lambda kind, path, session_id: writes.append((kind, path)))
    assert writes == [
        ("open_session", ""),
        ("create", "/a"),
        ("create", "/e"),
        ("set", "/a"),
        ("delete", "/e"),
        ("close_session", ""),
    ]


def test_a_recorder_may_cut_the_writer_off() -> None:
    async def scenario(server: MemoryZooKeeper, network: SimulatedNetwork) -> None:
        def cut(kind: str, path: str, session_id: int) -> None:
            if path == "/x":
                server.cut(session_id)

        server.service.on_write = cut
        client, _ = await Client.connect(network)
        client.send(OpCode.CREATE, jute.pack_create("/x", b"", OPEN_ACL, 0))
        await client.lost()
        assert client.frames == []
        assert "/x" in server.service.database.tree.nodes

    simulate(scenario)


def test_empty_containers_go_after_a_minute() -> None:
    async def scenario(server: MemoryZooKeeper, network: SimulatedNetwork) -> None:
        client, _ = await Client.connect(network, timeout_ms=10_000)
        body = jute.pack_create("/c", b"", OPEN_ACL, 4)
        assert (await client.call(OpCode.CREATE_CONTAINER, body))[0] == 0
        await client.create("/c/x")
        await client.call(OpCode.DELETE, jute.pack_path_and_version("/c/x", -1))
        for _ in range(10):
            await asyncio.sleep(7)
            await client.call(OpCode.PING)
        assert not await client.exists("/c")

    simulate(scenario)
