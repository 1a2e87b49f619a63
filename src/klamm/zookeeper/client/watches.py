"""The watches of a session, each with the zxid at which its owner read the node.

A watch belongs to the connection, so the client sets all watches again after a reconnect. SetWatches carries a zxid,
and the server fires every watch whose node changed after it. For each path the right zxid is that of the reply that
told the owner about the node. The session's last zxid would be wrong: other replies have moved it past changes that the
owner has not seen. A smaller zxid is always safe; it only makes more watches fire.

A watch is registered when the reply of the read arrives, in order with the events, and not when the coroutine that
awaits the reply wakes up: an event may follow in the same packet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from klamm.model.errors import NoNode
from klamm.model.ports import Watcher, WatchEvent, WatchKind
from klamm.zookeeper import jute
from klamm.zookeeper.client.connection import OnReply

FRAME_BYTES: Final = 128 * 1024
EXACT_GROUPS: Final = 256
"""Up to this many distinct zxids, each zxid gets its own frame. Beyond that, neighbours share the smaller zxid."""


class _Watch(NamedTuple):
    zxid: int
    watchers: tuple[Watcher, ...]

    def joined_by(self, zxid: int, watcher: Watcher) -> _Watch:
        # No event has come since the older registration, so the node did not change up to the newer reply. But the
        # older one may still be on its way to the server (SetWatches), so only the smaller zxid is always right.
        watchers = self.watchers if watcher in self.watchers else (*self.watchers, watcher)
        return _Watch(min(self.zxid, zxid), watchers)


_Table = dict[str, _Watch]


class WatchRegistry:
    """Keyed by absolute path and kind, so a reconnect never doubles a watcher."""

    def __init__(self) -> None:
        self._data: _Table = {}
        self._exist: _Table = {}
        self._child: _Table = {}

    def __len__(self) -> int:
        return len(self._data) + len(self._exist) + len(self._child)

    def add_data(self, paths: Iterable[str], watcher: Watcher, zxid: int, *, exists: bool) -> None:
        """A data watch if the node exists, otherwise a watch for its creation. SetWatches lists the two separately."""
        self._add(self._data if exists else self._exist, paths, watcher, zxid)

    def add_child(self, path: str, watcher: Watcher, zxid: int) -> None:
        self._add(self._child, (path,), watcher, zxid)

    @staticmethod
    def _add(table: _Table, paths: Iterable[str], watcher: Watcher, zxid: int) -> None:
        """All new watches of a call share one object, because there may be very many."""
        new = _Watch(zxid, (watcher,))
        for path in paths:
            watch = table.setdefault(path, new)
            if watch is not new:
                table[path] = watch.joined_by(zxid, watcher)

    # Called with zxid and error code when the reply of a read arrives.

    def on_exists(self, path: str, watcher: Watcher | None) -> OnReply | None:
        """Also for a node that does not exist: then the watch is for its creation."""

        def register(zxid: int, code: int) -> None:
            if code in (0, NoNode.code) and watcher is not None:
                self.add_data((path,), watcher, zxid, exists=code == 0)

        return None if watcher is None else register

    def on_get(self, path: str, watcher: Watcher | None) -> OnReply | None:
        def register(zxid: int, code: int) -> None:
            if code == 0 and watcher is not None:
                self.add_data((path,), watcher, zxid, exists=True)

        return None if watcher is None else register

    def on_children(self, path: str, watcher: Watcher | None) -> OnReply | None:
        def register(zxid: int, code: int) -> None:
            if code == 0 and watcher is not None:
                self.add_child(path, watcher, zxid)

        return None if watcher is None else register

    def take(self, event: WatchEvent) -> list[Watcher]:
        """Remove and return the watchers to call for an event. A deletion ends data watches and child watches."""
        tables: tuple[_Table, ...]
        match event.kind:
            case WatchKind.CREATED | WatchKind.DATA_CHANGED:
                tables = (self._data, self._exist)
            case WatchKind.DELETED:
                tables = (self._data, self._exist, self._child)
            case WatchKind.CHILDREN_CHANGED:
                tables = (self._child,)
        fired: list[Watcher] = []
        for table in tables:
            watch = table.pop(event.path, None)
            if watch is not None:
                fired += [watcher for watcher in watch.watchers if watcher not in fired]
        return fired

    def clear(self) -> None:
        self._data.clear()
        self._exist.clear()
        self._child.clear()

    def set_watches(self) -> Iterator[bytes]:
        """Bodies of the SetWatches requests that set all watches again. Each is small enough for any server."""
        tables = (self._data, self._exist, self._child)
        entries = [(watch.zxid, path, kind) for kind, table in enumerate(tables) for path, watch in table.items()]
        entries.sort()
        merge = len({zxid for zxid, _, _ in entries}) > EXACT_GROUPS
        group: tuple[list[str], list[str], list[str]] = ([], [], [])
        group_zxid, group_bytes = 0, 0
        for zxid, path, kind in entries:
            size = 4 + len(path.encode())
            if group_bytes and (group_bytes + size > FRAME_BYTES or (zxid != group_zxid and not merge)):
                yield jute.pack_set_watches(group_zxid, *group)
                group, group_bytes = ([], [], []), 0
            if not group_bytes:
                group_zxid = zxid
            group[kind].append(path)
            group_bytes += size
        if group_bytes:
            yield jute.pack_set_watches(group_zxid, *group)
