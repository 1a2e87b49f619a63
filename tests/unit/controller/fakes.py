"""A ZooKeeper in a dictionary, behind the port: versions, czxids, ephemerals, one-shot watches, multis, fences,
conflicts.

Small enough to be read; the contract that the real servers pass is tested elsewhere. It can be told to lose an answer
(applied or not) and to change a node just before a write, which is what the controller must survive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from klamm.model.errors import (
    BadVersion,
    ConnectionLoss,
    NodeExists,
    NoNode,
    NotEmpty,
    RuntimeInconsistency,
    SessionExpired,
    ZooKeeperError,
)
from klamm.model.events import Decision, EventRecord, StateChange
from klamm.model.ports import (
    NO_NODE_VERSION,
    OPEN_ACL,
    Acl,
    Check,
    Contents,
    Create,
    CreateMode,
    Delete,
    Fence,
    Node,
    Op,
    OpResult,
    SessionListener,
    Set,
    Stat,
    Watcher,
    WatchEvent,
    WatchKind,
)


class ManualClock:
    """Monotonic time is the loop's, wall time stands still."""

    def wall_ms(self) -> int:
        return 1_600_000_000_000

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class Sink:
    def __init__(self) -> None:
        self.records: list[EventRecord] = []

    def emit(self, records: Iterable[EventRecord]) -> None:
        self.records.extend(records)

    def decisions(self, event: str) -> list[Decision]:
        return [r for r in self.records if isinstance(r, Decision) and r.event == event]

    def state_changes(self) -> list[StateChange]:
        return [r for r in self.records if isinstance(r, StateChange)]


class _Node:
    def __init__(self, data: bytes | None, zxid: int, owner: int) -> None:
        self.data, self.czxid, self.mzxid, self.version, self.owner = data, zxid, zxid, 0, owner
        self.sequence = 0

    def stat(self, children: int) -> Stat:
        return Stat(self.czxid, self.mzxid, 0, 0, self.version, 0, 0, self.owner, len(self.data or b""), children, 0)


class Tree:
    """What all sessions share."""

    def __init__(self) -> None:
        self.nodes: dict[str, _Node] = {"/": _Node(None, 0, 0)}
        self.zxid = 0
        self.watches: dict[tuple[str, str], list[Watcher]] = {}
        self.writes: list[str] = []
        """Every applied write as text: what a conversation test compares."""

    def children(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        return [
            p[len(prefix) :] for p in self.nodes if p.startswith(prefix) and "/" not in p[len(prefix) :] and p != "/"
        ]

    def fire(self, kind: WatchKind, path: str, table: str) -> None:
        for watcher in self.watches.pop((table, path), []):
            asyncio.get_running_loop().call_soon(watcher, WatchEvent(kind, path))

    def watch(self, table: str, path: str, watcher: Watcher) -> None:
        watchers = self.watches.setdefault((table, path), [])
        if watcher not in watchers:
            watchers.append(watcher)


class FakeZooKeeper:
    def __init__(self, tree: Tree | None = None, session_id: int = 1) -> None:
        self.tree = tree or Tree()
        self.session_id = session_id
        self.session_timeout_ms = 6_000
        self.listeners: list[SessionListener] = []
        self.silent_s = 0.0
        self.before_write: Callable[[], None] | None = None
        """Called once, before the next multi is applied: somebody else's write that comes first."""
        self.lose_answer: str | None = None
        """`applied` or `dropped`: what happens to the next multi whose answer is lost."""
        self.expired = False
        self._fired: list[tuple[WatchKind, str, str]] = []

    def silence(self) -> float:
        return self.silent_s

    def add_session_listener(self, listener: SessionListener) -> None:
        self.listeners.append(listener)

    # --- for tests ---

    def put(self, path: str, data: bytes | str | None = None, owner: int = 0) -> None:
        """As some other client would: creates parents, sets or creates."""
        raw = data.encode() if isinstance(data, str) else data
        parent = path.rpartition("/")[0]
        if parent and parent not in self.tree.nodes:
            self.put(parent)
        mode = CreateMode.EPHEMERAL if owner else CreateMode.PERSISTENT
        op: Op = Set(path, raw) if path in self.tree.nodes else Create(path, raw, mode)
        self._apply(op, owner, quiet=True)

    def remove(self, path: str) -> None:
        for child in self.tree.children(path):
            self.remove(f"{path}/{child}")
        self._apply(Delete(path), 0, quiet=True)

    def text(self, path: str) -> str:
        return (self.tree.nodes[path].data or b"").decode()

    def expire(self) -> None:
        self.expired = True
        for path in [p for p, n in self.tree.nodes.items() if n.owner == self.session_id]:
            self.remove(path)

    async def new_session(self, session_id: int) -> None:
        for listener in self.listeners:
            await listener.before_new_session()
        self.session_id, self.expired = session_id, False
        for listener in self.listeners:
            await listener.after_new_session()

    # --- the port ---

    async def create(
        self,
        path: str,
        data: bytes | None = None,
        mode: CreateMode = CreateMode.PERSISTENT,
        acl: tuple[Acl, ...] = OPEN_ACL,
    ) -> tuple[str, Stat]:
        (result,) = await self.multi([Create(path, data, mode, acl)])
        if isinstance(result, ZooKeeperError):
            raise result
        assert isinstance(result, str)
        return result, self._stat(result)

    async def ensure_path(self, path: str) -> None:
        await self._turn()
        if path not in self.tree.nodes:
            self.put(path)

    async def delete(self, path: str, version: int = -1) -> None:
        (result,) = await self.multi([Delete(path, version)])
        if isinstance(result, ZooKeeperError):
            raise result

    async def set(self, path: str, data: bytes | None, version: int = -1) -> Stat:
        (result,) = await self.multi([Set(path, data, version)])
        if isinstance(result, ZooKeeperError):
            raise result
        assert isinstance(result, Stat)
        return result

    async def exists(self, path: str, watch: Watcher | None = None) -> Stat | None:
        await self._turn()
        if watch is not None:
            self.tree.watch("data", path, watch)
        return self._stat(path) if path in self.tree.nodes else None

    async def get(self, path: str, watch: Watcher | None = None) -> Node:
        await self._turn()
        if path not in self.tree.nodes:
            raise NoNode(path)
        if watch is not None:
            self.tree.watch("data", path, watch)
        return Node(self.tree.nodes[path].data, self._stat(path))

    async def children(self, path: str, watch: Watcher | None = None) -> list[str]:
        await self._turn()
        if path not in self.tree.nodes:
            raise NoNode(path)
        if watch is not None:
            self.tree.watch("children", path, watch)
        return self.tree.children(path)

    async def sync(self, path: str) -> None:
        await self._turn()

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        await self._turn()
        nodes = self.tree.nodes
        return [Node(nodes[path].data, self._stat(path)) if path in nodes else None for path in paths]

    async def read_many(self, paths: Sequence[str]) -> Contents:
        nodes = await self.get_many(paths)
        return Contents(
            [None if node is None else node.data for node in nodes],
            [NO_NODE_VERSION if node is None else node.stat.version for node in nodes],
        )

    async def get_many_and_watch(self, paths: Sequence[str], watch: Watcher) -> list[Node | None]:
        found = await self.get_many(paths)
        for path in paths:
            self.tree.watch("data", path, watch)
        return found

    async def children_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        await self._turn()
        return [self.tree.children(path) if path in self.tree.nodes else None for path in paths]

    async def write_many(self, ops: Sequence[Op], fence: Fence | None = None) -> list[OpResult]:
        results: list[OpResult] = []
        checks: list[Op] = [Check(*fence)] if fence else []
        for start in range(0, len(ops), 500):
            outcome = await self.multi([*checks, *ops[start : start + 500]])
            if checks:
                check = outcome.pop(0)
                if isinstance(check, ZooKeeperError) and not isinstance(check, RuntimeInconsistency):
                    raise check
            results += outcome
        return results

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        await self._turn()
        if self.before_write is not None:
            action, self.before_write = self.before_write, None
            action()
        lost, self.lose_answer = self.lose_answer, None
        if lost == "dropped":
            raise ConnectionLoss()
        results = self._transaction(ops)
        if lost == "applied":
            raise ConnectionLoss()
        return results

    # --- inside ---

    async def _turn(self) -> None:
        await asyncio.sleep(0)
        if self.expired:
            raise SessionExpired()

    def _stat(self, path: str) -> Stat:
        return self.tree.nodes[path].stat(len(self.tree.children(path)))

    def _transaction(self, ops: Sequence[Op]) -> list[OpResult]:
        saved = {p: (n, n.data, n.version, n.mzxid) for p, n in self.tree.nodes.items()}
        writes, watches = len(self.tree.writes), dict(self.tree.watches)
        results: list[OpResult] = []
        for position, op in enumerate(ops):
            try:
                results.append(self._apply(op, self.session_id))
            except ZooKeeperError as error:
                self.tree.nodes = {p: n for p, (n, *_) in saved.items()}
                for node, data, version, mzxid in saved.values():
                    node.data, node.version, node.mzxid = data, version, mzxid
                del self.tree.writes[writes:]
                self.tree.watches = watches
                self._fired.clear()
                return [error if i == position else RuntimeInconsistency(o.path) for i, o in enumerate(ops)]
        self._flush()
        return results

    def _flush(self) -> None:
        for fired in self._fired:
            self.tree.fire(*fired)
        self._fired.clear()

    def _apply(self, op: Op, owner: int, *, quiet: bool = False) -> OpResult:
        tree, path = self.tree, op.path
        node = tree.nodes.get(path)
        tree.zxid += 1
        match op:
            case Check(_, version):
                self._expect(node, path, version)
                return None
            case Create(_, data, mode):
                parent = path.rpartition("/")[0] or "/"
                if parent not in tree.nodes:
                    raise NoNode(path)
                if node is not None:
                    raise NodeExists(path)
                tree.nodes[path] = _Node(data, tree.zxid, owner if mode is CreateMode.EPHEMERAL else 0)
                self._fired += [(WatchKind.CREATED, path, "data"), (WatchKind.CHILDREN_CHANGED, parent, "children")]
                result: OpResult = path
            case Set(_, data, version):
                known = self._expect(node, path, version)
                known.data, known.version, known.mzxid = data, known.version + 1, tree.zxid
                self._fired.append((WatchKind.DATA_CHANGED, path, "data"))
                result = self._stat(path)
            case Delete(_, version):
                self._expect(node, path, version)
                if tree.children(path):
                    raise NotEmpty(path)
                del tree.nodes[path]
                parent = path.rpartition("/")[0] or "/"
                self._fired += [(WatchKind.DELETED, path, "data"), (WatchKind.CHILDREN_CHANGED, parent, "children")]
                result = None
        if quiet:
            self._flush()
        else:
            data = (getattr(op, "data", None) or b"").decode()
            tree.writes.append(f"{type(op).__name__.lower()} {path} {data}".rstrip())
        return result

    def _expect(self, node: _Node | None, path: str, version: int) -> _Node:
        if node is None:
            raise NoNode(path)
        if version not in (-1, node.version):
            raise BadVersion(path)
        return node
