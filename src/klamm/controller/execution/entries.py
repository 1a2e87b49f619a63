"""A sealed batch as bytes: each partition's entry is encoded once, and shared by all requests that carry it (design
D4).

Most partitions say the same few things: the bytes of a state and of an assignment are made once and kept, and an entry
is joined from them, the partition's number and the znode's version, column by column. It begins alike in LeaderAndIsr
and UpdateMetadata, up to the assignment: that much is made once for both. The body of UpdateMetadata is one and the
same object for every broker; only the head with the broker's epoch differs. Encoding is sliced: a batch about 100,000
partitions gives the loop away every few thousand.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, groupby
from operator import add, itemgetter
from typing import Final, Generic, NamedTuple, TypeVar, cast

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.controller.decisions.steps import chunked
from klamm.controller.events import (
    ControllerEvent,
    LeaderAndIsrResponse,
    StopReplicaResponse,
    UpdateMetadataResponse,
)
from klamm.controller.execution.batch import RequestBatch, Stop
from klamm.controller.execution.channels import ControlRequest
from klamm.model.config import BrokerConfig, broker_id_of
from klamm.model.ids import LEADER_DURING_DELETE, BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.wire.apis import ApiKey
from klamm.wire.control import encoders as wire
from klamm.wire.control import responses

T = TypeVar("T")

SLICE: Final = 5_000
"""Partitions encoded between two turns of the loop."""
COLUMN_SLICE: Final = 20_000
"""The same where bytes that are made already are only put together."""
KEPT_MAX: Final = 100_000


Runs = Sequence[tuple[str, PartitionIndex]]
"""Of all partitions in a batch, in order of their ids: topics, and the last id in a row that is the topic's. Ids of a
topic are neighbours, unless it grew or took ids that were free: then it has several runs."""


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


class Encodings(Generic[T]):
    """Bytes of values that the context interns, states or assignments, by their identity: hashing one would cost more
    than all of an entry. What is encoded here is kept alive, so no other object can take its identity."""

    def __init__(self, encode: Callable[[T], bytes]) -> None:
        self._encode = encode
        self._bytes: dict[int, bytes] = {}
        self._kept: list[T] = []

    def of(self, values: Sequence[T]) -> Sequence[bytes]:
        if len(self._kept) > KEPT_MAX:
            self._bytes.clear()
            self._kept.clear()
        found = list(map(self._bytes.get, map(id, values)))
        if None in found:
            for value in {id(value): value for value in values}.values():
                if id(value) not in self._bytes:
                    self._bytes[id(value)] = self._encode(value)
                    self._kept.append(value)
            return [self._bytes[id(value)] for value in values]
        return cast(list[bytes], found)


class RequestEncoder:
    """Of one term."""

    def __init__(self, config: BrokerConfig, context: ControllerContext, controller_epoch: ControllerEpoch) -> None:
        self._controller_id = broker_id_of(config)
        self._listener = config.inter_broker_listener
        self._versions = versions_of(config.inter_broker_protocol_version)
        self._context = context
        self._controller_epoch = controller_epoch
        version = self._versions.leader_and_isr
        self._states: Encodings[LeaderAndIsr] = Encodings(lambda state: wire.state_bytes(state, flexible=True))
        self._known: Encodings[Assignment] = Encodings(lambda a: wire.leader_and_isr_rest(version, a, False))
        self._new: Encodings[Assignment] = Encodings(lambda a: wire.leader_and_isr_rest(version, a, True))
        self._seen_by_all: tuple[frozenset[BrokerId], Encodings[Assignment]] | None = None

    async def seal(self, batch: RequestBatch) -> AsyncIterator[tuple[BrokerId, ControlRequest]]:
        """In the order of sending. Who is no longer registered by now is left out."""
        begins: dict[PartitionIndex, bytes] = {}
        runs = await self._runs(batch)
        known = await self._entries(await _union(batch.leader_and_isr.values()), self._known, begins)
        new = await self._entries(await _union(batch.new.values()), self._new, begins)
        for broker, partitions in sorted(batch.leader_and_isr.items()):
            first = batch.new.get(broker, ())
            entries = {i: new[i] if i in first else known[i] for i in partitions} if first else known
            yield broker, await self._leader_and_isr(broker, sorted(partitions), entries, runs)
            await asyncio.sleep(0)
        if batch.metadata_to:
            tail = wire.update_metadata_tail(
                self._versions.update_metadata,
                await self._metadata_topics(sorted(batch.metadata), begins, runs),
                [live.broker for _, live in sorted(self._context.brokers.items())],
            )
            for broker in sorted(batch.metadata_to):
                yield broker, self._update_metadata(broker, tail)
        for broker, stops in sorted(batch.stop_replica.items()):
            async for request in self._stop_replica(broker, stops, runs):
                yield broker, request

    async def _begin(self, partitions: Sequence[PartitionIndex], begins: dict[PartitionIndex, bytes]) -> None:
        """Index, state, version, of those that have none yet."""
        columns = self._context.columns
        for some in chunked([i for i in partitions if i not in begins], SLICE):
            states = cast(Sequence[LeaderAndIsr], list(map(columns.state.__getitem__, some)))
            parts = zip(
                map(wire.pack_index, map(columns.number.__getitem__, some)),
                self._states.of(states),
                map(wire.pack_version, map(columns.zk_version.__getitem__, some)),
                strict=True,
            )
            begins.update(zip(some, map(b"".join, parts), strict=True))
            if len(some) == SLICE:
                await asyncio.sleep(0)

    async def _entries(
        self, told: Iterable[PartitionIndex], rests: Encodings[Assignment], begins: dict[PartitionIndex, bytes]
    ) -> dict[PartitionIndex, bytes]:
        """Of LeaderAndIsr, where several brokers hear the same about a partition."""
        partitions, assigned = sorted(told), self._context.columns.assigned
        await self._begin(partitions, begins)
        entries: dict[PartitionIndex, bytes] = {}
        for some in chunked(partitions, SLICE):
            rest = rests.of(list(map(assigned.__getitem__, some)))
            entries.update(zip(some, map(add, map(begins.__getitem__, some), rest), strict=True))
            if len(some) == SLICE:
                await asyncio.sleep(0)
        return entries

    async def _runs(self, batch: RequestBatch) -> Runs:
        told = await _union((batch.metadata, *batch.leader_and_isr.values(), *batch.stop_replica.values()))
        runs: list[tuple[str, PartitionIndex]] = []
        for some in chunked(sorted(told), COLUMN_SLICE):
            runs += [(topic, max(run)) for topic, run in groupby(some, self._context.columns.topic.__getitem__)]
            if len(some) == COLUMN_SLICE:
                await asyncio.sleep(0)
        return runs

    # --- LeaderAndIsr ---

    async def _leader_and_isr(
        self, broker: BrokerId, told: Sequence[PartitionIndex], entries: Mapping[PartitionIndex, bytes], runs: Runs
    ) -> ControlRequest:
        context, version, entry_of = self._context, self._versions.leader_and_isr, entries.__getitem__
        topics = [(topic, len(some), b"".join(map(entry_of, some))) async for topic, some in _by_topic(told, runs)]
        states = cast(Iterable[LeaderAndIsr], map(context.columns.state.__getitem__, told))
        leaders: set[BrokerId] = set(map(itemgetter(0), states))
        endpoints = []
        for leader in sorted(leaders & context.brokers.keys()):
            endpoint = context.brokers[leader].broker.endpoint(self._listener)
            if endpoint is not None:
                endpoints.append(wire.LiveLeader(leader, endpoint.host, endpoint.port))
        epoch = context.brokers[broker].epoch
        head = wire.head(self._controller_id, self._controller_epoch, epoch)
        body = (head, wire.leader_and_isr_tail(version, topics, endpoints))
        return ControlRequest(ApiKey.LEADER_AND_ISR, version, body, partial(_leader_and_isr_answered, broker, epoch))

    # --- UpdateMetadata ---

    async def _metadata_topics(
        self, told: Sequence[PartitionIndex], begins: dict[PartitionIndex, bytes], runs: Runs
    ) -> list[wire.TopicEntries]:
        live, peculiar = self._context.live, self._context.peculiar()
        rests, assigned = self._rests_seen_by_all(live), self._context.columns.assigned
        await self._begin([i for i in told if i not in peculiar] if peculiar else told, begins)

        def joined(some: Sequence[PartitionIndex]) -> bytes:
            if not peculiar.isdisjoint(some):
                return b"".join([self._metadata_entry(i, live) for i in some])
            rest = rests.of(list(map(assigned.__getitem__, some)))
            return b"".join(chain.from_iterable(zip(map(begins.__getitem__, some), rest, strict=True)))

        return [(topic, len(some), joined(some)) async for topic, some in _by_topic(told, runs)]

    def _rests_seen_by_all(self, live: frozenset[BrokerId]) -> Encodings[Assignment]:
        """While the same brokers live, an assignment has the same offline replicas."""
        if self._seen_by_all is None or self._seen_by_all[0] != live:
            version = self._versions.update_metadata

            def rest(assignment: Assignment) -> bytes:
                offline = [broker for broker in assignment.replicas if broker not in live]
                return wire.update_metadata_rest(version, assignment.replicas, offline)

            self._seen_by_all = (live, Encodings(rest))
        return self._seen_by_all[1]

    def _metadata_entry(self, partition: PartitionIndex, live: frozenset[BrokerId]) -> bytes:
        """Of any partition, also where a replica is on a failed directory, or the topic is being deleted."""
        context, columns = self._context, self._context.columns
        state, zk_version, replicas = (
            columns.state[partition],
            columns.zk_version[partition],
            columns.assigned[partition].replicas,
        )
        if columns.topic[partition] in context.deleting:
            state, zk_version = _during_deletion(state, self._controller_epoch), 0
        assert state is not None
        online = context.live_for(partition, live)
        offline = [broker for broker in replicas if broker not in online]
        suffix = wire.update_metadata_suffix(self._versions.update_metadata, state, zk_version, replicas, offline)
        return wire.pack_index(columns.number[partition]) + suffix

    def _update_metadata(self, broker: BrokerId, tail: bytes) -> ControlRequest:
        version = self._versions.update_metadata
        epoch = self._context.brokers[broker].epoch
        head = wire.head(self._controller_id, self._controller_epoch, epoch)
        return ControlRequest(ApiKey.UPDATE_METADATA, version, (head, tail), partial(_update_metadata_answered, broker))

    # --- StopReplica ---

    async def _stop_replica(
        self, broker: BrokerId, stops: Mapping[PartitionIndex, Stop], runs: Runs
    ) -> AsyncIterator[ControlRequest]:
        """One request with a flag for each partition from version 3 on; before, those that delete go first."""
        if self._versions.stop_replica >= 3:
            yield await self._stop_replica_request(broker, stops, runs)
            return
        for delete in (True, False):
            group = {i: stop for i, stop in stops.items() if stop.delete is delete}
            if group:
                yield await self._stop_replica_request(broker, group, runs)

    async def _stop_replica_request(
        self, broker: BrokerId, stops: Mapping[PartitionIndex, Stop], runs: Runs
    ) -> ControlRequest:
        version, context = self._versions.stop_replica, self._context
        number_of = context.columns.number
        topics = [
            (topic, [(number_of[i], stops[i].leader_epoch, stops[i].delete) for i in some])
            async for topic, some in _by_topic(sorted(stops), runs)
        ]
        epoch = context.brokers[broker].epoch
        body = wire.stop_replica_body(version, self._controller_id, self._controller_epoch, epoch, topics)
        asked = frozenset(context.name_of(i) for i, stop in stops.items() if stop.delete)
        answered: Callable[[memoryview], ControllerEvent | None] = _nobody_waits
        if asked:
            answered = partial(_stop_replica_answered, broker, asked)
        return ControlRequest(ApiKey.STOP_REPLICA, version, (body,), answered)


async def _union(told: Iterable[Iterable[PartitionIndex]]) -> set[PartitionIndex]:
    union: set[PartitionIndex] = set()
    for some in told:
        union.update(some)
        if len(union) > COLUMN_SLICE:
            await asyncio.sleep(0)
    return union


async def _by_topic(
    told: Sequence[PartitionIndex], runs: Runs
) -> AsyncIterator[tuple[bytes, Sequence[PartitionIndex]]]:
    """Sorted partitions, all of them in the runs. Several runs of one topic are put together."""
    topics: dict[str, Sequence[PartitionIndex]] = {}
    start = 0
    for topic, last in runs:
        stop = bisect_right(told, last, start)
        if stop > start:
            topics[topic] = [*topics[topic], *told[start:stop]] if topic in topics else told[start:stop]
            start = stop
    since_pause = 0
    for topic, of_topic in topics.items():
        yield topic.encode(), of_topic
        since_pause += len(of_topic)
        if since_pause >= COLUMN_SLICE:
            since_pause = 0
            await asyncio.sleep(0)


def _during_deletion(state: LeaderAndIsr | None, controller_epoch: ControllerEpoch) -> LeaderAndIsr:
    """Brokers that hear leader -2 forget the partition."""
    isr, epoch = (state.isr, state.controller_epoch) if state is not None else ((), controller_epoch)
    return LeaderAndIsr(LEADER_DURING_DELETE, LeaderEpoch(0), isr, epoch)


def _leader_and_isr_answered(broker: BrokerId, epoch: BrokerEpoch, body: memoryview) -> ControllerEvent:
    return LeaderAndIsrResponse(
        broker, epoch, responses.error_code(body), responses.refused(body), lambda: responses.succeeded(body)
    )


def _update_metadata_answered(broker: BrokerId, body: memoryview) -> ControllerEvent:
    return UpdateMetadataResponse(broker, responses.error_code(body))


def _stop_replica_answered(broker: BrokerId, asked: frozenset[TopicPartition], body: memoryview) -> ControllerEvent:
    error = responses.error_code(body)
    return StopReplicaResponse(broker, error, responses.refused(body), asked)


def _nobody_waits(_body: memoryview) -> None:
    return None
