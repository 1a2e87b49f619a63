"""Requests about watches: setWatches after a reconnect, addWatch, checkWatches and removeWatches.

Each takes the watch table, the request's body and the watcher, and returns the body of the answer.
"""

from __future__ import annotations

from typing import Final

from klamm.model.errors import MarshallingError
from klamm.model.ports import WatchEvent, WatchKind
from klamm.zookeeper import jute
from klamm.zookeeper.jute import JuteReader
from klamm.zookeeper.server.client_connection import ServedConnection
from klamm.zookeeper.server.tree import Tree
from klamm.zookeeper.server.watch_table import Family, Mode, WatchTable

Watches = WatchTable[ServedConnection]

NO_WATCHER: Final = -121
_PERSISTENT: Final = 0
_RECURSIVE: Final = 1


def set_watches(watches: Watches, tree: Tree, reader: JuteReader, watcher: ServedConnection) -> bytes:
    zxid, data, exist, child = reader.int64(), reader.strings(), reader.strings(), reader.strings()
    watches.set_again(watcher, tree.nodes, zxid, data=data, exist=exist, child=child, tell=_tell)
    return b""


def set_watches2(watches: Watches, tree: Tree, reader: JuteReader, watcher: ServedConnection) -> bytes:
    zxid, data, exist, child = reader.int64(), reader.strings(), reader.strings(), reader.strings()
    persistent, recursive = reader.strings(), reader.strings()
    watches.set_again(watcher, tree.nodes, zxid, data=data, exist=exist, child=child, tell=_tell)
    for path in persistent:
        watches.add_persistent(path, watcher)
    for path in recursive:
        watches.add_recursive(path, watcher)
    return b""


def add_watch(watches: Watches, reader: JuteReader, watcher: ServedConnection) -> bytes:
    path, mode = reader.path(), reader.int32()
    if mode == _PERSISTENT:
        watches.add_persistent(path, watcher)
    elif mode == _RECURSIVE:
        watches.add_recursive(path, watcher)
    else:
        raise MarshallingError(path, f"watch mode {mode}")
    return jute.INT.pack(0)


def check_watches(watches: Watches, reader: JuteReader, watcher: ServedConnection) -> bytes:
    path, kind = reader.path(), reader.int32()
    if not any(family.has(path, watcher, mode) for family, mode in _places_of(watches, kind)):
        raise jute.error_for(NO_WATCHER, path)
    return b""


def remove_watches(watches: Watches, reader: JuteReader, watcher: ServedConnection) -> bytes:
    path, kind = reader.path(), reader.int32()
    removed = [family.discard(path, watcher, mode) for family, mode in _places_of(watches, kind)]
    if not any(removed):
        raise jute.error_for(NO_WATCHER, path)
    return b""


def _tell(watcher: ServedConnection, kind: WatchKind, path: str) -> None:
    watcher.send(jute.event_frame(WatchEvent(kind, path)))


def _places_of(watches: Watches, kind: int) -> list[tuple[Family[ServedConnection], int]]:
    """The family and mode of a watch with this wire type."""
    data, child, every = watches.data, watches.child, ~0
    match kind:
        case 1:
            return [(child, Mode.ONE_SHOT)]
        case 2:
            return [(data, Mode.ONE_SHOT)]
        case 3:
            return [(child, every), (data, every)]
        case 4:
            return [(child, Mode.PERSISTENT), (data, Mode.PERSISTENT)]
        case 5:
            return [(data, Mode.RECURSIVE)]
    raise MarshallingError(detail=f"watch type {kind}")
