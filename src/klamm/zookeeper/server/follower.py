"""A follower of our server that lags behind: what a client of an ensemble lives with, in one process and from a seed.

The leader is an ordinary server; each transaction that it commits reaches the follower after a delay drawn from the
`random.Random` handed in, in order. The follower answers reads, watches and pings from its own, older tree. A write
goes to the leader at once and is answered when the follower has it too; what the same connection sends behind it waits,
so that a client always reads its own writes. `sync` waits for everything that the leader had when it was asked.

Sessions are the leader's. One that is resumed elsewhere leaves its old connection open: here it may go on reading, and
its next write cuts it; on the leader any request does. Reference: zookeeper.md sections 3.4 and 3.5.
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
"""What changes something, and so happens at the leader."""


class FollowerService(ZooKeeperService):
    """The leader's sessions, its own tree, watches and connections."""

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
        """Apply what the leader has committed: events leave before any answer that could show the change."""
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
        self.leader.flush()  # its journal first, and what its own clients are told of our writes
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
        """Answer when we have all that the leader has now; what comes behind it on this connection waits."""
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
                if connection in self._queued:  # and this one waits again, with all that is behind it
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
        """Delays in seconds, of each transaction; order stays."""
        self._follower = FollowerService(leader.service, clock)
        super().__init__(self._follower, network)
        self._leader = leader
        self._random = random
        self._delays = (delay_min, delay_max)
        self._coming: deque[tuple[float, Transaction]] = deque()  # with the time of its arrival
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
        """Fall behind, without end, until `release`."""
        self._held = True

    def release(self) -> None:
        """Catch up with all that is due."""
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
