"""Watches: who is told of which change, once or again and again.

Two families, as in ZooKeeper: *data* hears of a node's creation, change and deletion, *child* of its list of children
and its deletion. One-shot watches live in one of them; a persistent one in both; a recursive one, which also hears of
every descendant, in the data family only, so it never hears of lists of children. A watcher is told of one change once,
however many of its watches match. Watches belong to a connection and end with it. Reference: zookeeper.md section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntFlag
from typing import Final, Generic, TypeVar

from klamm.model.ports import WatchKind
from klamm.zookeeper.server.tree import Event, TreeNode

W = TypeVar("W")


class Mode(IntFlag):
    ONE_SHOT = 1
    PERSISTENT = 2
    RECURSIVE = 4


# Plain ints for the two places that run once per changed node.
_ONE_SHOT: Final = int(Mode.ONE_SHOT)
_RECURSIVE: Final = int(Mode.RECURSIVE)


class Family(Generic[W]):
    """The watches of one family, by path and by watcher."""

    def __init__(self) -> None:
        self.by_path: dict[str, dict[W, int]] = {}
        self._paths: dict[W, dict[str, None]] = {}
        self._recursive = 0

    def __len__(self) -> int:
        return sum(map(len, self.by_path.values()))

    def add(self, path: str, watcher: W, mode: int) -> None:
        watchers = self.by_path.setdefault(path, {})
        before = watchers.get(watcher, 0)
        watchers[watcher] = before | mode
        self._recursive += bool(~before & mode & _RECURSIVE)
        if not before:
            self._paths.setdefault(watcher, {})[path] = None

    def has(self, path: str, watcher: W, mode: int) -> bool:
        return bool(self.by_path.get(path, {}).get(watcher, 0) & mode)

    def discard(self, path: str, watcher: W, mode: int) -> bool:
        """Take `mode` away; false if there was nothing of it."""
        watchers = self.by_path.get(path)
        before = watchers.get(watcher, 0) if watchers else 0
        if watchers is None or not before & mode:
            return False
        self._recursive -= bool(before & mode & _RECURSIVE)
        if before & ~mode:
            watchers[watcher] = before & ~mode
            return True
        del watchers[watcher]
        if not watchers:
            del self.by_path[path]
        del self._paths[watcher][path]
        return True

    def forget(self, watcher: W) -> None:
        for path in list(self._paths.get(watcher, ())):
            self.discard(path, watcher, ~0)
        self._paths.pop(watcher, None)

    def fire(self, path: str) -> dict[W, None]:
        """The watchers of a change at `path`, in the order of their registration; their one-shot watches are spent."""
        fired: dict[W, None] = {}
        watchers = self.by_path.get(path)
        if watchers:
            fired.update(dict.fromkeys(watchers))
            for watcher in fired:
                self.discard(path, watcher, _ONE_SHOT)
        if self._recursive:
            while path != "/":
                path = path[: path.rindex("/")] or "/"
                above = self.by_path.get(path)
                if above:
                    fired.update((watcher, None) for watcher, mode in above.items() if mode & _RECURSIVE)
        return fired


class WatchTable(Generic[W]):
    def __init__(self) -> None:
        self.data: Family[W] = Family()
        self.child: Family[W] = Family()

    def add_persistent(self, path: str, watcher: W) -> None:
        self.data.add(path, watcher, Mode.PERSISTENT)
        self.child.add(path, watcher, Mode.PERSISTENT)

    def add_recursive(self, path: str, watcher: W) -> None:
        self.data.add(path, watcher, Mode.RECURSIVE)

    def forget(self, watcher: W) -> None:
        self.data.forget(watcher)
        self.child.forget(watcher)

    def __len__(self) -> int:
        return len(self.data) + len(self.child)

    def fire(self, event: Event, tell: Callable[[W, WatchKind, str], None]) -> None:
        """Tell everyone concerned. The tree adds ChildrenChanged of the parent as an event of its own."""
        kind, path = event.kind, event.path
        if kind is WatchKind.CHILDREN_CHANGED:
            told = self.child.fire(path)
        else:
            told = self.data.fire(path)
            if kind is WatchKind.DELETED:
                told.update(self.child.fire(path))
        for watcher in told:
            tell(watcher, kind, path)

    def set_again(
        self,
        watcher: W,
        nodes: dict[str, TreeNode],
        zxid: int,
        *,
        data: Iterable[str],
        exist: Iterable[str],
        child: Iterable[str],
        tell: Callable[[W, WatchKind, str], None],
    ) -> None:
        """SetWatches: watches whose change came to pass since `zxid` fire at once, the others are registered."""
        for path in data:
            node = nodes.get(path)
            if node is None:
                tell(watcher, WatchKind.DELETED, path)
            elif node.mzxid > zxid:
                tell(watcher, WatchKind.DATA_CHANGED, path)
            else:
                self.data.add(path, watcher, _ONE_SHOT)
        for path in exist:
            if path in nodes:
                tell(watcher, WatchKind.CREATED, path)
            else:
                self.data.add(path, watcher, _ONE_SHOT)
        for path in child:
            node = nodes.get(path)
            if node is None:
                tell(watcher, WatchKind.DELETED, path)
            elif node.pzxid > zxid:
                tell(watcher, WatchKind.CHILDREN_CHANGED, path)
            else:
                self.child.add(path, watcher, _ONE_SHOT)
