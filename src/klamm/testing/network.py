"""Faults between the processes of a cluster: two that cannot reach each other, or a broker whose network is slow.

Every listener of every broker, and ZooKeeper, is behind a relay. The relay knows which process a connection comes from,
by the socket's owner, so it can stall exactly the connections between two of them. Nothing is closed: bytes wait, as
they do when packets are lost, and go on when the network heals. The relays of a dead broker refuse connections, as its
own listeners would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from klamm.server.sockets import owner_of_local_port
from klamm.testing.relay import CHUNK_BYTES, End, Relay, Ways

Node = int | str
"""A broker's id, or `zookeeper`."""
ZOOKEEPER: Final = "zookeeper"
KEEP_SECONDS: Final = 0.02


class FaultyNetwork:
    def __init__(self, pids: Callable[[], Mapping[int, int]]) -> None:
        """`pids` gives the process of each running broker."""
        self._pids = pids
        self._relays: list[_NodeRelay] = []
        self._keeper: asyncio.Task[None] | None = None
        self._cut: set[frozenset[Node]] = set()
        self._delays: dict[Node, float] = {}
        self._changed = asyncio.Condition()

    async def relay(self, node: Node, target_port: int, port: int = 0) -> int:
        """Put a relay in front of a listener of `node`; return its port."""
        relay = _NodeRelay(self, node, target_port, port)
        await relay.open()
        self._relays.append(relay)
        return relay.port

    def keep(self) -> None:
        """From now on, open and shut the relays of brokers as their processes start and end."""
        self._keeper = asyncio.create_task(self._keep(), name="relays")

    async def _keep(self) -> None:
        while True:
            running = self._pids()
            for relay in self._relays:
                if relay.node != ZOOKEEPER and relay.is_open != (relay.node in running):
                    await (relay.shut() if relay.is_open else relay.open())
            await asyncio.sleep(KEEP_SECONDS)

    async def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        for relay in self._relays:
            await relay.shut()

    async def partition(self, one: Node, other: Node) -> None:
        self._cut.add(frozenset({one, other}))

    async def slow(self, node: Node, seconds: float) -> None:
        self._delays[node] = seconds

    async def heal(self) -> None:
        self._cut.clear()
        self._delays.clear()
        async with self._changed:
            self._changed.notify_all()

    def source_of(self, port: int) -> Node | None:
        """The broker that connects from this port; None for any other process."""
        pids = self._pids()
        owner = owner_of_local_port(port, pids.values())
        return next((broker for broker, pid in pids.items() if pid == owner), None)

    async def may_pass(self, one: Node | None, other: Node) -> None:
        """Wait until the two can reach each other, and as long as their network is slow."""
        link = frozenset({one, other})
        if link in self._cut:
            async with self._changed:
                await self._changed.wait_for(lambda: link not in self._cut)
        if delay := max(self._delays.get(node, 0.0) for node in (one, other) if node is not None):
            await asyncio.sleep(delay)


class _NodeRelay(Relay):
    def __init__(self, network: FaultyNetwork, node: Node, target_port: int, port: int) -> None:
        super().__init__(target_port, port)
        self._network = network
        self.node = node

    def ways(self, client: End, server: End) -> Ways:
        source = self._network.source_of(client.writer.get_extra_info("peername")[1])
        return self._carry(client, server, source), self._carry(server, client, source)

    async def _carry(self, sender: End, receiver: End, source: Node | None) -> None:
        while data := await sender.reader.read(CHUNK_BYTES):
            await self._network.may_pass(source, self.node)
            receiver.writer.write(data)
            await receiver.writer.drain()
        await self._network.may_pass(source, self.node)
