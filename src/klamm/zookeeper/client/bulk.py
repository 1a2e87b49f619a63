"""Splits, packs and unpacks requests with many operations. Pure code, written for 100,000 operations at a time.

A frame has a limit of operations and a limit of bytes. Larger frames gain nothing and only delay other sessions, their
pings included (ADR 0004). Each result of a multi or multi-read starts with 13 bytes of the same layout, for data (type,
done, error, length) and for an error (-1, done, code, code), so one unpack tells which it is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from klamm.model.errors import MarshallingError, RuntimeInconsistency, ZooKeeperError
from klamm.model.ports import (
    NO_NODE_VERSION,
    Acl,
    Check,
    Contents,
    Create,
    CreateMode,
    Delete,
    Node,
    Op,
    OpResult,
    Set,
    Sets,
    Stat,
)
from klamm.zookeeper import jute
from klamm.zookeeper.client.address import Chroot
from klamm.zookeeper.jute import OpCode


class FrameLimit(NamedTuple):
    """The most that one request may hold."""

    operations: int
    bytes: int


READ_FRAME: Final = FrameLimit(500, 128 * 1024)
WRITE_FRAME: Final = FrameLimit(1000, 256 * 1024)
"""A transaction has a fixed cost, as high as that of a hundred sets in it. So write frames are larger than read frames,
and fewer are in flight."""

NO_NODE: Final = -101

# Plain ints: a comparison with an IntEnum member costs more than the rest of the loop.
_CREATE, _CREATE2, _DELETE, _GET, _SET, _CHECK = map(
    int, (OpCode.CREATE, OpCode.CREATE2, OpCode.DELETE, OpCode.GET_DATA, OpCode.SET_DATA, OpCode.CHECK)
)
_CHECK_DONE = jute.MULTI_HEADER.pack(OpCode.CHECK, False, 0)
_SET_DONE = jute.MULTI_HEADER.pack(OpCode.SET_DATA, False, 0)
_SET_RESULT = struct.Struct(">9xqqqqiiiqiiq")
_RESULT = struct.Struct(">i?ii")
_VERSION = struct.Struct(">32xi32x")
"""Only the version of a Stat."""
_VERSION_AND_RESULT = struct.Struct(">32xi32xi?ii")
"""The version of a Stat, and the start of the result that follows."""


class _Lengths(dict[int, bytes]):
    """Packed lengths; only a few distinct ones occur."""

    def __missing__(self, length: int) -> bytes:
        packed = jute.INT.pack(length)
        if len(self) < 1024:
            self[length] = packed
        return packed


_LENGTHS: Final = _Lengths()
_CREATE_HEADER = jute.MULTI_HEADER.pack(OpCode.CREATE, False, -1)
_DELETE_HEADER = jute.MULTI_HEADER.pack(OpCode.DELETE, False, -1)
_SET_HEADER = jute.MULTI_HEADER.pack(OpCode.SET_DATA, False, -1)
_CHECK_HEADER = jute.MULTI_HEADER.pack(OpCode.CHECK, False, -1)


def multis(ops: Sequence[Op], chroot: Chroot, first: Sequence[Op] = ()) -> Iterator[tuple[int, int, bytes]]:
    """Yields (start, stop, body) for each multi: its body does `first`, then `ops[start:stop]`. Each body is packed
    only when the caller asks for it, so the server works on one while the next is packed, and the loop is never blocked
    for long."""
    head = b"".join(pack_ops(first, chroot))
    for base in range(0, len(ops), WRITE_FRAME.operations):
        batch = ops[base : base + WRITE_FRAME.operations]
        whole = pack_sets(batch, chroot, head) if isinstance(batch, Sets) else None
        if whole is not None:
            yield base, base + len(batch), whole
        else:
            yield from _bodies(base, WRITE_FRAME, head, pack_ops(batch, chroot))


def multi_reads(opcode: OpCode, paths: Sequence[str], chroot: Chroot) -> Iterator[tuple[int, int, bytes]]:
    """As `multis`, for reads."""
    for base in range(0, len(paths), READ_FRAME.operations):
        batch = paths[base : base + READ_FRAME.operations]
        whole = pack_gets(batch, chroot) if opcode is OpCode.GET_DATA else None
        if whole is not None:
            yield base, base + len(batch), whole
        else:
            yield from _bodies(base, READ_FRAME, b"", pack_reads(opcode, batch, chroot))


def _bodies(base: int, frame: FrameLimit, head: bytes, packed: Sequence[bytes]) -> Iterator[tuple[int, int, bytes]]:
    """Usually one body. `split` costs as much as the packing, so it runs only when the bytes do not fit."""
    whole = b"".join((head, *packed, jute.MULTI_END))
    if len(whole) - len(head) - len(jute.MULTI_END) <= frame.bytes:
        yield base, base + len(packed), whole
        return
    for start, stop in split(packed, frame):
        yield base + start, base + stop, b"".join((head, *packed[start:stop], jute.MULTI_END))


def pack_ops(ops: Sequence[Op], chroot: Chroot) -> list[bytes]:
    """The operations of a multi, each with its header. Sets and creates, the most frequent, are packed inline."""
    prefix, lengths, pack_version, join = chroot.prefix, _LENGTHS, jute.INT.pack, b"".join
    packed: list[bytes] = []
    append = packed.append
    for op in ops:
        if type(op) is Set:
            path, data, version = op
            if data is not None and path[:1] == "/" != path:
                raw = (prefix + path).encode()
                append(join((_SET_HEADER, lengths[len(raw)], raw, lengths[len(data)], data, pack_version(version))))
                continue
        elif type(op) is Create and op.path[:1] == "/" != op.path:
            raw, rest = (prefix + op.path).encode(), _create_rest(op.acl, op.mode)
            append(join((_CREATE_HEADER, lengths[len(raw)], raw, jute.pack_buffer(op.data), rest)))
            continue
        append(_pack_any(op, chroot))
    return packed


@lru_cache(maxsize=256)
def _create_rest(acl: tuple[Acl, ...], mode: CreateMode) -> bytes:
    """The part of a create after its data; only a few distinct ones occur."""
    return jute.pack_acl(acl) + jute.INT.pack(mode)


def pack_sets(sets: Sets, chroot: Chroot, head: bytes) -> bytes | None:
    """Packs a whole multi of sets from columns. None if a path is not ASCII or one frame cannot hold the bytes.

    It builds text with one character per byte and encodes it once: joining text costs a third of joining bytes."""
    paths = chroot.absolute_all(sets.paths)
    if not "".join(paths).isascii():
        return None
    begins, follows = _SET_BEGINS, _Follows()
    text = "".join(
        [
            f"{begins[len(path)]}{path}{follows[said]}"
            for path, said in zip(paths, zip(sets.data, sets.versions, strict=True), strict=True)
        ]
    )
    return head + text.encode("latin-1") + jute.MULTI_END if len(text) <= WRITE_FRAME.bytes else None


class _Begins(dict[int, str]):
    """The bytes before a path, by the length of the path, as text with one character per byte."""

    def __init__(self, header: bytes) -> None:
        self._header = header

    def __missing__(self, length: int) -> str:
        begin = (self._header + jute.INT.pack(length)).decode("latin-1")
        if len(self) < 1024:
            self[length] = begin
        return begin


class _Follows(dict[tuple[bytes, int], str]):
    """Data and version after the path of a set, as text with one character per byte. Many sets of a batch share one."""

    def __missing__(self, said: tuple[bytes, int]) -> str:
        data, version = said
        packed = self[said] = (jute.pack_buffer(data) + jute.INT.pack(version)).decode("latin-1")
        return packed


_SET_BEGINS: Final = _Begins(_SET_HEADER)
_GET_BEGINS: Final = _Begins(jute.MULTI_HEADER.pack(OpCode.GET_DATA, False, -1))


def _pack_any(op: Op, chroot: Chroot) -> bytes:
    path = chroot.absolute(op.path)
    match op:
        case Set(_, data, version):
            return _SET_HEADER + jute.pack_set_data(path, data, version)
        case Create(_, data, mode, acl):
            return _CREATE_HEADER + jute.pack_create(path, data, acl, mode)
        case Delete(_, version):
            return _DELETE_HEADER + jute.pack_path_and_version(path, version)
        case Check(_, version):
            return _CHECK_HEADER + jute.pack_path_and_version(path, version)


def pack_gets(paths: Sequence[str], chroot: Chroot) -> bytes | None:
    """Packs a whole multi-read of getData, as `pack_sets` packs a multi."""
    absolute, begins = chroot.absolute_all(paths), _GET_BEGINS
    if not "".join(absolute).isascii():
        return None
    text = "".join([f"{begins[len(path)]}{path}\0" for path in absolute])
    return text.encode("latin-1") + jute.MULTI_END if len(text) <= READ_FRAME.bytes else None


def pack_reads(opcode: OpCode, paths: Sequence[str], chroot: Chroot) -> list[bytes]:
    """The operations of a multi-read, one per path. Servers ignore the watch byte in them."""
    header, lengths = jute.MULTI_HEADER.pack(opcode, False, -1), _LENGTHS
    raws = [path.encode() for path in chroot.absolute_all(paths)]
    return [b"%b%b%b\0" % (header, lengths[len(raw)], raw) for raw in raws]


def split(operations: Sequence[bytes], frame: FrameLimit) -> Iterator[tuple[int, int]]:
    """Ranges [start, stop) of operations, one per frame."""
    start, size = 0, 0
    for index, operation in enumerate(operations):
        if index > start and (index - start == frame.operations or size + len(operation) > frame.bytes):
            yield start, index
            start, size = index, 0
        size += len(operation)
    if start < len(operations):
        yield start, len(operations)


def unpack_nodes(body: bytes, position: int, paths: Sequence[str]) -> list[Node | None]:
    """Results of a multi-read of getData. None where a node does not exist; any other error is raised with its path."""
    result_at, stat_at, make = _RESULT.unpack_from, jute.STAT.unpack_from, tuple.__new__
    nodes: list[Node | None] = []
    append = nodes.append
    try:
        for path in paths:
            kind, _done, code, length = result_at(body, position)
            position += 13
            if kind == _GET:
                if length >= 0:
                    data: bytes | None = body[position : position + length]
                    position += length
                else:
                    data = None
                append(make(Node, (data, make(Stat, stat_at(body, position)))))
                position += 68
            elif kind == -1 and code == NO_NODE:
                append(None)
            else:
                raise _unexpected(kind, code, path)
    except struct.error as error:
        raise MarshallingError(detail="multi-read reply ends early") from error
    _expect_end(body, position)
    return nodes


def unpack_contents(body: bytes, position: int, paths: Sequence[str]) -> Contents:
    """As `unpack_nodes`, but only data and version. One unpack per node reads the version of one result and the start
    of the next, and creates no objects for the other numbers."""
    padded = body + bytes(4)  # MULTI_END follows the last result and is four bytes shorter than the start of a result
    result_at, version_and_result_at = _RESULT.unpack_from, _VERSION_AND_RESULT.unpack_from
    contents = Contents([], [])
    found, seen = contents.data.append, contents.versions.append
    try:
        kind, done, code, length = result_at(padded, position)
        position += 13
        for path in paths:
            if kind == _GET:
                end = position + length if length >= 0 else position
                found(padded[position:end] if length >= 0 else None)
                version, kind, done, code, length = version_and_result_at(padded, end)
                seen(version)
                position = end + 81
            elif kind == -1 and code == NO_NODE:
                found(None)
                seen(NO_NODE_VERSION)
                kind, done, code, length = result_at(padded, position)
                position += 13
            else:
                raise _unexpected(kind, code, path)
    except struct.error as error:
        raise MarshallingError(detail="multi-read reply ends early") from error
    if not (kind == -1 and done and code == -1 and position == len(padded)):
        raise MarshallingError(detail=f"{len(padded) - position} bytes left at the end of a multi-read reply")
    return contents


def unpack_children(body: bytes, position: int, paths: Sequence[str]) -> list[list[str] | None]:
    """Results of a multi-read of getChildren."""
    reader = jute.JuteReader(body, position)
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
    """Results of a multi, one per operation. In a failed multi every result is an error: the failed operation's own,
    and RuntimeInconsistency for those before and after it, because none was applied."""
    stat_at, header_at = jute.STAT.unpack_from, jute.MULTI_HEADER.unpack_from
    results: list[OpResult] = []
    if ops and type(ops[0]) is Check and body.startswith(_CHECK_DONE, position):  # the fence
        results.append(None)
        ops, position = ops[1:], position + len(_CHECK_DONE)
    if _only_sets(body, position, len(ops)):
        make, stats = tuple.__new__, memoryview(body)[position : -len(jute.MULTI_END)]
        results += [make(Stat, stat) for stat in _SET_RESULT.iter_unpack(stats)]
        return results
    try:
        for op in ops:
            kind, _done, code = header_at(body, position)
            position += 9
            if kind == _SET:
                results.append(tuple.__new__(Stat, stat_at(body, position)))
                position += 68
            elif kind in (_CREATE, _CREATE2):
                length = jute.INT.unpack_from(body, position)[0]
                position += 4 + length
                results.append(chroot.relative(body[position - length : position].decode()))
                if kind == _CREATE2:
                    position += 68
            elif kind in (_DELETE, _CHECK):
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


def all_set(body: bytes, position: int, count: int, *, fenced: bool) -> bool:
    """Whether a multi of `count` sets succeeded, including the fence in front of them."""
    if fenced:
        if not body.startswith(_CHECK_DONE, position):
            return False
        position += len(_CHECK_DONE)
    return _only_sets(body, position, count)


def _only_sets(body: bytes, position: int, count: int) -> bool:
    """Whether the reply says that `count` sets succeeded. It checks the size, and each byte of the result headers by
    one strided slice."""
    size, end = _SET_RESULT.size, len(body) - len(jute.MULTI_END)
    return (
        end - position == count * size
        and body.endswith(jute.MULTI_END)
        and all(body[position + at : end : size] == bytes((byte,)) * count for at, byte in enumerate(_SET_DONE))
    )


def _unexpected(kind: int, code: int, path: str) -> ZooKeeperError:
    if kind == jute.MULTI_RESULT_TYPE_ERROR:
        return jute.error_for(code, path)
    return MarshallingError(path, f"result of type {kind} in a multi-read")


def _expect_end(body: bytes, position: int) -> None:
    if body[position:] != jute.MULTI_END:
        raise MarshallingError(detail=f"{len(body) - position} bytes left at the end of a multi reply")
