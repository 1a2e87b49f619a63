"""Requests that only read: each takes the tree, who asks and the request's body, and returns the body of the answer.

Reads do not validate paths: what is odd is not there, and the empty path is the root. A missing node leaves no watch,
except for exists. Reference: zookeeper.md sections 1.4, 2.1, 2.3 and 4.1.
"""

from __future__ import annotations

from klamm.model.errors import BadArguments, MarshallingError, NoAuth, NoNode, ZooKeeperError
from klamm.zookeeper import jute
from klamm.zookeeper.jute import OpCode, Permission, Reader
from klamm.zookeeper.server.access import Caller, permitted, require, shown_to
from klamm.zookeeper.server.tree import Node, Tree
from klamm.zookeeper.server.watches import Family, Mode, W

_RESULT_HEADER = {opcode: jute.MULTI_HEADER.pack(opcode, False, 0) for opcode in (OpCode.GET_DATA, OpCode.GET_CHILDREN)}


def readable(tree: Tree, path: str, caller: Caller) -> Node:
    node = tree.nodes.get(path)
    if node is None:
        raise NoNode(path)
    require(node.acl, Permission.READ, caller, path)
    return node


def exists(tree: Tree, caller: Caller, reader: Reader, watches: Family[W], watcher: W) -> bytes:
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


def get_data(tree: Tree, caller: Caller, reader: Reader, watches: Family[W], watcher: W) -> bytes:
    path, watch = reader.path(), reader.boolean()
    node = readable(tree, path, caller)
    if watch:
        watches.add(path, watcher, Mode.ONE_SHOT)
    return jute.pack_buffer(node.data) + node.packed_stat()


def get_children(
    tree: Tree, caller: Caller, reader: Reader, watches: Family[W], watcher: W, *, with_stat: bool
) -> bytes:
    path, watch = reader.path(), reader.boolean()
    node = readable(tree, path, caller)
    if watch:
        watches.add(path, watcher, Mode.ONE_SHOT)
    names = jute.pack_strings(list(node.children or ()))
    return names + node.packed_stat() if with_stat else names


def get_acl(tree: Tree, caller: Caller, reader: Reader) -> bytes:
    path = reader.path()
    node = tree.nodes.get(path)
    if node is None:
        raise NoNode(path)
    if not permitted(node.acl, Permission.READ | Permission.ADMIN, caller):
        raise NoAuth(path)
    return jute.pack_acl(shown_to(node.acl, caller)) + node.packed_stat()


def count_descendants(tree: Tree, caller: Caller, reader: Reader) -> bytes:
    path = reader.path()
    readable(tree, path, caller)
    prefix = path.rstrip("/") + "/"
    return jute.INT.pack(sum(1 for other in tree.nodes if other.startswith(prefix) and other != "/"))


def get_ephemerals(tree: Tree, caller: Caller, reader: Reader) -> bytes:
    prefix = reader.path()
    return jute.pack_strings([path for path in tree.ephemerals.get(caller.session_id, ()) if path.startswith(prefix)])


def who_am_i(caller: Caller) -> bytes:
    entries = [
        jute.pack_string(scheme) + jute.pack_string(id_.split(":", 1)[0] if scheme == "digest" else id_)
        for scheme, id_ in caller.identities
    ]
    return jute.INT.pack(len(entries)) + b"".join(entries)


def multi_read(tree: Tree, caller: Caller, reader: Reader) -> bytes:
    """Nothing is answered unless all of it can be decoded; then each read succeeds or fails by itself."""
    wanted: list[tuple[int, str]] = []
    while True:
        opcode, done, _error = reader.multi_header()
        if done:
            break
        if opcode not in _RESULT_HEADER:
            raise MarshallingError(detail=f"operation {opcode} in a multi-read")
        wanted.append((opcode, reader.path()))
        reader.boolean()  # a watch is not to be had here: ZooKeeper ignores it too
    parts: list[bytes] = []
    for opcode, path in wanted:
        try:
            node = readable(tree, path, caller)
        except ZooKeeperError as error:
            parts.append(jute.MULTI_ERROR.pack(jute.MULTI_RESULT_TYPE_ERROR, False, error.code, error.code))
            continue
        parts.append(_RESULT_HEADER[OpCode(opcode)])
        if opcode == OpCode.GET_DATA:
            parts.append(jute.pack_buffer(node.data))
            parts.append(node.packed_stat())
        else:
            parts.append(jute.pack_strings(list(node.children or ())))
    parts.append(jute.MULTI_END)
    return b"".join(parts)
