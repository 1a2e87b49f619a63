"""Encoders of control requests: a partition's bytes are made once and joined for every broker (design D4).

A partition's entry has its index, the state (`state_bytes`, the same in LeaderAndIsr and UpdateMetadata), the znode's
version, and the rest, which depends on the assignment. There are few distinct states and assignments, so a controller
keeps their bytes and joins entries from the four parts, topic by topic. All three requests begin with the same 16 bytes
(`head`: controller id, controller epoch, broker epoch), the only part that differs between the receivers of one
UpdateMetadata: encode the `tail` once, send `[head, tail]` to each.

The versions are those of inter-broker protocol 2.2 and later, which group partitions by topic. The bytes equal those of
the schema codec.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import starmap
from typing import Final, NamedTuple

from klamm.model.brokers import Broker
from klamm.model.ids import BrokerEpoch, BrokerId, ControllerEpoch
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.wire.apis import APIS, ApiKey
from klamm.wire.tags import EMPTY_TAGS
from klamm.wire.varint import uvarint

TopicEntries = tuple[bytes, int, bytes]
"""Topic name (UTF-8, without its length), number of partitions, and their joined entries."""

LEADER_AND_ISR_VERSION_MIN: Final = 2
UPDATE_METADATA_VERSION_MIN: Final = 5
STOP_REPLICA_VERSION_MIN: Final = 1
LEADER_AND_ISR_WITH_REASSIGNMENT: Final = 3
STOP_REPLICA_WITH_EPOCHS: Final = 3

_HEAD = struct.Struct(">iiq")
_STATE = struct.Struct(">iii")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_STOPPED = struct.Struct(">ii?x")
"""Partition, leader epoch, delete flag, and no tags."""
PACKED_MAX: Final = 65_536


class _Packed(dict[int, bytes]):
    """Numbers as four bytes. Partition numbers and versions are small and repeat often."""

    def __missing__(self, number: int) -> bytes:
        packed = _I32.pack(number)
        if len(self) < PACKED_MAX:
            self[number] = packed
        return packed


_PACKED: Final = _Packed()
pack_index: Final = _PACKED.__getitem__
"""The partition's number, which begins an entry."""
pack_version: Final = _PACKED.__getitem__
"""The znode's version, inside an entry."""


class LiveLeader(NamedTuple):
    broker: BrokerId
    host: str
    port: int


class StoppedPartition(NamedTuple):
    partition: int
    leader_epoch: int
    delete: bool


def head(controller: BrokerId, controller_epoch: ControllerEpoch, broker_epoch: BrokerEpoch) -> bytes:
    return _HEAD.pack(controller, controller_epoch, broker_epoch)


def state_bytes(state: LeaderAndIsr, *, flexible: bool) -> bytes:
    """The part of an entry between the index and the version, the same in both requests."""
    return _STATE.pack(state.controller_epoch, state.leader, state.leader_epoch) + _int32s(state.isr, flexible)


def leader_and_isr_rest(version: int, assignment: Assignment, is_new: bool) -> bytes:
    """The part of an entry from the replicas on."""
    flexible = APIS[ApiKey.LEADER_AND_ISR].is_flexible(version)
    parts = [_int32s(assignment.replicas, flexible)]
    if version >= LEADER_AND_ISR_WITH_REASSIGNMENT:
        parts += (_int32s(assignment.adding, flexible), _int32s(assignment.removing, flexible))
    parts.append(b"\x01" if is_new else b"\x00")
    if flexible:
        parts.append(EMPTY_TAGS)
    return b"".join(parts)


def leader_and_isr_suffix(
    version: int, state: LeaderAndIsr, zk_version: int, assignment: Assignment, is_new: bool
) -> bytes:
    """An entry without its index."""
    flexible = APIS[ApiKey.LEADER_AND_ISR].is_flexible(version)
    rest = leader_and_isr_rest(version, assignment, is_new)
    return state_bytes(state, flexible=flexible) + pack_version(zk_version) + rest


def leader_and_isr_tail(version: int, topics: Iterable[TopicEntries], live_leaders: Sequence[LiveLeader]) -> bytes:
    assert version >= LEADER_AND_ISR_VERSION_MIN
    flexible = APIS[ApiKey.LEADER_AND_ISR].is_flexible(version)
    parts = _topics(topics, flexible)
    parts.append(_count(len(live_leaders), flexible))
    for leader in live_leaders:
        parts += (_I32.pack(leader.broker), _string(leader.host.encode(), flexible), _I32.pack(leader.port))
        if flexible:
            parts.append(EMPTY_TAGS)
    if flexible:
        parts.append(EMPTY_TAGS)
    return b"".join(parts)


def leader_and_isr_body(
    version: int,
    controller: BrokerId,
    controller_epoch: ControllerEpoch,
    broker_epoch: BrokerEpoch,
    topics: Iterable[TopicEntries],
    live_leaders: Sequence[LiveLeader],
) -> bytes:
    return head(controller, controller_epoch, broker_epoch) + leader_and_isr_tail(version, topics, live_leaders)


def update_metadata_rest(version: int, replicas: Sequence[BrokerId], offline_replicas: Sequence[BrokerId]) -> bytes:
    """The part of an entry from the replicas on."""
    flexible = APIS[ApiKey.UPDATE_METADATA].is_flexible(version)
    return _int32s(replicas, flexible) + _int32s(offline_replicas, flexible) + (EMPTY_TAGS if flexible else b"")


def update_metadata_suffix(
    version: int,
    state: LeaderAndIsr,
    zk_version: int,
    replicas: Sequence[BrokerId],
    offline_replicas: Sequence[BrokerId],
) -> bytes:
    """An entry without its index."""
    flexible = APIS[ApiKey.UPDATE_METADATA].is_flexible(version)
    rest = update_metadata_rest(version, replicas, offline_replicas)
    return state_bytes(state, flexible=flexible) + pack_version(zk_version) + rest


def update_metadata_tail(version: int, topics: Iterable[TopicEntries], live_brokers: Sequence[Broker]) -> bytes:
    """Everything but the head: the same bytes for every receiver."""
    assert version >= UPDATE_METADATA_VERSION_MIN
    flexible = APIS[ApiKey.UPDATE_METADATA].is_flexible(version)
    parts = _topics(topics, flexible)
    parts.append(_count(len(live_brokers), flexible))
    for broker in live_brokers:
        parts += (_I32.pack(broker.id), _count(len(broker.endpoints), flexible))
        for endpoint in broker.endpoints:
            parts += (
                _I32.pack(endpoint.port),
                _string(endpoint.host.encode(), flexible),
                _string(endpoint.listener.encode(), flexible),
                _I16.pack(endpoint.security_protocol),
            )
            if flexible:
                parts.append(EMPTY_TAGS)
        parts.append(_string(None if broker.rack is None else broker.rack.encode(), flexible))
        if flexible:
            parts.append(EMPTY_TAGS)
    if flexible:
        parts.append(EMPTY_TAGS)
    return b"".join(parts)


def update_metadata_body(
    version: int,
    controller: BrokerId,
    controller_epoch: ControllerEpoch,
    broker_epoch: BrokerEpoch,
    topics: Iterable[TopicEntries],
    live_brokers: Sequence[Broker],
) -> bytes:
    return head(controller, controller_epoch, broker_epoch) + update_metadata_tail(version, topics, live_brokers)


def stop_replica_body(
    version: int,
    controller: BrokerId,
    controller_epoch: ControllerEpoch,
    broker_epoch: BrokerEpoch,
    topics: Sequence[tuple[bytes, Sequence[tuple[int, int, bool]]]],
) -> bytes:
    """Partitions are StoppedPartition or equal plain tuples. From version 3 each has its own epoch and delete flag.
    Before, one flag applies to the whole request, so the caller sends two: first the partitions to delete, then the
    others."""
    assert version >= STOP_REPLICA_VERSION_MIN
    flexible = APIS[ApiKey.STOP_REPLICA].is_flexible(version)
    parts = [head(controller, controller_epoch, broker_epoch)]
    if version < STOP_REPLICA_WITH_EPOCHS:
        flags = {delete for _, partitions in topics for _, _, delete in partitions}
        assert len(flags) <= 1, "before version 3 a request has one flag"
        parts.append(b"\x01" if True in flags else b"\x00")
    parts.append(_count(len(topics), flexible))
    for name, partitions in topics:
        parts.append(_string(name, flexible))
        if version < STOP_REPLICA_WITH_EPOCHS:
            parts.append(_int32s([number for number, _, _ in partitions], flexible))
        else:
            parts.append(_count(len(partitions), flexible))
            parts += starmap(_STOPPED.pack, partitions)
        if flexible:
            parts.append(EMPTY_TAGS)
    if flexible:
        parts.append(EMPTY_TAGS)
    return b"".join(parts)


def _topics(topics: Iterable[TopicEntries], flexible: bool) -> list[bytes]:
    parts = [b""]
    count = 0
    for name, partitions, entries in topics:
        count += 1
        parts += (_string(name, flexible), _count(partitions, flexible), entries)
        if flexible:
            parts.append(EMPTY_TAGS)
    parts[0] = _count(count, flexible)
    return parts


def _count(count: int, flexible: bool) -> bytes:
    return uvarint(count + 1) if flexible else _I32.pack(count)


def _string(text: bytes | None, flexible: bool) -> bytes:
    if text is None:
        return b"\x00" if flexible else _I16.pack(-1)
    return (uvarint(len(text) + 1) if flexible else _I16.pack(len(text))) + text


def _int32s(values: Sequence[int], flexible: bool) -> bytes:
    count = len(values)
    packed = struct.pack(f">{count}i", *values)
    return (uvarint(count + 1) if flexible else _I32.pack(count)) + packed
