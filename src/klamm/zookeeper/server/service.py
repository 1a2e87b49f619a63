"""The request processor, which ties connections, database and watches together. It does no IO and has no timers.

It handles one request at a time, so every reply belongs to one zxid. An event goes into a connection's output while its
change is committed, and so before any reply that could show the change. `flush` sends the output after the journal, so
a client never learns of a change that could still be lost.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Final

from klamm.model.errors import AuthFailed, MarshallingError, SessionExpired, Unimplemented, ZooKeeperError
from klamm.model.ports import Clock, WatchEvent, WatchKind
from klamm.zookeeper import jute
from klamm.zookeeper.jute import ConnectRequest, ConnectResponse, JuteReader, OpCode, Permission
from klamm.zookeeper.server import four_letter_words, reads, rules, watch_requests
from klamm.zookeeper.server.access import digest_identity, permitted
from klamm.zookeeper.server.client_connection import ServedConnection, Sink
from klamm.zookeeper.server.database import Database, Failed, Journal, result_opcode
from klamm.zookeeper.server.faults import Fault, Faults, RequestInfo
from klamm.zookeeper.server.sessions import ServerSession, SessionTable
from klamm.zookeeper.server.tree import (
    AclSet,
    DataSet,
    Effect,
    Event,
    NodeCreated,
    NodeDeleted,
    SessionClosed,
    SessionOpened,
    Transaction,
)
from klamm.zookeeper.server.watch_table import WatchTable

log = logging.getLogger(__name__)

OnWrite = Callable[[str, str, int], None]
"""Called for every applied change with its kind ("create", "set", ...), path and session, before the client knows."""

OnCommit = Callable[[Transaction], None]
"""Called for every transaction in the order of the zxids, including those without a change."""

RECONFIG_DISABLED: Final = -123
_EFFECT_NAMES: Final[dict[type[Effect], str]] = {
    NodeCreated: "create",
    NodeDeleted: "delete",
    DataSet: "set",
    AclSet: "set_acl",
    SessionOpened: "open_session",
    SessionClosed: "close_session",
}
Handler = Callable[[ServedConnection, JuteReader], bytes]


class ZooKeeperService:
    def __init__(
        self,
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
        sessions: SessionTable[ServedConnection] | None = None,
    ) -> None:
        """`sessions` are those of the leader, if this server follows one. None means its own."""
        self.frame_bytes_max = frame_bytes_max
        self.faults = faults
        self.on_write = on_write
        self.watches: WatchTable[ServedConnection] = WatchTable()
        self.connections: dict[ServedConnection, None] = {}
        self.followers: list[OnCommit] = []
        self.failure: OSError | None = None
        """The failure of the journal. From then on no client gets an answer."""
        self.on_failure: Callable[[], None] = lambda: None
        self.flush_soon: Callable[[], None] = self.flush
        """Called after each packet of requests. A server with a journal may wait here for the packets of other
        clients."""
        if sessions is None:
            sessions = SessionTable(
                tick_ms=tick_ms,
                timeout_ms_min=session_timeout_ms_min or 2 * tick_ms,
                timeout_ms_max=session_timeout_ms_max or 20 * tick_ms,
                random=random,
            )
        self.database: Database[ServedConnection] = Database(clock, sessions, self._committed, journal)
        self._journal = journal
        self._with_output: dict[ServedConnection, None] = {}
        self._received = self._sent = 0
        self._handlers: dict[int, Handler] = self._table()

    @property
    def mode(self) -> str:
        return "leader" if self.followers else "standalone"

    @property
    def sessions(self) -> SessionTable[ServedConnection]:
        return self.database.sessions

    # --- connections -------------------------------------------------------------------------------------------------

    def connection(self, sink: Sink, address: str) -> ServedConnection:
        connection = ServedConnection(self, sink, address)
        self.connections[connection] = None
        return connection

    def forget(self, connection: ServedConnection) -> None:
        """The connection has ended, and its watches with it. Its session goes on."""
        self.connections.pop(connection, None)
        self.watches.forget(connection)
        if connection.session is not None and connection.session.connection is connection:
            connection.session.connection = None

    def has_output(self, connection: ServedConnection) -> None:
        self._with_output[connection] = None

    def flush(self) -> None:
        if not self._with_output:
            return
        if self._journal is not None:
            try:
                self._journal.flush()
            except OSError as error:
                self._fail(error)
        ready, self._with_output = self._with_output, {}
        for connection in ready:
            connection.finish()

    def _fail(self, error: OSError) -> None:
        """Disconnect all clients: an unwritten change must not become known, and nothing can be written any more."""
        if self.failure is None:
            self.failure = error
            log.critical("cannot write the journal: %s; the server sends no more answers and stops", error.strerror)
        for connection in list(self._with_output):
            connection.drop_output()
        for connection in list(self.connections):
            connection.drop_output()
            connection.close()
        self.on_failure()

    def close_all(self) -> None:
        for connection in list(self.connections):
            connection.close()
        self.flush()

    # --- sessions ----------------------------------------------------------------------------------------------------

    def connect(self, connection: ServedConnection, payload: bytes) -> None:
        try:
            wanted = ConnectRequest.unpack(payload)
        except MarshallingError:
            connection.close()
            return
        if wanted.last_zxid_seen > self.database.zxid:
            connection.close()  # the client has seen a later state: it would go back in time here
            return
        session = self._resume(wanted) if wanted.session_id else self._open(wanted)
        if session is not None:
            connection.session = session
            connection.caller.session_id = session.id
            session.connection = connection
        self._when_current(connection, lambda: self._welcome(connection, session, wanted.read_only is not None))

    def _welcome(
        self, connection: ServedConnection, session: ServerSession[ServedConnection] | None, with_read_only: bool
    ) -> None:
        read_only = False if with_read_only else None
        if session is None:
            connection.send(jute.frame(ConnectResponse(0, 0, jute.NO_PASSWORD, read_only).pack()))
            connection.close()
            return
        response = ConnectResponse(session.timeout_ms, session.id, session.password, read_only)
        connection.send(jute.frame(response.pack()))

    def _when_current(self, connection: ServedConnection, answer: Callable[[], None]) -> None:
        """Answer when this server has everything committed so far: at once, unless it is a follower."""
        answer()

    def _open(self, wanted: ConnectRequest) -> ServerSession[ServedConnection]:
        return self.database.open_session(self.sessions.clamp(wanted.timeout_ms))

    def _resume(self, wanted: ConnectRequest) -> ServerSession[ServedConnection] | None:
        session = self.sessions.get(wanted.session_id)
        if session is None:
            return None
        if session.connection in self.connections:
            session.connection.close()  # even if the password is wrong, as ZooKeeper does
        if wanted.password != session.password:
            return None
        session.timeout_ms = self.sessions.clamp(wanted.timeout_ms)
        self.sessions.touch(session, self.database.now_ms())
        return session

    def expire(self, session_id: int) -> None:
        """End a session now, as if its client had been silent for its whole timeout."""
        session = self.sessions.get(session_id)
        if session is None:
            return
        if session.connection is not None:
            session.connection.close()
        self.database.close_session(session_id)
        self.flush()

    def cut(self, session_id: int) -> None:
        """Close the connection of a session, if it has one, and drop its unsent output."""
        session = self.sessions.get(session_id)
        if session is not None and session.connection is not None:
            session.connection.drop_output()
            session.connection.close()
            self.flush()

    def expire_due(self) -> None:
        for session_id in self.sessions.expired(self.database.now_ms()):
            self.expire(session_id)

    # --- requests ----------------------------------------------------------------------------------------------------

    def request(self, connection: ServedConnection, payload: bytes) -> None:
        xid, opcode = jute.REQUEST_HEADER.unpack_from(payload)
        session = connection.session
        assert session is not None
        if session.connection is not connection:
            connection.close()  # the session has moved to another connection
            return
        self.sessions.touch(session, self.database.now_ms())
        self._received += 1
        if self.faults is None:
            self._answer(connection, xid, opcode, JuteReader(payload, jute.REQUEST_HEADER.size))
            return
        fault = self.faults.on_request(RequestInfo(session.id, opcode))
        if fault is Fault.LOSE_REQUEST:
            connection.close()
            return
        if fault is Fault.LOSE_REPLY:
            self.flush()
        self._answer(connection, xid, opcode, JuteReader(payload, jute.REQUEST_HEADER.size))
        if fault is Fault.LOSE_REPLY:
            connection.drop_output()
            connection.close()

    def _answer(self, connection: ServedConnection, xid: int, opcode: int, reader: JuteReader) -> None:
        handler = self._handlers.get(opcode)
        if handler is None:
            connection.send(jute.reply_frame(xid, -1, Unimplemented.code))
            connection.close()
            return
        error = 0
        body = b""
        try:
            body = handler(connection, reader)
        except ZooKeeperError as failure:
            error = failure.code
        zxid = 0 if opcode in (OpCode.AUTH, OpCode.SASL) else self.database.zxid
        connection.send(jute.reply_frame(xid, zxid, error, body))
        self._sent += 1
        if opcode == OpCode.CLOSE_SESSION or error == AuthFailed.code:
            connection.close()

    def _table(self) -> dict[int, Handler]:
        """The handlers by opcode. Any other opcode ends the connection: a check outside a multi, or deleteContainer,
        which only servers send."""
        tree, watches = self.database.tree, self.watches
        data, child = watches.data, watches.child
        table: dict[int, Handler] = {
            OpCode.PING: lambda connection, reader: b"",
            OpCode.EXISTS: lambda connection, reader: reads.exists(tree, connection.caller, reader, data, connection),
            OpCode.GET_DATA: lambda connection, reader: reads.get_data(
                tree, connection.caller, reader, data, connection
            ),
            OpCode.GET_CHILDREN: lambda connection, reader: reads.get_children(
                tree, connection.caller, reader, child, connection, with_stat=False
            ),
            OpCode.GET_CHILDREN2: lambda connection, reader: reads.get_children(
                tree, connection.caller, reader, child, connection, with_stat=True
            ),
            OpCode.GET_ACL: lambda connection, reader: reads.get_acl(tree, connection.caller, reader),
            OpCode.GET_ALL_CHILDREN_NUMBER: lambda connection, reader: reads.count_descendants(
                tree, connection.caller, reader
            ),
            OpCode.GET_EPHEMERALS: lambda connection, reader: reads.get_ephemerals(tree, connection.caller, reader),
            OpCode.MULTI_READ: lambda connection, reader: reads.multi_read(tree, connection.caller, reader),
            OpCode.WHO_AM_I: lambda connection, reader: reads.who_am_i(connection.caller),
            OpCode.SYNC: lambda connection, reader: jute.pack_string(reader.path()),
            OpCode.MULTI: self._multi,
            OpCode.RECONFIG: self._reconfig,
            OpCode.AUTH: self._auth,
            OpCode.SASL: lambda connection, reader: jute.pack_buffer(None),
            OpCode.SET_WATCHES: lambda connection, reader: watch_requests.set_watches(
                watches, tree, reader, connection
            ),
            OpCode.SET_WATCHES2: lambda connection, reader: watch_requests.set_watches2(
                watches, tree, reader, connection
            ),
            OpCode.ADD_WATCH: lambda connection, reader: watch_requests.add_watch(watches, reader, connection),
            OpCode.CHECK_WATCHES: lambda connection, reader: watch_requests.check_watches(watches, reader, connection),
            OpCode.REMOVE_WATCHES: lambda connection, reader: watch_requests.remove_watches(
                watches, reader, connection
            ),
            OpCode.CLOSE_SESSION: self._close_session,
        }
        for opcode, read in rules.READ_ALONE.items():
            table[opcode] = self._writer(read)
        return table

    # --- writes ------------------------------------------------------------------------------------------------------

    def _writer(self, read: Callable[[JuteReader], rules.Operation]) -> Handler:
        def write(connection: ServedConnection, reader: JuteReader) -> bytes:
            return self.database.write(read(reader), connection.caller)

        return write

    def _multi(self, connection: ServedConnection, reader: JuteReader) -> bytes:
        try:
            operations = rules.read_multi(reader)
        except MarshallingError:
            self.database.spend_zxid()
            raise
        outcome = self.database.multi(operations, connection.caller)
        parts: list[bytes] = []
        if isinstance(outcome, Failed):
            culprit = outcome.error.code
            for index in range(len(operations)):
                code = 0 if index < outcome.position else culprit if index == outcome.position else -2
                parts.append(jute.MULTI_ERROR.pack(jute.MULTI_RESULT_TYPE_ERROR, False, code, code))
        else:
            for operation, body in zip(operations, outcome, strict=True):
                parts.append(jute.MULTI_HEADER.pack(result_opcode(operation), False, 0))
                parts.append(body)
        parts.append(jute.MULTI_END)
        return b"".join(parts)

    def _reconfig(self, connection: ServedConnection, reader: JuteReader) -> bytes:
        self.database.spend_zxid()
        raise jute.error_for(RECONFIG_DISABLED)

    def _close_session(self, connection: ServedConnection, reader: JuteReader) -> bytes:
        session = connection.session
        if session is None or self.sessions.get(session.id) is not session:
            raise SessionExpired
        self.database.close_session(session.id)
        return b""

    def _auth(self, connection: ServedConnection, reader: JuteReader) -> bytes:
        _type, scheme, credential = reader.int32(), reader.string(), reader.buffer()
        if scheme == "digest" and credential is not None:
            connection.caller.add_identity(digest_identity(credential))
        elif scheme != "ip":
            raise AuthFailed
        return b""

    # --- after a commit ----------------------------------------------------------------------------------------------

    def _committed(self, transaction: Transaction, session_id: int) -> None:
        for tell_follower in self.followers:
            tell_follower(transaction)
        if self.watches.data.by_path or self.watches.child.by_path:
            for event in transaction.events:
                self._fire(event, transaction.zxid)
        if self.on_write is not None:
            for effect in transaction.effects:
                path = "" if isinstance(effect, SessionOpened | SessionClosed) else effect.path
                self.on_write(_EFFECT_NAMES[type(effect)], path, session_id)

    def _fire(self, event: Event, zxid: int) -> None:
        frame = b""

        def tell(watcher: ServedConnection, kind: WatchKind, path: str) -> None:
            nonlocal frame
            if not permitted(event.acl, Permission.READ, watcher.caller):
                return  # the watch ends without an event, which would reveal what the client may not read
            if not frame:
                frame = jute.event_frame(WatchEvent(kind, path), zxid)
            watcher.send(frame)

        self.watches.fire(event, tell)

    # --- four-letter words --------------------------------------------------------------------------------------------

    def answer_word(self, word: str) -> str:
        tree = self.database.tree
        return four_letter_words.answer(
            word,
            four_letter_words.Figures(
                mode=self.mode,
                zxid=self.database.zxid,
                received=self._received,
                sent=self._sent,
                connections=len(self.connections),
                nodes=len(tree),
                watches=len(self.watches),
                ephemerals=sum(map(len, tree.ephemerals.values())),
                sessions=len(self.sessions),
            ),
        )
