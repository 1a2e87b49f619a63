"""A kept connection, in virtual time: when a break is noticed, how often it is probed, what counts as evidence."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from klamm.controller.liveness.kept_connection import KeptConnection
from klamm.controller.liveness.suspicion import PROBE_PAUSE_S, UNHARMED
from klamm.net.client import BrokerConnection
from klamm.simulation.loop import VirtualClock, VirtualTimeLoop, run_in_virtual_time
from klamm.simulation.network import SimulatedNetwork

HOST, PORT = "broker-1", 9092
DELAY = 0.001


class World:
    """A kept connection from `us` to a broker that accepts everything."""

    def __init__(self, accept: Callable[[], asyncio.Protocol] = asyncio.Protocol) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        self.clock = VirtualClock(loop)
        self.network = SimulatedNetwork(random.Random(1), delay=(DELAY, DELAY))
        self.accept = accept
        self.refused: list[float] = []
        self.connected = 0
        self.kept = KeptConnection(
            BrokerConnection(self.network.host("us"), HOST, PORT, "us", self.clock),
            self.clock,
            0.5,
            on_refused=lambda: self.refused.append(self.clock.monotonic()),
        )

    async def listen(self) -> None:
        await self.network.host(HOST).listen(self._accepted, HOST, PORT)

    def _accepted(self) -> asyncio.Protocol:
        self.connected += 1
        return self.accept()


def in_world(
    story: Callable[[World], Coroutine[Any, Any, None]], accept: Callable[[], asyncio.Protocol] = asyncio.Protocol
) -> None:
    async def main() -> None:
        world = World(accept)
        await world.listen()
        task = asyncio.create_task(world.kept.run())
        await asyncio.sleep(10)  # idle for a long time
        await story(world)
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_in_virtual_time(main())


def test_the_death_of_an_idle_broker_is_seen_and_proven_in_two_probes() -> None:
    async def story(world: World) -> None:
        assert world.connected == 1
        killed = world.clock.monotonic()
        world.network.kill(HOST)
        await asyncio.sleep(3 * PROBE_PAUSE_S)
        (seen,) = world.refused
        assert PROBE_PAUSE_S <= seen - killed <= PROBE_PAUSE_S + 10 * DELAY
        assert world.kept.evidence.is_complete
        assert not world.kept.connection.is_connected

    in_world(story)


def test_it_is_told_again_once_a_second_and_ends_with_a_connection() -> None:
    async def story(world: World) -> None:
        world.network.kill(HOST)
        await asyncio.sleep(5)
        assert 4 <= len(world.refused) <= 6
        world.network.revive(HOST)
        await world.listen()
        await world.kept.wait_connected()
        assert world.kept.evidence == UNHARMED
        assert world.connected == 2

    in_world(story)


def test_packets_that_vanish_are_no_refusal() -> None:
    async def story(world: World) -> None:
        world.network.cut("us", HOST)
        world.network.cut(HOST, "us")
        world.kept.connection.abort()
        await asyncio.sleep(5)
        assert world.kept.evidence.broke and world.kept.evidence.refusals == 0
        assert world.refused == []

    in_world(story)


def test_one_that_accepts_and_hangs_up_is_not_called_in_a_row() -> None:
    class HangsUp(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            transport.close()

    async def story(world: World) -> None:
        before = world.connected
        await asyncio.sleep(1)
        assert 5 <= world.connected - before <= 10
        assert world.refused == []

    in_world(story, accept=HangsUp)
