"""A sealed batch as bytes: each partition's entry is encoded once, and shared by all requests that carry it (design
D4).

Most partitions say the same few things, so what follows the partition's number is cached by what it says. The body of
UpdateMetadata is one and the same object for every broker; only the head with the broker's epoch differs. Encoding is
sliced: a batch about 100,000 partitions gives the loop away every few thousand.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from klamm.controller import responses
from klamm.controller.batch import RequestBatch, Stop
from klamm.controller.channels import ControlRequest
from klamm.controller.context import ControllerContext, PartitionIndex
from klamm.controller.events import (
    ControllerEvent,
    LeaderAndIsrResponse,
    StopReplicaResponse,
    UpdateMetadataResponse,
)
from klamm.model.config import BrokerConfig, broker_id_of
from klamm.model.ids import LEADER_DURING_DELETE, BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.wire import control_encoders as wire
from klamm.wire.apis import ApiKey

SLICE: Final = 5_000
SUFFIXES_MAX: Final = 100_000


class Versions(NamedTuple):
    """Nothing is negotiated on this channel: inter.broker.protocol.version of the sender decides (controller.md 0)."""

    leader_and_isr: int
    stop_replica: int
    update_metadata: int


def versions_of(protocol: str) -> Versions:
    """
    >>> versions_of("2.5"), versions_of("2.6-IV0").stop_replica
    (Versions(leader_and_isr=4, stop_replica=2, update_metadata=6), 3)
    """
    major, minor = (int(part) for part in protocol.partition("-")[0].split(".")[:2])
    return Versions(4, 3 if (major, minor) >= (2, 6) else 2, 6)


Entries: TypeAlias = tuple[dict[PartitionIndex, bytes], dict[PartitionIndex, bytes]]
"""LeaderAndIsr entries of known replicas and of new ones."""

Suffix: TypeAlias = tuple[bytes, LeaderAndIsr, Assignment]
"""With the objects whose identities are its key: the context interns them, and hashing them would cost more than the
rest of an entry. While a suffix is kept, so are they, and no other object can take their identity."""


class RequestEncoder:
    """Of one term."""

    def __init__(self, config: BrokerConfig, context: ControllerContext, controller_epoch: ControllerEpoch) -> None:
        self._controller_id = broker_id_of(config)
        self._listener = config.inter_broker_listener
        self._versions = versions_of(config.inter_broker_protocol_version)
        self._context = context
        self._controller_epoch = controller_epoch
        self._leader_and_isr_suffixes: dict[tuple[int, int, int, bool], Suffix] = {}
        self._metadata_suffixes: dict[tuple[int, int, int, bool, frozenset[BrokerId]], Suffix] = {}

    async def seal(self, batch: RequestBatch) -> AsyncIterator[tuple[BrokerId, ControlRequest]]:
        """In the order of sending. Who is no longer registered by now is left out."""
        entries: Entries = ({}, {})
        for broker, told in sorted(batch.leader_and_isr.items()):
            yield broker, await self._leader_and_isr(broker, told, entries)
        if batch.metadata_to:
            topics = await self._metadata_topics(batch.metadata)
            tail = wire.update_metadata_tail(
                self._versions.update_metadata,
                _joined(topics),
                [live.broker for _, live in sorted(self._context.brokers.items())],
            )
            for broker in sorted(batch.metadata_to):
                yield broker, self._update_metadata(broker, tail)
        for broker, stops in sorted(batch.stop_replica.items()):
            for request in self._stop_replica(broker, stops):
                yield broker, request

    # --- LeaderAndIsr ---

    async def _leader_and_isr(
        self,
        broker: BrokerId,
        told: Mapping[PartitionIndex, bool],
        entries: Entries,
    ) -> ControlRequest:
        """`entries`: what other brokers of the same batch were told already."""
        context, topic_of, state_of = self._context, self._context.columns.topic, self._context.columns.state
        topics: dict[str, list[bytes]] = {}
        leaders: set[BrokerId] = set()
        topic, of_topic = None, []
        for count, (partition, is_new) in enumerate(told.items(), start=1):
            made, state = entries[is_new], state_of[partition]
            assert state is not None
            entry = made.get(partition)
            if entry is None:
                entry = made[partition] = self._leader_and_isr_entry(partition, state, is_new)
            if topic_of[partition] is not topic:  # they come in runs
                topic = topic_of[partition]
                of_topic = topics.setdefault(topic, [])
            of_topic.append(entry)
            leaders.add(state.leader)
            if count % SLICE == 0:
                await asyncio.sleep(0)
        endpoints = []
        for leader in sorted(leaders & context.brokers.keys()):
            endpoint = context.brokers[leader].broker.endpoint(self._listener)
            if endpoint is not None:
                endpoints.append(wire.LiveLeader(leader, endpoint.host, endpoint.port))
        epoch = context.brokers[broker].epoch
        version = self._versions.leader_and_isr
        head = wire.head(self._controller_id, self._controller_epoch, epoch)
        body = (head, wire.leader_and_isr_tail(version, _joined(topics), endpoints))
        return ControlRequest(ApiKey.LEADER_AND_ISR, version, body, partial(_leader_and_isr_answered, broker, epoch))

    def _leader_and_isr_entry(self, partition: PartitionIndex, state: LeaderAndIsr, is_new: bool) -> bytes:
        columns = self._context.columns
        zk_version, assignment = columns.zk_version[partition], columns.assigned[partition]
        key = (id(state), zk_version, id(assignment), is_new)
        suffix = self._leader_and_isr_suffixes.get(key)
        if suffix is None:
            if len(self._leader_and_isr_suffixes) >= SUFFIXES_MAX:
                self._leader_and_isr_suffixes.clear()
            version = self._versions.leader_and_isr
            encoded = wire.leader_and_isr_suffix(version, state, zk_version, assignment, is_new)
            suffix = self._leader_and_isr_suffixes[key] = (encoded, state, assignment)
        return wire.pack_index(columns.number[partition]) + suffix[0]

    # --- UpdateMetadata ---

    async def _metadata_topics(self, partitions: Iterable[PartitionIndex]) -> dict[str, list[bytes]]:
        topics: dict[str, list[bytes]] = {}
        topic_of, encoded, live = self._context.columns.topic, self._metadata_entry, self._context.live
        topic, of_topic = None, []
        for count, partition in enumerate(partitions, start=1):
            if topic_of[partition] is not topic:
                topic = topic_of[partition]
                of_topic = topics.setdefault(topic, [])
            of_topic.append(encoded(partition, live))
            if count % SLICE == 0:
                await asyncio.sleep(0)
        return topics

    def _metadata_entry(self, partition: PartitionIndex, live: frozenset[BrokerId]) -> bytes:
        context, columns = self._context, self._context.columns
        state, zk_version, assignment = (
            columns.state[partition],
            columns.zk_version[partition],
            columns.assigned[partition],
        )
        assert state is not None
        deleting = columns.topic[partition] in context.deleting
        online = context.live_for(partition, live) if context.offline_dirs else live
        key = (id(state), zk_version, id(assignment), deleting, online)
        suffix = self._metadata_suffixes.get(key)
        if suffix is None:
            if len(self._metadata_suffixes) >= SUFFIXES_MAX:
                self._metadata_suffixes.clear()
            offline = tuple(broker for broker in assignment.replicas if broker not in online)
            said, said_version = (_during_deletion(state), 0) if deleting else (state, zk_version)
            version = self._versions.update_metadata
            encoded = wire.update_metadata_suffix(version, said, said_version, assignment.replicas, offline)
            suffix = self._metadata_suffixes[key] = (encoded, state, assignment)
        return wire.pack_index(columns.number[partition]) + suffix[0]

    def _update_metadata(self, broker: BrokerId, tail: bytes) -> ControlRequest:
        version = self._versions.update_metadata
        epoch = self._context.brokers[broker].epoch
        head = wire.head(self._controller_id, self._controller_epoch, epoch)
        return ControlRequest(ApiKey.UPDATE_METADATA, version, (head, tail), partial(_update_metadata_answered, broker))

    # --- StopReplica ---

    def _stop_replica(self, broker: BrokerId, stops: Mapping[PartitionIndex, Stop]) -> Iterable[ControlRequest]:
        """One request with a flag for each partition from version 3 on; before, those that delete go first."""
        version = self._versions.stop_replica
        named = [(self._context.name_of(i), stop) for i, stop in stops.items()]
        deleting = [(name, stop) for name, stop in named if stop.delete]
        keeping = [(name, stop) for name, stop in named if not stop.delete]
        for group in (named,) if version >= 3 else (deleting, keeping):
            if group:
                yield self._stop_replica_request(broker, group)

    def _stop_replica_request(self, broker: BrokerId, stops: list[tuple[TopicPartition, Stop]]) -> ControlRequest:
        version = self._versions.stop_replica
        epoch = self._context.brokers[broker].epoch
        topics: dict[str, list[wire.StoppedPartition]] = {}
        for name, stop in stops:
            stopped = wire.StoppedPartition(name.partition, stop.leader_epoch, stop.delete)
            topics.setdefault(name.topic, []).append(stopped)
        body = wire.stop_replica_body(
            version,
            self._controller_id,
            self._controller_epoch,
            epoch,
            [(topic.encode(), partitions) for topic, partitions in topics.items()],
        )
        asked = frozenset(name for name, stop in stops if stop.delete)
        answered: Callable[[memoryview], ControllerEvent | None] = _nobody_waits
        if asked:
            answered = partial(_stop_replica_answered, broker, asked)
        return ControlRequest(ApiKey.STOP_REPLICA, version, (body,), answered)


def _joined(topics: Mapping[str, list[bytes]]) -> Iterator[wire.TopicEntries]:
    for topic, entries in topics.items():
        yield topic.encode(), len(entries), b"".join(entries)


def _during_deletion(state: LeaderAndIsr) -> LeaderAndIsr:
    """Brokers that hear leader -2 forget the partition."""
    return state._replace(leader=LEADER_DURING_DELETE, leader_epoch=LeaderEpoch(0))


def _leader_and_isr_answered(broker: BrokerId, epoch: BrokerEpoch, body: memoryview) -> ControllerEvent:
    return LeaderAndIsrResponse(
        broker, epoch, responses.error_code(body), responses.refused(body), lambda: responses.succeeded(body)
    )


def _update_metadata_answered(broker: BrokerId, body: memoryview) -> ControllerEvent:
    return UpdateMetadataResponse(broker, responses.error_code(body))


def _stop_replica_answered(broker: BrokerId, asked: frozenset[TopicPartition], body: memoryview) -> ControllerEvent:
    error = responses.error_code(body)
    return StopReplicaResponse(broker, error, responses.refused(body), asked)


def _nobody_waits(body: memoryview) -> None:
    return None
