"""Checks each write against the tree, in the order of ZooKeeper's PrepRequestProcessor, and turns it into an effect.

The order of the checks is part of the contract, because the first failure is the answer: for `/a//b` the missing parent
is reported before the malformed path. Nothing here changes the tree.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from klamm.model.errors import (
    BadArguments,
    BadVersion,
    MarshallingError,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    Unimplemented,
)
from klamm.model.ports import Acl
from klamm.zookeeper.jute import INT, JuteReader, OpCode, Permission
from klamm.zookeeper.server.access import Caller, require, storable
from klamm.zookeeper.server.tree import AclSet, DataSet, NodeCreated, NodeDeleted, NodeEffect, Tree, TreeNode


class CreateNode(NamedTuple):
    opcode: int
    path: str
    data: bytes | None
    acl: tuple[Acl, ...]
    flags: int


class DeleteNode(NamedTuple):
    path: str
    version: int


class SetData(NamedTuple):
    path: str
    data: bytes | None
    version: int


class SetAcl(NamedTuple):
    path: str
    acl: tuple[Acl, ...]
    version: int


class CheckVersion(NamedTuple):
    path: str
    version: int


Operation = CreateNode | DeleteNode | SetData | SetAcl | CheckVersion

EPHEMERAL: Final = 1
SEQUENTIAL: Final = 2
CONTAINER: Final = 4
TTL_FLAGS: Final = (5, 6)
FLAG_MAX: Final = 6
INDELIBLE: Final = frozenset({"/", "/zookeeper", "/zookeeper/config", "/zookeeper/quota"})

# Java checks UTF-16 code units, so a character that needs two consists of forbidden surrogates.
_FORBIDDEN: Final = "\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff"
_PATH: Final = re.compile(rf"/|(?:/(?!\.\.?(?:/|\Z))[^/{_FORBIDDEN}]+)+")


def validate_path(path: str) -> None:
    if not _PATH.fullmatch(path):
        raise BadArguments(path)


# --- decoding --------------------------------------------------------------------------------------------------------


def _read_create(opcode: int) -> Callable[[JuteReader], CreateNode]:
    def read(reader: JuteReader) -> CreateNode:
        operation = CreateNode(opcode, reader.path(), reader.buffer(), reader.acl(), reader.int32())
        if opcode == OpCode.CREATE_TTL:
            reader.int64()  # the time to live, unused: extended types are disabled
        return operation

    return read


def _read_set_data(reader: JuteReader) -> SetData:
    """Unpacked by hand, because a multi holds hundreds: one slice for the path, one for the data."""
    data, start = bytes(reader.data), reader.position + 4
    try:
        (path_length,) = INT.unpack_from(data, start - 4)
        middle = start + path_length
        (data_length,) = INT.unpack_from(data, middle)
        end = middle + 4 + max(data_length, 0)
        (version,) = INT.unpack_from(data, end)
        if path_length < 0 or data_length < -1:
            raise MarshallingError(detail="negative length")
        reader.position = end + 4
        return SetData(data[start:middle].decode(), None if data_length < 0 else data[middle + 4 : end], version)
    except (struct.error, UnicodeDecodeError) as error:
        raise MarshallingError(detail="setData cannot be read") from error


READ_IN_MULTI: Final[dict[int, Callable[[JuteReader], Operation]]] = {
    OpCode.CREATE: _read_create(OpCode.CREATE),
    OpCode.CREATE2: _read_create(OpCode.CREATE2),
    OpCode.CREATE_CONTAINER: _read_create(OpCode.CREATE_CONTAINER),
    OpCode.CREATE_TTL: _read_create(OpCode.CREATE_TTL),
    OpCode.DELETE: lambda reader: DeleteNode(reader.path(), reader.int32()),
    OpCode.SET_DATA: _read_set_data,
    OpCode.CHECK: lambda reader: CheckVersion(reader.path(), reader.int32()),
}
READ_ALONE: Final[dict[int, Callable[[JuteReader], Operation]]] = {
    **{opcode: read for opcode, read in READ_IN_MULTI.items() if opcode != OpCode.CHECK},
    OpCode.SET_ACL: lambda reader: SetAcl(reader.path(), reader.acl(), reader.int32()),
}


def read_multi(reader: JuteReader) -> list[Operation]:
    operations: list[Operation] = []
    while True:
        opcode, done, _error = reader.multi_header()
        if done:
            return operations
        read = READ_IN_MULTI.get(opcode)
        if read is None:
            raise MarshallingError(detail=f"operation {opcode} in a multi")
        operation = read(reader)
        if type(operation) is CreateNode and not 0 <= operation.flags <= FLAG_MAX:
            raise MarshallingError(operation.path, f"create flag {operation.flags}")
        operations.append(operation)


# --- checking --------------------------------------------------------------------------------------------------------


def prepare(operation: Operation, tree: Tree, caller: Caller) -> NodeEffect | None:
    """The effect of a permitted operation. None for a check, which has no effect. Raises ZooKeeperError."""
    return _PREPARE[type(operation)](operation, tree, caller)


def _create(operation: CreateNode, tree: Tree, caller: Caller) -> NodeCreated:
    path, flags = operation.path, operation.flags
    if not 0 <= flags <= FLAG_MAX:
        raise BadArguments(path, f"create flag {flags}")
    if flags in TTL_FLAGS:
        raise Unimplemented(path, "time to live")
    slash = path.rfind("/")
    if slash < 0 or "\x00" in path:
        raise BadArguments(path)
    acl = storable(operation.acl, caller, path)
    parent = _node(tree, path[:slash])
    require(parent.acl, Permission.CREATE, caller, path)
    if flags & SEQUENTIAL and flags < CONTAINER:
        path = f"{path}{parent.creations:010d}"
    validate_path(path)
    if path in tree.nodes:
        raise NodeExists(path)
    if parent.owner:
        raise NoChildrenForEphemerals(path)
    ephemeral = flags < CONTAINER and flags & EPHEMERAL
    return NodeCreated(path, operation.data, acl, caller.session_id if ephemeral else 0, flags == CONTAINER)


def _delete(operation: DeleteNode, tree: Tree, caller: Caller) -> NodeDeleted:
    path = operation.path
    slash = path.rfind("/")
    if slash < 0 or "\x00" in path or path in INDELIBLE:
        raise BadArguments(path)
    parent = _node(tree, path[:slash])
    require(parent.acl, Permission.DELETE, caller, path)
    node = _node(tree, path)
    _require_version(operation.version, node.version, path)
    if node.children:
        raise NotEmpty(path)
    return NodeDeleted(path)


def _set_data(operation: SetData, tree: Tree, caller: Caller) -> DataSet:
    path = operation.path
    node = _valid_node(tree, path)
    require(node.acl, Permission.WRITE, caller, path)
    _require_version(operation.version, node.version, path)
    return DataSet(path, operation.data)


def _set_acl(operation: SetAcl, tree: Tree, caller: Caller) -> AclSet:
    path = operation.path
    validate_path(path)
    acl = storable(operation.acl, caller, path)
    node = _node(tree, path)
    require(node.acl, Permission.ADMIN, caller, path)
    _require_version(operation.version, node.aversion, path)
    return AclSet(path, acl)


def _check(operation: CheckVersion, tree: Tree, caller: Caller) -> None:
    path = operation.path
    node = _valid_node(tree, path)
    require(node.acl, Permission.READ, caller, path)
    _require_version(operation.version, node.version, path)


_PREPARE: Final[dict[type[Any], Callable[[Any, Tree, Caller], NodeEffect | None]]] = {
    CreateNode: _create,
    DeleteNode: _delete,
    SetData: _set_data,
    SetAcl: _set_acl,
    CheckVersion: _check,
}


def _node(tree: Tree, path: str) -> TreeNode:
    node = tree.nodes.get(path)
    if node is None:
        raise NoNode(path)
    return node


def _valid_node(tree: Tree, path: str) -> TreeNode:
    """Checks the path first, then the node. A node in the tree has a valid path, except for the root's empty name."""
    node = tree.nodes.get(path)
    if node is None or not path:
        validate_path(path)
        raise NoNode(path)
    return node


def _require_version(expected: int, actual: int, path: str) -> None:
    if expected not in (-1, actual):
        raise BadVersion(path, f"expected {expected}, is {actual}")
