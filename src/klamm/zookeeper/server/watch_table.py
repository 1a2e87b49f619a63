"""The server's watches: which watcher receives which events, once or repeatedly.

There are two families, as in ZooKeeper's WatchManager. *data* watches fire when a node is created, changed or deleted,
*child* watches when its list of children changes or it is deleted. A one-shot watch is in one family, a persistent
watch in both. A recursive watch, which also covers all descendants, is in the data family only and so never reports
lists of children. A watcher receives one change only once, however many of its watches match. Watches belong to a
connection and end with it.
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


# Plain ints, for the two places that run for each changed node.
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
        """Remove `mode` from a watch. Returns whether there was anything to remove."""
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
        """The watchers of a change at `path`, in the order of their registration. Their one-shot watches end."""
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
        """Call `tell` for each watcher. The parent's CHILDREN_CHANGED is a separate event, which the tree adds."""
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
        """SetWatches: watches on nodes that changed since `zxid` fire at once, the others are registered."""
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
