"""Follows a leader that the test plays: truncation by leader epoch, appends, and what each error does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import pytest

from klamm.broker import fetcher
from klamm.broker.fetcher import BRIEF_POLL_S, EpochAnswered, EpochAsked, FetchState
from klamm.broker.fetchers import Fetchers
from klamm.broker.partition import Partition
from klamm.broker.truncation import Truncation, truncation
from klamm.log.leader_epochs import EpochEndOffset
from klamm.model.config import TopicConfig
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.guard import Guard
from klamm.model.ids import BrokerId, LeaderEpoch, TopicPartition
from klamm.model.partition import Assignment
from klamm.wire.fetch import FetchPartition, FetchResult

from .following import Pair

TP = TopicPartition("orders", 0)
ONE, TWO, THREE = (BrokerId(number) for number in (1, 2, 3))


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


async def test_what_was_never_compared_does_not_stay_below_the_leaders_start(pair: Pair) -> None:
    """The leader's log starts where this one ends: it knows no epoch below, so both logs may differ there. The log
    start alone would be forgotten by a crash."""
    pair.leader.log.fill(0, 0, 5, 5)
    pair.leader.log.epochs.truncate_from_start(2)
    pair.leader.log.update_high_watermark(4)
    pair.leader.log.log_start_offset = 2
    pair.leader.epoch = 5
    pair.log.fill(1, 1, 1)
    started: list[int] = []
    start_anew = pair.log.truncate_fully_and_start_at
    pair.log.truncate_fully_and_start_at = lambda offset: (started.append(offset), start_anew(offset))
    pair.follow(5)
    await pair.steps(2)
    assert started == [2]
    assert [entry.epoch for entry in pair.log.epochs.entries] == [5]
    assert (pair.log.log_start_offset, pair.log.log_end_offset) == (2, 4)
    pair.leader.log.log_start_offset = 4
    await pair.steps(1)
    assert started == [2], "what was fetched from this leader is the same as the leader's"


class LargeAnswers:
    """The log prepares every answer off the loop; `meanwhile` is what happens during that."""

    def __init__(self, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fetcher, "STAGED_BYTES_MIN", 1)
        self._append, self._records = pair.log.append_as_follower, b""
        self.meanwhile: Any = lambda: None
        self.dropped = 0
        pair.log.prepare_replicated = self.prepare
        pair.log.append_as_follower = self.append

    async def prepare(self, records: bytes) -> Any:
        self._records = records
        self.meanwhile()
        return self

    def append(self, prepared: Any) -> Any:
        assert prepared is self
        return self._append(self._records)

    def drop(self) -> None:
        self.dropped += 1


@pytest.fixture
def large(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> LargeAnswers:
    pair.leader.log.fill(0, 0)
    pair.leader.log.update_high_watermark(2)
    pair.follow(0)
    return LargeAnswers(pair, monkeypatch)


async def test_a_large_answer_is_prepared_and_appended(pair: Pair, large: LargeAnswers) -> None:
    await pair.steps(1)
    assert (pair.log.log_end_offset, pair.log.high_watermark, pair.woken) == (2, 2, [TP])
    assert (large.dropped, pair.traffic.total) == (1, 2)


@pytest.mark.parametrize("change", ["epoch", "removed", "records"])
async def test_a_large_answer_that_no_longer_fits_is_dropped(pair: Pair, large: LargeAnswers, change: str) -> None:
    changes = {
        "epoch": lambda: pair.follow(1),
        "removed": lambda: pair.fetcher.remove(TP),
        "records": lambda: pair.log.fill(0),
    }
    large.meanwhile = changes[change]
    await pair.steps(1)
    assert pair.log.log_end_offset == (1 if change == "records" else 0)
    assert (large.dropped, pair.woken) == (1, [])


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (KafkaError(ErrorCode.CORRUPT_MESSAGE), FetchState.FETCHING),
        (ValueError("a defect"), FetchState.TRUNCATING),
    ],
)
async def test_a_large_answer_that_cannot_be_prepared(
    pair: Pair, large: LargeAnswers, error: Exception, state: FetchState
) -> None:
    def fail() -> None:
        raise error

    large.meanwhile = fail
    await pair.steps(1)
    assert (pair.log.log_end_offset, pair.fetcher.state_of(TP), large.dropped) == (0, state, 0)
    large.meanwhile = lambda: None
    pair.clock.advance(60)
    await pair.steps(2)
    assert pair.log.log_end_offset == 2


async def test_a_former_epoch_fails_to_prepare_a_large_answer(pair: Pair, large: LargeAnswers) -> None:
    def fail() -> None:
        pair.leader.epoch = 1
        pair.follow(1)
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)

    large.meanwhile = fail
    await pair.steps(1)
    assert pair.fetcher.state_of(TP) is FetchState.TRUNCATING, "it follows on in the new epoch"
    assert not pair.fetcher.failed


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


@pytest.mark.case("FET-11")
async def test_an_answer_about_an_epoch_that_was_not_asked_is_an_error(
    pair: Pair, make_log: Any, caplog: pytest.LogCaptureFixture
) -> None:
    other = Partition(TopicPartition("orders", 1), BrokerId(1), pair.clock, 0.1)
    other.make_follower(pair.order(leader=2, epoch=1, partition=other.topic_partition), make_log().fill(0, 0, 1))
    pair.leader.epoch = 1
    pair.leader.log.fill(0, 0, 1, 1)
    pair.fetcher.add(other)
    await pair.steps(1)
    answered = pair.leader.epoch_ends

    async def one_answer_too_many(asked: Sequence[EpochAsked]) -> Sequence[EpochAnswered]:
        unasked = EpochAnswered(other.topic_partition, ErrorCode.NONE, EpochEndOffset(LeaderEpoch(0), 1))
        return [unasked, *await answered(asked)]

    pair.leader.epoch_ends = one_answer_too_many  # type: ignore[method-assign]
    pair.log.fill(0, 0, 0)
    pair.follow(1)
    await pair.steps(1)
    assert [record.levelname for record in caplog.records if "orders-1, which was not requested" in record.message] == [
        "ERROR"
    ]
    assert other.log is not None
    assert (other.log.log_end_offset, bytes(pair.log.data)) == (4, bytes([0, 0, 1, 1]))
    assert pair.fetcher.state_of(other.topic_partition) is FetchState.FETCHING


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


class Polls:
    """Long polls that wait until the test answers them."""

    def __init__(self, pair: Pair, make_log: Any) -> None:
        self.pair = pair
        self.make_log = make_log
        self.asked: list[tuple[int, float | None]] = []
        """How many partitions each poll asked for, and how long it may wait."""
        self.given_up = 0
        self.answer = asyncio.Event()
        pair.leader.fetch = self.fetch  # type: ignore[method-assign]

    async def fetch(self, wanted: Sequence[FetchPartition], max_wait: float | None = None) -> Sequence[FetchResult]:
        self.asked.append((len(wanted), max_wait))
        try:
            await self.answer.wait()
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        self.answer.clear()
        return [FetchResult(want.partition, ErrorCode.NONE, want.fetch_offset + 1, records=b"x") for want in wanted]

    async def answered(self) -> None:
        self.answer.set()
        await turns()

    async def add(self, number: int) -> None:
        name = TopicPartition("more", number)
        other = Partition(name, BrokerId(1), self.pair.clock, 1.0)
        other.make_follower(self.pair.order(leader=2, partition=name), self.make_log(name))
        self.pair.fetcher.add(other)
        await turns()


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
async def polls(pair: Pair, make_log: Any) -> AsyncIterator[Polls]:
    """A follower whose first partition is in a full long poll."""
    polls = Polls(pair, make_log)
    pair.follow(0)
    pair.clock.advance(5)
    running = asyncio.create_task(pair.fetcher.run())
    await turns()
    yield polls
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_new_partition_does_not_wait_for_a_whole_poll(polls: Polls) -> None:
    await polls.add(0)
    assert (polls.asked, polls.given_up) == ([(1, None), (2, BRIEF_POLL_S)], 1)
    await polls.add(1)
    assert polls.given_up == 1, "a brief poll is not given up"
    await polls.answered()
    assert polls.asked[-1] == (3, BRIEF_POLL_S)
    polls.pair.clock.advance(5)
    await polls.answered()
    assert polls.asked[-1] == (3, None), "no partition was added for a while"


async def test_a_stream_of_new_partitions_does_not_stop_replication(polls: Polls) -> None:
    for number in range(20):
        await polls.add(number)
        if number % 2:
            await polls.answered()
    assert (polls.given_up, polls.pair.log.log_end_offset) == (1, 10)


async def test_an_answer_that_is_arriving_is_not_given_up(polls: Polls) -> None:
    polls.pair.leader.is_answering = True
    await polls.add(0)
    assert polls.given_up == 0


async def test_a_partition_that_got_records_goes_to_the_end(pair: Pair, make_log: Any) -> None:
    """The leader fills its answer in the order of the request, so a fixed order would starve the last ones."""
    orders: list[list[str]] = []

    async def two_at_a_time(wanted: Sequence[FetchPartition], max_wait: float | None = None) -> list[FetchResult]:
        orders.append([want.partition.topic for want in wanted])
        full = [FetchResult(want.partition, ErrorCode.NONE, want.fetch_offset + 1, records=b"x") for want in wanted]
        return [*full[:2], *(result._replace(records=b"") for result in full[2:])]

    pair.leader.fetch = two_at_a_time  # type: ignore[method-assign]
    for topic in "abcd":
        other = Partition(TopicPartition(topic, 0), BrokerId(1), pair.clock, 1.0)
        other.make_follower(pair.order(leader=2, partition=other.topic_partition), make_log(other.topic_partition))
        pair.fetcher.add(other)
    await pair.steps(3)
    assert ["".join(order) for order in orders] == ["abcd", "cdab", "abcd"]


@pytest.mark.parametrize("method", ["append_as_follower", "truncate_to"])
async def test_a_defect_concerns_one_partition_which_is_tried_again(pair: Pair, make_log: Any, method: str) -> None:
    def broken(*args: Any) -> None:
        raise ValueError("a defect")

    pair.leader.log.fill(0, 0)
    pair.follow(0)
    works, name = getattr(pair.log, method), TopicPartition("more", 0)
    setattr(pair.log, method, broken)
    other = Partition(name, BrokerId(1), pair.clock, 1.0)
    other.make_follower(pair.order(leader=2, partition=name), make_log(name))
    pair.fetcher.add(other)
    await pair.steps(2)
    assert (pair.log.log_end_offset, other.log and other.log.log_end_offset) == (0, 2)
    assert (list(pair.fetcher.failed), pair.guard.failures["follower"]) == ([TP], 1)
    assert pair.fetcher.state_of(TP) is FetchState.TRUNCATING, "it is unknown what its log holds"
    setattr(pair.log, method, works)
    await pair.steps(2)
    assert pair.log.log_end_offset == 0, "not before the pause is over"
    pair.clock.advance(1.1)
    await pair.steps(2)
    assert (pair.log.log_end_offset, pair.fetcher.failed) == (2, {})


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


@pytest.mark.case("FET-21")
async def test_a_throttle_slows_the_followers_that_are_listed_to_the_rate(pair: Pair, make_log: Any) -> None:
    size, rate, pause = 900, 100, 0.1
    listed, other = TP, TopicPartition("orders", 1)
    pair.leader.log.fill(*[0] * size)
    pair.leader.log.update_high_watermark(size)
    throttled = TopicConfig(follower_replication_throttled_replicas=("0:1",))
    pair.quota.limit = rate
    logs = {listed: make_log(), other: make_log()}
    for name, log in logs.items():
        log.config = throttled
        following = Partition(name, BrokerId(1), pair.clock, 0.1)
        following.make_follower(pair.order(leader=2, epoch=0, partition=name), log)
        pair.fetcher.add(following)
    began, took = pair.clock.now, {}
    while len(took) < 2:
        await pair.steps(1)
        pair.clock.advance(pause)
        took |= {n: pair.clock.now - began for n, log in logs.items() if n not in took and log.log_end_offset == size}
    assert took[other] <= 1, "an unlisted replica gets everything as fast as the leader answers"
    assert 0.7 * rate <= size / took[listed] <= 1.3 * rate


async def test_the_quota_is_for_those_that_are_named(pair: Pair) -> None:
    pair.leader.log.fill(0)
    pair.log.config = TopicConfig(follower_replication_throttled_replicas=("0:2", "1:1"))
    pair.quota.limit = 10
    pair.quota.record(1_000)
    pair.follow(0)
    await pair.steps(1)
    assert pair.log.log_end_offset == 1


async def test_a_follower_reports_only_what_flush_messages_made_durable(pair: Pair) -> None:
    pair.leader.log.fill(0)
    pair.follow(0)
    await pair.steps(1)
    pair.leader.log.fill(0)
    pair.log.waits_for_flush = True
    fetches = pair.leader.fetches
    running = asyncio.create_task(pair.fetcher.run())
    for _ in range(20):
        await asyncio.sleep(0)
    assert pair.leader.fetches == fetches
    fetched = asyncio.Event()
    pair.leader.on_fetch = fetched.set
    pair.log.waits_for_flush = False
    pair.fetcher.wake(TP)
    async with asyncio.timeout(5):
        await fetched.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_poll_waits_for_a_flush_instead_of_leaving_its_partition_out(
    pair: Pair, clock: Any, make_log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulation found it: the partition waited for the whole poll of the others, which is idle for half a second,
    once for every batch."""
    other = Partition(TopicPartition("idle", 0), BrokerId(1), clock, 10.0)
    other.make_follower(pair.order(leader=2, epoch=0), make_log())
    pair.fetcher.add(other)
    pair.follow(0)
    await pair.steps(1)
    polled: list[list[TopicPartition]] = []
    fetch = pair.leader.fetch

    async def note(wanted: Sequence[FetchPartition], max_wait: float | None = None) -> Sequence[FetchResult]:
        polled.append([want.partition for want in wanted])
        return await fetch(wanted, max_wait)

    pair.leader.fetch = note  # type: ignore[method-assign]
    pair.log.waits_for_flush = True
    monkeypatch.setattr(fetcher, "FLUSH_PATIENCE_S", 600)
    step = asyncio.create_task(pair.fetcher.step())
    await asyncio.sleep(0)
    pair.log.waits_for_flush = False
    pair.fetcher.wake(TP)
    async with asyncio.timeout(10):
        await step
    assert sorted(polled[0]) == sorted([other.topic_partition, TP])


async def test_a_follower_whose_disk_is_full_tries_again(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.leader.log.fill(0)
    pair.follow(0)

    def full(records: bytes) -> None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(pair.log, "append_as_follower", full)
        await pair.steps(2)
    assert not pair.fetcher.failed
    pair.clock.advance(10)
    await pair.steps(1)
    assert pair.log.log_end_offset == 1


async def test_a_follower_whose_log_is_broken_has_failed(pair: Pair) -> None:
    pair.leader.log.fill(0)
    pair.follow(0)
    pair.log.failed = True
    pair.log.corrupt_once = True
    await pair.steps(2)
    assert list(pair.fetcher.failed) == [TP]


async def test_an_error_about_a_former_epoch_does_not_stop_the_present_one(pair: Pair) -> None:
    """The replica ends after its leader, and a LeaderAndIsr comes while it asks where the leader ends."""
    name = pair.partition.topic_partition
    pair.log.fill(0, 0, 0)
    pair.leader.log.fill(0)
    pair.leader.knows_epochs = False
    pair.log.high_watermark = 3
    pair.follow(0)

    async def fenced(partition: TopicPartition, leader_epoch: LeaderEpoch) -> tuple[int, int]:
        pair.leader.epoch = 1
        pair.follow(1)
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)

    pair.leader.log_ends = fenced  # type: ignore[method-assign]
    await pair.steps(1)
    assert pair.leader.epoch == 1
    assert pair.fetcher.state_of(name) is not None
    assert name not in pair.fetcher.failed


@pytest.mark.case("FET-18")
async def test_bytes_for_a_replica_that_is_being_added_count_twice(pair: Pair) -> None:
    plain = pair.order(leader=2, epoch=0)
    added = plain._replace(assignment=Assignment((ONE, TWO), adding=(ONE,)))
    other = plain._replace(assignment=Assignment((ONE, TWO, THREE), adding=(THREE,), removing=(TWO,)))
    counted = []
    for order in (added, other, plain):
        pair.leader.log.fill(0, 0)
        pair.leader.log.update_high_watermark(pair.leader.log.log_end_offset)
        pair.fetcher.remove(TP)
        pair.partition.make_follower(order, pair.log)
        pair.fetcher.add(pair.partition)
        await pair.steps(1)
        counted.append((pair.traffic.total, pair.traffic.reassignment))
    assert counted == [(2, 2), (4, 2), (6, 2)]


@pytest.mark.case("FET-17")
async def test_a_connection_that_cannot_be_closed_does_not_keep_a_fetcher_alive(pair: Pair) -> None:
    attempts = 0

    def refuse() -> None:
        nonlocal attempts
        attempts += 1
        raise OSError("the connection is in no state to be closed")

    pair.leader.close = refuse  # type: ignore[method-assign]
    guard = Guard()
    async with asyncio.timeout(5), guard.running():
        fetchers = Fetchers(partial(pair.fetcher_for, guard=guard), guard)
        pair.partition.make_follower(pair.order(leader=2, epoch=0), pair.log)
        fetchers.add([pair.partition])
        await turns()
        (task,) = (task for task in asyncio.all_tasks() if task.get_name() == "fetcher 2")
        fetchers.remove([TP])
        fetchers.stop_idle()
        await turns()
        assert (attempts, task.cancelled()) == (1, True)


@pytest.mark.case("FET-19")
async def test_failed_partitions_and_dead_fetchers_are_counted_while_they_are(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("klamm.model.guard.FIRST_PAUSE_S", 0.0)
    guard = Guard()
    fetchers = Fetchers(partial(pair.fetcher_for, guard=guard), guard)

    def counts() -> tuple[int, int]:
        return fetchers.failed_count, fetchers.dead_count

    async with guard.running():
        pair.leader.epoch = 4
        pair.log.fill(0)
        pair.partition.make_follower(pair.order(leader=2, epoch=2), pair.log)
        fetchers.add([pair.partition])
        assert counts() == (0, 0)
        await turns()
        assert counts() == (1, 0), "fenced"
        fetchers.stop_idle()
        assert counts() == (1, 0), "a failed partition keeps its fetcher"
        fetchers.remove([TP])
        assert counts() == (0, 0)

        fetcher = fetchers.of(BrokerId(2))
        assert fetcher is not None
        step, broken = fetcher.step, asyncio.Event()

        async def fails() -> bool:
            if not broken.is_set():
                raise AssertionError("a defect")
            return await step()

        monkeypatch.setattr(fetcher, "step", fails)
        monkeypatch.setattr("klamm.model.guard.FIRST_PAUSE_S", 0.05)
        pair.leader.log.fill(0, 4)
        pair.partition.make_follower(pair.order(leader=2, epoch=4), pair.log)
        fetchers.add([pair.partition])
        await turns()
        assert counts() == (0, 1)
        broken.set()
        async with asyncio.timeout(5):
            while pair.log.log_end_offset < 2:
                await asyncio.sleep(0.01)
        assert counts() == (0, 0)
        fetchers.remove([TP])
        fetchers.stop_idle()
