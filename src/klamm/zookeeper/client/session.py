"""A session moves from connection to connection. When it expires, its listeners act before and after the next one.

One task owns the connection and every timer:

    connect -> handshake -> (probe for multi-read) -> authenticate -> set watches -> send waiting requests -> serve
    -> lost -> connect

- Alive: it pings when it has sent nothing for 1/3 of the timeout. It drops the connection when it has received nothing
  for 2/3 of the timeout, or no answer for all of it.
- Disconnected: requests wait for the next connection. Those in flight have failed with ConnectionLoss.
- Expired: a server says so (timeout 0, or another session id), or no server could be reached for 4/3 of the timeout.
  The latter also ends the endless refusals of a server that has lost its data. Then every request fails with
  SessionExpired, each listener's `before_new_session` runs, a new session is tried until it succeeds, and each
  `after_new_session` runs. In between, new requests are refused at once: nothing decided under the old session may act
  under the new one, and a listener that uses ZooKeeper must not wait for the session that waits for the listener.

`after_new_session` runs concurrently with the connection's task, because it needs a connection that is kept alive. The
next expiry waits for it to return. The timing is that of ZooKeeper's ClientCnxn; the order of the listeners is that of
Kafka's ZooKeeperClient.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from enum import Enum
from random import Random
from typing import Any, Final

from klamm.model.errors import (
    AuthFailed,
    ConnectionLoss,
    MarshallingError,
    SessionExpired,
    Unimplemented,
    ZooKeeperError,
)
from klamm.model.ports import Clock, Network, SessionListener, WatchEvent
from klamm.zookeeper import jute
from klamm.zookeeper.client.address import ServerAddress
from klamm.zookeeper.client.connection import OnReply, PendingRequest, Reply, ZooKeeperConnection
from klamm.zookeeper.client.watches import WatchRegistry
from klamm.zookeeper.jute import OpCode

logger = logging.getLogger("klamm.zookeeper.client")

BACKOFF_FIRST: Final = 0.02
BACKOFF_MAX: Final = 1.0
AUTH_RETRY: Final = 1.0
"""Seconds. Credentials may be corrected on the server at any time; Kafka retries at this pace (KAFKA-7987)."""
REQUIRES_SASL: Final = -124


class SessionState(Enum):
    CONNECTING = "connecting"
    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    EXPIRED = "expired"
    AUTH_FAILED = "auth failed"
    CLOSED = "closed"


_REFUSALS: Final[dict[SessionState, Callable[[str], ZooKeeperError]]] = {
    SessionState.CONNECTING: lambda path: SessionExpired(path, "no session yet"),
    SessionState.EXPIRED: SessionExpired,
    SessionState.AUTH_FAILED: AuthFailed,
    SessionState.CLOSED: lambda path: SessionExpired(path, "the client is closed"),
}


class ClientSession:
    def __init__(
        self,
        network: Network,
        clock: Clock,
        random: Random,
        servers: Sequence[ServerAddress],
        timeout_ms: int,
        deliver: Callable[[WatchEvent], None],
        watches: WatchRegistry,
    ) -> None:
        self._network = network
        self._clock = clock
        self._random = random
        self._servers = list(servers)
        self._wanted_timeout_ms = timeout_ms
        self._deliver = deliver
        self._watches = watches
        self.state = SessionState.CONNECTING
        self.session_id = 0
        self.timeout_ms = timeout_ms
        self.requests: Counter[str] = Counter()
        self.listeners: list[SessionListener] = []
        self.credentials: list[tuple[str, bytes]] = []
        self.expirations = 0
        self.disconnections = 0
        self.password = jute.NO_PASSWORD
        self._last_zxid = 0
        self._connection: ZooKeeperConnection | None = None
        self._proven = 0.0  # `start` sets both times: a constructor needs no running loop
        self._disconnected_at = 0.0
        self._waiting: deque[PendingRequest] = deque()
        self._server_has_multi_read: dict[ServerAddress, bool] = {}
        self._first_session = True
        self._announced = False
        self.last_error = "no answer"
        self._keeper: asyncio.Task[None] | None = None
        self._announcement: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] | None = None

    # --- for the client ---

    async def start(self, timeout: float) -> None:
        """Open a session. Raises ConnectionLoss or AuthFailed within `timeout` and then leaves nothing running."""
        self._random.shuffle(self._servers)  # otherwise every client would connect to the first server
        self._ready = asyncio.get_running_loop().create_future()
        self._proven = self._disconnected_at = self._clock.monotonic()
        self._keeper = asyncio.create_task(self._keep(), name="zookeeper session")
        self._keeper.add_done_callback(self._on_keeper_end)
        try:
            async with asyncio.timeout(timeout):
                await self._ready
        except TimeoutError:
            await self.close()
            servers = ", ".join(sorted(str(server) for server in self._servers))
            detail = f"no session with {servers} within {timeout:.1f} s: {self.last_error}"
            raise ConnectionLoss(detail=detail) from None
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the session, then the connection. The server removes the ephemeral nodes before it answers."""
        if self.state is SessionState.CLOSED:
            return
        self.state = SessionState.CLOSED
        self._fail_waiting()
        for task in (self._keeper, self._announcement):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        connection, self._connection = self._connection, None
        if connection is None or not connection.is_open:
            return
        farewell = PendingRequest(OpCode.CLOSE_SESSION, b"", "")
        connection.send(farewell)
        try:
            async with asyncio.timeout(self.timeout_ms / 1000):
                await farewell.future
                await asyncio.shield(connection.closed)
        except (TimeoutError, ZooKeeperError) as error:
            logger.info("session 0x%x: closed without an answer from the server: %s", self.session_id, error)
        finally:
            connection.abort("client closed")

    def submit(self, opcode: OpCode, body: bytes, path: str, on_reply: OnReply | None = None) -> asyncio.Future[Reply]:
        """Send now, or when there is a connection again. The future always ends, with the reply or an error."""
        request = PendingRequest(opcode, body, path, on_reply)
        refusal = _REFUSALS.get(self.state)
        if refusal is not None:
            request.fail(refusal(path))
        elif self._connection is not None and self._connection.is_open:
            self._send(self._connection, request)
        else:
            self._waiting.append(request)
        return request.future

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and self._connection.is_open

    @property
    def has_multi_read(self) -> bool:
        """Whether the current server, or the last one, knows multi-read."""
        return self._server_has_multi_read.get(self._servers[0], True)

    @property
    def last_zxid(self) -> int:
        """The newest that any answer had."""
        return self._last_zxid if self._connection is None else max(self._last_zxid, self._connection.last_zxid)

    def silence(self) -> float:
        """Counted from when the last answered request was *sent*: until then the session was alive for sure."""
        if self._connection is not None:
            self._proven = max(self._proven, self._connection.last_asked)
        return self._clock.monotonic() - self._proven

    async def authenticate(self, scheme: str, credential: bytes) -> None:
        """Authenticate now and on each new connection, because the identity belongs to the connection."""
        if self._connection is not None and self._connection.is_open:
            await self._connection.authenticate(scheme, credential).future
        self.credentials.append((scheme, credential))

    def abort_connection(self, reason: str) -> None:
        """Drop the connection but keep the session: the next one resumes it."""
        if self._connection is not None:
            self._connection.abort(reason)

    # --- the one task ---

    async def _keep(self) -> None:
        attempts = 0
        while True:
            server = self._servers[0]
            try:
                async with asyncio.timeout(self._attempt_timeout()):
                    connection = await self._open(server)
            except SessionExpired as error:
                await self._expire(str(error))
            except Unimplemented:
                self._server_has_multi_read[server] = False  # it closed: try it again, without the probe
            except AuthFailed as error:
                await self._on_auth_failure(error)
                self._next_server()
            except (OSError, ZooKeeperError) as error:
                self.last_error = f"{server}: {str(error) or type(error).__name__}"
                self._next_server()
                attempts += 1
                await self._back_off(attempts)
            else:
                attempts = 0
                await self._serve(connection)
                self._next_server()

    async def _open(self, server: ServerAddress) -> ZooKeeperConnection:
        connection = ZooKeeperConnection(self._clock, self._deliver)
        try:
            await self._network.connect(lambda: connection, server.host, server.port)
            wanted = jute.ConnectRequest(
                self._last_zxid, self._wanted_timeout_ms, self.session_id, self.password, read_only=False
            )
            self._adopt(await connection.handshake(wanted))
            if server not in self._server_has_multi_read:
                self._server_has_multi_read[server] = await self._probe(connection)
            for scheme, credential in self.credentials:
                await connection.authenticate(scheme, credential).future
        except ZooKeeperError as error:
            connection.abort("handshake failed")
            if error.code == REQUIRES_SASL:
                raise AuthFailed(detail=str(error)) from error
            raise
        except BaseException:
            connection.abort("handshake failed")
            raise
        return connection

    async def _probe(self, connection: ZooKeeperConnection) -> bool:
        """Sent alone, before any other request: a server without multi-read closes the connection, and loses them."""
        try:
            await self._send(connection, PendingRequest(OpCode.MULTI_READ, jute.MULTI_END, ""))
        except MarshallingError:
            return False
        return True

    def _adopt(self, response: jute.ConnectResponse) -> None:
        if response.timeout_ms <= 0:
            if self.session_id == 0:
                raise ConnectionLoss(detail="the server refused a new session")
            raise SessionExpired(detail="the server says so")
        if self.session_id not in (0, response.session_id):
            raise SessionExpired(detail="the server answered with another session")
        if self.session_id == 0:
            logger.info("session 0x%x: new, timeout %d ms", response.session_id, response.timeout_ms)
        self.session_id = response.session_id
        self.password = response.password
        self.timeout_ms = response.timeout_ms
        self._disconnected_at = self._clock.monotonic()  # the session is alive, even if this connection fails

    async def _serve(self, connection: ZooKeeperConnection) -> None:
        """Send requests on this connection. Returns when it is lost."""
        for body in self._watches.set_watches():
            self._send(connection, PendingRequest(OpCode.SET_WATCHES, body, "")).add_done_callback(_ignore_outcome)
        self._connection = connection
        self.state = SessionState.CONNECTED
        while self._waiting:
            self._send(connection, self._waiting.popleft())
        self._announce()
        await self._keep_alive(connection)
        self._proven = max(self._proven, connection.last_asked)
        self._last_zxid = max(self._last_zxid, connection.last_zxid)
        self._disconnected_at = self._clock.monotonic()
        self._connection = None
        self.state = SessionState.DISCONNECTED
        self.disconnections += 1
        logger.info("session 0x%x: disconnected", self.session_id)

    async def _keep_alive(self, connection: ZooKeeperConnection) -> None:
        timeout = self.timeout_ms / 1000
        while not connection.closed.done():
            now = self._clock.monotonic()
            # A long reply counts as a sign of life while it arrives, but bytes that never complete an answer do not.
            drop_at = min(connection.last_received + timeout * 2 / 3, connection.last_answered + timeout)
            if now >= drop_at:
                received, answered = now - connection.last_received, now - connection.last_answered
                connection.abort(f"nothing received for {received:.1f} s, no answer for {answered:.1f} s")
                # Do not wait for connection_lost: everything in flight has failed already.
                return
            ping_at = connection.last_sent + timeout / 3
            if now >= ping_at:
                connection.ping()
                ping_at = now + timeout / 3
            await asyncio.wait((connection.closed,), timeout=min(drop_at, ping_at) - now)

    # --- ends and beginnings ---

    def _on_keeper_end(self, keeper: asyncio.Task[None]) -> None:
        """`close` cancels the keeper. Any other end is a bug: fail all requests, so that none waits for ever."""
        if keeper.cancelled():
            return
        error = keeper.exception()
        self.state = SessionState.CLOSED
        self._fail_waiting()
        self.abort_connection("the session's keeper failed")
        if self._ready is not None and not self._ready.done() and error is not None:
            self._ready.set_exception(error)
        context = {"message": "zookeeper session keeper failed", "exception": error, "task": keeper}
        asyncio.get_running_loop().call_exception_handler(context)

    def _announce(self) -> None:
        """The first session ends `start`. Each later one is announced to the listeners."""
        if self._announced:
            return
        self._announced = True
        if self._first_session:
            self._first_session = False
            if self._ready is not None and not self._ready.done():
                self._ready.set_result(None)
            return
        calls = [listener.after_new_session for listener in self.listeners]
        self._announcement = asyncio.create_task(self._tell(calls), name="zookeeper after_new_session")

    async def _expire(self, reason: str) -> None:
        logger.warning("session 0x%x: expired: %s", self.session_id, reason)
        self.state = SessionState.EXPIRED
        self.expirations += 1
        self._fail_waiting()
        self._watches.clear()
        self.session_id, self.password, self._last_zxid = 0, jute.NO_PASSWORD, 0
        if self._announcement is not None:
            await self._announcement
            self._announcement = None
        if not self._first_session:
            await self._tell([listener.before_new_session for listener in self.listeners])
        self._announced = False

    async def _on_auth_failure(self, error: AuthFailed) -> None:
        logger.error("session 0x%x: authentication failed: %s", self.session_id, error)
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(error)
            return
        self.state = SessionState.AUTH_FAILED
        self._fail_waiting()
        await self._tell([listener.on_auth_failure for listener in self.listeners])
        await asyncio.sleep(AUTH_RETRY)
        # Wait for a connection again, unless the session is lost.
        self.state = SessionState.DISCONNECTED if self.session_id else SessionState.EXPIRED

    async def _tell(self, calls: Sequence[Callable[[], Coroutine[Any, Any, None]]]) -> None:
        """Call the listeners in turn. The failure of one is reported and does not affect the others."""
        for call in calls:
            try:
                await call()
            except Exception as error:
                context = {"message": f"zookeeper session listener {call!r} failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)

    def _fail_waiting(self) -> None:
        refusal = _REFUSALS[self.state]
        while self._waiting:
            request = self._waiting.popleft()
            request.fail(refusal(request.path))

    # --- helpers ---

    def _send(self, connection: ZooKeeperConnection, request: PendingRequest) -> asyncio.Future[Reply]:
        if request.opcode is OpCode.MULTI_READ and not self.has_multi_read:
            # The new connection leads to an older server, which would close it after this request.
            request.fail(Unimplemented(request.path))
            return request.future
        self.requests[request.opcode.name.lower()] += 1
        connection.send(request)
        return request.future

    def _next_server(self) -> None:
        self._servers.append(self._servers.pop(0))

    def _until_local_expiry(self) -> float:
        return self._disconnected_at + self.timeout_ms / 1000 * 4 / 3 - self._clock.monotonic()

    def _attempt_timeout(self) -> float:
        share = self._wanted_timeout_ms / 1000 / len(self._servers)
        return min(share, max(self._until_local_expiry(), 0.0)) if self.session_id else share

    async def _back_off(self, attempts: int) -> None:
        most = min(BACKOFF_MAX, BACKOFF_FIRST * 2**attempts)
        delay = self._random.uniform(most / 2, most)
        if self.session_id:
            delay = min(delay, max(self._until_local_expiry(), 0.0))
        await asyncio.sleep(delay)
        if self.session_id and self._until_local_expiry() <= 0:
            seconds = self._clock.monotonic() - self._disconnected_at
            await self._expire(f"no connection for {seconds:.1f} s, {self.last_error}")


def _ignore_outcome(future: asyncio.Future[Reply]) -> None:
    """The watches stay in the registry: if this connection is lost, the next one sets them."""
    if not future.cancelled():
        future.exception()
