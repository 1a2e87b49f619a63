"""Fakes of log and clock: a record is one byte, so an offset is a position in a bytearray."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from klamm.broker.partition import Partition
from klamm.log.directories.topic_lives import TopicLife
from klamm.log.directory_moves.log_dir_moves import LogDirMoves
from klamm.log.leader_epochs import LeaderEpochCache
from klamm.log.log_results import AppendInfo, ReadResult
from klamm.model.config import BrokerConfig, TopicConfig
from klamm.model.control import PartitionOrder
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.guard import Guard
from klamm.model.ids import BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.testing.zookeeper import InMemoryZooKeeper
from klamm.zookeeper.znodes.persistent import PERSISTENT_PATHS

from .following import FakeLeader, Pair

TP = TopicPartition("orders", 0)
ME = BrokerId(1)


class ManualClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    instant = monotonic

    def wall_ms(self) -> int:
        return int(self.now * 1000)

    def advance(self, seconds: float) -> None:
        self.now += seconds


class NoDisk:
    def write_atomically(self, path: str, data: bytes, turn: int = 0) -> None: ...


class FakeLog:
    def __init__(self, partition: TopicPartition = TP, **config: Any) -> None:
        self.topic_partition = partition
        self.config = TopicConfig(**config)
        self.data = bytearray()
        self.appended: list[bytes] = []
        """What leaders appended, as they gave it."""
        self.log_start_offset = 0
        self.high_watermark = 0
        self.producers: tuple[()] = ()
        self.unstable: int | None = None
        self.failed = False
        self.corrupt_once = False
        self.waits_for_flush = False
        self.flushed_to = 0
        self.epochs = LeaderEpochCache(NoDisk(), "epochs")  # type: ignore[arg-type]
        self.epochs.bind(lambda: self.log_end_offset, lambda: None)

    @property
    def log_end_offset(self) -> int:
        return len(self.data)

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    @property
    def last_stable_offset(self) -> int:
        return self.high_watermark if self.unstable is None else min(self.unstable, self.high_watermark)

    def may_acknowledge(self, end_offset: int) -> bool:
        return not self.waits_for_flush

    @property
    def committable_end(self) -> int:
        return self.flushed_to if self.waits_for_flush else self.log_end_offset

    def fill(self, *epochs: int) -> FakeLog:
        """One record per named epoch; its byte is the epoch."""
        for epoch in epochs:
            self.append_as_leader(bytes([epoch]), LeaderEpoch(epoch))
        return self

    async def prepare(self, records: bytes) -> None: ...

    async def prepare_truncation(self, offset: int) -> None: ...

    def append_as_leader(self, records: bytes, leader_epoch: int, *, origin: Any = None) -> AppendInfo:
        first = self.log_end_offset
        self.appended.append(records)
        self.epochs.assign(LeaderEpoch(leader_epoch), first)
        self.data += bytes([leader_epoch]) * len(records)
        return AppendInfo(first, self.log_end_offset - 1, -1, -1, self.log_start_offset)

    def append_as_follower(self, records: bytes) -> AppendInfo:
        if self.corrupt_once:
            self.corrupt_once = False
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE)
        first = self.log_end_offset
        for epoch in bytes(records):
            self.append_as_leader(b"x", epoch)
        return AppendInfo(first, self.log_end_offset - 1, -1, -1, self.log_start_offset)

    def read(self, offset: int, max_bytes: int, *, upper_bound: int, at_least_one: bool) -> ReadResult:
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        size = max(max_bytes, 1) if at_least_one else max_bytes
        end = max(offset, min(upper_bound, offset + size))
        return ReadResult(bytes(self.data[offset:end]), offset, end)

    def update_high_watermark(self, offset: int) -> bool:
        before, self.high_watermark = (
            self.high_watermark,
            max(self.log_start_offset, min(offset, self.log_end_offset)),
        )
        return before != self.high_watermark

    def maybe_increment_high_watermark(self, offset: int) -> bool:
        return offset > self.high_watermark and self.update_high_watermark(offset)

    def truncate_to(self, offset: int) -> bool:
        if offset >= self.log_end_offset:
            return False
        del self.data[offset:]
        self.epochs.truncate_from_end(offset)
        self.high_watermark = min(self.high_watermark, offset)
        return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        self.data[:] = bytes(offset)
        self.epochs.clear()
        self.log_start_offset = self.high_watermark = offset

    def advance_log_start(self, offset: int) -> bool:
        if offset > self.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        advanced = offset > self.log_start_offset
        self.log_start_offset = max(offset, self.log_start_offset)
        return advanced

    async def read_timestamps(self) -> None: ...

    def aborted_transactions(self, from_offset: int, to_offset: int) -> list[Any]:
        return []


class FakeLives:
    def __init__(self) -> None:
        self.known: dict[TopicPartition, TopicLife] = {}

    def of(self, partition: TopicPartition) -> TopicLife | None:
        return self.known.get(partition)

    async def remember(self, lives: dict[TopicPartition, TopicLife]) -> None:
        self.known |= lives


class FakeLogManager:
    def __init__(self) -> None:
        self.kept: dict[TopicPartition, FakeLog] = {}
        self.offline: dict[TopicPartition, str] = {}
        self.deleted: list[TopicPartition] = []
        self.checkpoints = 0
        self.stray_count = 0
        self.guard = Guard()
        self.on_offline: Any = None
        self.on_flushed: Any = None
        self.lives = FakeLives()
        self.aside: list[TopicPartition] = []
        self.unsettled: set[TopicPartition] = set()
        self.dir_moves = LogDirMoves(NoDisk(), ManualClock(), random.Random(1), self)  # type: ignore[arg-type]

    def get(self, partition: TopicPartition) -> FakeLog | None:
        return self.kept.get(partition)

    def is_offline(self, partition: TopicPartition) -> bool:
        return partition in self.offline

    def logs(self) -> list[FakeLog]:
        return list(self.kept.values())

    def use(self, config: BrokerConfig) -> None: ...

    def when_flush_took(self, call: Callable[[float], None]) -> None: ...

    def reconfigure(self, topic: str, config: TopicConfig) -> None:
        for partition, log in self.kept.items():
            if partition.topic == topic:
                log.config = config

    async def create_many(self, partitions: Any) -> dict[TopicPartition, FakeLog]:
        made = {name: FakeLog(name, min_insync_replicas=config.min_insync_replicas) for name, config, _ in partitions}
        self.kept.update(made)
        return made

    def delete(self, partition: TopicPartition) -> None:
        del self.kept[partition]
        self.deleted.append(partition)

    async def set_aside(self, partition: TopicPartition) -> str:
        del self.kept[partition]
        self.aside.append(partition)
        return f"{partition}-stray"

    async def settle_deletions(self) -> set[TopicPartition]:
        return self.unsettled

    def checkpoint_high_watermarks(self) -> None:
        self.checkpoints += 1


def order(
    leader: int = 1,
    epoch: int = 0,
    isr: tuple[int, ...] = (1, 2, 3),
    replicas: tuple[int, ...] = (1, 2, 3),
    *,
    zk_version: int = 0,
    partition: TopicPartition = TP,
    is_new: bool = False,
) -> PartitionOrder:
    state = LeaderAndIsr(BrokerId(leader), LeaderEpoch(epoch), tuple(BrokerId(b) for b in isr), ControllerEpoch(5))
    return PartitionOrder(partition, state, zk_version, Assignment(tuple(BrokerId(b) for b in replicas)), is_new)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def make_log() -> type[FakeLog]:
    return FakeLog


@pytest.fixture
def make_order() -> Callable[..., PartitionOrder]:
    return order


@pytest.fixture
def zk() -> InMemoryZooKeeper:
    """A ZooKeeper with Kafka's persistent paths."""
    zk = InMemoryZooKeeper(session_timeout_ms=18_000)
    for path in PERSISTENT_PATHS:
        zk.put(path)
    return zk


@pytest.fixture
def logs() -> FakeLogManager:
    return FakeLogManager()


@pytest.fixture
def partition(clock: ManualClock) -> Partition:
    """The lag limit is 100 ms, as in the behaviour cases."""
    return Partition(TP, ME, clock, 0.1)


@pytest.fixture
def pair(partition: Partition, clock: ManualClock) -> Pair:
    return Pair(partition, FakeLog(), FakeLeader(FakeLog(), 0), clock, order)
