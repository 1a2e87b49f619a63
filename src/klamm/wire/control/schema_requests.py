"""Control requests of any version, read through the tables and given one form.

Partition states are flat in old versions (LeaderAndIsr 0-1, UpdateMetadata 0-4, StopReplica 0) and grouped by topic in
newer ones. Fields have Kafka's names in snake case.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from klamm.model.brokers import Broker, Endpoint, SecurityProtocol
from klamm.model.control import (
    LeaderAndIsrOrders,
    MetadataUpdate,
    PartitionMetadata,
    PartitionOrder,
    Sender,
    StopOrder,
    StopReplicaOrders,
)
from klamm.model.ids import UNKNOWN_BROKER_EPOCH, BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.wire.apis import ApiKey
from klamm.wire.errors import ProtocolError
from klamm.wire.messages import decode_request

FIRST_WITH_LISTENER_NAMES: Final = 3


def iter_partition_states(request: Any) -> Iterator[tuple[str, Any]]:
    """Topic and state of each partition in a LeaderAndIsr or UpdateMetadata request."""
    for state in request.ungrouped_partition_states:
        yield state.topic_name, state
    for topic in request.topic_states:
        for state in topic.partition_states:
            yield topic.topic_name, state


def iter_stopped_replicas(request: Any) -> Iterator[StopOrder]:
    """Versions 0-2 have one delete flag for all partitions and no leader epochs (KIP-570 added both)."""
    for partition in request.ungrouped_partitions:
        name = TopicPartition(partition.topic_name, partition.partition_index)
        yield StopOrder(name, -1, request.delete_partitions)
    for topic in request.topics:
        for index in topic.partition_indexes:
            yield StopOrder(TopicPartition(topic.name, index), -1, request.delete_partitions)
    for topic in request.topic_states:
        for state in topic.partition_states:
            name = TopicPartition(topic.topic_name, state.partition_index)
            yield StopOrder(name, state.leader_epoch, state.delete_partition)


def leader_and_isr(version: int, body: memoryview) -> LeaderAndIsrOrders:
    request = decode_request(ApiKey.LEADER_AND_ISR, version, body)
    return LeaderAndIsrOrders(
        _sender(request), [_order(topic, entry) for topic, entry in iter_partition_states(request)]
    )


def stop_replica(version: int, body: memoryview) -> StopReplicaOrders:
    request = decode_request(ApiKey.STOP_REPLICA, version, body)
    return StopReplicaOrders(_sender(request), list(iter_stopped_replicas(request)))


def update_metadata(version: int, body: memoryview) -> MetadataUpdate:
    request = decode_request(ApiKey.UPDATE_METADATA, version, body)
    topics: dict[str, list[tuple[int, PartitionMetadata]]] = {}
    for topic, entry in iter_partition_states(request):
        topics.setdefault(topic, []).append((entry.partition_index, _metadata(entry)))
    brokers = [_broker(version, live) for live in request.live_brokers]
    return MetadataUpdate(_sender(request), brokers, list(topics.items()))


def _sender(request: Any) -> Sender:
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


def _metadata(entry: Any) -> PartitionMetadata:
    return PartitionMetadata(
        BrokerId(entry.leader),
        LeaderEpoch(entry.leader_epoch),
        tuple(entry.isr),
        tuple(entry.replicas),
        tuple(getattr(entry, "offline_replicas", None) or ()),
    )


def _broker(version: int, live: Any) -> Broker:
    if version == 0:
        return Broker(BrokerId(live.id), (Endpoint("PLAINTEXT", live.host, live.port),))
    endpoints = []
    for endpoint in live.endpoints:
        protocol = _security_protocol(endpoint.security_protocol)
        name = endpoint.listener if version >= FIRST_WITH_LISTENER_NAMES else protocol.name
        endpoints.append(Endpoint(name, endpoint.host, endpoint.port, protocol))
    return Broker(BrokerId(live.id), tuple(endpoints), live.rack)


def _security_protocol(number: int) -> SecurityProtocol:
    try:
        return SecurityProtocol(number)
    except ValueError:
        raise ProtocolError(f"unknown security protocol {number}") from None
