"""ZooKeeper's wire format (jute): primitives, headers and records for both ends of a connection, without IO.

Everything is big-endian. A record is just its fields in order; a frame is a length (not counting itself) and a payload.
Null and empty are different for buffers, strings and vectors. Packing returns `bytes` to be joined. Unpacking uses
`JuteReader`, which raises MarshallingError for anything that does not fit, and never allocates for a count that the
remaining bytes cannot hold.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from klamm.model import errors
from klamm.model.ports import Acl, Stat, WatchEvent, WatchKind

DEFAULT_MAX_FRAME: Final = 1_048_575
"""The largest request that a server accepts (`jute.maxbuffer`). Replies may have any size."""
MAX_XID: Final = 2**31 - 1

XID_EVENT: Final = -1
XID_PING: Final = -2
XID_AUTH: Final = -4
XID_SET_WATCHES: Final = -8

STATE_CONNECTED: Final = 3
"""The state that every watch event carries."""


class OpCode(IntEnum):
    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    SET_ACL = 7
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    RECONFIG = 16
    CHECK_WATCHES = 17
    REMOVE_WATCHES = 18
    CREATE_CONTAINER = 19
    DELETE_CONTAINER = 20
    CREATE_TTL = 21
    MULTI_READ = 22
    AUTH = 100
    SET_WATCHES = 101
    SASL = 102
    GET_EPHEMERALS = 103
    GET_ALL_CHILDREN_NUMBER = 104
    SET_WATCHES2 = 105
    ADD_WATCH = 106
    WHO_AM_I = 107
    CLOSE_SESSION = -11


class Permission(IntEnum):
    READ = 1
    WRITE = 2
    CREATE = 4
    DELETE = 8
    ADMIN = 16
    ALL = 31


# --- layouts ---------------------------------------------------------------------------------------------------------

INT: Final = struct.Struct(">i")
LONG: Final = struct.Struct(">q")
STAT: Final = struct.Struct(">qqqqiiiqiiq")
REQUEST_HEADER: Final = struct.Struct(">ii")
"""xid, opcode"""
REPLY_HEADER: Final = struct.Struct(">iqi")
"""xid, zxid, error code"""
MULTI_HEADER: Final = struct.Struct(">i?i")
"""opcode, done, error code"""
MULTI_END: Final = MULTI_HEADER.pack(-1, True, -1)
MULTI_ERROR: Final = struct.Struct(">i?ii")
"""The result of a failed operation: a header of type -1 with the code, and the code again as the body."""
MULTI_RESULT_TYPE_ERROR: Final = -1


# --- packing ---------------------------------------------------------------------------------------------------------


def pack_buffer(data: bytes | None) -> bytes:
    return b"\xff\xff\xff\xff" if data is None else INT.pack(len(data)) + data


def pack_string(text: str | None) -> bytes:
    return pack_buffer(None if text is None else text.encode())


def pack_strings(texts: Sequence[str]) -> bytes:
    pack, parts = INT.pack, [INT.pack(len(texts))]
    for text in texts:
        raw = text.encode()
        parts += (pack(len(raw)), raw)
    return b"".join(parts)


def pack_stat(stat: Stat) -> bytes:
    return STAT.pack(*stat)


def pack_acl(acl: Iterable[Acl]) -> bytes:
    entries = [INT.pack(perms) + pack_string(scheme) + pack_string(id_) for perms, scheme, id_ in acl]
    return INT.pack(len(entries)) + b"".join(entries)


def pack_path_and_watch(path: str, watch: bool) -> bytes:
    """Body of exists, getData, getChildren and getChildren2."""
    return pack_string(path) + (b"\x01" if watch else b"\x00")


def pack_create(path: str, data: bytes | None, acl: Iterable[Acl], flags: int) -> bytes:
    return pack_string(path) + pack_buffer(data) + pack_acl(acl) + INT.pack(flags)


def pack_path_and_version(path: str, version: int) -> bytes:
    """Body of delete and check."""
    return pack_string(path) + INT.pack(version)


def pack_set_data(path: str, data: bytes | None, version: int) -> bytes:
    return pack_string(path) + pack_buffer(data) + INT.pack(version)


def pack_set_watches(zxid: int, data: Sequence[str], exist: Sequence[str], child: Sequence[str]) -> bytes:
    return LONG.pack(zxid) + pack_strings(data) + pack_strings(exist) + pack_strings(child)


def pack_auth(scheme: str, credential: bytes) -> bytes:
    return INT.pack(0) + pack_string(scheme) + pack_buffer(credential)


def frame(*parts: bytes) -> bytes:
    payload = b"".join(parts)
    return INT.pack(len(payload)) + payload


def request_frame(xid: int, opcode: int, body: bytes = b"") -> bytes:
    return INT.pack(len(body) + 8) + REQUEST_HEADER.pack(xid, opcode) + body


def reply_frame(xid: int, zxid: int, error: int, body: bytes = b"") -> bytes:
    return INT.pack(len(body) + 16) + REPLY_HEADER.pack(xid, zxid, error) + body


def event_frame(event: WatchEvent, zxid: int = -1) -> bytes:
    body = REQUEST_HEADER.pack(event.kind, STATE_CONNECTED) + pack_string(event.path)
    return reply_frame(XID_EVENT, zxid, 0, body)


# --- unpacking -------------------------------------------------------------------------------------------------------


class JuteReader:
    """Reads one payload from a position on. Every method consumes what it returns."""

    __slots__ = ("data", "position")

    def __init__(self, data: bytes | bytearray | memoryview, position: int = 0) -> None:
        self.data = data
        self.position = position

    @property
    def remaining(self) -> int:
        return len(self.data) - self.position

    def _take(self, layout: struct.Struct) -> tuple[int, ...]:
        try:
            values = layout.unpack_from(self.data, self.position)
        except struct.error as error:
            raise errors.MarshallingError(detail=f"{layout.size} bytes expected, {self.remaining} left") from error
        self.position += layout.size
        return values

    def int32(self) -> int:
        return self._take(INT)[0]

    def int64(self) -> int:
        return self._take(LONG)[0]

    def boolean(self) -> bool:
        if self.remaining < 1:
            raise errors.MarshallingError(detail="a boolean expected, nothing left")
        self.position += 1
        return self.data[self.position - 1] != 0

    def buffer(self) -> bytes | None:
        length = self.int32()
        if length == -1:
            return None
        if not 0 <= length <= self.remaining:
            raise errors.MarshallingError(detail=f"buffer of {length} bytes, {self.remaining} left")
        start = self.position
        self.position += length
        return bytes(self.data[start : self.position])

    def string(self) -> str | None:
        raw = self.buffer()
        try:
            return None if raw is None else raw.decode()
        except UnicodeDecodeError as error:
            raise errors.MarshallingError(detail="a string is not UTF-8") from error

    def path(self) -> str:
        text = self.string()
        if text is None:
            raise errors.MarshallingError(detail="a path is null")
        return text

    def count(self, smallest_item: int) -> int:
        """The length of a vector. Refuses null, and a length that the remaining bytes cannot hold."""
        count = self.int32()
        if count < 0 or count * smallest_item > self.remaining:
            raise errors.MarshallingError(detail=f"vector of {count} items in {self.remaining} bytes")
        return count

    def strings(self) -> list[str]:
        return [self.path() for _ in range(self.count(4))]

    def acl(self) -> tuple[Acl, ...]:
        """Null counts as empty: a server refuses both with InvalidAcl, not as malformed."""
        if self.remaining >= 4 and INT.unpack_from(self.data, self.position)[0] == -1:
            self.position += 4
            return ()
        return tuple([Acl(self.int32(), self.string() or "", self.string() or "") for _ in range(self.count(12))])

    def stat(self) -> Stat:
        return Stat._make(self._take(STAT))

    def multi_header(self) -> tuple[int, bool, int]:
        """opcode, done, error code"""
        opcode, done, error = self._take(MULTI_HEADER)
        return opcode, bool(done), error

    def watch_event(self) -> WatchEvent:
        kind, _state = self._take(REQUEST_HEADER)
        try:
            return WatchEvent(WatchKind(kind), self.path())
        except ValueError as error:
            raise errors.MarshallingError(detail=f"watch event of type {kind}") from error


# --- connect ---------------------------------------------------------------------------------------------------------

PASSWORD_BYTES: Final = 16
NO_PASSWORD: Final = bytes(PASSWORD_BYTES)


class ConnectRequest(NamedTuple):
    last_zxid_seen: int
    timeout_ms: int
    session_id: int = 0
    password: bytes = NO_PASSWORD
    read_only: bool | None = False
    """None if the byte is absent, as from clients before 3.4. Then the response has no such byte either."""

    def pack(self) -> bytes:
        head = struct.pack(">iqiq", 0, self.last_zxid_seen, self.timeout_ms, self.session_id)
        return head + pack_buffer(self.password) + _optional_boolean(self.read_only)

    @classmethod
    def unpack(cls, payload: bytes | bytearray | memoryview) -> ConnectRequest:
        reader = JuteReader(payload)
        _protocol, last_zxid, timeout_ms, session_id = reader.int32(), reader.int64(), reader.int32(), reader.int64()
        password = reader.buffer() or b""
        return cls(last_zxid, timeout_ms, session_id, password, reader.boolean() if reader.remaining else None)


class ConnectResponse(NamedTuple):
    timeout_ms: int
    """0 if the session does not exist or the password is wrong."""
    session_id: int
    password: bytes
    read_only: bool | None = False

    def pack(self) -> bytes:
        head = struct.pack(">iiq", 0, self.timeout_ms, self.session_id)
        return head + pack_buffer(self.password) + _optional_boolean(self.read_only)

    @classmethod
    def unpack(cls, payload: bytes | bytearray | memoryview) -> ConnectResponse:
        reader = JuteReader(payload)
        _protocol, timeout_ms, session_id = reader.int32(), reader.int32(), reader.int64()
        password = reader.buffer() or b""
        return cls(timeout_ms, session_id, password, reader.boolean() if reader.remaining else None)


def _optional_boolean(value: bool | None) -> bytes:
    return b"" if value is None else bytes([value])


# --- errors ----------------------------------------------------------------------------------------------------------

_ERRORS: Final[dict[int, type[errors.ZooKeeperError]]] = {
    error.code: error
    for error in (
        errors.RuntimeInconsistency,
        errors.ConnectionLoss,
        errors.MarshallingError,
        errors.Unimplemented,
        errors.BadArguments,
        errors.NoNode,
        errors.NoAuth,
        errors.BadVersion,
        errors.NoChildrenForEphemerals,
        errors.NodeExists,
        errors.NotEmpty,
        errors.SessionExpired,
        errors.InvalidAcl,
        errors.AuthFailed,
    )
}
_OTHER_CODES: Final = {
    -1: "system error",
    -3: "data inconsistency",
    -13: "reconfiguration has no quorum",
    -14: "reconfiguration in progress",
    -118: "session moved",
    -119: "server is read-only",
    -120: "ephemeral on a local session",
    -121: "no such watcher",
    -123: "reconfiguration is disabled",
    -124: "server requires SASL",
    -125: "quota exceeded",
    -127: "throttled",
}


def error_for(code: int, path: str = "") -> errors.ZooKeeperError:
    """The exception for an error code of the wire. It carries that code even if there is no class for it."""
    known = _ERRORS.get(code)
    if known is not None:
        return known(path)
    error = errors.ZooKeeperError(path, _OTHER_CODES.get(code, f"error {code}"))
    error.code = code
    return error
