"""A transaction coordinator on a log and brokers that tests control, in milliseconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from klamm.broker.coordinators.internal_topic import partition_for
from klamm.broker.coordinators.transactions.coordinator import TransactionCoordinator
from klamm.broker.coordinators.transactions.marker_sender import MarkerSender
from klamm.broker.coordinators.transactions.markers import MarkerAnswers, MarkerEntry
from klamm.broker.coordinators.transactions.timers import TransactionTimers
from klamm.broker.coordinators.transactions.transaction import Transaction
from klamm.broker.metadata_cache import MetadataCache
from klamm.model.brokers import Broker, Endpoint
from klamm.model.config import BrokerConfig
from klamm.model.control import MetadataUpdate, PartitionMetadata, Sender
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.guard import Guard
from klamm.model.ids import (
    LEADER_DURING_DELETE,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    ProducerId,
    TopicPartition,
)

LISTENER = "INTERNAL"
PARTITIONS = 4
SENDER = Sender(BrokerId(9), ControllerEpoch(1), BrokerEpoch(-1))


def state_partition(transactional_id: str) -> TopicPartition:
    return TopicPartition("__transaction_state", partition_for(transactional_id, PARTITIONS))


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)


class Topic:
    name = "__transaction_state"

    def __init__(self) -> None:
        self.count: int | None = None

    async def read_count(self) -> None:
        self.count = PARTITIONS

    def known_partition_of(self, transactional_id: str) -> TopicPartition | None:
        return None if self.count is None else state_partition(transactional_id)


class Log:
    """Keeps what is written, answers with the errors in `errors`, and waits while `gate` is closed."""

    def __init__(self) -> None:
        self.written: list[tuple[int, str, Transaction | None]] = []
        self.errors: list[ErrorCode] = []
        self.load_errors: list[ErrorCode] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = asyncio.Event()
        self.contents: dict[int, dict[str, Transaction]] = {}
        self.damaged = 0

    async def write(self, partition: int, transaction: Transaction) -> ErrorCode:
        return await self._write(partition, transaction.transactional_id, transaction)

    async def write_tombstone(self, partition: int, transactional_id: str) -> ErrorCode:
        return await self._write(partition, transactional_id, None)

    async def _write(self, partition: int, transactional_id: str, transaction: Transaction | None) -> ErrorCode:
        self.waiting.set()
        await self.gate.wait()
        error = self.errors.pop(0) if self.errors else ErrorCode.NONE
        if error is ErrorCode.NONE:
            self.written.append((partition, transactional_id, transaction))
        return error

    async def load(self, partition: int, is_wanted: Callable[[], bool]) -> dict[str, Transaction]:
        await self.gate.wait()
        if self.load_errors:
            raise KafkaError(self.load_errors.pop(0))
        return dict(self.contents.get(partition, {}))

    def states(self) -> list[tuple[str, str]]:
        return [(name, "tombstone" if value is None else value.state.name) for _, name, value in self.written]

    @property
    def last(self) -> Transaction:
        value = self.written[-1][2]
        assert value is not None
        return value


class ProducerIds:
    def __init__(self) -> None:
        self.next = 1000

    async def take(self) -> ProducerId:
        await asyncio.sleep(0)
        self.next += 1
        return ProducerId(self.next - 1)


class MarkerBroker:
    """A broker that takes markers: answers `errors` for a partition one after the other, then NONE."""

    def __init__(self) -> None:
        self.requests: list[list[MarkerEntry]] = []
        self.errors: dict[TopicPartition, list[ErrorCode]] = {}
        self.failures: list[Exception] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = asyncio.Event()

    async def write(self, entries: Sequence[MarkerEntry]) -> MarkerAnswers:
        self.requests.append(list(entries))
        self.asked.set()
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        return {
            (entry.producer_id, name): self.errors[name].pop(0) if self.errors.get(name) else ErrorCode.NONE
            for entry in entries
            for name in entry.partitions
        }

    def close(self) -> None: ...


class Coordinating:
    def __init__(self, config: BrokerConfig | None = None) -> None:
        self.config = config or BrokerConfig(broker_id=1)
        self.clock = Clock()
        self.topic, self.log, self.ids = Topic(), Log(), ProducerIds()
        self.metadata = MetadataCache()
        self.brokers: dict[int, MarkerBroker] = {1: MarkerBroker(), 2: MarkerBroker()}
        self.guard = Guard()
        self.existing: set[TopicPartition] = set()
        """What ZooKeeper knows, whatever this broker was told."""
        self.markers = MarkerSender(
            self.metadata, LISTENER, self.guard, lambda broker: self.brokers[broker], self.partitions_left
        )
        parts: tuple[Any, ...] = (self.config, self.clock, self.guard, self.topic, self.log, self.ids, self.markers)
        self.coordinator = TransactionCoordinator(*parts)
        self.timers = TransactionTimers(self.config, self.clock, self.guard, self.log, self.coordinator)  # type: ignore[arg-type]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Coordinating]:
        async with self.guard.running():
            self.timers.start()
            yield self
            assert self.guard.failures == {}, "a defect that the guard caught"

    async def partitions_left(self, topic: str) -> int:
        return max((name.partition + 1 for name in self.existing if name.topic == topic), default=0)

    async def lead(self, transactional_id: str = "tx", epoch: int = 5) -> None:
        """Own the id's partition, and wait for the load."""
        self.coordinator.became_leader(state_partition(transactional_id), LeaderEpoch(epoch))
        await self.settled(lambda: not self.coordinator.is_loading)

    def resign(self, transactional_id: str = "tx", epoch: int | None = 6) -> None:
        self.coordinator.resigned(state_partition(transactional_id), None if epoch is None else LeaderEpoch(epoch))

    async def told(self, leaders: dict[TopicPartition, int], alive: tuple[int, ...] = (1, 2)) -> None:
        """UpdateMetadata. Leader -2 deletes a partition."""
        brokers = [Broker(BrokerId(b), (Endpoint(LISTENER, f"host{b}", 9092),)) for b in alive]
        topics: dict[str, list[tuple[int, PartitionMetadata]]] = {}
        for name, leader in leaders.items():
            (self.existing.discard if leader == LEADER_DURING_DELETE else self.existing.add)(name)
            state = PartitionMetadata(BrokerId(leader), LeaderEpoch(0), (), (), ())
            topics.setdefault(name.topic, []).append((name.partition, state))
        assert LEADER_DURING_DELETE == -2
        await self.metadata.update(MetadataUpdate(SENDER, brokers, list(topics.items())))

    async def settled(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0.001)

    def put(self, transaction: Transaction) -> None:
        """As if it were in the log before the load."""
        partition = state_partition(transaction.transactional_id).partition
        self.log.contents.setdefault(partition, {})[transaction.transactional_id] = transaction

    def now(self, transactional_id: str = "tx") -> Transaction:
        found = self.coordinator.find(transactional_id)
        assert found is not None
        return found


async def refused(call: Any) -> ErrorCode:
    try:
        await call
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE
