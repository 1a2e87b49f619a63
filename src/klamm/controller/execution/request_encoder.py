"""Encodes a batch: each partition's entry is encoded once and shared by all requests that carry it (design D4).

Most partitions say the same few things, so the bytes of a state and of an assignment are made once and kept. An entry
is joined from them, the partition's number and the znode's version, column by column. Entries of LeaderAndIsr and
UpdateMetadata are equal up to the assignment: that part is made once for both. The body of UpdateMetadata is the same
object for every broker; only the head with the broker's epoch differs. Encoding is sliced: a batch about 100,000
partitions yields to the loop every few thousand.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, groupby
from operator import add, itemgetter
from typing import Final, Generic, NamedTuple, TypeVar, cast

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.controller.decisions.faults import concerning_topic
from klamm.controller.decisions.steps import chunked
from klamm.controller.events import (
    BrokerResponse,
    LeaderAndIsrResponse,
    StopReplicaResponse,
    UpdateMetadataResponse,
)
from klamm.controller.execution.broker_channel import ControlRequest
from klamm.controller.execution.request_batch import RequestBatch, Stop
from klamm.model.config import BrokerConfig, broker_id_of
from klamm.model.errors import ErrorCode
from klamm.model.ids import LEADER_DURING_DELETE, BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.wire.apis import ApiKey
from klamm.wire.control import encoders as wire
from klamm.wire.control import responses
from klamm.wire.errors import ProtocolError

log = logging.getLogger(__name__)

T = TypeVar("T")

SLICE: Final = 5_000
"""Partitions encoded between two turns of the loop."""
COLUMN_SLICE: Final = 20_000
"""The same limit where existing bytes are only joined."""
KEPT_MAX: Final = 100_000


Runs = Sequence[tuple[str, PartitionIndex]]
"""All partitions of a batch in order of their indexes, as runs: a topic, and the last index of the run. The indexes of
a topic are consecutive, unless it grew or took indexes that were free: then it has several runs."""


class RequestVersions(NamedTuple):
    """Versions of the control requests. They are not negotiated: the sender's inter.broker.protocol.version decides, as
    in Kafka's ControllerChannelManager."""

    leader_and_isr: int
    stop_replica: int
    update_metadata: int


def versions_of(protocol: str) -> RequestVersions:
    """
    >>> versions_of("2.5"), versions_of("2.6-IV0").stop_replica
    (RequestVersions(leader_and_isr=4, stop_replica=2, update_metadata=6), 3)
    """
    major, minor = (int(part) for part in protocol.partition("-")[0].split(".")[:2])
    return RequestVersions(4, 3 if (major, minor) >= (2, 6) else 2, 6)


class Encodings(Generic[T]):
    """Bytes of values that the context interns, states or assignments, by identity: hashing one would cost more than a
    whole entry. Encoded values are kept alive, so no other object can take their identity."""

    def __init__(self, encode: Callable[[T], bytes]) -> None:
        self._encode = encode
        self._bytes: dict[int, bytes] = {}
        self._kept: list[T] = []

    def clear(self) -> None:
        self._bytes.clear()
        self._kept.clear()

    def of(self, values: Sequence[T]) -> Sequence[bytes]:
        if len(self._kept) > KEPT_MAX:
            self.clear()
        found = list(map(self._bytes.get, map(id, values)))
        if None in found:
            for value in {id(value): value for value in values}.values():
                if id(value) not in self._bytes:
                    self._bytes[id(value)] = self._encode(value)
                    self._kept.append(value)
            return [self._bytes[id(value)] for value in values]
        return cast(list[bytes], found)


class RequestEncoder:
    """Belongs to one term."""

    def __init__(self, config: BrokerConfig, context: ControllerContext) -> None:
        self._controller_id = broker_id_of(config)
        self._listener = config.inter_broker_listener
        self._versions = versions_of(config.inter_broker_protocol_version)
        self._context = context
        version = self._versions.leader_and_isr
        self._states: Encodings[LeaderAndIsr] = Encodings(lambda state: wire.state_bytes(state, flexible=True))
        self._known: Encodings[Assignment] = Encodings(lambda a: wire.leader_and_isr_rest(version, a, False))
        self._new: Encodings[Assignment] = Encodings(lambda a: wire.leader_and_isr_rest(version, a, True))
        self._seen_by_all: tuple[frozenset[BrokerId], Encodings[Assignment]] | None = None

    def clear(self) -> None:
        """Free the memory at once, at the end of a term (see `ControllerContext.clear`)."""
        for encodings in (self._states, self._known, self._new):
            encodings.clear()
        self._seen_by_all = None

    async def encode(self, batch: RequestBatch) -> AsyncIterator[tuple[BrokerId, ControlRequest]]:
        """In the order of sending."""
        begins: dict[PartitionIndex, bytes] = {}
        runs = await self._runs(batch)
        known = await self._entries(sorted(await _union(batch.leader_and_isr.values())), self._known, begins)
        new = await self._entries(sorted(await _union(batch.new.values())), self._new, begins)
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
            deleting, topics = self._context.deleting, self._context.columns.topic
            leaving = frozenset(deleting.intersection(map(topics.__getitem__, batch.metadata)) if deleting else ())
            for broker in sorted(batch.metadata_to):
                yield broker, self._update_metadata(broker, tail, leaving)
        for broker, stops in sorted(batch.stop_replica.items()):
            async for request in self._stop_replica(broker, stops, runs):
                yield broker, request

    async def _begin(self, partitions: Sequence[PartitionIndex], begins: dict[PartitionIndex, bytes]) -> None:
        """Encode number, state and version of the partitions that are not in `begins` yet."""
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
        self, partitions: Sequence[PartitionIndex], rests: Encodings[Assignment], begins: dict[PartitionIndex, bytes]
    ) -> dict[PartitionIndex, bytes]:
        """Entries of LeaderAndIsr, which several brokers receive."""
        assigned = self._context.columns.assigned
        await self._begin(partitions, begins)
        entries: dict[PartitionIndex, bytes] = {}
        for some in chunked(partitions, SLICE):
            rest = rests.of(list(map(assigned.__getitem__, some)))
            entries.update(zip(some, map(add, map(begins.__getitem__, some), rest), strict=True))
            if len(some) == SLICE:
                await asyncio.sleep(0)
        return entries

    async def _runs(self, batch: RequestBatch) -> Runs:
        partitions = await _union((batch.metadata, *batch.leader_and_isr.values(), *batch.stop_replica.values()))
        runs: list[tuple[str, PartitionIndex]] = []
        for some in chunked(sorted(partitions), COLUMN_SLICE):
            runs += [(topic, max(run)) for topic, run in groupby(some, self._context.columns.topic.__getitem__)]
            if len(some) == COLUMN_SLICE:
                await asyncio.sleep(0)
        return runs

    # --- LeaderAndIsr ---

    async def _leader_and_isr(
        self,
        broker: BrokerId,
        partitions: Sequence[PartitionIndex],
        entries: Mapping[PartitionIndex, bytes],
        runs: Runs,
    ) -> ControlRequest:
        context, version, entry_of = self._context, self._versions.leader_and_isr, entries.__getitem__
        topics = [
            (topic, len(some), b"".join(map(entry_of, some))) async for topic, some in _by_topic(partitions, runs)
        ]
        states = cast(Iterable[LeaderAndIsr], map(context.columns.state.__getitem__, partitions))
        leaders: set[BrokerId] = set(map(itemgetter(0), states))
        endpoints = []
        for leader in sorted(leaders & context.brokers.keys()):
            endpoint = context.brokers[leader].broker.endpoint(self._listener)
            if endpoint is not None:
                endpoints.append(wire.LiveLeader(leader, endpoint.host, endpoint.port))
        epoch = context.brokers[broker].epoch
        head = wire.head(self._controller_id, context.controller_epoch, epoch)
        body = (head, wire.leader_and_isr_tail(version, topics, endpoints))
        return ControlRequest(ApiKey.LEADER_AND_ISR, version, body, partial(_leader_and_isr_response, broker, epoch))

    # --- UpdateMetadata ---

    async def _metadata_topics(
        self, partitions: Sequence[PartitionIndex], begins: dict[PartitionIndex, bytes], runs: Runs
    ) -> list[wire.TopicEntries]:
        live, peculiar = self._context.live, self._context.peculiar()
        rests, assigned = self._rests_seen_by_all(live), self._context.columns.assigned
        await self._begin([i for i in partitions if i not in peculiar] if peculiar else partitions, begins)

        def joined(some: Sequence[PartitionIndex]) -> bytes:
            if not peculiar.isdisjoint(some):
                with concerning_topic(self._context.topic_of(some[0])):
                    return b"".join([self._metadata_entry(i, live) for i in some])
            rest = rests.of(list(map(assigned.__getitem__, some)))
            return b"".join(chain.from_iterable(zip(map(begins.__getitem__, some), rest, strict=True)))

        return [(topic, len(some), joined(some)) async for topic, some in _by_topic(partitions, runs)]

    def _rests_seen_by_all(self, live: frozenset[BrokerId]) -> Encodings[Assignment]:
        """While the same brokers are alive, an assignment has the same offline replicas."""
        if self._seen_by_all is None or self._seen_by_all[0] != live:
            version = self._versions.update_metadata

            def rest(assignment: Assignment) -> bytes:
                offline = [broker for broker in assignment.replicas if broker not in live]
                return wire.update_metadata_rest(version, assignment.replicas, offline)

            self._seen_by_all = (live, Encodings(rest))
        return self._seen_by_all[1]

    def _metadata_entry(self, partition: PartitionIndex, live: frozenset[BrokerId]) -> bytes:
        """Works for any partition, even if a replica is on a failed log directory or the topic is being deleted."""
        context, columns = self._context, self._context.columns
        state, zk_version = columns.state[partition], columns.zk_version[partition]
        replicas = columns.assigned[partition].replicas
        if columns.topic[partition] in context.deleting:
            state, zk_version = _during_deletion(state, context.controller_epoch), 0
        assert state is not None
        online = context.live_for(partition, live)
        offline = [broker for broker in replicas if broker not in online]
        suffix = wire.update_metadata_suffix(self._versions.update_metadata, state, zk_version, replicas, offline)
        return wire.pack_index(columns.number[partition]) + suffix

    def _update_metadata(self, broker: BrokerId, tail: bytes, leaving: frozenset[str]) -> ControlRequest:
        """`leaving`: topics that the broker drops from its metadata when it receives this."""
        version = self._versions.update_metadata
        epoch = self._context.brokers[broker].epoch
        head = wire.head(self._controller_id, self._context.controller_epoch, epoch)
        decode = partial(_update_metadata_response, broker, epoch, leaving)
        return ControlRequest(ApiKey.UPDATE_METADATA, version, (head, tail), decode)

    # --- StopReplica ---

    async def _stop_replica(
        self, broker: BrokerId, stops: Mapping[PartitionIndex, Stop], runs: Runs
    ) -> AsyncIterator[ControlRequest]:
        """From version 3 on, one request with a flag for each partition; before, one request for those that delete,
        then one for the others."""
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
        body = wire.stop_replica_body(version, self._controller_id, context.controller_epoch, epoch, topics)
        asked = frozenset(context.name_of(i) for i, stop in stops.items() if stop.delete)
        decode: Callable[[memoryview], BrokerResponse | None] = _ignore_response
        if asked:
            decode = partial(_stop_replica_response, broker, asked)
        return ControlRequest(ApiKey.STOP_REPLICA, version, (body,), decode)


async def _union(groups: Iterable[Iterable[PartitionIndex]]) -> set[PartitionIndex]:
    union: set[PartitionIndex] = set()
    for some in groups:
        union.update(some)
        if len(union) > COLUMN_SLICE:
            await asyncio.sleep(0)
    return union


async def _by_topic(
    partitions: Sequence[PartitionIndex], runs: Runs
) -> AsyncIterator[tuple[bytes, Sequence[PartitionIndex]]]:
    """Group sorted partitions by topic; every partition must be in the runs. Several runs of one topic are joined."""
    topics: dict[str, Sequence[PartitionIndex]] = {}
    start = 0
    for topic, last in runs:
        stop = bisect_right(partitions, last, start)
        if stop > start:
            topics[topic] = [*topics[topic], *partitions[start:stop]] if topic in topics else partitions[start:stop]
            start = stop
    since_pause = 0
    for topic, of_topic in topics.items():
        yield topic.encode(), of_topic
        since_pause += len(of_topic)
        if since_pause >= COLUMN_SLICE:
            since_pause = 0
            await asyncio.sleep(0)


def _during_deletion(state: LeaderAndIsr | None, controller_epoch: ControllerEpoch) -> LeaderAndIsr:
    """Brokers that receive leader -2 drop the partition."""
    isr, epoch = (state.isr, state.controller_epoch) if state is not None else ((), controller_epoch)
    return LeaderAndIsr(LEADER_DURING_DELETE, LeaderEpoch(0), isr, epoch)


def _leader_and_isr_response(broker: BrokerId, epoch: BrokerEpoch, body: memoryview) -> BrokerResponse:
    return LeaderAndIsrResponse(
        broker, epoch, responses.error_code(body), responses.refused(body), lambda: responses.succeeded(body)
    )


def _update_metadata_response(
    broker: BrokerId, epoch: BrokerEpoch, leaving: frozenset[str], body: memoryview
) -> BrokerResponse:
    return UpdateMetadataResponse(broker, responses.error_code(body), epoch, leaving)


def _stop_replica_response(broker: BrokerId, asked: frozenset[TopicPartition], body: memoryview) -> BrokerResponse:
    try:
        return StopReplicaResponse(broker, responses.error_code(body), responses.refused(body), asked)
    except ProtocolError as error:
        # Whether it deleted anything is not known: without an answer all would stay DeletionStarted.
        log.error("the answer of broker %d to StopReplica is invalid: %s", broker, error)
        return StopReplicaResponse(broker, ErrorCode.UNKNOWN_SERVER_ERROR, (), asked)


def _ignore_response(_body: memoryview) -> None:
    return None
