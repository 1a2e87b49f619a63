"""The simulated world itself: time that jumps, a network that keeps order, cuts and kills."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from klamm.simulation.loop import Deadlock, run_in_virtual_time
from klamm.simulation.network import SimulatedNetwork


class Collector(asyncio.Protocol):
    def __init__(self) -> None:
        self.received = b""
        self.lost = False

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True


def test_an_hour_passes_in_no_time() -> None:
    async def wait() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    started = time.monotonic()
    assert run_in_virtual_time(wait()) == 3600
    assert time.monotonic() - started < 60


def test_a_deadlock_is_an_error_not_a_hang() -> None:
    async def wait_for_nobody() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock):
        run_in_virtual_time(wait_for_nobody())


def test_a_stream_keeps_its_order_whatever_the_delays() -> None:
    async def scenario() -> bytes:
        network = SimulatedNetwork(random.Random(1), delay=(0.001, 1.0))
        server = Collector()
        await network.host("b").listen(lambda: server, "b", 9)
        transport = await network.host("a").connect(Collector, "b", 9)
        for letter in b"abcdefghij":
            transport.write(bytes([letter]))
        await asyncio.sleep(5)
        return server.received

    assert run_in_virtual_time(scenario()) == b"abcdefghij"


def test_a_dead_host_resets_its_peers_and_refuses() -> None:
    async def scenario() -> bool:
        network = SimulatedNetwork(random.Random(1))
        client = Collector()
        await network.host("b").listen(Collector, "b", 9)
        await network.host("a").connect(lambda: client, "b", 9)
        network.kill("b")
        await asyncio.sleep(1)
        with pytest.raises(ConnectionRefusedError):
            await network.host("a").connect(Collector, "b", 9)
        return client.lost

    assert run_in_virtual_time(scenario())


def test_a_cut_is_silent_and_one_way() -> None:
    async def scenario() -> tuple[bytes, bytes]:
        network = SimulatedNetwork(random.Random(1))
        client, server = Collector(), Collector()
        await network.host("b").listen(lambda: server, "b", 9)
        to_server = await network.host("a").connect(lambda: client, "b", 9)
        network.cut("a", "b")
        to_server.write(b"lost")
        assert isinstance(to_server, asyncio.Transport)
        to_server.peer.write(b"heard")  # type: ignore[attr-defined]
        await asyncio.sleep(1)
        return client.received, server.received

    assert run_in_virtual_time(scenario()) == (b"heard", b"")


def test_a_cut_that_is_mended_resets_what_lost_something() -> None:
    async def scenario() -> tuple[bool, bool]:
        network = SimulatedNetwork(random.Random(1))
        lossy, whole = Collector(), Collector()
        for port in (9, 10):
            await network.host("b").listen(Collector, "b", port)
        to_lossy = await network.host("a").connect(lambda: lossy, "b", 9)
        await network.host("a").connect(lambda: whole, "b", 10)
        network.cut("a", "b")
        to_lossy.write(b"lost")
        network.mend("b", "a")
        await asyncio.sleep(1)
        return lossy.lost, whole.lost

    assert run_in_virtual_time(scenario()) == (True, False)


def test_a_host_that_refuses_keeps_what_it_opened() -> None:
    async def scenario() -> tuple[bool, bool]:
        network = SimulatedNetwork(random.Random(1))
        inbound, outbound = Collector(), Collector()
        await network.host("a").listen(Collector, "a", 9)
        await network.host("b").listen(Collector, "b", 9)
        await network.host("a").connect(lambda: inbound, "b", 9)
        await network.host("b").connect(lambda: outbound, "a", 9)
        network.refuse("b")
        await asyncio.sleep(1)
        with pytest.raises(ConnectionRefusedError):
            await network.host("a").connect(Collector, "b", 9)
        network.accept("b")
        await network.host("a").connect(Collector, "b", 9)
        return inbound.lost, outbound.lost

    assert run_in_virtual_time(scenario()) == (True, False)


def test_a_stalled_host_is_heard_late_and_in_order() -> None:
    async def scenario() -> tuple[bytes, bytes]:
        network = SimulatedNetwork(random.Random(1))
        server = Collector()
        await network.host("b").listen(lambda: server, "b", 9)
        transport = await network.host("a").connect(Collector, "b", 9)
        network.stall("a", 5)
        transport.write(b"one")
        transport.write(b"two")
        await asyncio.sleep(4.9)
        early = server.received
        await asyncio.sleep(0.2)
        return early, server.received

    assert run_in_virtual_time(scenario()) == (b"", b"onetwo")
