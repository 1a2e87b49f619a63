"""Transactions and snapshots as bytes, as the journal writes and reads them.

A record is a length, a CRC-32 of the payload, and the payload; a snapshot is one record. An effect is a tag of one byte
and a jute record. Anything that does not decode exactly is damage.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from klamm.model.ports import Acl
from klamm.zookeeper.jute import JuteReader, pack_acl, pack_buffer, pack_string
from klamm.zookeeper.server.sessions import SessionTable
from klamm.zookeeper.server.tree import (
    AclSet,
    DataSet,
    Effect,
    NodeCreated,
    NodeDeleted,
    SessionClosed,
    SessionOpened,
    Tree,
    TreeNode,
)

FRAME: Final = struct.Struct(">QI")
"""length of the payload, its CRC-32"""
_TRANSACTION: Final = struct.Struct(">qqi")
"""zxid, time, number of effects"""
_OWNER_AND_KIND: Final = struct.Struct(">q?")
_SESSION: Final = struct.Struct(">qi")
_NODE: Final = struct.Struct(">qqqqiiiqq?")
"""czxid, mzxid, ctime, mtime, version, creations, aversion, owner, pzxid, container"""

_WRITE: Final[dict[type[Any], Callable[[Any], bytes]]] = {
    NodeCreated: lambda effect: (
        b"c"
        + pack_string(effect.path)
        + pack_buffer(effect.data)
        + pack_acl(effect.acl)
        + _OWNER_AND_KIND.pack(effect.owner, effect.container)
    ),
    NodeDeleted: lambda effect: b"d" + pack_string(effect.path),
    DataSet: lambda effect: b"s" + pack_string(effect.path) + pack_buffer(effect.data),
    AclSet: lambda effect: b"a" + pack_string(effect.path) + pack_acl(effect.acl),
    SessionOpened: lambda effect: (
        b"o" + _SESSION.pack(effect.session_id, effect.timeout_ms) + pack_buffer(effect.password)
    ),
    SessionClosed: lambda effect: b"x" + struct.pack(">q", effect.session_id),
}
_READ: Final[dict[int, Callable[[JuteReader], Effect]]] = {
    ord("c"): lambda r: NodeCreated(r.path(), r.buffer(), r.acl(), r.int64(), r.boolean()),
    ord("d"): lambda r: NodeDeleted(r.path()),
    ord("s"): lambda r: DataSet(r.path(), r.buffer()),
    ord("a"): lambda r: AclSet(r.path(), r.acl()),
    ord("o"): lambda r: SessionOpened(r.int64(), r.int32(), r.buffer() or b""),
    ord("x"): lambda r: SessionClosed(r.int64()),
}


class TransactionRecord(NamedTuple):
    zxid: int
    time_ms: int
    effects: list[Effect]


class Damaged(ValueError):
    """The bytes are not those that the journal wrote."""


def frame(payload: bytes) -> bytes:
    return FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def payload_at(data: bytes, position: int) -> bytes | None:
    """The payload of the record at `position`, or None if the data ends within it. Raises Damaged."""
    if position + FRAME.size > len(data):
        return None
    length, crc = FRAME.unpack_from(data, position)
    start = position + FRAME.size
    if start + length > len(data):
        return None
    payload = data[start : start + length]
    if not payload or zlib.crc32(payload) != crc:
        raise Damaged(f"record at byte {position} does not match its checksum")
    return payload


def pack_transaction(zxid: int, time_ms: int, effects: Sequence[Effect]) -> bytes:
    parts = [_WRITE[type(effect)](effect) for effect in effects]
    return _TRANSACTION.pack(zxid, time_ms, len(parts)) + b"".join(parts)


def unpack_transaction(payload: bytes) -> TransactionRecord:
    reader = JuteReader(payload)
    zxid, time_ms, count = reader.int64(), reader.int64(), reader.int32()
    effects: list[Effect] = []
    for _ in range(count):
        tag = payload[reader.position]
        reader.position += 1
        effects.append(_READ[tag](reader))
    if reader.remaining:
        raise Damaged(f"{reader.remaining} surplus bytes in the record of zxid {zxid:#x}")
    return TransactionRecord(zxid, time_ms, effects)


def pack_snapshot(zxid: int, tree: Tree, sessions: SessionTable[Any]) -> bytes:
    """The whole state. Nodes are in the order of the tree, where a parent precedes its children."""
    acls: dict[tuple[Acl, ...], int] = {}
    nodes: list[bytes] = []
    for path, node in tree.nodes.items():
        if path:  # the root only once, as /
            number = acls.setdefault(node.acl, len(acls))
            nodes += (pack_string(path), pack_buffer(node.data), struct.pack(">i", number), _pack_node(node))
    known = [
        _SESSION.pack(session.id, session.timeout_ms) + pack_buffer(session.password) for session in sessions.all()
    ]
    head = struct.pack(">qiii", zxid, len(known), len(acls), len(nodes) // 4)
    return b"".join([head, *known, *map(pack_acl, acls), *nodes])


def unpack_snapshot(payload: bytes, tree: Tree, sessions: SessionTable[Any], now_ms: int) -> int:
    """Fill an empty tree and session table. Returns the zxid."""
    reader = JuteReader(payload)
    zxid, session_count, acl_count, node_count = reader.int64(), reader.int32(), reader.int32(), reader.int32()
    for _ in range(session_count):
        session_id, timeout_ms, password = reader.int64(), reader.int32(), reader.buffer() or b""
        sessions.add(session_id, password, timeout_ms, now_ms)
    acls = [reader.acl() for _ in range(acl_count)]
    for _ in range(node_count):
        path, data, acl = reader.path(), reader.buffer(), acls[reader.int32()]
        node = tree.nodes.get(path)  # the root and ZooKeeper's own nodes always exist
        if node is None:
            node = TreeNode(data, acl, 0, 0, 0)
            _unpack_node(node, reader)
            tree.insert(path, node)
        else:
            node.data, node.acl = data, tree.shared_acl(acl)
            _unpack_node(node, reader)
    return zxid


def _pack_node(node: TreeNode) -> bytes:
    return _NODE.pack(
        node.czxid,
        node.mzxid,
        node.ctime_ms,
        node.mtime_ms,
        node.version,
        node.creations,
        node.aversion,
        node.owner,
        node.pzxid,
        node.container,
    )


def _unpack_node(node: TreeNode, reader: JuteReader) -> None:
    (
        node.czxid,
        node.mzxid,
        node.ctime_ms,
        node.mtime_ms,
        node.version,
        node.creations,
        node.aversion,
        node.owner,
        node.pzxid,
        node.container,
    ) = _NODE.unpack_from(reader.data, reader.position)
    reader.position += _NODE.size
