"""Producers and consumers of the simulated cluster: they record what they were told, and check it at once.

They use klamm's own client, on their own hosts. A record's value names its producer and its number there. A producer
without idempotence never sends a value twice. An idempotent one repeats a batch until it knows the outcome; if it gives
up, it starts again as another producer.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from klamm.client.addresses import Address
from klamm.client.cluster import ClusterClient
from klamm.client.errors import ClientError
from klamm.client.reader import fetch, records_of
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import BrokerId, TopicPartition
from klamm.simulation.history import PartitionHistory, Sent
from klamm.simulation.process import BROKER_PORT
from klamm.wire.apis import ApiKey
from klamm.wire.errors import error_of
from klamm.wire.messages import request_class
from klamm.wire.records import Record, build_batch

if TYPE_CHECKING:
    from klamm.simulation.cluster import SimulatedCluster

ALL: Final = -1
REQUEST_SECONDS: Final = 4.0
PAUSE_SECONDS: Final = (0.01, 0.4)
TRIES_MAX: Final = 12
BATCH_MAX: Final = 3
FETCH_BYTES: Final = (1, 200, 5_000)
FROM_FOLLOWER: Final = 0.3
TRIM_SECONDS: Final = (1.0, 8.0)


class Client(ABC):
    """A connection of one host to the cluster."""

    @abstractmethod
    async def run(self) -> None:
        """Work until cancelled."""

    def __init__(self, cluster: SimulatedCluster, histories: Sequence[PartitionHistory], host: str) -> None:
        self._cluster = cluster
        self._histories = histories
        self._random = random.Random(f"{cluster.scenario.seed} {host}")
        self._client = ClusterClient(
            [Address(process.host, BROKER_PORT) for process in cluster.processes],
            network=cluster.network.host(host),
            clock=cluster.clock,
            timeout=REQUEST_SECONDS,
        )

    @property
    def _now(self) -> float:
        return self._cluster.clock.monotonic()

    def _require(self, invariant: str, wrong: str | None) -> None:
        self._cluster.checker.require(invariant, wrong)

    async def _leader(self, name: TopicPartition) -> int:
        return await self._client.leader_of(name.topic, name.partition)

    async def _pause(self) -> None:
        self._client.forget_leaders()
        await asyncio.sleep(self._random.uniform(*PAUSE_SECONDS))


FAILURES: Final = (KafkaError, ClientError, OSError)
"""What a client expects and survives."""


class SimulatedProducer(Client):
    def __init__(
        self,
        cluster: SimulatedCluster,
        histories: Sequence[PartitionHistory],
        number: int,
        *,
        acks: int,
        idempotent: bool,
    ) -> None:
        super().__init__(cluster, histories, f"producer-{number}")
        self._acks = acks
        self._idempotent = idempotent
        self._number = number
        self._restarts = 0
        self._producer_id = -1
        self._sent = 0
        self._sequences: dict[TopicPartition, int] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._random.uniform(*PAUSE_SECONDS))
            history = self._random.choice(self._histories)
            await self.send(history)

    async def send(self, history: PartitionHistory, tries: int = TRIES_MAX) -> bool:
        """True if the batch was acknowledged."""
        values = self._next_values()
        for attempt in range(tries):
            if attempt:
                await self._pause()
            try:
                if self._idempotent and self._producer_id < 0:
                    self._producer_id = await self._new_producer_id()
                code, offset, asked_at = await self._produce(history.name, values)
            except FAILURES:
                code = ErrorCode.NETWORK_EXCEPTION
            if code is ErrorCode.NONE:
                self._cluster.checker.reached(f"acknowledged with acks={self._acks}")
                if self._acks == ALL:
                    self._require("S2", history.acknowledged(offset, values, asked_at))
                self._sequences[history.name] = self._sequences.get(history.name, 0) + len(values)
                return True
            self._client.forget_leaders()
            if not self._idempotent:
                if code is ErrorCode.NOT_ENOUGH_REPLICAS:
                    history.refused.update(values)
                return False
            if code in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID):
                break
        self._start_over()
        return False

    def _next_values(self) -> list[bytes]:
        self._sent += 1
        count = self._random.randint(1, BATCH_MAX)
        kind = "i" if self._idempotent else "p"
        serial = self._number * 1_000 + self._restarts
        return [f"{kind} {serial} {self._sent * BATCH_MAX + n}".encode() for n in range(count)]

    def _start_over(self) -> None:
        self._restarts += 1
        self._producer_id = -1
        self._sequences.clear()

    async def _new_producer_id(self) -> int:
        request = request_class(ApiKey.INIT_PRODUCER_ID)(transactional_id=None, transaction_timeout_ms=60_000)
        answer = await self._client.ask_any(ApiKey.INIT_PRODUCER_ID, request)
        if answer.error_code:
            raise KafkaError(error_of(answer.error_code))
        return int(answer.producer_id)

    async def _produce(self, name: TopicPartition, values: Sequence[bytes]) -> tuple[ErrorCode, int, float]:
        leader = await self._leader(name)
        link = await self._client.link_to(leader)
        records = [Record(None, value, self._cluster.clock.wall_ms()) for value in values]
        batch = build_batch(records)
        if self._idempotent:
            sequence = self._sequences.get(name, 0)
            batch = build_batch(records, producer_id=self._producer_id, producer_epoch=0, base_sequence=sequence)
        cls = request_class(ApiKey.PRODUCE)
        entry = cls.TopicProduceData.PartitionProduceData(index=name.partition, records=batch)
        data = [cls.TopicProduceData(name=name.topic, partition_data=[entry])]
        asked_at = self._now
        request = cls(acks=self._acks, timeout_ms=int(REQUEST_SECONDS * 700), topic_data=data)
        answer = await link.ask(ApiKey.PRODUCE, request, REQUEST_SECONDS)
        (result,) = answer.responses[0].partition_responses
        code = error_of(result.error_code)
        self._cluster.checker.note("produced", name, leader, code.name, result.base_offset)
        return code, int(result.base_offset), asked_at


class SimulatedConsumer(Client):
    """Reads every partition from its beginning, mostly from its leader."""

    def __init__(self, cluster: SimulatedCluster, histories: Sequence[PartitionHistory], number: int) -> None:
        super().__init__(cluster, histories, f"consumer-{number}")
        self.positions: dict[TopicPartition, int] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._random.uniform(*PAUSE_SECONDS))
            await self.read(self._random.choice(self._histories))

    async def read(self, history: PartitionHistory) -> None:
        """One fetch of one partition."""
        name, asked_at = history.name, self._now
        position = self.positions.get(name, 0)
        try:
            leader = await self._leader(name)
            source = self._random.choice(sorted(self._client.brokers)) if self._is_curious() else leader
            entries = await fetch(
                self._client, source, {name: position}, partition_bytes_max=self._random.choice(FETCH_BYTES)
            )
        except FAILURES:
            await self._pause()
            return
        entry = entries[name]
        code = error_of(entry.error_code)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and self._leads(source, history):
            self._was_cut(history, position, asked_at)
        elif code is not ErrorCode.NONE:
            self._client.forget_leaders()
        else:
            self._take(history, position, asked_at, entry)

    def _is_curious(self) -> bool:
        return self._random.random() < FROM_FOLLOWER

    def _take(self, history: PartitionHistory, position: int, asked_at: float, entry: Any) -> None:
        if asked_at <= history.excused_at:
            return
        records, end = records_of(entry.records or b"", position)
        for expected, record in enumerate(records, position):
            if record.offset != expected:
                self._require("S2", f"{history.name}: offset {record.offset} follows {expected - 1}")
            self._require("S2", history.was_read(record.offset, record.value or b"", asked_at))
        if records and entry.high_watermark < end:
            self._require("S2", f"{history.name}: read up to {end}, the high watermark is {entry.high_watermark}")
        self.positions[history.name] = end

    def _leads(self, broker: int, history: PartitionHistory) -> bool:
        """Another broker may have led until a moment ago, or may not know yet that it does not lead any more."""
        leads = self._cluster.process_of(BrokerId(broker)).broker
        return leads is not None and leads.leads().get(history.name) == history.leader_epoch

    def _was_cut(self, history: PartitionHistory, position: int, asked_at: float) -> None:
        """The leader has nothing at a position that this consumer reached by reading."""
        if asked_at > history.excused_at and position - 1 in history.read and position >= history.trimmed:
            self._require("S2", f"{history.name}: the leader has no offset {position}, {position - 1} was read")
        self.positions[history.name] = history.trimmed if position < history.trimmed else 0


class SimulatedTrimmer(Client):
    """Deletes the oldest records of a partition, now and then."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._random.uniform(*TRIM_SECONDS))
            await self.trim(self._random.choice(self._histories))

    async def trim(self, history: PartitionHistory) -> None:
        """Nothing that was not seen before: it could be above the high watermark."""
        name, end = history.name, max(history.read, default=0)
        history.trimmed = offset = max(history.trimmed, self._random.randint(0, end))
        cls = request_class(ApiKey.DELETE_RECORDS)
        entry = cls.DeleteRecordsTopic.DeleteRecordsPartition(partition_index=name.partition, offset=offset)
        request = cls(topics=[cls.DeleteRecordsTopic(name=name.topic, partitions=[entry])], timeout_ms=2_000)
        try:
            link = await self._client.link_to(await self._leader(name))
            answer = await link.ask(ApiKey.DELETE_RECORDS, request, REQUEST_SECONDS)
        except FAILURES:
            await self._pause()
            return
        (result,) = answer.topics[0].partitions
        self._cluster.checker.note("trimmed", name, offset, error_of(result.error_code).name)
        if result.error_code == ErrorCode.NONE:
            self._cluster.checker.reached("records deleted")


def sent_by(value: bytes) -> Sent | None:
    """The batch of an idempotent producer, from the value of a record."""
    kind, serial, number = value.split()
    return Sent(int(serial), int(number)) if kind == b"i" else None
