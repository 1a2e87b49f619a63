"""A follower and the leader that it follows, which the test plays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from klamm.broker.fetcher import EpochAnswered, EpochAsked, Fetcher, ReplicatedBytes
from klamm.broker.partition import Partition
from klamm.broker.replication_quota import ReplicationQuota
from klamm.log.leader_epochs import UNDEFINED
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.guard import Guard
from klamm.model.ids import BrokerId, LeaderEpoch, TopicPartition
from klamm.wire.fetch import FetchPartition, FetchResult


class FakeLeader:
    """Answers from a log, as a leader in `epoch` does."""

    def __init__(self, log: Any, epoch: int) -> None:
        self.log = log
        self.epoch = epoch
        self.asked: list[int] = []
        self.fetches = 0
        self.epoch_errors: list[ErrorCode] = []
        self.knows_epochs = True
        self.unreachable = False
        self.is_answering = False
        self.on_fetch: Any = lambda: None

    def _fence(self, epoch: int) -> ErrorCode:
        if epoch == self.epoch:
            return ErrorCode.NONE
        return ErrorCode.FENCED_LEADER_EPOCH if epoch < self.epoch else ErrorCode.UNKNOWN_LEADER_EPOCH

    async def epoch_ends(self, asked: Sequence[EpochAsked]) -> Sequence[EpochAnswered]:
        if self.unreachable:
            raise ConnectionResetError("gone")
        answers = []
        for question in asked:
            self.asked.append(question.epoch)
            error = self.epoch_errors.pop(0) if self.epoch_errors else self._fence(question.current_leader_epoch)
            end = self.log.epochs.end_offset_for(question.epoch) if self.knows_epochs else UNDEFINED
            answers.append(EpochAnswered(question.partition, error, UNDEFINED if error else end))
        return answers

    async def fetch(self, wanted: Sequence[FetchPartition], max_wait: float | None = None) -> Sequence[FetchResult]:
        if self.unreachable:
            raise ConnectionResetError("gone")
        self.fetches += 1
        self.on_fetch()
        fetched = []
        for want in wanted:
            error = self._fence(want.current_leader_epoch)
            if error is ErrorCode.NONE:
                try:
                    read = self.log.read(want.fetch_offset, 100, upper_bound=1000, at_least_one=False)
                except KafkaError as refused:
                    error = refused.code
            if error is ErrorCode.NONE:
                high_watermark, start = self.log.high_watermark, self.log.log_start_offset
                found = FetchResult(want.partition, error, high_watermark, log_start_offset=start, records=read.records)
            else:
                found = FetchResult(want.partition, error)
            fetched.append(found)
        return fetched

    async def log_ends(self, partition: TopicPartition, leader_epoch: LeaderEpoch) -> tuple[int, int]:
        return self.log.log_start_offset, self.log.log_end_offset

    def close(self) -> None: ...


class Pair:
    """A follower (broker 1) and the leader that it follows (broker 2)."""

    def __init__(self, partition: Partition, log: Any, leader: FakeLeader, clock: Any, make_order: Any) -> None:
        self.log = log
        self.leader = leader
        self.partition = partition
        self.clock = clock
        self.order = make_order
        self.woken: list[TopicPartition] = []
        self.quota = ReplicationQuota(clock)
        self.traffic = ReplicatedBytes()
        self.guard = Guard()
        self.fetcher = self.fetcher_for(BrokerId(2), self.guard)

    def fetcher_for(self, leader: BrokerId, guard: Guard) -> Fetcher:
        return Fetcher(
            leader,
            self.leader,
            clock=self.clock,
            max_bytes=1 << 20,
            backoff=1.0,
            quota=self.quota,
            traffic=self.traffic,
            on_append=self.woken.append,
            guard=guard,
        )

    def follow(self, epoch: int) -> None:
        self.partition.make_follower(self.order(leader=2, epoch=epoch), self.log)
        self.fetcher.add(self.partition)

    async def steps(self, count: int) -> None:
        for _ in range(count):
            await self.fetcher.step()
