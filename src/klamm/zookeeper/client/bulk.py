"""Many operations in one request: how they are split, packed and read back. Pure, and made for 100,000 at a time.

A frame holds 500 operations or 128 KiB, whichever comes first: beyond that only the latency of other sessions grows,
their pings included (zookeeper.md section 7). Each result of a multi or multi-read begins with the same 13 bytes, be it
data (type, done, error, length), or an error (-1, done, code, code), so one unpack tells which.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from klamm.model.errors import MarshallingError, RuntimeInconsistency, ZooKeeperError
from klamm.model.ports import Check, Create, Delete, Node, Op, OpResult, Set, Stat
from klamm.zookeeper import jute
from klamm.zookeeper.client.address import Chroot
from klamm.zookeeper.jute import OpCode

FRAME_OPERATIONS: Final = 500
FRAME_BYTES: Final = 128 * 1024
NO_NODE: Final = -101

_RESULT = struct.Struct(">i?ii")
_CREATE_HEADER = jute.MULTI_HEADER.pack(OpCode.CREATE, False, -1)
_DELETE_HEADER = jute.MULTI_HEADER.pack(OpCode.DELETE, False, -1)
_SET_HEADER = jute.MULTI_HEADER.pack(OpCode.SET_DATA, False, -1)
_CHECK_HEADER = jute.MULTI_HEADER.pack(OpCode.CHECK, False, -1)


def pack_op(op: Op, chroot: Chroot) -> bytes:
    """One operation of a multi, with its header."""
    path = chroot.absolute(op.path).encode()
    sized = len(path).to_bytes(4, "big") + path
    match op:
        case Set(_, data, version):
            return b"".join((_SET_HEADER, sized, jute.pack_buffer(data), jute.INT.pack(version)))
        case Create(_, data, mode, acl):
            return b"".join((_CREATE_HEADER, sized, jute.pack_buffer(data), jute.pack_acl(acl), jute.INT.pack(mode)))
        case Delete(_, version):
            return _DELETE_HEADER + sized + jute.INT.pack(version)
        case Check(_, version):
            return _CHECK_HEADER + sized + jute.INT.pack(version)


def pack_reads(opcode: OpCode, paths: Sequence[str], chroot: Chroot) -> list[bytes]:
    """The operations of a multi-read, one per path; the watch byte is there but servers ignore it."""
    header = jute.MULTI_HEADER.pack(opcode, False, -1)
    packed = []
    for path in paths:
        raw = chroot.absolute(path).encode()
        packed.append(b"".join((header, len(raw).to_bytes(4, "big"), raw, b"\x00")))
    return packed


def split(operations: Sequence[bytes], limit: int = FRAME_OPERATIONS) -> Iterator[tuple[int, int]]:
    """Ranges [start, stop) of operations that go into one frame each."""
    start, size = 0, 0
    for index, operation in enumerate(operations):
        if index > start and (index - start == limit or size + len(operation) > FRAME_BYTES):
            yield start, index
            start, size = index, 0
        size += len(operation)
    if start < len(operations):
        yield start, len(operations)


def unpack_nodes(body: bytes, position: int, paths: Sequence[str]) -> list[Node | None]:
    """Results of a multi-read of getData. None where there is no node; any other error is raised with its path."""
    result_at, stat_at, make_stat, make_node = _RESULT.unpack_from, jute.STAT.unpack_from, tuple.__new__, tuple.__new__
    nodes: list[Node | None] = []
    append = nodes.append
    try:
        for path in paths:
            kind, _done, code, length = result_at(body, position)
            position += 13
            if kind == 4:
                if length >= 0:
                    data: bytes | None = body[position : position + length]
                    position += length
                else:
                    data = None
                append(make_node(Node, (data, make_stat(Stat, stat_at(body, position)))))
                position += 68
            elif kind == -1 and code == NO_NODE:
                append(None)
            else:
                raise _unexpected(kind, code, path)
    except struct.error as error:
        raise MarshallingError(detail="multi-read reply ends early") from error
    _expect_end(body, position)
    return nodes


def unpack_children(body: bytes, position: int, paths: Sequence[str]) -> list[list[str] | None]:
    """Results of a multi-read of getChildren."""
    reader = jute.Reader(body, position)
    listings: list[list[str] | None] = []
    for path in paths:
        kind, _done, code = reader.multi_header()
        if kind == OpCode.GET_CHILDREN:
            listings.append(reader.strings())
        elif kind == jute.MULTI_RESULT_TYPE_ERROR and code == NO_NODE:
            reader.int32()
            listings.append(None)
        else:
            raise _unexpected(kind, code, path)
    _expect_end(body, reader.position)
    return listings


def unpack_multi(body: bytes, position: int, ops: Sequence[Op], chroot: Chroot) -> list[OpResult]:
    """Results of a multi, one per operation. In a failed one each is an error: the culprit's own, and
    RuntimeInconsistency for the others, whichever side of it they are on, since nothing was applied."""
    stat_at, header_at = jute.STAT.unpack_from, jute.MULTI_HEADER.unpack_from
    results: list[OpResult] = []
    try:
        for op in ops:
            kind, _done, code = header_at(body, position)
            position += 9
            if kind == OpCode.SET_DATA:
                results.append(tuple.__new__(Stat, stat_at(body, position)))
                position += 68
            elif kind in (OpCode.CREATE, OpCode.CREATE2):
                length = jute.INT.unpack_from(body, position)[0]
                position += 4 + length
                results.append(chroot.relative(body[position - length : position].decode()))
                if kind == OpCode.CREATE2:
                    position += 68
            elif kind in (OpCode.DELETE, OpCode.CHECK):
                results.append(None)
            elif kind == jute.MULTI_RESULT_TYPE_ERROR:
                position += 4
                results.append(jute.error_for(code, op.path) if code else RuntimeInconsistency(op.path))
            else:
                raise MarshallingError(op.path, f"result of type {kind} in a multi")
    except (struct.error, UnicodeDecodeError) as error:
        raise MarshallingError(detail="multi reply ends early") from error
    _expect_end(body, position)
    return results


def _unexpected(kind: int, code: int, path: str) -> ZooKeeperError:
    if kind == jute.MULTI_RESULT_TYPE_ERROR:
        return jute.error_for(code, path)
    return MarshallingError(path, f"result of type {kind} in a multi-read")


def _expect_end(body: bytes, position: int) -> None:
    if body[position:] != jute.MULTI_END:
        raise MarshallingError(detail=f"{len(body) - position} bytes where a multi reply should end")
