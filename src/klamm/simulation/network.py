"""A network inside one process: hosts, listeners and streams with seeded delays, cuts and sudden deaths.

Each host has its own view (`SimulatedNetwork.host(name)`), which is a ports.Network: to the code under test it behaves
like sockets. Streams keep their order. A host that dies takes its streams with it: its code may still run `finally`
blocks, but nothing that they write arrives, as after kill -9. Bytes written into a cut are lost, and a stream that lost
bytes is reset when the cut is mended, because bytes after a gap make no sense. A host that refuses connections is alive
behind a closed listener and keeps the connections that it opened itself.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, Final

from klamm.model.ports import Listening, ProtocolFactory

EPHEMERAL_PORTS_FROM: Final = 40_000

Tap = Callable[[str, str, bytes], None]
"""Called with source, target and bytes when the connecting side sends something."""


class SimulatedNetwork:
    def __init__(self, rng: random.Random, delay: tuple[float, float] = (0.0001, 0.002)) -> None:
        self._random = rng
        self._delay = delay
        self._listeners: dict[tuple[str, int], tuple[str, ProtocolFactory]] = {}
        self._streams: list[tuple[_End, _End]] = []
        self._cuts: set[tuple[str, str]] = set()
        self._dead: set[str] = set()
        self._refusing: set[str] = set()
        self._stalled_until: dict[str, float] = {}
        self._next_port = EPHEMERAL_PORTS_FROM
        self.tap: Tap | None = None
        self._delivered: dict[tuple[str, str], float] = {}

    def host(self, name: str) -> Host:
        return Host(self, name)

    def delay(self) -> float:
        return self._random.uniform(*self._delay)

    def reaches(self, source: str, target: str) -> bool:
        return (source, target) not in self._cuts and target not in self._dead and source not in self._dead

    def cut(self, source: str, target: str) -> None:
        """Lose what `source` sends to `target` from now on. Call it twice to cut both directions."""
        self._cuts.add((source, target))

    def heal(self) -> None:
        """Mend all cuts, and end all refusals and stalls."""
        self._cuts.clear()
        self._refusing.clear()
        self._stalled_until.clear()
        self._reset(lambda client, server: client.lossy or server.lossy)

    def mend(self, one: str, other: str) -> None:
        self._cuts -= {(one, other), (other, one)}
        pair = {one, other}
        self._reset(lambda c, s: (c.lossy or s.lossy) and {c.owner, s.owner} == pair)

    def refuse(self, name: str) -> None:
        """Close the listeners of a live host: reset connections to them and refuse new ones."""
        self._refusing.add(name)
        self._reset(lambda client, server: server.owner == name)

    def accept(self, name: str) -> None:
        self._refusing.discard(name)

    def stall(self, name: str, seconds: float) -> None:
        """Delay everything to and from a host until then: a long pause, or a network that hangs."""
        until = asyncio.get_running_loop().time() + seconds
        self._stalled_until[name] = max(until, self._stalled_until.get(name, 0.0))

    def deliver(self, source: str, target: str) -> None:
        self._delivered[source, target] = asyncio.get_running_loop().time()

    def last_delivery(self, source: str, target: str) -> float:
        """When something of `source` last arrived at `target`."""
        return self._delivered.get((source, target), 0.0)

    def stalled_until(self, one: str, other: str) -> float:
        return max(self._stalled_until.get(one, 0.0), self._stalled_until.get(other, 0.0))

    def _reset(self, which: Callable[[_End, _End], bool]) -> None:
        for client, server in list(self._streams):
            if which(client, server):
                for end in (client, server):
                    asyncio.get_running_loop().call_later(self.delay(), end.reset)

    def kill(self, name: str) -> None:
        """End a host at once: its peers see a reset, and its own side sees nothing more."""
        self._dead.add(name)
        for key in [key for key, (owner, _) in self._listeners.items() if owner == name]:
            del self._listeners[key]
        for ends in list(self._streams):
            for end in ends:
                if end.owner == name:
                    end.vanish()

    def revive(self, name: str) -> None:
        self._dead.discard(name)

    def listen(self, owner: str, factory: ProtocolFactory, host: str, port: int) -> _Listener:
        if port == 0:
            self._next_port += 1
            port = self._next_port
        if (host, port) in self._listeners:
            raise OSError(98, f"address {host}:{port} is taken")
        self._listeners[host, port] = (owner, factory)
        return _Listener(port, lambda: self._listeners.pop((host, port), None))

    async def connect(self, source: str, factory: ProtocolFactory, host: str, port: int) -> asyncio.Transport:
        await asyncio.sleep(self.delay())
        listener = self._listeners.get((host, port))
        if listener is None or listener[0] in self._refusing:
            raise ConnectionRefusedError(111, f"{host}:{port} refused")
        target, accept = listener
        if not (self.reaches(source, target) and self.reaches(target, source)):
            await asyncio.sleep(3600)  # packets are lost; the caller's own timeout ends the wait
            raise TimeoutError(f"{host}:{port} does not answer")
        client, server = _End(self, source, target, tapped=True), _End(self, target, source)
        client.peer, server.peer = server, client
        self._streams.append((client, server))
        server.attach(accept())
        client.attach(factory())
        return client

    def forget(self, end: _End) -> None:
        self._streams = [ends for ends in self._streams if end not in ends]


class Host:
    """One host's ports.Network."""

    def __init__(self, network: SimulatedNetwork, name: str) -> None:
        self._network = network
        self.name = name

    async def connect(self, factory: ProtocolFactory, host: str, port: int) -> asyncio.Transport:
        return await self._network.connect(self.name, factory, host, port)

    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> Listening:
        return self._network.listen(self.name, factory, host, port)


class _Listener:
    def __init__(self, port: int, on_close: Callable[[], object]) -> None:
        self._port = port
        self._on_close = on_close

    @property
    def port(self) -> int:
        return self._port

    def close(self) -> None:
        self._on_close()

    async def wait_closed(self) -> None:
        return


class _End(asyncio.Transport):
    """One end of a stream. Written bytes arrive at the peer after a delay, in order."""

    def __init__(self, network: SimulatedNetwork, owner: str, other: str, *, tapped: bool = False) -> None:
        super().__init__({"peername": (other, 0), "sockname": (owner, 0)})
        self._network = network
        self.owner = owner
        self._other = other
        self._tapped = tapped
        self._loop = asyncio.get_running_loop()
        self.lossy = False
        self.peer: _End | None = None
        self._protocol: asyncio.Protocol | None = None
        self._closing = False
        self._told = False
        self._gone = False
        self._arrival = 0.0
        self._inbox: list[bytes] = []
        self._paused = False

    def attach(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        protocol.connection_made(self)

    def write(self, data: Any) -> None:
        if self._closing or self._gone or not data:
            return
        payload = bytes(data)
        network = self._network
        if self._tapped and network.tap is not None and network.reaches(self.owner, self.owner):
            network.tap(self.owner, self._other, payload)
        self._to_peer(_End._receive, payload)

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._to_peer(_End._lost, None)
            self._loop.call_soon(self._lost, None)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._closing or self._gone

    def write_eof(self) -> None:
        self.close()

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        while self._inbox and not self._paused and not self._gone:
            self._deliver(self._inbox.pop(0))

    def is_reading(self) -> bool:
        return not self._paused

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def vanish(self) -> None:
        """The host of this end died: nothing leaves or arrives any more, and the peer sees a reset."""
        if self._gone:
            return
        self._gone = True
        self._network.forget(self)
        if self.peer is not None:
            self._loop.call_later(self._network.delay(), self.peer.reset)

    def reset(self) -> None:
        self._lost(ConnectionResetError(104, "reset by peer"))

    def _to_peer(self, action: Callable[[_End, Any], None], argument: Any) -> None:
        loop, network, peer = self._loop, self._network, self.peer
        if peer is None:
            return
        if not network.reaches(self.owner, self._other):
            self.lossy = True
            return
        # Later than everything sent before it, so that streams keep their order whatever the delays are.
        # Strictly later, because timers of the same time fire in any order.
        due = max(loop.time(), network.stalled_until(self.owner, self._other)) + network.delay()
        self._arrival = max(due, self._arrival + 1e-6)
        loop.call_at(self._arrival, action, peer, argument)

    def _receive(self, data: bytes) -> None:
        if self._gone or self._closing:
            return
        if self._paused:
            self._inbox.append(data)
        else:
            self._deliver(data)

    def _deliver(self, data: bytes) -> None:
        assert self._protocol is not None
        self._network.deliver(self._other, self.owner)
        self._protocol.data_received(data)

    def _lost(self, error: Exception | None) -> None:
        """Report the loss once. A host that died learns nothing from outside, but its own close still completes."""
        if self._told or (self._gone and not self._closing):
            return
        self._told = self._gone = True
        self._network.forget(self)
        assert self._protocol is not None
        self._protocol.connection_lost(error)
