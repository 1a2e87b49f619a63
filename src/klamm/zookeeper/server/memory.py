"""Our ZooKeeper server: the service behind a listener, with the timers that expire its sessions.

Time is the loop's, real or virtual. The service keeps its state when the server stops: started again, the server goes
on with the same data, and every session gets its whole timeout again, as after a restart of ZooKeeper.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from klamm.model.ports import Clock, Network
from klamm.zookeeper import jute
from klamm.zookeeper.server.acceptor import AcceptingServer
from klamm.zookeeper.server.database import Journal
from klamm.zookeeper.server.faults import Faults
from klamm.zookeeper.server.service import OnWrite, ZooKeeperService

CONTAINER_CHECK_SECONDS: Final = 60.0


class MemoryZooKeeper(AcceptingServer):
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
        service = ZooKeeperService(
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
        super().__init__(service, network)
        self._clock = clock
        self._journal = journal
        self._expiry: asyncio.TimerHandle | None = None
        self._expiry_ms = 0
        self._containers: asyncio.TimerHandle | None = None
        self._failed = asyncio.Event()
        self._flushing = False
        self.service.on_failure = self._on_failure

    @asynccontextmanager
    async def running(self, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[MemoryZooKeeper]:
        await self.start(host, port)
        try:
            yield self
        finally:
            await self.stop()

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        if self._journal is not None:
            self._journal.open(self.service.database)
            self.service.flush_soon = self._flush_soon
        self.service.sessions.touch_all(self.service.database.now_ms())
        await self._listen(host, port)
        self.watch_containers()
        self.watch_expiry()

    async def failed(self) -> OSError:
        """Returns when the journal can no longer be written. Clients get no answers any more, so the owner must stop
        it."""
        await self._failed.wait()
        assert self.service.failure is not None
        return self.service.failure

    async def stop(self) -> None:
        """Sessions and data are kept."""
        self._cancel_timers()
        await self._hang_up()
        if self._journal is not None:
            self._journal.close()

    def _cancel_timers(self) -> None:
        for timer in (self._expiry, self._containers):
            if timer is not None:
                timer.cancel()
        self._expiry = self._containers = None

    def _flush_soon(self) -> None:
        """Flush once for all connections that sent requests in this turn of the loop: they share the wait for the
        disk."""
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
        """Set a timer for the earliest expiry of a session. Requests only postpone expiries, so a timer that fires too
        early does no harm: it finds nothing to do and sets the next one."""
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
        """Set a timer only while there are containers: an endless timer would keep a virtual clock running for
        nothing."""
        if self._containers is None and not self._failed.is_set() and self.service.database.tree.containers:
            loop = asyncio.get_running_loop()
            self._containers = loop.call_later(CONTAINER_CHECK_SECONDS, self._check_containers)

    def _check_containers(self) -> None:
        self._containers = None
        self.service.database.delete_empty_containers()
        self.service.flush()
        self.watch_containers()
