"""Puts the service behind a listener, and connects each transport to the service.

It uses the network port, so it works on a real network and on a simulated one.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from typing import Final, cast

from klamm.model.ports import Listening, Network
from klamm.zookeeper.server.client_connection import ServedConnection
from klamm.zookeeper.server.service import ZooKeeperService

HANDSHAKE_SECONDS_MAX: Final = 10.0
"""How long ZooKeeper keeps a connection that does not ask for a session."""


class AcceptingServer(ABC):
    def __init__(self, service: ZooKeeperService, network: Network) -> None:
        self.service = service
        self.host = ""
        self._network = network
        self._listening: Listening | None = None
        self.has_hung_up = False
        """Connections that are still being accepted then are dropped."""

    @property
    def port(self) -> int:
        assert self._listening is not None, "not started"
        return self._listening.port

    @property
    def address(self) -> str:
        """host:port, for a connect string."""
        return f"{self.host}:{self.port}"

    @abstractmethod
    def watch_expiry(self) -> None:
        """Called when there may be a new session, which may end before all others."""

    @abstractmethod
    def watch_containers(self) -> None:
        """Called when there may be a first container node."""

    async def _listen(self, host: str, port: int) -> None:
        self.host = host
        self.has_hung_up = False
        self._listening = await self._network.listen(lambda: AcceptedConnection(self), host, port)

    async def _hang_up(self) -> None:
        """Close the listener and every connection."""
        if self._listening is not None:
            self.has_hung_up = True
            self._listening.close()
            self.service.close_all()
            await self._listening.wait_closed()
            self._listening = None


class AcceptedConnection(asyncio.Protocol):
    """Connects a transport to the service. Delays frames as the faults say, and stops reading from a client that does
    not read its answers."""

    def __init__(self, server: AcceptingServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._connection: ServedConnection | None = None
        self._handshake: asyncio.TimerHandle | None = None
        self._held: deque[bytes | None] = deque()  # delayed frames; None closes the connection
        self._release_at = 0.0

    # --- asyncio -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        if self._server.has_hung_up:
            self._transport.abort()
            return
        peer = transport.get_extra_info("peername")
        address = peer[0] if isinstance(peer, tuple) and peer else "127.0.0.1"
        self._connection = self._server.service.connection(self, address)
        self._handshake = self._loop.call_later(HANDSHAKE_SECONDS_MAX, self._give_up)

    def data_received(self, data: bytes) -> None:
        assert self._connection is not None
        self._connection.data_received(data)
        if self._handshake is not None and self._connection.session is not None:
            self._handshake.cancel()
            self._handshake = None
            self._server.watch_expiry()
        self._server.watch_containers()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._handshake is not None:
            self._handshake.cancel()
        self._held.clear()
        if self._connection is not None:
            self._connection.connection_lost()

    def pause_writing(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # --- Sink --------------------------------------------------------------------------------------------------------

    def send(self, frames: list[bytes]) -> None:
        faults = self._server.service.faults
        if faults is None:
            self._write(b"".join(frames))
            return
        for frame in frames:
            self._hold(frame, faults.reply_delay())

    def close(self) -> None:
        if self._held:
            self._hold(None, 0.0)
        elif self._transport is not None:
            self._transport.close()

    # --- internals ---------------------------------------------------------------------------------------------------

    def _give_up(self) -> None:
        assert self._connection is not None
        self._connection.close()
        self._server.service.flush()

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _hold(self, frame: bytes | None, delay: float) -> None:
        """Keeps the order: a frame leaves at its time, but never before an earlier frame."""
        now = self._loop.time()
        self._release_at = max(self._release_at, now + delay)
        if frame is not None and not self._held and self._release_at <= now:
            self._write(frame)
            return
        self._held.append(frame)
        self._loop.call_at(self._release_at, self._release)

    def _release(self) -> None:
        if not self._held:
            return  # the connection is gone, and its delayed frames with it
        frame = self._held.popleft()
        if frame is not None:
            self._write(frame)
        elif self._transport is not None:
            self._transport.close()
