"""What a fetcher does when the world changes during an await, or when its leader or its disk answers badly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from klamm.broker import fetcher
from klamm.broker.fetcher import EpochAnswered, EpochAsked, FetchState
from klamm.broker.partition import Partition
from klamm.log.log_results import UnexpectedAppendOffset
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import BrokerId, LeaderEpoch, TopicPartition
from klamm.wire.fetch import FetchPartition, FetchResult

from .following import Pair

TP = TopicPartition("orders", 0)


def lead(pair: Pair) -> None:
    """This broker becomes the leader itself: from now on its log is the truth."""
    pair.partition.make_leader(pair.order(epoch=1), pair.log)
    pair.fetcher.remove(TP)


def during_preparation(pair: Pair, happens: Callable[[Pair], None]) -> None:
    async def prepare(offset: int) -> None:
        happens(pair)

    pair.log.prepare_truncation = prepare


async def test_a_new_leader_is_not_truncated(pair: Pair) -> None:
    """The order to lead comes while the truncation is prepared."""
    pair.log.fill(0, 0, 0)
    pair.leader.log.fill(0)
    pair.follow(0)
    during_preparation(pair, lead)
    await pair.steps(1)
    assert pair.log.log_end_offset == 3


@pytest.mark.parametrize("during", ["the question", "the preparation"])
@pytest.mark.parametrize(("leader_start", "leader_end"), [(0, 1), (5, 6)])
async def test_a_new_leader_does_not_start_over(pair: Pair, during: str, leader_start: int, leader_end: int) -> None:
    """The replica was outside of its leader's log, and leads before it has started over."""
    pair.log.fill(0, 0, 0)
    pair.follow(0)
    await pair.steps(1)
    pair.leader.log.fill(*[0] * leader_end)
    pair.leader.log.log_start_offset = leader_start
    during_preparation(pair, lead)

    async def log_ends(partition: TopicPartition, leader_epoch: LeaderEpoch) -> tuple[int, int]:
        if during == "the question" or leader_start:
            lead(pair)
        return leader_start, leader_end

    pair.log.fill(0, 0, 0)
    pair.leader.log_ends = log_ends  # type: ignore[method-assign]
    pair.leader.log.read = refuse
    await pair.steps(1)
    assert pair.partition.is_leader
    assert (pair.log.log_start_offset, pair.log.log_end_offset) == (0, 3)


def refuse(*asked: Any, **limits: Any) -> None:
    raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)


async def test_a_replica_within_its_leaders_log_does_not_start_over(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader has moved on between its refusal and the question where its log begins and ends."""
    pair.leader.log.fill(0, 0)
    pair.follow(0)
    await pair.steps(1)
    with monkeypatch.context() as refusing:
        refusing.setattr(pair.leader.log, "read", refuse)
        await pair.steps(1)
    assert (pair.log.log_start_offset, pair.log.log_end_offset) == (0, 2)
    assert pair.fetcher.state_of(TP) is FetchState.FETCHING


async def test_a_refused_question_about_the_leaders_ends_is_asked_again_later(pair: Pair) -> None:
    pair.follow(0)
    await pair.steps(1)
    asked: list[TopicPartition] = []

    async def log_ends(partition: TopicPartition, leader_epoch: LeaderEpoch) -> tuple[int, int]:
        asked.append(partition)
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    pair.leader.log_ends = log_ends  # type: ignore[method-assign]
    pair.leader.log.read = refuse
    await pair.steps(3)
    assert asked == [TP], "not before the pause is over"
    pair.clock.advance(1.0)
    await pair.steps(1)
    assert asked == [TP, TP]


async def test_a_question_without_an_answer_is_asked_again_later(pair: Pair) -> None:
    pair.log.fill(0)
    pair.follow(0)
    asked: list[EpochAsked] = []

    async def say_nothing(questions: Sequence[EpochAsked]) -> Sequence[EpochAnswered]:
        asked.extend(questions)
        return ()

    pair.leader.epoch_ends = say_nothing  # type: ignore[method-assign]
    async with asyncio.timeout(5):
        await pair.steps(2)
    assert len(asked) == 1
    pair.clock.advance(1.0)
    await pair.steps(1)
    assert len(asked) == 2


async def test_a_truncation_that_cannot_be_prepared_is_not_made(pair: Pair) -> None:
    pair.log.fill(0, 0, 0)
    pair.leader.log.fill(0)
    pair.follow(0)

    def full(pair: Pair) -> None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no space left on device")

    during_preparation(pair, full)
    async with asyncio.timeout(5):
        await pair.steps(2)
    assert pair.log.log_end_offset == 3
    assert pair.fetcher.state_of(TP) is FetchState.TRUNCATING
    during_preparation(pair, lambda pair: None)
    pair.clock.advance(1.0)
    await pair.steps(1)
    assert pair.log.log_end_offset == 1


@pytest.mark.parametrize("deleted_below", [1, 2])
async def test_records_that_the_leader_deleted_are_deleted_here(pair: Pair, deleted_below: int) -> None:
    """Those, and no others."""
    pair.leader.log.fill(0, 0, 0)
    pair.leader.log.update_high_watermark(2)
    pair.leader.log.advance_log_start(deleted_below)
    pair.log.fill(0, 0)
    pair.follow(0)
    await pair.steps(1)
    assert (pair.log.log_start_offset, pair.log.high_watermark, pair.log.log_end_offset) == (deleted_below, 2, 3)


async def test_a_high_watermark_wakes_readers_without_new_records(pair: Pair) -> None:
    """Consumers may wait at a follower (KIP-392)."""
    pair.leader.log.fill(0)
    pair.follow(0)
    await pair.steps(1)
    pair.woken.clear()
    pair.leader.log.update_high_watermark(1)
    await pair.steps(1)
    assert pair.woken == [TP]
    await pair.steps(1)
    assert pair.woken == [TP], "nothing has moved"


async def test_an_answer_for_a_replica_that_was_stopped_is_dropped(pair: Pair) -> None:
    """StopReplica does not change the leader epoch."""
    pair.leader.log.fill(0, 0)
    pair.follow(0)
    pair.leader.on_fetch = lambda: pair.fetcher.remove(TP)
    await pair.steps(1)
    assert pair.log.log_end_offset == 0


async def test_an_answer_for_a_log_that_has_moved_is_dropped(pair: Pair, make_log: Any) -> None:
    """The replica is now in another directory, under the same leader epoch."""
    former, present = pair.log, make_log()
    pair.leader.log.fill(0, 0)
    pair.follow(0)

    def move() -> None:
        pair.partition.log = present
        pair.fetcher.remove(TP)
        pair.fetcher.add(pair.partition)
        pair.leader.on_fetch = lambda: None

    pair.leader.on_fetch = move
    await pair.steps(1)
    assert (former.log_end_offset, present.log_end_offset) == (0, 0)
    await pair.steps(1)
    assert (former.log_end_offset, present.log_end_offset) == (0, 2)


async def test_pauses_grow_up_to_the_backoff_and_begin_anew_after_a_success(pair: Pair) -> None:
    pair.leader.log.fill(0)
    pair.follow(0)

    async def pause() -> float:
        """Until the next attempt, which fails too."""
        pair.log.corrupt_once, waited = True, 0.0
        while pair.log.corrupt_once:
            await pair.steps(1)
            if pair.log.corrupt_once:
                pair.clock.advance(fetcher.FIRST_RETRY / 2)
                waited += fetcher.FIRST_RETRY / 2
        return waited

    assert await pause() == 0
    assert await pause() == pytest.approx(fetcher.FIRST_RETRY)
    assert await pause() == pytest.approx(fetcher.FIRST_RETRY * 2)
    for _ in range(5):
        last = await pause()
    assert last == pytest.approx(1.0, abs=fetcher.FIRST_RETRY), "replica.fetch.backoff.ms"
    pair.clock.advance(1.0)
    await pair.steps(1)
    assert pair.log.log_end_offset == 1
    pair.leader.log.fill(0)
    assert await pause() == 0
    assert await pause() == pytest.approx(fetcher.FIRST_RETRY)


async def test_a_leader_that_cannot_be_reached_is_left_alone_for_a_moment(pair: Pair, make_log: Any) -> None:
    """All partitions that it leads wait, and the next attempt connects anew."""
    other = Partition(TopicPartition("orders", 1), BrokerId(1), pair.clock, 10.0)
    other.make_follower(pair.order(leader=2, epoch=0, partition=other.topic_partition), make_log())
    pair.fetcher.add(other)
    pair.follow(0)
    closed: list[int] = []
    attempts: list[list[TopicPartition]] = []

    async def fail(wanted: Sequence[FetchPartition], max_wait: float | None = None) -> Sequence[FetchResult]:
        attempts.append([want.partition for want in wanted])
        raise ConnectionResetError("gone")

    pair.leader.fetch = fail  # type: ignore[method-assign]
    pair.leader.close = lambda: closed.append(len(attempts))  # type: ignore[method-assign]
    await pair.steps(3)
    assert (closed, [len(attempt) for attempt in attempts]) == ([1], [2])
    pair.clock.advance(fetcher.FIRST_RETRY)
    await pair.steps(1)
    assert (closed, [len(attempt) for attempt in attempts]) == ([1, 2], [2, 2])


async def test_records_that_do_not_fit_the_log_make_it_reconcile_again(pair: Pair) -> None:
    pair.leader.log.fill(0)
    pair.follow(0)

    def gap(records: bytes) -> None:
        raise UnexpectedAppendOffset(TP, 0, 7)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair.log, "append_as_follower", gap)
        await pair.steps(1)
        assert pair.fetcher.state_of(TP) is FetchState.TRUNCATING
        fetches = pair.leader.fetches
        await pair.steps(1)
    assert pair.leader.fetches == fetches, "not before the pause is over"
    pair.clock.advance(1.0)
    await pair.steps(1)
    assert pair.log.log_end_offset == 1


async def test_a_slow_flush_keeps_its_own_partition_out_of_the_poll(
    pair: Pair, make_log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the offset of the fetch would tell the leader of records that a power failure may still take back."""
    monkeypatch.setattr(fetcher, "FLUSH_PATIENCE_S", 0)
    other = Partition(TopicPartition("orders", 1), BrokerId(1), pair.clock, 10.0)
    other.make_follower(pair.order(leader=2, epoch=0, partition=other.topic_partition), make_log())
    pair.fetcher.add(other)
    pair.follow(0)
    await pair.steps(1)
    pair.clock.advance(fetcher.BRIEF_FOR_S)
    polled: list[tuple[list[TopicPartition], float | None]] = []
    fetch = pair.leader.fetch

    async def note(wanted: Sequence[FetchPartition], max_wait: float | None = None) -> Sequence[FetchResult]:
        polled.append(([want.partition for want in wanted], max_wait))
        return await fetch(wanted, max_wait)

    pair.leader.fetch = note  # type: ignore[method-assign]
    pair.log.waits_for_flush = True
    await pair.steps(1)
    assert polled == [([other.topic_partition], fetcher.BRIEF_POLL_S)]
