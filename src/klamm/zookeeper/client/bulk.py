"""Many operations in one request: how they are split, packed and read back. Pure, and made for 100,000 at a time.

A frame holds so many operations or so many bytes, whichever comes first: beyond that only the latency of other sessions
grows, their pings included (ADR 0004). Each result of a multi or multi-read begins with the same 13 bytes, be it
data (type, done, error, length), or an error (-1, done, code, code), so one unpack tells which.
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
    """The most that goes into one request."""

    operations: int
    bytes: int


READ_FRAME: Final = FrameLimit(500, 128 * 1024)
WRITE_FRAME: Final = FrameLimit(1000, 256 * 1024)
"""Each transaction costs the server as much as a hundred sets in it, so writes come in larger ones, half as many in
flight."""

NO_NODE: Final = -101

# Plain numbers: comparing with a member of an IntEnum costs more than the rest of the loop.
_CREATE, _CREATE2, _DELETE, _GET, _SET, _CHECK = map(
    int, (OpCode.CREATE, OpCode.CREATE2, OpCode.DELETE, OpCode.GET_DATA, OpCode.SET_DATA, OpCode.CHECK)
)
_CHECK_DONE = jute.MULTI_HEADER.pack(OpCode.CHECK, False, 0)
_SET_DONE = jute.MULTI_HEADER.pack(OpCode.SET_DATA, False, 0)
_SET_RESULT = struct.Struct(">9xqqqqiiiqiiq")
_RESULT = struct.Struct(">i?ii")
_VERSION = struct.Struct(">32xi32x")
"""Of a Stat, only its version."""
_VERSION_AND_RESULT = struct.Struct(">32xi32xi?ii")
"""The same, and the beginning of the result that follows."""


class _Lengths(dict[int, bytes]):
    """Lengths as packed: few of them are different."""

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
    """Bodies of the multis that do [start, stop) of `ops`, each after `first`. Packed as they are drawn, so that the
    server works on one while the next is made, and the loop is never held for all of them."""
    head = b"".join(pack_ops(first, chroot))
    for base in range(0, len(ops), WRITE_FRAME.operations):
        batch = ops[base : base + WRITE_FRAME.operations]
        whole = pack_sets(batch, chroot, head) if isinstance(batch, Sets) else None
        if whole is not None:
            yield base, base + len(batch), whole
        else:
            yield from _bodies(base, WRITE_FRAME, head, pack_ops(batch, chroot))


def multi_reads(opcode: OpCode, paths: Sequence[str], chroot: Chroot) -> Iterator[tuple[int, int, bytes]]:
    """The same for reads."""
    for base in range(0, len(paths), READ_FRAME.operations):
        batch = paths[base : base + READ_FRAME.operations]
        whole = pack_gets(batch, chroot) if opcode is OpCode.GET_DATA else None
        if whole is not None:
            yield base, base + len(batch), whole
        else:
            yield from _bodies(base, READ_FRAME, b"", pack_reads(opcode, batch, chroot))


def _bodies(base: int, frame: FrameLimit, head: bytes, packed: Sequence[bytes]) -> Iterator[tuple[int, int, bytes]]:
    """Mostly one: `split` costs as much as the packing, so it is asked only when the bytes do not fit."""
    whole = b"".join((head, *packed, jute.MULTI_END))
    if len(whole) - len(head) - len(jute.MULTI_END) <= frame.bytes:
        yield base, base + len(packed), whole
        return
    for start, stop in split(packed, frame):
        yield base + start, base + stop, b"".join((head, *packed[start:stop], jute.MULTI_END))


def pack_ops(ops: Sequence[Op], chroot: Chroot) -> list[bytes]:
    """The operations of a multi, each with its header. Sets and creates are the many, so they are inline."""
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
    """What follows the data of a create: few are different."""
    return jute.pack_acl(acl) + jute.INT.pack(mode)


def pack_sets(sets: Sets, chroot: Chroot, head: bytes) -> bytes | None:
    """A whole multi of sets from columns. None where a path is not ASCII, or the bytes are too many for one frame.

    It is made as text and encoded once, a byte a character: joining text costs a third of joining encoded paths."""
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
    """What stands before a path, by its length, a byte a character."""

    def __init__(self, header: bytes) -> None:
        self._header = header

    def __missing__(self, length: int) -> str:
        begin = (self._header + jute.INT.pack(length)).decode("latin-1")
        if len(self) < 1024:
            self[length] = begin
        return begin


class _Follows(dict[tuple[bytes, int], str]):
    """What follows the path of a set, data and version, a byte a character. Of one batch: many say the same."""

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
    """A whole multi-read of getData, as `pack_sets` makes one of sets."""
    absolute, begins = chroot.absolute_all(paths), _GET_BEGINS
    if not "".join(absolute).isascii():
        return None
    text = "".join([f"{begins[len(path)]}{path}\0" for path in absolute])
    return text.encode("latin-1") + jute.MULTI_END if len(text) <= READ_FRAME.bytes else None


def pack_reads(opcode: OpCode, paths: Sequence[str], chroot: Chroot) -> list[bytes]:
    """The operations of a multi-read, one per path; the watch byte is there but servers ignore it."""
    header, lengths = jute.MULTI_HEADER.pack(opcode, False, -1), _LENGTHS
    raws = [path.encode() for path in chroot.absolute_all(paths)]
    return [b"%b%b%b\0" % (header, lengths[len(raw)], raw) for raw in raws]


def split(operations: Sequence[bytes], frame: FrameLimit) -> Iterator[tuple[int, int]]:
    """Ranges [start, stop) of operations that go into one frame each."""
    start, size = 0, 0
    for index, operation in enumerate(operations):
        if index > start and (index - start == frame.operations or size + len(operation) > frame.bytes):
            yield start, index
            start, size = index, 0
        size += len(operation)
    if start < len(operations):
        yield start, len(operations)


def unpack_nodes(body: bytes, position: int, paths: Sequence[str]) -> list[Node | None]:
    """Results of a multi-read of getData. None where there is no node; any other error is raised with its path."""
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
    """As `unpack_nodes`, data and version only: one unpack a node reads the version of one result and the beginning of
    the next, and none of the other numbers becomes an object."""
    padded = body + bytes(4)  # after the last result comes MULTI_END, four bytes shorter than the beginning of one
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
        raise MarshallingError(detail=f"{len(padded) - position} bytes where a multi-read reply should end")
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
    """Results of a multi, one per operation. In a failed one each is an error: the culprit's own, and
    RuntimeInconsistency for the others, whichever side of it they are on, since nothing was applied."""
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
    """Whether a multi of so many sets was done, the fence in front of them included."""
    if fenced:
        if not body.startswith(_CHECK_DONE, position):
            return False
        position += len(_CHECK_DONE)
    return _only_sets(body, position, count)


def _only_sets(body: bytes, position: int, count: int) -> bool:
    """Whether the reply is that of so many sets, all done: told by its size, and by each byte of the headers in one
    slice through all of them."""
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
        raise MarshallingError(detail=f"{len(body) - position} bytes where a multi reply should end")
