"""The state of the server: the tree and the sessions, changed by one transaction after the other.

Every write takes a zxid, even a write that fails: clients may have seen it, and a server whose zxid went back would
refuse them for ever. A transaction is applied as a whole or not at all, and goes to the journal before its events. The
service sends no answer before the journal has been flushed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from klamm.model.errors import ZooKeeperError
from klamm.model.ports import Clock
from klamm.zookeeper import jute
from klamm.zookeeper.jute import OpCode
from klamm.zookeeper.server.access import Caller
from klamm.zookeeper.server.rules import CheckVersion, CreateNode, Operation, SetAcl, SetData, prepare
from klamm.zookeeper.server.sessions import ServerSession, SessionTable
from klamm.zookeeper.server.tree import (
    Effect,
    NodeDeleted,
    NodeEffect,
    SessionClosed,
    SessionOpened,
    Transaction,
    Tree,
)

C = TypeVar("C")


class Failed(NamedTuple):
    """A multi that was rolled back: the position of the failed operation, and its error."""

    position: int
    error: ZooKeeperError


class Journal(Protocol):
    """Keeps transactions beyond the life of this process."""

    def open(self, database: Database[Any]) -> None:
        """Bring `database` to the state of the journal, and prepare for appends."""

    def append(self, zxid: int, time_ms: int, effects: Sequence[Effect]) -> None: ...

    def flush(self) -> None:
        """When this returns, everything appended so far survives the death of this process."""

    def close(self) -> None: ...


class Database(Generic[C]):
    def __init__(
        self,
        clock: Clock,
        sessions: SessionTable[C],
        on_commit: Callable[[Transaction, int], None],
        journal: Journal | None = None,
    ) -> None:
        self.tree = Tree()
        self.sessions = sessions
        self.zxid = 0
        self._clock = clock
        self._on_commit = on_commit
        self._journal = journal

    def now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    # --- writes ------------------------------------------------------------------------------------------------------

    def write(self, operation: Operation, caller: Caller) -> bytes:
        """Apply one operation and return the body of its answer."""
        transaction = self._begin()
        try:
            body = self._apply(operation, caller, transaction)
        except ZooKeeperError:
            self._commit(transaction, caller.session_id)
            raise
        self._commit(transaction, caller.session_id)
        return body

    def multi(self, operations: Sequence[Operation], caller: Caller) -> list[bytes] | Failed:
        transaction = self._begin()
        bodies = []
        try:
            for operation in operations:
                # Packed now, because later operations may change the Stat that belongs in this answer.
                body = self._apply(operation, caller, transaction)
                bodies.append(body)
        except ZooKeeperError as error:
            transaction.roll_back()
            self._commit(transaction, caller.session_id)
            return Failed(len(bodies), error)
        self._commit(transaction, caller.session_id)
        return bodies

    def spend_zxid(self) -> None:
        """For a write that is refused before it can be tried."""
        self._commit(self._begin(), 0)

    def open_session(self, timeout_ms: int) -> ServerSession[C]:
        transaction = self._begin()
        wall_ms = transaction.time_ms
        opened = SessionOpened(self.sessions.new_id(wall_ms), timeout_ms, self.sessions.new_password())
        transaction.effects.append(opened)
        session = self.sessions.add(opened.session_id, opened.password, timeout_ms, self.now_ms())
        self._commit(transaction, opened.session_id)
        return session

    def close_session(self, session_id: int) -> None:
        """End a session and delete its ephemeral nodes, in one transaction."""
        transaction = self._begin()
        for path in list(self.tree.ephemerals.get(session_id, ())):
            self.tree.apply(NodeDeleted(path), transaction)
        transaction.effects.append(SessionClosed(session_id))
        self.sessions.remove(session_id)
        self._commit(transaction, session_id)

    def delete_empty_containers(self) -> None:
        """Delete containers that have lost all their children. A container that never had a child stays."""
        for path in list(self.tree.containers):
            node = self.tree.nodes[path]
            if node.creations and not node.children:
                transaction = self._begin()
                self.tree.apply(NodeDeleted(path), transaction)
                self._commit(transaction, 0)

    # --- recovery ----------------------------------------------------------------------------------------------------

    def replay(self, zxid: int, time_ms: int, effects: Iterable[Effect]) -> None:
        """Repeat a transaction from the journal, without events."""
        transaction = Transaction(zxid, time_ms)
        for effect in effects:
            match effect:
                case SessionOpened():
                    self.sessions.add(effect.session_id, effect.password, effect.timeout_ms, self.now_ms())
                case SessionClosed():
                    self.sessions.remove(effect.session_id)
                case _:
                    self.tree.apply(effect, transaction)
        self.zxid = zxid

    # --- internals ---------------------------------------------------------------------------------------------------

    def _begin(self) -> Transaction:
        return Transaction(self.zxid + 1, self._clock.wall_ms())

    def _commit(self, transaction: Transaction, session_id: int) -> None:
        self.zxid = transaction.zxid
        if self._journal is not None:
            self._journal.append(transaction.zxid, transaction.time_ms, transaction.effects)
        self._on_commit(transaction, session_id)

    def _apply(self, operation: Operation, caller: Caller, transaction: Transaction) -> bytes:
        effect = prepare(operation, self.tree, caller)
        if effect is None:
            return b""
        self.tree.apply(effect, transaction)
        return self._answer(operation, effect)

    def _answer(self, operation: Operation, effect: NodeEffect) -> bytes:
        match operation:
            case SetData() | SetAcl():  # first, because most operations are these
                return self.tree.nodes[effect.path].packed_stat()
            case CreateNode(opcode=OpCode.CREATE):
                return jute.pack_string(effect.path)
            case CreateNode():
                return jute.pack_string(effect.path) + self.tree.nodes[effect.path].packed_stat()
        return b""


def result_opcode(operation: Operation) -> int:
    """The type of an operation's result in the answer to a multi."""
    match operation:
        case SetData():
            return OpCode.SET_DATA
        case CreateNode(opcode=OpCode.CREATE):
            return OpCode.CREATE
        case CreateNode():
            return OpCode.CREATE2
        case CheckVersion():
            return OpCode.CHECK
    return OpCode.DELETE
