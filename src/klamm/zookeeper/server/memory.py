"""Our ZooKeeper server as something that runs: the service behind a listener, with the timers that end its sessions.

It speaks through the ports, so it serves a real network as well as a simulated one, by real or virtual time. State
lives in the service and outlives `stop`: started again, the server goes on with the same data, and every session has
its whole timeout again, as after a restart of ZooKeeper.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Protocol, cast

from klamm.model.ports import Clock, Listening, Network
from klamm.zookeeper import jute
from klamm.zookeeper.server.connection import ServerConnection
from klamm.zookeeper.server.database import Journal
from klamm.zookeeper.server.faults import Faults
from klamm.zookeeper.server.service import OnWrite, ZooKeeperService

HANDSHAKE_SECONDS_MAX: Final = 10.0
"""ZooKeeper's own patience with a connection that does not ask for a session."""
CONTAINER_CHECK_SECONDS: Final = 60.0


class Serving(Protocol):
    """Whom an accepted connection belongs to."""

    @property
    def service(self) -> ZooKeeperService: ...

    def watch_expiry(self) -> None: ...

    def watch_containers(self) -> None: ...


class AcceptedConnection(asyncio.Protocol):
    """A transport's way to the service. Holds frames back by the seeded delay, stops reading from who does not read."""

    def __init__(self, server: Serving) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._connection: ServerConnection | None = None
        self._handshake: asyncio.TimerHandle | None = None
        self._held: deque[bytes | None] = deque()  # frames on their way, None for the end
        self._release_at = 0.0

    # --- asyncio -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass of it
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

    # --- inside ------------------------------------------------------------------------------------------------------

    def _give_up(self) -> None:
        assert self._connection is not None
        self._connection.close()
        self._server.service.flush()

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _hold(self, frame: bytes | None, delay: float) -> None:
        """Order stays: a frame leaves at its time, but never before the one ahead of it."""
        now = self._loop.time()
        self._release_at = max(self._release_at, now + delay)
        if frame is not None and not self._held and self._release_at <= now:
            self._write(frame)
            return
        self._held.append(frame)
        self._loop.call_at(self._release_at, self._release)

    def _release(self) -> None:
        if not self._held:
            return  # the connection is gone, and with it what was held
        frame = self._held.popleft()
        if frame is not None:
            self._write(frame)
        elif self._transport is not None:
            self._transport.close()


class MemoryZooKeeper:
    """`async with MemoryZooKeeper(network, clock, random).running() as server:` and connect to `server.port`."""

    def __init__(
        self,
        network: Network,
        clock: Clock,
        random: random.Random,
        *,
        tick_ms: int = 500,
        session_timeout_ms_min: int | None = None,
        session_timeout_ms_max: int | None = None,
        frame_bytes_max: int = jute.DEFAULT_MAX_FRAME,
        journal: Journal | None = None,
        faults: Faults | None = None,
        on_write: OnWrite | None = None,
    ) -> None:
        self.service = ZooKeeperService(
            clock,
            random,
            tick_ms=tick_ms,
            session_timeout_ms_min=session_timeout_ms_min,
            session_timeout_ms_max=session_timeout_ms_max,
            frame_bytes_max=frame_bytes_max,
            journal=journal,
            faults=faults,
            on_write=on_write,
        )
        self.host = ""
        self._network = network
        self._clock = clock
        self._journal = journal
        self._listening: Listening | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._expiry_ms = 0
        self._containers: asyncio.TimerHandle | None = None
        self._failed = asyncio.Event()
        self._flushing = False
        self.service.on_failure = self._on_failure

    @property
    def port(self) -> int:
        assert self._listening is not None, "not started"
        return self._listening.port

    @property
    def address(self) -> str:
        """As in a connect string."""
        return f"{self.host}:{self.port}"

    @asynccontextmanager
    async def running(self, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[MemoryZooKeeper]:
        await self.start(host, port)
        try:
            yield self
        finally:
            await self.stop()

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.host = host
        if self._journal is not None:
            self._journal.open(self.service.database)
            self.service.flush_soon = self._flush_soon
        self.service.sessions.touch_all(self.service.database.now_ms())
        self._listening = await self._network.listen(lambda: AcceptedConnection(self), host, port)
        self.watch_containers()
        self.watch_expiry()

    async def failed(self) -> OSError:
        """Returns when the journal cannot be written any more: nobody is answered, all that is left is to stop."""
        await self._failed.wait()
        assert self.service.failure is not None
        return self.service.failure

    async def stop(self) -> None:
        """Close the listener and every connection. Sessions and data stay."""
        self._cancel_timers()
        if self._listening is not None:
            self._listening.close()
            self.service.close_all()
            await self._listening.wait_closed()
            self._listening = None
        if self._journal is not None:
            self._journal.close()

    def _cancel_timers(self) -> None:
        for timer in (self._expiry, self._containers):
            if timer is not None:
                timer.cancel()
        self._expiry = self._containers = None

    def _flush_soon(self) -> None:
        """Once for all connections that were heard in this turn of the loop: they share the wait for the disk."""
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        self.service.flush()

    def _on_failure(self) -> None:
        self._failed.set()
        self._cancel_timers()
        if self._listening is not None:
            self._listening.close()

    def expire(self, session_id: int) -> None:
        self.service.expire(session_id)

    def cut(self, session_id: int) -> None:
        self.service.cut(session_id)

    # --- timers ------------------------------------------------------------------------------------------------------

    def watch_expiry(self) -> None:
        """Have a timer run at the earliest end of a session. Requests only move ends later, so an early timer is right:
        it finds nothing to do and sets the next one."""
        due_ms = self.service.sessions.next_expiry_ms()
        if due_ms is None or self._listening is None or self._failed.is_set():
            return
        if self._expiry is not None:
            if self._expiry_ms <= due_ms:
                return
            self._expiry.cancel()
        self._expiry_ms = due_ms
        delay = due_ms / 1000 - self._clock.monotonic()
        self._expiry = asyncio.get_running_loop().call_later(max(delay, 0.001), self._expire_due)

    def _expire_due(self) -> None:
        self._expiry = None
        self.service.expire_due()
        self.watch_expiry()

    def watch_containers(self) -> None:
        """Only while there are any: a timer without end would keep a virtual clock running for nothing."""
        if self._containers is None and not self._failed.is_set() and self.service.database.tree.containers:
            loop = asyncio.get_running_loop()
            self._containers = loop.call_later(CONTAINER_CHECK_SECONDS, self._check_containers)

    def _check_containers(self) -> None:
        self._containers = None
        self.service.database.delete_empty_containers()
        self.service.flush()
        self.watch_containers()
