"""A follower of our server that lags behind, as the followers of an ensemble do, in one process and from one seed.

The leader is an ordinary server. Each transaction reaches the follower after a delay drawn from the given
`random.Random`, in order. The follower answers reads, watches and pings from its own, older tree. A write goes to the
leader at once and is answered when the follower has it too; later requests of the same connection wait, so a client
always reads its own writes. `sync` waits for everything that the leader had committed when the request came.

The leader owns the sessions. When a session is resumed elsewhere, its old connection stays open. On the follower the
old connection may still read, and its next write closes it; on the leader any request closes it.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from klamm.model.errors import ZooKeeperError
from klamm.model.ports import Clock, Network
from klamm.zookeeper import jute
from klamm.zookeeper.jute import ConnectRequest, JuteReader, OpCode
from klamm.zookeeper.server import rules
from klamm.zookeeper.server.acceptor import AcceptingServer
from klamm.zookeeper.server.client_connection import ServedConnection
from klamm.zookeeper.server.memory import MemoryZooKeeper
from klamm.zookeeper.server.service import ZooKeeperService
from klamm.zookeeper.server.sessions import ServerSession, SessionTable
from klamm.zookeeper.server.transaction_records import pack_snapshot, unpack_snapshot
from klamm.zookeeper.server.tree import SessionClosed, SessionOpened, Transaction

BY_THE_LEADER: Final = frozenset((*rules.READ_ALONE, OpCode.MULTI, OpCode.RECONFIG, OpCode.CLOSE_SESSION))
"""Requests that change something, which the leader handles."""


class FollowerService(ZooKeeperService):
    """Shares the leader's sessions; has its own tree, watches and connections."""

    def __init__(self, leader: ZooKeeperService, clock: Clock) -> None:
        super().__init__(clock, random.Random(0), frame_bytes_max=leader.frame_bytes_max, sessions=leader.sessions)
        self.leader = leader
        self._queued: dict[ServedConnection, deque[bytes]] = {}
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._copy()

    def _copy(self) -> None:
        state = self.leader.database
        unused: SessionTable[ServedConnection] = SessionTable(
            tick_ms=1, timeout_ms_min=1, timeout_ms_max=1, random=random.Random(0)
        )
        snapshot = pack_snapshot(state.zxid, state.tree, state.sessions)
        self.database.zxid = unpack_snapshot(snapshot, self.database.tree, unused, 0)

    @property
    def mode(self) -> str:
        return "follower"

    # --- from the leader ---------------------------------------------------------------------------------------------

    def follow(self, committed: Transaction) -> None:
        """Apply a transaction of the leader. Its events leave before any answer that could show the change."""
        transaction = Transaction(committed.zxid, committed.time_ms)
        ended: list[int] = []
        for effect in committed.effects:
            if isinstance(effect, SessionClosed):
                ended.append(effect.session_id)
            elif not isinstance(effect, SessionOpened):
                self.database.tree.apply(effect, transaction)
        self.database.zxid = committed.zxid
        self._committed(transaction, 0)
        while self._waiting and self._waiting[0][0] <= committed.zxid:
            self._waiting.popleft()[1]()
        for connection in list(self.connections):
            if connection.session is not None and connection.session.id in ended:
                connection.close()
        self.flush()

    # --- from clients ------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        self.leader.flush()  # first the leader's journal, and the events of our writes for its own clients
        super().flush()

    def _open(self, wanted: ConnectRequest) -> ServerSession[ServedConnection]:
        return self.leader._open(wanted)

    def request(self, connection: ServedConnection, payload: bytes) -> None:
        queue = self._queued.get(connection)
        if queue is not None:
            queue.append(payload)
            return
        session = connection.session
        assert session is not None
        xid, opcode = jute.REQUEST_HEADER.unpack_from(payload)
        reader = JuteReader(payload, jute.REQUEST_HEADER.size)
        if session.connection is connection:
            self.sessions.touch(session, self.database.now_ms())
        if opcode == OpCode.SYNC:
            self._when_current(connection, lambda: self._answer(connection, xid, opcode, reader))
        elif opcode not in BY_THE_LEADER:
            self._answer(connection, xid, opcode, reader)
        elif session.connection is not connection:
            connection.close()  # the session has moved
        else:
            self._write(connection, xid, opcode, reader)

    def _write(self, connection: ServedConnection, xid: int, opcode: int, reader: JuteReader) -> None:
        error, body = 0, b""
        try:
            body = self.leader._handlers[opcode](connection, reader)
        except ZooKeeperError as failure:
            error = failure.code
        reply = jute.reply_frame(xid, self.leader.database.zxid, error, body)

        def answer() -> None:
            connection.send(reply)
            if opcode == OpCode.CLOSE_SESSION:
                connection.close()

        self._when_current(connection, answer)

    def _when_current(self, connection: ServedConnection, answer: Callable[[], None]) -> None:
        """Answer when the follower has everything that the leader has now. Later requests of the connection wait."""
        if self.leader.database.zxid <= self.database.zxid:
            answer()
            return
        queue = self._queued[connection] = deque()

        def resume() -> None:
            if connection.open:
                answer()
            del self._queued[connection]
            while queue and connection.open:
                self.request(connection, queue.popleft())
                if connection in self._queued:  # this request waits again, and so do those after it
                    self._queued[connection].extend(queue)
                    return

        self._waiting.append((self.leader.database.zxid, resume))


class LaggingFollower(AcceptingServer):
    """`async with LaggingFollower(leader, network, clock, random, delay_max=0.2).running() as follower:`"""

    def __init__(
        self,
        leader: MemoryZooKeeper,
        network: Network,
        clock: Clock,
        random: random.Random,
        *,
        delay_min: float = 0.0,
        delay_max: float = 0.0,
    ) -> None:
        """Each transaction is delayed by a time between the two delays, in seconds. They keep their order."""
        self._follower = FollowerService(leader.service, clock)
        super().__init__(self._follower, network)
        self._leader = leader
        self._random = random
        self._delays = (delay_min, delay_max)
        self._coming: deque[tuple[float, Transaction]] = deque()  # each with the time of its arrival
        self._held = False

    @asynccontextmanager
    async def running(self, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[LaggingFollower]:
        self._leader.service.followers.append(self._take)
        await self._listen(host, port)
        try:
            yield self
        finally:
            self._leader.service.followers.remove(self._take)
            self._coming.clear()
            await self._hang_up()

    def hold(self) -> None:
        """Apply nothing until `release`."""
        self._held = True

    def release(self) -> None:
        """Apply everything that is due."""
        self._held = False
        self._apply_due()

    def watch_expiry(self) -> None:
        self._leader.watch_expiry()

    def watch_containers(self) -> None:
        self._leader.watch_containers()

    def _take(self, transaction: Transaction) -> None:
        loop = asyncio.get_running_loop()
        last = self._coming[-1][0] if self._coming else 0.0
        due = max(last, loop.time() + self._random.uniform(*self._delays))
        self._coming.append((due, transaction))
        loop.call_at(due, self._apply_due)

    def _apply_due(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._coming and not self._held and self._coming[0][0] <= now:
            self._follower.follow(self._coming.popleft()[1])
