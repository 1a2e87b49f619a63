"""The records of `__consumer_offsets`, byte for byte as Kafka writes them: an offset, or the state of a group.

Keys and values begin with a version. Offsets are written with version 1, 2 or 3, groups with version 2 or 3; version 4
of both is read only (compact lengths, tagged fields). A null value is a tombstone. A key of a later version belongs to
a newer kind of group (KIP-848) and decodes to None.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final, NamedTuple

from klamm.model.errors import KlammError
from klamm.model.ids import NO_EPOCH, TopicPartition
from klamm.wire.cursor import INT16, INT32, INT64, Cursor, string
from klamm.wire.errors import ProtocolError
from klamm.wire.tags import skip_tags
from klamm.wire.varint import read_uvarint

GROUP_KEY_VERSION: Final = 2
COMPACT_VERSION: Final = 4
NO_TIMESTAMP: Final = -1
PARTITIONS_REMEMBERED: Final = 4_096
"""Many groups commit to the same partitions: their names are decoded once, and share their memory."""
PARTITION_BYTES_MAX: Final = 2 + 255 + 4
"""A partition with the longest name that a topic can have, today or in an old version of Kafka."""
_KEY_HEAD: Final = struct.Struct(">hh")
"""The version, and the length of the group's name."""
_COMMON_VERSION: Final = INT16.pack(3)
_COMMON_OFFSET: Final = struct.Struct(">hqih")
"""Version, offset, leader epoch and length of the metadata, as Kafka has written them since 2.1."""


class BadRecord(KlammError):
    """A record that cannot be decoded."""


class OffsetKey(NamedTuple):
    group: str
    partition: TopicPartition


class GroupKey(NamedTuple):
    group: str


class Offset(NamedTuple):
    """A committed offset."""

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    commit_timestamp: int = NO_TIMESTAMP
    expire_timestamp: int | None = None
    """Only from commits of old clients that carry a retention."""


class StoredMember(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    """The metadata of the chosen protocol alone."""
    assignment: bytes


class StoredGroup(NamedTuple):
    protocol_type: str | None
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp: int | None
    members: tuple[StoredMember, ...] = ()


class RecordVersions(NamedTuple):
    """What to write; it depends on the oldest broker of the cluster."""

    offset_value: int
    group_value: int


def versions_for(protocol: str) -> RecordVersions:
    """For an inter.broker.protocol.version such as `2.1-IV0`.

    >>> versions_for("2.0"), versions_for("2.1-IV0").offset_value, versions_for("2.6").offset_value
    (RecordVersions(offset_value=1, group_value=1), 2, 3)
    """
    release, _, internal = protocol.partition("-IV")
    major, minor = (int(part) for part in release.split(".")[:2])
    at = (major, minor, int(internal) if internal else 99)
    offset_value = 1 if at < (2, 1, 0) else 2 if at < (2, 1, 1) else 3
    group_value = 0 if at < (0, 10, 1) else 1 if at < (2, 1, 0) else 2 if at < (2, 3, 0) else 3
    return RecordVersions(offset_value, group_value)


# --- writing ---------------------------------------------------------------------------------------------------------


def encode_offset_key(group: str, partition: TopicPartition) -> bytes:
    return INT16.pack(1) + string(group) + string(partition.topic) + INT32.pack(partition.partition)


def encode_group_key(group: str) -> bytes:
    return INT16.pack(GROUP_KEY_VERSION) + string(group)


def encode_offset(value: Offset, version: int) -> bytes:
    """An explicit expiry needs version 1, whatever the cluster's versions."""
    version = version if value.expire_timestamp is None else 1
    out = INT16.pack(version) + INT64.pack(value.offset)
    if version >= 3:
        out += INT32.pack(value.leader_epoch)
    out += string(value.metadata) + INT64.pack(value.commit_timestamp)
    if version == 1:
        out += INT64.pack(NO_TIMESTAMP if value.expire_timestamp is None else value.expire_timestamp)
    return out


def encode_group(group: StoredGroup, version: int) -> bytes:
    out = bytearray(INT16.pack(version))
    out += string(group.protocol_type or "") + INT32.pack(group.generation)
    out += _nullable(group.protocol) + _nullable(group.leader)
    if version >= 2:
        out += INT64.pack(NO_TIMESTAMP if group.state_timestamp is None else group.state_timestamp)
    out += INT32.pack(len(group.members))
    for member in group.members:
        out += string(member.member_id)
        if version >= 3:
            out += _nullable(member.instance_id)
        out += string(member.client_id) + string(member.client_host)
        if version >= 1:
            out += INT32.pack(member.rebalance_timeout_ms)
        out += INT32.pack(member.session_timeout_ms)
        out += _bytes(member.subscription) + _bytes(member.assignment)
    return bytes(out)


def _nullable(text: str | None) -> bytes:
    return INT16.pack(-1) if text is None else string(text)


def _bytes(data: bytes) -> bytes:
    return INT32.pack(len(data)) + data


# --- reading ---------------------------------------------------------------------------------------------------------


class _Reader:
    """Plain or compact lengths, by the record's version."""

    def __init__(self, data: bytes) -> None:
        self._view = memoryview(data)
        self.cursor = Cursor(self._view)
        self.version = self.cursor.int16()
        self._compact = False

    def value_of(self, newest: int) -> _Reader:
        if not 0 <= self.version <= newest:
            raise ProtocolError(f"unknown version {self.version}")
        self._compact = self.version >= COMPACT_VERSION
        return self

    def nullable_string(self) -> str | None:
        if not self._compact:
            return self.cursor.nullable_string()
        raw = self._compact_bytes()
        return None if raw is None else str(raw, "utf-8")

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise ProtocolError("null where a string is expected")
        return text

    def bytes(self) -> bytes:
        raw = self._compact_bytes() if self._compact else self.cursor.nullable_bytes()
        return b"" if raw is None else bytes(raw)

    def count(self) -> int:
        if not self._compact:
            return self.cursor.count(14)
        count = self._uvarint() - 1
        if not 0 <= count <= len(self._view):
            raise ProtocolError(f"an array of {count} elements")
        return count

    def tags(self) -> None:
        if self._compact:
            self.cursor.position = skip_tags(self._view, self.cursor.position)

    def _compact_bytes(self) -> memoryview | None:
        length = self._uvarint() - 1
        return None if length < 0 else self.cursor.take(length)

    def _uvarint(self) -> int:
        value, self.cursor.position = read_uvarint(self._view, self.cursor.position)
        return value


def decode_key(data: bytes | None) -> OffsetKey | GroupKey | None:
    """None for a key version of a newer Kafka. Raises BadRecord."""
    if data is None:
        raise BadRecord("a record without a key")
    try:
        version, length = _KEY_HEAD.unpack_from(data)
        if version > GROUP_KEY_VERSION:
            return None
        if version < 0:
            raise BadRecord(f"unknown key version {version}")
        end = _KEY_HEAD.size + length
        if not _KEY_HEAD.size <= end <= len(data):
            raise ProtocolError(f"a name of {length} bytes in {len(data)}")
        group = str(data[_KEY_HEAD.size : end], "utf-8")
        tail = data[end : end + PARTITION_BYTES_MAX]
        return GroupKey(group) if version == GROUP_KEY_VERSION else OffsetKey(group, _partition(tail))
    except (ProtocolError, UnicodeDecodeError, struct.error) as error:
        raise BadRecord(f"a malformed key: {error}") from error


@lru_cache(PARTITIONS_REMEMBERED)
def _partition(data: bytes) -> TopicPartition:
    cursor = Cursor(memoryview(data))
    return TopicPartition(cursor.string(), cursor.int32())


def decode_offset(data: bytes) -> Offset:
    try:
        if data.startswith(_COMMON_VERSION):
            _, offset, leader_epoch, length = _COMMON_OFFSET.unpack_from(data)
            if length == 0:
                (committed,) = INT64.unpack_from(data, _COMMON_OFFSET.size)
                return Offset(offset, leader_epoch, "", committed)
        return _decode_any_offset(data)
    except (ProtocolError, UnicodeDecodeError, IndexError, ValueError, struct.error) as error:
        raise BadRecord(f"a malformed offset: {error}") from error


def _decode_any_offset(data: bytes) -> Offset:
    reader = _Reader(data).value_of(COMPACT_VERSION)
    cursor = reader.cursor
    offset = cursor.int64()
    leader_epoch = cursor.int32() if reader.version >= 3 else NO_EPOCH
    metadata, committed = reader.string(), cursor.int64()
    expires = cursor.int64() if reader.version == 1 else NO_TIMESTAMP
    reader.tags()
    return Offset(offset, leader_epoch, metadata, committed, None if expires == NO_TIMESTAMP else expires)


def decode_group(data: bytes) -> StoredGroup:
    try:
        reader = _Reader(data).value_of(COMPACT_VERSION)
        cursor = reader.cursor
        protocol_type, generation = reader.string(), cursor.int32()
        protocol, leader = reader.nullable_string(), reader.nullable_string()
        changed = cursor.int64() if reader.version >= 2 else NO_TIMESTAMP
        members = tuple(_decode_member(reader) for _ in range(reader.count()))
        reader.tags()
    except (ProtocolError, UnicodeDecodeError, IndexError, ValueError, struct.error) as error:
        raise BadRecord(f"a malformed group: {error}") from error
    timestamp = None if changed == NO_TIMESTAMP else changed
    return StoredGroup(protocol_type or None, generation, protocol, leader, timestamp, members)


def _decode_member(reader: _Reader) -> StoredMember:
    version, cursor = reader.version, reader.cursor
    member_id = reader.string()
    instance_id = reader.nullable_string() if version >= 3 else None
    client_id, client_host = reader.string(), reader.string()
    rebalance_timeout_ms = cursor.int32() if version >= 1 else None
    session_timeout_ms = cursor.int32()
    subscription, assignment = reader.bytes(), reader.bytes()
    reader.tags()
    if rebalance_timeout_ms is None:
        rebalance_timeout_ms = session_timeout_ms  # version 0 has no timeout of its own
    return StoredMember(
        member_id,
        instance_id,
        client_id,
        client_host,
        rebalance_timeout_ms,
        session_timeout_ms,
        subscription,
        assignment,
    )
