"""The tree of nodes: applies the effects of transactions, and rolls back a transaction that failed halfway.

Nothing is refused here: `rules` has checked the operation and turned it into an *effect*, which says all that it does,
so a journal or a follower can repeat it and get the same tree, Stat by Stat. The fields of a node are ZooKeeper's:
czxid and mzxid for the node itself, pzxid for its children, and a count of created children, from which both the
sequence numbers and the reported cversion follow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from klamm.model.ports import OPEN_ACL, Acl, WatchKind
from klamm.zookeeper import jute

READ_ONLY_ACL: Final = (Acl(jute.Permission.READ, "world", "anyone"),)


class NodeCreated(NamedTuple):
    path: str
    data: bytes | None
    acl: tuple[Acl, ...]
    owner: int
    container: bool


class NodeDeleted(NamedTuple):
    path: str


class DataSet(NamedTuple):
    path: str
    data: bytes | None


class AclSet(NamedTuple):
    path: str
    acl: tuple[Acl, ...]


class SessionOpened(NamedTuple):
    session_id: int
    timeout_ms: int
    password: bytes


class SessionClosed(NamedTuple):
    """The same transaction has a NodeDeleted for each of the session's ephemeral nodes."""

    session_id: int


NodeEffect = NodeCreated | NodeDeleted | DataSet | AclSet
Effect = NodeEffect | SessionOpened | SessionClosed


class Event(NamedTuple):
    """A change that may fire watches, with the ACL that decides which clients receive the event."""

    kind: WatchKind
    path: str
    acl: tuple[Acl, ...]


@dataclass(slots=True)
class Transaction:
    """One zxid: the effects so far, the events to fire if all succeed, and the steps to undo them if one fails."""

    zxid: int
    time_ms: int
    effects: list[Effect] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    undo: list[Callable[[], None]] = field(default_factory=list)

    def roll_back(self) -> None:
        for step in reversed(self.undo):
            step()
        self.effects.clear()
        self.events.clear()
        self.undo.clear()


class TreeNode:
    __slots__ = (
        "acl",
        "aversion",
        "children",
        "container",
        "creations",
        "ctime_ms",
        "czxid",
        "data",
        "mtime_ms",
        "mzxid",
        "owner",
        "pzxid",
        "version",
    )

    def __init__(self, data: bytes | None, acl: tuple[Acl, ...], owner: int, zxid: int, time_ms: int) -> None:
        self.data = data
        self.acl = acl
        self.owner = owner
        self.czxid = self.mzxid = self.pzxid = zxid
        self.ctime_ms = self.mtime_ms = time_ms
        self.version = self.aversion = self.creations = 0
        self.container = False
        # A dict keeps the order: a listing must not depend on hashes. None for leaves, the most frequent kind.
        self.children: dict[str, None] | None = None

    def packed_stat(self) -> bytes:
        child_count = len(self.children) if self.children else 0
        return jute.STAT.pack(
            self.czxid,
            self.mzxid,
            self.ctime_ms,
            self.mtime_ms,
            self.version,
            2 * self.creations - child_count,
            self.aversion,
            self.owner,
            len(self.data) if self.data else 0,
            child_count,
            self.pzxid,
        )


def parent_of(path: str) -> str:
    """The key of the parent. For a node directly below the root it is the empty string, which is a key of the root.

    >>> parent_of("/a/b"), parent_of("/a"), parent_of("/")
    ('/a', '', '')
    """
    return path[: path.rindex("/")]


class Tree:
    def __init__(self) -> None:
        self.nodes: dict[str, TreeNode] = {}
        self.ephemerals: dict[int, dict[str, None]] = {}
        """The paths of ephemeral nodes by owner, in the order of their creation."""
        self.containers: dict[str, None] = {}
        self._acls: dict[tuple[Acl, ...], tuple[Acl, ...]] = {OPEN_ACL: OPEN_ACL}
        root = TreeNode(b"", OPEN_ACL, 0, 0, 0)
        self.nodes[""] = self.nodes["/"] = root
        for path, acl in (
            ("/zookeeper", OPEN_ACL),
            ("/zookeeper/config", READ_ONLY_ACL),
            ("/zookeeper/quota", OPEN_ACL),
        ):
            self.insert(path, TreeNode(b"", acl, 0, 0, 0))
        self.nodes["/zookeeper/config"].aversion = -1

    def __len__(self) -> int:
        """As ZooKeeper counts nodes: the root counts twice, for both of its keys."""
        return len(self.nodes)

    def shared_acl(self, acl: tuple[Acl, ...]) -> tuple[Acl, ...]:
        """The one tuple for all equal lists: there are many nodes and few lists."""
        return self._acls.setdefault(acl, acl)

    def insert(self, path: str, node: TreeNode) -> None:
        """Add a node to the tree, to its owner's nodes and to the containers. The caller updates the parent's Stat."""
        self.nodes[path] = node
        node.acl = self.shared_acl(node.acl)
        slash = path.rindex("/")
        parent = self.nodes[path[:slash]]
        if parent.children is None:
            parent.children = {}
        parent.children[path[slash + 1 :]] = None
        if node.owner:
            self.ephemerals.setdefault(node.owner, {})[path] = None
        if node.container:
            self.containers[path] = None

    def remove(self, path: str) -> None:
        node = self.nodes.pop(path)
        slash = path.rindex("/")
        children = self.nodes[path[:slash]].children
        assert children is not None
        del children[path[slash + 1 :]]
        if node.owner:
            owned = self.ephemerals[node.owner]
            del owned[path]
            if not owned:
                del self.ephemerals[node.owner]
        if node.container:
            del self.containers[path]

    def apply(self, effect: NodeEffect, transaction: Transaction) -> None:
        kind = type(effect)
        if kind is DataSet:
            self._set_data(effect, transaction)  # type: ignore[arg-type]
        elif kind is NodeCreated:
            self._create(effect, transaction)  # type: ignore[arg-type]
        elif kind is NodeDeleted:
            self._delete(effect, transaction)  # type: ignore[arg-type]
        else:
            self._set_acl(effect, transaction)  # type: ignore[arg-type]
        transaction.effects.append(effect)

    def _create(self, effect: NodeCreated, transaction: Transaction) -> None:
        path = effect.path
        node = TreeNode(effect.data, effect.acl, effect.owner, transaction.zxid, transaction.time_ms)
        node.container = effect.container
        parent_path = parent_of(path)
        parent = self.nodes[parent_path]
        previous_pzxid = parent.pzxid

        def undo() -> None:
            self.remove(path)
            parent.creations -= 1
            parent.pzxid = previous_pzxid

        self.insert(path, node)
        parent.creations += 1
        parent.pzxid = transaction.zxid
        transaction.undo.append(undo)
        transaction.events.append(Event(WatchKind.CREATED, path, node.acl))
        transaction.events.append(Event(WatchKind.CHILDREN_CHANGED, parent_path or "/", parent.acl))

    def _delete(self, effect: NodeDeleted, transaction: Transaction) -> None:
        path = effect.path
        node = self.nodes[path]
        parent_path = parent_of(path)
        parent = self.nodes[parent_path]
        previous_pzxid = parent.pzxid

        def undo() -> None:
            self.insert(path, node)
            parent.pzxid = previous_pzxid

        self.remove(path)
        parent.pzxid = transaction.zxid
        transaction.undo.append(undo)
        transaction.events.append(Event(WatchKind.DELETED, path, node.acl))
        transaction.events.append(Event(WatchKind.CHILDREN_CHANGED, parent_path or "/", parent.acl))

    def _set_data(self, effect: DataSet, transaction: Transaction) -> None:
        node = self.nodes[effect.path]
        previous = (node.data, node.mzxid, node.mtime_ms)

        def undo() -> None:
            node.data, node.mzxid, node.mtime_ms = previous
            node.version -= 1

        node.data = effect.data
        node.mzxid = transaction.zxid
        node.mtime_ms = transaction.time_ms
        node.version += 1
        transaction.undo.append(undo)
        transaction.events.append(Event(WatchKind.DATA_CHANGED, effect.path, node.acl))

    def _set_acl(self, effect: AclSet, transaction: Transaction) -> None:
        node = self.nodes[effect.path]
        previous_acl = node.acl

        def undo() -> None:
            node.acl = previous_acl
            node.aversion -= 1

        node.acl = self.shared_acl(effect.acl)
        node.aversion += 1
        transaction.undo.append(undo)
