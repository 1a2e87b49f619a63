"""Follows a leader that the test plays: truncation by leader epoch, appends, and what each error does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from klamm.broker import fetcher
from klamm.broker.fetcher import EpochAnswered, EpochAsked, Fetcher, FetchState
from klamm.broker.partition import Partition
from klamm.broker.replication_quota import ReplicationQuota
from klamm.broker.truncation import Truncation, truncation
from klamm.log.leader_epochs import UNDEFINED, EpochEndOffset
from klamm.model.config import TopicConfig
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import BrokerId, LeaderEpoch, TopicPartition
from klamm.wire.fetch import FetchPartition, FetchResult

TP = TopicPartition("orders", 0)


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

    async def fetch(self, wanted: Sequence[FetchPartition]) -> Sequence[FetchResult]:
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
        self.fetcher = Fetcher(
            BrokerId(2),
            leader,
            clock=clock,
            max_bytes=1 << 20,
            backoff=1.0,
            quota=self.quota,
            on_append=self.woken.append,
        )

    def follow(self, epoch: int) -> None:
        self.partition.make_follower(self.order(leader=2, epoch=epoch), self.log)
        self.fetcher.add(self.partition)

    async def steps(self, count: int) -> None:
        for _ in range(count):
            await self.fetcher.step()


@pytest.fixture
def pair(partition: Partition, make_log: Any, clock: Any, make_order: Any) -> Pair:
    return Pair(partition, make_log(), FakeLeader(make_log(), 0), clock, make_order)


@pytest.mark.case("FET-01")
async def test_empty_follower_catches_up_in_one_round(pair: Pair) -> None:
    pair.leader.log.fill(0, 0)
    pair.leader.log.update_high_watermark(2)
    pair.follow(0)
    await pair.steps(1)
    assert (pair.log.log_end_offset, pair.log.high_watermark) == (2, 2)
    assert pair.woken == [TP]


@pytest.mark.case("FET-02")
async def test_follower_with_an_older_epoch_fails_until_it_is_told(pair: Pair) -> None:
    pair.leader.epoch = 4
    pair.log.fill(0)
    pair.follow(2)
    await pair.steps(2)
    assert list(pair.fetcher.failed) == [TP]
    assert len(pair.fetcher) == 0
    pair.leader.log.fill(0, 4)
    pair.follow(4)
    await pair.steps(1)
    assert not pair.fetcher.failed
    assert pair.log.log_end_offset == 2


@pytest.mark.case("FET-03")
async def test_fetch_fenced_after_catching_up(pair: Pair) -> None:
    pair.follow(0)
    await pair.steps(1)
    pair.leader.epoch = 1
    await pair.steps(1)
    assert list(pair.fetcher.failed) == [TP]


@pytest.mark.case("FET-04")
async def test_follower_ahead_of_the_leader_waits_in_truncation(pair: Pair) -> None:
    pair.log.fill(0)
    pair.leader.log.fill(0, 0)
    pair.follow(3)
    await pair.steps(1)
    assert pair.fetcher.state_of(TP) is FetchState.TRUNCATING
    assert pair.leader.fetches == 0
    pair.leader.epoch = 3
    await pair.steps(1)
    assert len(pair.leader.asked) == 1, "not before the backoff is over"
    pair.clock.advance(1.0)
    await pair.steps(1)
    assert pair.log.data == pair.leader.log.data


@pytest.mark.case("FET-05")
async def test_diverged_logs_become_identical(pair: Pair) -> None:
    pair.log.fill(0, 0, 2, 4, 4, 4)
    pair.leader.log.fill(0, 1, 3, 5)
    pair.leader.epoch = 5
    pair.follow(5)
    await pair.steps(6)
    assert pair.log.data == pair.leader.log.data
    assert pair.log.epochs.entries == pair.leader.log.epochs.entries


@pytest.mark.case("FET-06", "FET-14")
async def test_without_epochs_it_truncates_to_the_high_watermark(pair: Pair) -> None:
    pair.log.fill(0, 0, 0, 0)
    pair.log.update_high_watermark(1)
    pair.leader.log.fill(0, 0)
    pair.leader.knows_epochs = False
    pair.follow(0)
    pair.leader.on_fetch = lambda: seen.append(pair.log.log_end_offset)
    seen: list[int] = []
    await pair.steps(1)
    assert seen == [1]


@pytest.mark.case("FET-07", "FET-12")
async def test_epochs_are_asked_once_per_leader_epoch(pair: Pair) -> None:
    pair.log.fill(0)
    pair.leader.log.fill(0)
    pair.follow(0)
    await pair.steps(2)
    pair.fetcher.add(pair.partition)
    await pair.steps(2)
    assert pair.leader.asked == [0]
    pair.leader.epoch = 1
    pair.follow(1)
    await pair.steps(1)
    assert pair.leader.asked == [0, 0]


@pytest.mark.case("FET-08")
async def test_follower_beyond_the_leader_truncates_to_its_end(pair: Pair) -> None:
    pair.leader.log.fill(0, 0)
    pair.follow(0)
    await pair.steps(1)
    pair.leader.log.truncate_to(0)
    await pair.steps(2)
    assert pair.log.log_end_offset == 0


@pytest.mark.case("FET-09")
async def test_follower_below_the_leaders_start_begins_there(pair: Pair) -> None:
    pair.leader.log.fill(0, 0, 0, 0)
    pair.leader.log.update_high_watermark(4)
    pair.leader.log.log_start_offset = 2
    pair.follow(0)
    await pair.steps(1)
    assert (pair.log.log_start_offset, pair.log.log_end_offset, pair.log.high_watermark) == (2, 2, 2)
    await pair.steps(1)
    assert (pair.log.log_end_offset, pair.log.high_watermark) == (4, 4)


@pytest.mark.case("FET-10")
async def test_corrupt_batch_is_fetched_again(pair: Pair) -> None:
    pair.leader.log.fill(0, 0)
    pair.log.corrupt_once = True
    pair.follow(0)
    await pair.steps(1)
    assert pair.log.log_end_offset == 0
    pair.clock.advance(1.0)
    await pair.steps(1)
    assert pair.log.log_end_offset == 2


@pytest.mark.case("FET-15")
async def test_failed_epoch_query_is_repeated_without_truncation(pair: Pair) -> None:
    pair.log.fill(0, 0, 0)
    pair.leader.log.fill(0, 0)
    pair.leader.unreachable = True
    pair.follow(0)
    await pair.steps(1)
    pair.leader.unreachable = False
    pair.leader.epoch_errors = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    for _ in range(2):
        pair.clock.advance(1.0)
        await pair.steps(1)
        assert pair.log.log_end_offset == 3
    pair.clock.advance(1.0)
    await pair.steps(1)
    assert pair.log.log_end_offset == 2


async def test_answer_is_dropped_when_the_epoch_changed_meanwhile(pair: Pair) -> None:
    pair.leader.log.fill(0, 0)
    pair.follow(0)
    pair.leader.on_fetch = lambda: pair.partition.make_leader(pair.order(epoch=1), pair.log)
    await pair.steps(1)
    assert pair.log.log_end_offset == 0


async def test_high_watermark_never_passes_the_own_end(pair: Pair) -> None:
    pair.leader.log.fill(*[0] * 200)
    pair.leader.log.update_high_watermark(200)
    pair.follow(0)
    await pair.steps(1)
    assert (pair.log.log_end_offset, pair.log.high_watermark) == (100, 100)


async def test_a_new_partition_does_not_wait_for_the_long_poll(
    pair: Pair, make_log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls: list[list[TopicPartition]] = []
    given_up = 0

    async def long_poll(wanted: Sequence[FetchPartition]) -> Sequence[FetchResult]:
        nonlocal given_up
        polls.append([want.partition for want in wanted])
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            given_up += 1
            raise
        return []

    pair.leader.fetch = long_poll  # type: ignore[method-assign]
    pair.follow(0)
    running = asyncio.create_task(pair.fetcher.run())

    async def follow_also(name: TopicPartition) -> None:
        other = Partition(name, BrokerId(1), pair.clock, 1.0)
        other.make_follower(pair.order(leader=2, partition=name), make_log(name))
        pair.fetcher.add(other)
        for _ in range(10):
            await asyncio.sleep(0)

    await asyncio.sleep(0)
    await follow_also(TopicPartition("more", 0))
    assert (polls, given_up) == ([[TP, ("more", 0)]], 0), "before the poll began"
    await follow_also(TopicPartition("more", 1))
    assert (polls[-1], given_up) == ([TP, ("more", 0), ("more", 1)], 1)
    await follow_also(TopicPartition("more", 2))
    assert given_up == 1, "not twice in a moment, because the leader still serves the abandoned poll"
    pair.clock.advance(0.1)
    await follow_also(TopicPartition("more", 3))
    assert [name.partition for name in polls[-1]] == [0, 0, 1, 2, 3]
    monkeypatch.setattr(fetcher, "GIVE_UP_POLL_EVERY", 0.001)
    await follow_also(TopicPartition("more", 4))
    while len(polls[-1]) < 6:  # as soon as the limit allows
        await asyncio.sleep(0)
    assert given_up == 3
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.case("FET-13", "FET-16")
@pytest.mark.parametrize(
    ("leader", "local", "expected"),
    [
        ((-1, -1), (-1, -1), Truncation(33, True)),
        ((-1, 150), (-1, -1), Truncation(150, True)),
        ((-1, 250), (-1, -1), Truncation(200, True)),
        ((5, 156), (5, 200), Truncation(156, True)),
        ((5, 190), (5, 180), Truncation(180, True)),
        ((4, 120), (3, 110), Truncation(110, False)),
        ((4, 202), (-1, -1), Truncation(200, True)),
        ((4, 202), (4, 90), Truncation(90, True)),
    ],
)
def test_truncation_table(leader: tuple[int, int], local: tuple[int, int], expected: Truncation) -> None:
    assert (
        truncation(EpochEndOffset(*leader), EpochEndOffset(*local), log_end=200, initial_offset=33)  # type: ignore[arg-type]
        == expected
    )


async def test_a_throttled_follower_sits_out_until_it_may_go_on(pair: Pair) -> None:
    pair.leader.log.fill(0, 0)
    pair.leader.log.update_high_watermark(2)
    pair.log.config = TopicConfig(follower_replication_throttled_replicas=("0:1",))
    pair.quota.limit = 10
    pair.quota.record(1_000)
    pair.follow(0)
    await pair.steps(3)
    assert pair.log.log_end_offset == 0
    pair.clock.advance(12)
    await pair.steps(1)
    assert pair.log.log_end_offset == 2
    assert pair.quota.rate() > 0  # and its bytes are charged
    pair.quota.record(1_000)
    pair.leader.log.fill(0)
    await pair.steps(1)
    assert pair.log.log_end_offset == 3, "a replica in sync is not held back"


async def test_the_quota_is_for_those_that_are_named(pair: Pair) -> None:
    pair.leader.log.fill(0)
    pair.log.config = TopicConfig(follower_replication_throttled_replicas=("0:2", "1:1"))
    pair.quota.limit = 10
    pair.quota.record(1_000)
    pair.follow(0)
    await pair.steps(1)
    assert pair.log.log_end_offset == 1
