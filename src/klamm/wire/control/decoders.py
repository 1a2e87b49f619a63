"""Decoders of the control requests that a controller sends today: LeaderAndIsr 4 and UpdateMetadata 6.

A request may carry 100,000 partitions and must not hold the event loop, so the decoders are generators: each `next`
does one slice of the work, and the generator returns the decoded request. Most partitions have one of a few states. So
the bytes after a partition's index are looked up in a cache before they are decoded, and equal states share one value.
Every length is checked against the end of the body: a torn request raises ProtocolError, and nothing of it is applied.
Older versions go through the compiled tables, which small clusters can afford.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from typing import Final, TypeVar

from klamm.model.brokers import Broker, Endpoint, SecurityProtocol
from klamm.model.control import (
    LeaderAndIsrOrders,
    MetadataUpdate,
    PartitionMetadata,
    PartitionOrder,
    Sender,
    TopicUpdate,
)
from klamm.model.ids import BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.wire.apis import APIS, ApiKey
from klamm.wire.control import schema_requests
from klamm.wire.errors import ProtocolError
from klamm.wire.tags import skip_tags
from klamm.wire.varint import read_uvarint

PARTITIONS_PER_SLICE: Final = 2_000

_HEAD = struct.Struct(">iiq")
_STATE = struct.Struct(">iii")
_I32 = struct.Struct(">i")
_I16 = struct.Struct(">h")

T = TypeVar("T")


def decode_update_metadata(version: int, body: memoryview) -> Generator[None, None, MetadataUpdate]:
    if not APIS[ApiKey.UPDATE_METADATA].is_flexible(version):
        return schema_requests.update_metadata(version, body)
    topics: list[TopicUpdate] = []
    try:
        at = yield from _topics(body, _metadata_end, _metadata, lambda *topic: topics.append(topic))
        return MetadataUpdate(_sender(body), _brokers(body, at), topics)
    except (struct.error, IndexError, ValueError) as error:
        raise ProtocolError("malformed UpdateMetadata") from error


def decode_leader_and_isr(version: int, body: memoryview) -> Generator[None, None, LeaderAndIsrOrders]:
    if not APIS[ApiKey.LEADER_AND_ISR].is_flexible(version):
        return schema_requests.leader_and_isr(version, body)
    orders: list[PartitionOrder] = []

    def collect(topic: str, entries: list[tuple[int, _OrderParts]]) -> None:
        orders.extend([PartitionOrder(TopicPartition(topic, index), *parts) for index, parts in entries])

    try:
        at = yield from _topics(body, _order_end, _order_parts, collect)
        _check_live_leaders(body, at)
        return LeaderAndIsrOrders(_sender(body), orders)
    except (struct.error, IndexError, ValueError) as error:
        raise ProtocolError("malformed LeaderAndIsr") from error


def _topics(
    body: memoryview,
    end_of: Callable[[memoryview, int], int],
    decode: Callable[[bytes], T],
    collect: Callable[[str, list[tuple[int, T]]], None],
) -> Generator[None, None, int]:
    """Hand each topic with its entries to `collect`, yielding after each slice. Returns the position after the last
    topic."""
    cache: dict[bytes, T] = {}
    usual, index_at, data = 0, _I32.unpack_from, bytes(body)
    topic_count, at = read_uvarint(body, _HEAD.size)
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
            # No suffix is the beginning of another one, so bytes that equal a known suffix need no parsing.
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
        at = skip_tags(body, at)
        collect(name, entries)
        since_pause += count
        if since_pause >= PARTITIONS_PER_SLICE:
            since_pause = 0
            yield
    return at


def _not_null(compact_length: int) -> int:
    if compact_length == 0:
        raise ProtocolError("null where the schema has a value")
    return compact_length - 1


def _after_ids(body: memoryview, at: int) -> int:
    """The position after a compact array of int32. Almost all have fewer than 127 elements: a count of one byte."""
    count = body[at]
    if count >= 0x80:
        count, at = read_uvarint(body, at)
        return at + 4 * (count - 1)
    if not count:
        raise ProtocolError("null where the schema has a list of ids")
    return at + 4 * count - 3


def _metadata_end(body: memoryview, at: int) -> int:
    at = _after_ids(body, at + _STATE.size) + 4
    return skip_tags(body, _after_ids(body, _after_ids(body, at)))


def _order_end(body: memoryview, at: int) -> int:
    at = _after_ids(body, at + _STATE.size) + 4
    at = _after_ids(body, _after_ids(body, _after_ids(body, at)))
    return skip_tags(body, at + 1)


def _ids(data: memoryview, at: int) -> tuple[tuple[BrokerId, ...], int]:
    count, at = read_uvarint(data, at)
    layout = struct.Struct(f">{count - 1}i")
    return layout.unpack_from(data, at), at + layout.size


def _state(data: memoryview) -> tuple[LeaderAndIsr, int, int]:
    """The state, the version of its znode, and the position of the replicas."""
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


_OrderParts = tuple[LeaderAndIsr, int, Assignment, bool]
"""A PartitionOrder without its partition."""


def _order_parts(suffix: bytes) -> _OrderParts:
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
            at = skip_tags(body, at + 2)
            endpoints.append(Endpoint(listener, host, port, SecurityProtocol(protocol)))
        rack, at = _text(body, at)
        at = skip_tags(body, at)
        brokers.append(Broker(BrokerId(broker_id), tuple(endpoints), rack))
    skip_tags(body, at)
    return brokers


def _check_live_leaders(body: memoryview, at: int) -> None:
    """Brokers take the leaders from their metadata, not from here, but a torn request must be refused."""
    count, at = read_uvarint(body, at)
    for _ in range(_not_null(count)):
        host, at = _text(body, at + 4)
        if host is None:
            raise ProtocolError("a leader without a host")
        at = skip_tags(body, at + 4)
    skip_tags(body, at)


def _text(body: memoryview, at: int) -> tuple[str | None, int]:
    length, at = read_uvarint(body, at)
    if length == 0:
        return None, at
    end = at + length - 1
    if end > len(body):
        raise ProtocolError("a string runs past the end of the request")
    return str(body[at:end], "utf-8"), end
