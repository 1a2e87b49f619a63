"""Requests that only read: each takes the tree, the caller and the request's body, and returns the answer's body.

As in ZooKeeper, reads do not validate paths: a malformed path names a node that does not exist, and the empty path is
the root. A read of a missing node sets no watch, except exists.
"""

from __future__ import annotations

import struct
from typing import Final

from klamm.model.errors import BadArguments, MarshallingError, NoAuth, NoNode
from klamm.zookeeper import jute
from klamm.zookeeper.jute import JuteReader, OpCode, Permission
from klamm.zookeeper.server.access import Caller, permitted, require, shown_to
from klamm.zookeeper.server.tree import Tree, TreeNode
from klamm.zookeeper.server.watch_table import Family, Mode, W

_GET_DATA: Final = int(OpCode.GET_DATA)
_GET_CHILDREN: Final = int(OpCode.GET_CHILDREN)
_HEADER_AND_LENGTH: Final = struct.Struct(">i?ii")
"""The header of one operation, and the length of the path or data after it."""


def readable(tree: Tree, path: str, caller: Caller) -> TreeNode:
    node = tree.nodes.get(path)
    if node is None:
        raise NoNode(path)
    require(node.acl, Permission.READ, caller, path)
    return node


def exists(tree: Tree, caller: Caller, reader: JuteReader, watches: Family[W], watcher: W) -> bytes:
    path, watch = reader.path(), reader.boolean()
    if "\x00" in path:
        raise BadArguments(path)
    node = tree.nodes.get(path)
    if node is not None:
        require(node.acl, Permission.READ, caller, path)
    if watch:
        watches.add(path, watcher, Mode.ONE_SHOT)
    if node is None:
        raise NoNode(path)
    return node.packed_stat()


def get_data(tree: Tree, caller: Caller, reader: JuteReader, watches: Family[W], watcher: W) -> bytes:
    path, watch = reader.path(), reader.boolean()
    node = readable(tree, path, caller)
    if watch:
        watches.add(path, watcher, Mode.ONE_SHOT)
    return jute.pack_buffer(node.data) + node.packed_stat()


def get_children(
    tree: Tree, caller: Caller, reader: JuteReader, watches: Family[W], watcher: W, *, with_stat: bool
) -> bytes:
    path, watch = reader.path(), reader.boolean()
    node = readable(tree, path, caller)
    if watch:
        watches.add(path, watcher, Mode.ONE_SHOT)
    names = jute.pack_strings(list(node.children or ()))
    return names + node.packed_stat() if with_stat else names


def get_acl(tree: Tree, caller: Caller, reader: JuteReader) -> bytes:
    path = reader.path()
    node = tree.nodes.get(path)
    if node is None:
        raise NoNode(path)
    if not permitted(node.acl, Permission.READ | Permission.ADMIN, caller):
        raise NoAuth(path)
    return jute.pack_acl(shown_to(node.acl, caller)) + node.packed_stat()


def count_descendants(tree: Tree, caller: Caller, reader: JuteReader) -> bytes:
    path = reader.path()
    readable(tree, path, caller)
    prefix = path.rstrip("/") + "/"
    return jute.INT.pack(sum(1 for other in tree.nodes if other.startswith(prefix) and other != "/"))


def get_ephemerals(tree: Tree, caller: Caller, reader: JuteReader) -> bytes:
    prefix = reader.path()
    return jute.pack_strings([path for path in tree.ephemerals.get(caller.session_id, ()) if path.startswith(prefix)])


def who_am_i(caller: Caller) -> bytes:
    entries = [
        jute.pack_string(scheme) + jute.pack_string(id_.split(":", 1)[0] if scheme == "digest" else id_)
        for scheme, id_ in caller.identities
    ]
    return jute.INT.pack(len(entries)) + b"".join(entries)


def multi_read(tree: Tree, caller: Caller, reader: JuteReader) -> bytes:
    """Fails as a whole if it cannot be decoded. Otherwise each read succeeds or fails by itself."""
    nodes = tree.nodes
    pack = _HEADER_AND_LENGTH.pack
    parts: list[bytes] = []
    for opcode, path in _wanted(reader):
        node = nodes.get(path)
        if node is None or not permitted(node.acl, Permission.READ, caller):
            code = NoNode.code if node is None else NoAuth.code
            parts.append(jute.MULTI_ERROR.pack(jute.MULTI_RESULT_TYPE_ERROR, False, code, code))
        elif opcode == _GET_DATA:
            data = node.data
            parts += (pack(opcode, False, 0, -1 if data is None else len(data)), data or b"", node.packed_stat())
        else:
            names = list(node.children or ())
            parts.append(jute.MULTI_HEADER.pack(opcode, False, 0) + jute.pack_strings(names))
    parts.append(jute.MULTI_END)
    return b"".join(parts)


def _wanted(reader: JuteReader) -> list[tuple[int, str]]:
    """The opcodes and paths. It unpacks the bytes itself, because hundreds come at once. It skips the watch bytes,
    which ZooKeeper ignores too."""
    data, position = bytes(reader.data), reader.position
    unpack, head = _HEADER_AND_LENGTH.unpack_from, _HEADER_AND_LENGTH.size
    wanted: list[tuple[int, str]] = []
    try:
        while len(data) - position >= head:
            opcode, done, _error, length = unpack(data, position)
            if done:
                return wanted
            if opcode not in (_GET_DATA, _GET_CHILDREN):
                raise MarshallingError(detail=f"operation {opcode} in a multi-read")
            start = position + head
            position = start + length + 1
            if length < 0 or position > len(data):
                raise MarshallingError(detail=f"path of {length} bytes")
            wanted.append((opcode, data[start : position - 1].decode()))
    except UnicodeDecodeError as error:
        raise MarshallingError(detail="a path is not UTF-8") from error
    reader.position = position
    _opcode, done, _error = reader.multi_header()
    if not done:
        raise MarshallingError(detail="a multi-read ends within an operation")
    return wanted
