"""ZooKeeper in the test's own process: the real client's operations on the real server, without sockets and timers.

Sessions share an `InMemoryTree`; an `InMemoryZooKeeper` is one session and implements `klamm.model.ports.ZooKeeper`. A
request is answered in the next turn of the loop, after the events that precede its reply. A session lasts until the
test expires it. Tests can write as another client, change a node just before a write, lose answers, and read every
write as text.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Final, Literal

from klamm.model.errors import ConnectionLoss, SessionExpired
from klamm.model.ports import OPEN_ACL, CreateMode, SessionListener
from klamm.zookeeper import jute
from klamm.zookeeper.client.address import Chroot
from klamm.zookeeper.client.bulk_operations import BulkOperations
from klamm.zookeeper.client.connection import BODY, OnReply, PendingRequest, Reply
from klamm.zookeeper.jute import OpCode
from klamm.zookeeper.server.access import Caller
from klamm.zookeeper.server.client_connection import ServedConnection, Sink
from klamm.zookeeper.server.rules import CreateNode, DeleteNode, Operation, SetData
from klamm.zookeeper.server.service import ZooKeeperService
from klamm.zookeeper.server.tree import DataSet, NodeCreated, NodeDeleted, Transaction, TreeNode

Lost = Literal["applied", "dropped"]
"""What happened to a write whose answer is lost."""

ADDRESS: Final = "127.0.0.1"
WRITES: Final = frozenset({OpCode.CREATE2, OpCode.DELETE, OpCode.SET_DATA, OpCode.MULTI})
"""The writes that hooks see and `writes` lists. `ensure_path` sends CREATE, which is neither."""
_VERBS: Final = {NodeCreated: "create", DataSet: "set", NodeDeleted: "delete"}


class StandingClock:
    """Sessions do not time out, so the server needs no time."""

    def wall_ms(self) -> int:
        return 1_600_000_000_000

    def monotonic(self) -> float:
        return 0.0

    def instant(self) -> float:
        return 0.0


class InMemoryTree:
    """The server with its tree of nodes, which all sessions share."""

    def __init__(self) -> None:
        self.service = ZooKeeperService(StandingClock(), Random(1), session_timeout_ms_max=60_000)
        self.writes: list[str] = []
        """Every write of a session that was applied, as text: what a conversation test compares."""
        self._recording = False
        self.service.followers.append(self._on_commit)

    @property
    def nodes(self) -> dict[str, TreeNode]:
        return self.service.database.tree.nodes

    @property
    def zxid(self) -> int:
        return self.service.database.zxid

    def children(self, path: str) -> list[str]:
        return list(self.nodes[path].children or ())

    def connect(self, sink: Sink, session_id: int, timeout_ms: int) -> ServedConnection:
        """A new session with this id, and its connection."""
        sessions = self.service.sessions
        password = sessions.new_password()
        sessions.add(session_id, password, timeout_ms, self.service.database.now_ms())
        connection = self.service.connection(sink, ADDRESS)
        handshake = jute.ConnectRequest(self.zxid, timeout_ms, session_id, password)
        connection.data_received(jute.frame(handshake.pack()))
        return connection

    def request(self, connection: ServedConnection, frame: bytes, *, recording: bool) -> None:
        self._recording = recording
        connection.data_received(frame)
        self._recording = False

    def write(self, operation: Operation, owner: int) -> None:
        """Write as some other client, with `owner` as its session."""
        self.service.database.write(operation, Caller(owner, ADDRESS))
        self.service.flush()

    def _on_commit(self, transaction: Transaction) -> None:
        if not self._recording:
            return
        for effect in transaction.effects:
            if isinstance(effect, NodeCreated | DataSet | NodeDeleted):
                data = b"" if isinstance(effect, NodeDeleted) else effect.data or b""
                self.writes.append(f"{_VERBS[type(effect)]} {effect.path} {data.decode()}".rstrip())


class _Sink:
    """Carries the server's frames to one client."""

    def __init__(self, send: Callable[[list[bytes]], None]) -> None:
        self.send = send

    def close(self) -> None:
        """The server ends the connection, which only `expire` causes."""


class InMemoryZooKeeper(BulkOperations):
    def __init__(
        self,
        tree: InMemoryTree | None = None,
        session_id: int = 1,
        *,
        session_timeout_ms: int = 6_000,
        chroot: str = "",
    ) -> None:
        super().__init__(Chroot(chroot))
        self.tree = tree or InMemoryTree()
        self.session_timeout_ms = session_timeout_ms
        self.listeners: list[SessionListener] = []
        self.silent_s = 0.0
        self.before_write: Callable[[], None] | None = None
        """Called once, just before the next write is applied: another client's write that comes first."""
        self.lose_answers: list[Lost] = []
        """How each of the next writes loses its answer, one entry per write."""
        self.expired = False
        self._in_flight: deque[PendingRequest] = deque()
        self._inbox: list[bytes] = []
        self._open(session_id)

    # --- for tests ---

    def put(self, path: str, data: bytes | str | None = None, owner: int = 0) -> None:
        """Create or set a node as another client, with its missing parents. An `owner` makes it ephemeral."""
        raw = data.encode() if isinstance(data, str) else data
        parent = path.rpartition("/")[0]
        if parent not in self.tree.nodes:
            self.put(parent)
        mode = CreateMode.EPHEMERAL if owner else CreateMode.PERSISTENT
        known = path in self.tree.nodes
        self.tree.write(
            SetData(path, raw, -1) if known else CreateNode(OpCode.CREATE, path, raw, OPEN_ACL, mode), owner
        )

    def remove(self, path: str) -> None:
        """Delete a node and everything below it as another client."""
        for child in self.tree.children(path):
            self.remove(f"{path}/{child}")
        self.tree.write(DeleteNode(path, -1), 0)

    def data(self, path: str) -> bytes:
        return self.tree.nodes[path].data or b""

    def text(self, path: str) -> str:
        return self.data(path).decode()

    def forget_watches(self, part: str = "") -> None:
        """Lose the watches on all paths that contain `part`, as if their events were late."""
        watches = self.tree.service.watches
        for family in (watches.data, watches.child):
            for path in [path for path in family.by_path if part in path]:
                family.discard(path, self._connection, ~0)

    def expire(self) -> None:
        self.expired = True
        self.tree.service.expire(self.session_id)
        self._watches.clear()

    async def new_session(self, session_id: int) -> None:
        for listener in self.listeners:
            await listener.before_new_session()
        self.expired = False
        self._open(session_id)
        for listener in self.listeners:
            await listener.after_new_session()

    # --- the session, as the port shows it ---

    @property
    def session_id(self) -> int:
        return self._session_id

    def silence(self) -> float:
        return self.silent_s

    async def close(self) -> None:
        self.expire()

    def add_session_listener(self, listener: SessionListener) -> None:
        self.listeners.append(listener)

    # --- requests and replies ---

    @property
    def _has_multi_read(self) -> bool:
        return True

    def _open(self, session_id: int) -> None:
        self._session_id = session_id
        self._connected = False
        self._connection = self.tree.connect(_Sink(self._on_frames), session_id, self.session_timeout_ms)
        self._connected = True

    def _submit(self, opcode: OpCode, body: bytes, path: str, on_reply: OnReply | None = None) -> asyncio.Future[Reply]:
        request = PendingRequest(opcode, body, path, on_reply)
        asyncio.get_running_loop().call_soon(self._arrive, request)
        return request.future

    def _arrive(self, request: PendingRequest) -> None:
        """The request is at the server."""
        writes, lost = request.opcode in WRITES, None
        if writes:
            if self.before_write is not None:
                action, self.before_write = self.before_write, None
                action()
            lost = self.lose_answers.pop(0) if self.lose_answers else None
        if self.expired:
            request.fail(SessionExpired(request.path))
        elif lost == "dropped":
            request.fail(ConnectionLoss(request.path))
        else:
            self._in_flight.append(request)
            frame = jute.request_frame(1, request.opcode, request.body)
            self.tree.request(self._connection, frame, recording=writes)
            if lost == "applied":
                request.fail(ConnectionLoss(request.path))
            self._receive()

    def _on_frames(self, frames: list[bytes]) -> None:
        """What the server sends in one turn of the loop arrives together."""
        if self._connected:  # the answer to the handshake says nothing new
            if not self._inbox:
                asyncio.get_running_loop().call_soon(self._receive)
            self._inbox += frames

    def _receive(self) -> None:
        inbox, self._inbox = self._inbox, []
        for frame in inbox:
            payload = frame[jute.INT.size :]
            xid, zxid, code = jute.REPLY_HEADER.unpack_from(payload)
            if xid == jute.XID_EVENT:
                self._deliver(jute.JuteReader(payload, BODY).watch_event())
            else:
                self._in_flight.popleft().finish(Reply(zxid, payload), code)
