"""The two large control requests, decoded in slices: 100,000 partitions must not hold the loop (design D1, D4).

Most partitions say the same few things, so the bytes after a partition's index are looked up in a cache before they
are decoded, and equal states share one value. Hand-decoded are the versions that a controller sends today
(UpdateMetadata 6, LeaderAndIsr 4, both flexible); older ones come from small clusters and go through the schema codec.
Every length is held against the end of the body: a torn request raises ProtocolError and nothing of it is applied.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, NamedTuple, TypeVar

from klamm.broker.metadata_cache import PartitionMetadata
from klamm.broker.partition import PartitionOrder
from klamm.broker.replica_manager import Sender
from klamm.model.brokers import Broker, Endpoint, SecurityProtocol
from klamm.model.ids import (
    UNKNOWN_BROKER_EPOCH,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    TopicPartition,
)
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.wire.apis import ApiKey
from klamm.wire.control import iter_partition_states
from klamm.wire.errors import ProtocolError
from klamm.wire.messages import decode_request
from klamm.wire.varint import read_uvarint

UPDATE_METADATA_FLEXIBLE: Final = 6
LEADER_AND_ISR_FLEXIBLE: Final = 4
LISTENER_NAMES_SINCE: Final = 3
PARTITIONS_PER_SLICE: Final = 2_000

_HEAD = struct.Struct(">iiq")
_INDEX = struct.Struct(">i")
_STATE = struct.Struct(">iii")
_I32 = struct.Struct(">i")
_I16 = struct.Struct(">h")

T = TypeVar("T")
TopicEntries = list[tuple[str, list[tuple[int, PartitionMetadata]]]]


class UpdateMetadata(NamedTuple):
    sender: Sender
    brokers: list[Broker]
    topics: TopicEntries


class Orders(NamedTuple):
    sender: Sender
    partitions: list[PartitionOrder]


async def decode_update_metadata(version: int, body: memoryview) -> UpdateMetadata:
    if version < UPDATE_METADATA_FLEXIBLE:
        return _update_metadata_by_schema(version, body)
    try:
        position = [_HEAD.size]
        topics: TopicEntries = []
        async for name, entries in _topics(body, position, _metadata_end, _metadata):
            topics.append((name, entries))
        return UpdateMetadata(_sender(body), _brokers(body, position[0]), topics)
    except (struct.error, IndexError, ValueError) as error:
        raise ProtocolError("malformed UpdateMetadata") from error


async def decode_leader_and_isr(version: int, body: memoryview) -> Orders:
    if version < LEADER_AND_ISR_FLEXIBLE:
        request = decode_request(ApiKey.LEADER_AND_ISR, version, body)
        return Orders(sender_of(request), [_order(topic, entry) for topic, entry in iter_partition_states(request)])
    try:
        orders: list[PartitionOrder] = []
        position = [_HEAD.size]
        async for name, entries in _topics(body, position, _order_end, _order_parts):
            orders += [PartitionOrder(TopicPartition(name, index), *parts) for index, parts in entries]
        _check_live_leaders(body, position[0])
        return Orders(_sender(body), orders)
    except (struct.error, IndexError, ValueError) as error:
        raise ProtocolError("malformed LeaderAndIsr") from error


# --- the flexible versions ---


async def _topics(
    body: memoryview,
    position: list[int],
    end_of: Callable[[memoryview, int], int],
    decode: Callable[[bytes], T],
) -> AsyncIterator[tuple[str, list[tuple[int, T]]]]:
    """Topic by topic, giving way every few thousand partitions; `position[0]` is where reading starts and ended."""
    cache: dict[bytes, T] = {}
    usual, index_at, data = 0, _INDEX.unpack_from, bytes(body)
    at = position[0]
    topic_count, at = read_uvarint(body, at)
    since_pause = 0
    for _ in range(_not_null(topic_count)):
        length, at = read_uvarint(body, at)
        end = at + _not_null(length)
        name = str(body[at:end], "utf-8")
        count, at = read_uvarint(body, end)
        entries: list[tuple[int, T]] = []
        for _ in range(_not_null(count)):
            (index,) = index_at(data, at)
            start = at + 4
            # No suffix is the beginning of another, so bytes that are a known one need no parsing to find their end.
            at = start + usual
            state = cache.get(data[start:at])
            if state is None:
                at = end_of(body, start)
                if at > len(body):
                    raise ProtocolError("a partition runs past the end of the request")
                suffix, usual = data[start:at], at - start
                state = cache.get(suffix)
                if state is None:
                    state = cache[suffix] = decode(suffix)
            entries.append((index, state))
        at = _after_tags(body, at)
        since_pause += count
        yield name, entries
        if since_pause >= PARTITIONS_PER_SLICE:
            since_pause = 0
            await asyncio.sleep(0)
    position[0] = at


def _not_null(compact_length: int) -> int:
    if compact_length == 0:
        raise ProtocolError("null where the schema has a value")
    return compact_length - 1


def _after_ids(body: memoryview, at: int) -> int:
    """Behind a compact array of int32. Almost always fewer than 127 of them, whose count is one byte."""
    count = body[at]
    if count >= 0x80:
        count, at = read_uvarint(body, at)
        return at + 4 * (count - 1)
    if not count:
        raise ProtocolError("null where the schema has a list of ids")
    return at + 4 * count - 3


def _after_tags(body: memoryview, at: int) -> int:
    if body[at] == 0:
        return at + 1
    count, at = read_uvarint(body, at)
    for _ in range(count):
        _, at = read_uvarint(body, at)
        size, at = read_uvarint(body, at)
        at += size
        if at > len(body):
            raise ProtocolError("a tagged field runs past the end of the request")
    return at


def _metadata_end(body: memoryview, at: int) -> int:
    at = _after_ids(body, at + _STATE.size) + 4
    return _after_tags(body, _after_ids(body, _after_ids(body, at)))


def _order_end(body: memoryview, at: int) -> int:
    at = _after_ids(body, at + _STATE.size) + 4
    at = _after_ids(body, _after_ids(body, _after_ids(body, at)))
    return _after_tags(body, at + 1)


def _ids(data: memoryview, at: int) -> tuple[tuple[BrokerId, ...], int]:
    count, at = read_uvarint(data, at)
    layout = struct.Struct(f">{count - 1}i")
    return layout.unpack_from(data, at), at + layout.size


def _state(data: memoryview) -> tuple[LeaderAndIsr, int, int]:
    """State, znode version, and where the replicas begin."""
    controller_epoch, leader, leader_epoch = _STATE.unpack_from(data)
    isr, at = _ids(data, _STATE.size)
    (zk_version,) = _I32.unpack_from(data, at)
    state = LeaderAndIsr(BrokerId(leader), LeaderEpoch(leader_epoch), isr, ControllerEpoch(controller_epoch))
    return state, zk_version, at + 4


def _metadata(suffix: bytes) -> PartitionMetadata:
    data = memoryview(suffix)
    state, _, at = _state(data)
    replicas, at = _ids(data, at)
    offline, _ = _ids(data, at)
    return PartitionMetadata(state.leader, state.leader_epoch, state.isr, replicas, offline)


def _order_parts(suffix: bytes) -> tuple[LeaderAndIsr, int, Assignment, bool]:
    data = memoryview(suffix)
    state, zk_version, at = _state(data)
    replicas, at = _ids(data, at)
    adding, at = _ids(data, at)
    removing, at = _ids(data, at)
    return state, zk_version, Assignment(replicas, adding, removing), bool(data[at])


def _sender(body: memoryview) -> Sender:
    controller_id, controller_epoch, broker_epoch = _HEAD.unpack_from(body)
    return Sender(BrokerId(controller_id), ControllerEpoch(controller_epoch), BrokerEpoch(broker_epoch))


def _brokers(body: memoryview, at: int) -> list[Broker]:
    brokers = []
    count, at = read_uvarint(body, at)
    for _ in range(_not_null(count)):
        (broker_id,) = _I32.unpack_from(body, at)
        endpoints = []
        endpoint_count, at = read_uvarint(body, at + 4)
        for _ in range(_not_null(endpoint_count)):
            (port,) = _I32.unpack_from(body, at)
            host, at = _text(body, at + 4)
            listener, at = _text(body, at)
            if host is None or listener is None:
                raise ProtocolError("an endpoint without host or listener")
            (protocol,) = _I16.unpack_from(body, at)
            at = _after_tags(body, at + 2)
            endpoints.append(Endpoint(listener, host, port, SecurityProtocol(protocol)))
        rack, at = _text(body, at)
        at = _after_tags(body, at)
        brokers.append(Broker(BrokerId(broker_id), tuple(endpoints), rack))
    _after_tags(body, at)
    return brokers


def _check_live_leaders(body: memoryview, at: int) -> None:
    """Nobody reads them, the metadata knows better; but a request that ends before its end is torn."""
    count, at = read_uvarint(body, at)
    for _ in range(_not_null(count)):
        host, at = _text(body, at + 4)
        if host is None:
            raise ProtocolError("a leader without a host")
        at = _after_tags(body, at + 4)
    _after_tags(body, at)


def _text(body: memoryview, at: int) -> tuple[str | None, int]:
    length, at = read_uvarint(body, at)
    if length == 0:
        return None, at
    end = at + length - 1
    if end > len(body):
        raise ProtocolError("a string runs past the end of the request")
    return str(body[at:end], "utf-8"), end


# --- by schema ---


def sender_of(request: Any) -> Sender:
    """The oldest versions carry no broker epoch."""
    epoch = getattr(request, "broker_epoch", None)
    return Sender(
        BrokerId(request.controller_id),
        ControllerEpoch(request.controller_epoch),
        UNKNOWN_BROKER_EPOCH if epoch is None else BrokerEpoch(epoch),
    )


def _order(topic: str, entry: Any) -> PartitionOrder:
    state = LeaderAndIsr(
        BrokerId(entry.leader),
        LeaderEpoch(entry.leader_epoch),
        tuple(entry.isr),
        ControllerEpoch(entry.controller_epoch),
    )
    adding, removing = getattr(entry, "adding_replicas", None), getattr(entry, "removing_replicas", None)
    assignment = Assignment(tuple(entry.replicas), tuple(adding or ()), tuple(removing or ()))
    is_new = bool(getattr(entry, "is_new", False))
    return PartitionOrder(TopicPartition(topic, entry.partition_index), state, entry.zk_version, assignment, is_new)


def _update_metadata_by_schema(version: int, body: memoryview) -> UpdateMetadata:
    request = decode_request(ApiKey.UPDATE_METADATA, version, body)
    grouped: dict[str, list[tuple[int, PartitionMetadata]]] = {}
    for topic, entry in iter_partition_states(request):
        metadata = PartitionMetadata(
            BrokerId(entry.leader),
            LeaderEpoch(entry.leader_epoch),
            tuple(entry.isr),
            tuple(entry.replicas),
            tuple(getattr(entry, "offline_replicas", None) or ()),
        )
        grouped.setdefault(topic, []).append((entry.partition_index, metadata))
    brokers = [_broker(version, live) for live in request.live_brokers]
    return UpdateMetadata(sender_of(request), brokers, list(grouped.items()))


def _security_protocol(number: int) -> SecurityProtocol:
    try:
        return SecurityProtocol(number)
    except ValueError:
        raise ProtocolError(f"no security protocol has the number {number}") from None


def _broker(version: int, live: Any) -> Broker:
    if version == 0:
        return Broker(BrokerId(live.id), (Endpoint("PLAINTEXT", live.host, live.port),))
    endpoints = []
    for endpoint in live.endpoints:
        protocol = _security_protocol(endpoint.security_protocol)
        name = endpoint.listener if version >= LISTENER_NAMES_SINCE else protocol.name
        endpoints.append(Endpoint(name, endpoint.host, endpoint.port, protocol))
    return Broker(BrokerId(live.id), tuple(endpoints), live.rack)
