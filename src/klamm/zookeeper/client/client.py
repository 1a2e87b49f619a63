"""The ZooKeeper client: the port's operations on a session that moves from server to server."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random

from klamm.model.ports import Clock, Network, SessionListener
from klamm.zookeeper import jute
from klamm.zookeeper.client.address import ConnectString
from klamm.zookeeper.client.bulk_operations import BulkOperations
from klamm.zookeeper.client.connection import OnReply, Reply
from klamm.zookeeper.client.session import ClientSession, SessionState
from klamm.zookeeper.jute import OpCode


class ZooKeeperClient(BulkOperations):
    def __init__(
        self,
        network: Network,
        clock: Clock,
        random: Random,
        connect_string: str,
        session_timeout_ms: int,
        *,
        connection_timeout_ms: int | None = None,
        credentials: Sequence[tuple[str, bytes]] = (),
        frame_bytes_max: int = jute.DEFAULT_MAX_FRAME,
    ) -> None:
        servers, chroot = ConnectString.parse(connect_string)
        super().__init__(chroot, frame_bytes_max)
        self._session = ClientSession(network, clock, random, servers, session_timeout_ms, self._deliver, self._watches)
        self._session.credentials.extend(credentials)
        self._connection_timeout_ms = connection_timeout_ms or session_timeout_ms

    # --- life ---

    async def start(self) -> None:
        """Open a session. Raises ConnectionLoss or AuthFailed within the connection timeout."""
        await self._session.start(self._connection_timeout_ms / 1000)

    async def close(self) -> None:
        """End the session. Its ephemeral nodes are gone when this returns, if the server could be reached."""
        await self._session.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ZooKeeperClient]:
        await self.start()
        try:
            yield self
        finally:
            await self.close()

    @property
    def session_id(self) -> int:
        return self._session.session_id

    @property
    def session_password(self) -> bytes:
        """With the id it is enough to take the session over, so it must stay secret."""
        return self._session.password

    @property
    def last_error(self) -> str:
        """Why the last attempt to connect failed, with the server's address."""
        return self._session.last_error

    @property
    def session_timeout_ms(self) -> int:
        return self._session.timeout_ms

    @property
    def state(self) -> SessionState:
        if self._session.state is SessionState.CONNECTED and not self._session.is_connected:
            return SessionState.DISCONNECTED  # the keeper has not noticed yet
        return self._session.state

    @property
    def requests(self) -> Counter[str]:
        """Frames sent, by opcode."""
        return self._session.requests

    @property
    def expirations(self) -> int:
        return self._session.expirations

    @property
    def disconnections(self) -> int:
        return self._session.disconnections

    @property
    def last_zxid(self) -> int:
        """The newest that any answer had. While it stays the same after another read, nothing has changed."""
        return self._session.last_zxid

    @property
    def watch_count(self) -> int:
        return len(self._watches)

    def silence(self) -> float:
        return self._session.silence()

    def add_session_listener(self, listener: SessionListener) -> None:
        self._session.listeners.append(listener)

    def drop_connection(self, reason: str = "on request") -> None:
        """Cut the connection and resume the session on the next server."""
        self._session.abort_connection(reason)

    async def add_auth(self, scheme: str, credential: bytes) -> None:
        """For `digest` the credential is `user:password`. Applies to this connection and all later ones."""
        await self._session.authenticate(scheme, credential)

    def _submit(self, opcode: OpCode, body: bytes, path: str, on_reply: OnReply | None = None) -> asyncio.Future[Reply]:
        return self._session.submit(opcode, body, path, on_reply)

    @property
    def _has_multi_read(self) -> bool:
        return self._session.has_multi_read
