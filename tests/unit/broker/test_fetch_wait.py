"""When a waiting fetch is over: it counts what is new, and notices what is gone."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.broker.fetch_wait import FetchWait
from klamm.broker.partition import Bound, Partition
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.wire.fetch import FetchPartition, FetchResult

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Waiting:
    """A follower that waits for `enough` bytes of two partitions, each of which has ten records of a byte."""

    def __init__(self, make_log: Any, make_order: Any, clock: Any) -> None:
        self.logs = {name: make_log(name).fill(*[0] * 10) for name in (A, B)}
        self.partitions = {name: Partition(name, make_order().state.leader, clock, 10.0) for name in (A, B)}
        for name, partition in self.partitions.items():
            partition.make_leader(make_order(partition=name), self.logs[name])
        self.held_back: set[TopicPartition] = set()
        self.refused: set[TopicPartition] = set()

    def begin(self, enough: int, *, at: int = 10, max_bytes: int = 100) -> FetchWait:
        entries = [FetchPartition(name, at, max_bytes) for name in (A, B)]
        results = [FetchResult(name, ErrorCode.NONE, records=bytes(10 - at)) for name in (A, B)]
        return FetchWait(
            entries,
            results,
            enough,
            Bound.LOG_END,
            self._log_for,
            lambda partition: partition.topic_partition in self.held_back,
        )

    def _log_for(self, entry: FetchPartition) -> tuple[Partition, Any]:
        if entry.partition in self.refused:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.partitions[entry.partition], self.logs[entry.partition]


@pytest.fixture
def waiting(make_log: Any, make_order: Any, clock: Any) -> Waiting:
    return Waiting(make_log, make_order, clock)


@pytest.mark.parametrize(("enough", "appended", "over"), [(1, 0, False), (1, 1, True), (3, 2, False), (3, 3, True)])
def test_it_is_over_when_there_is_enough(waiting: Waiting, enough: int, appended: int, over: bool) -> None:
    wait = waiting.begin(enough)
    waiting.logs[A].fill(*[0] * appended)
    assert wait.is_over(A) is over


def test_the_partitions_are_counted_together_and_each_record_once(waiting: Waiting) -> None:
    wait = waiting.begin(6, at=9)  # two bytes were there at the beginning
    for name in (A, B, A):
        waiting.logs[name].fill(0)
        assert not wait.is_over(name)
        assert not wait.is_over(name), "nothing is new"
    waiting.logs[B].fill(0)
    assert wait.is_over(B)


def test_a_partition_counts_up_to_its_own_limit(waiting: Waiting) -> None:
    wait = waiting.begin(4, max_bytes=2)
    waiting.logs[A].fill(*[0] * 9)
    assert not wait.is_over(A)
    waiting.logs[B].fill(0, 0)
    assert wait.is_over(B)


@pytest.mark.parametrize("enough", [1, 100])
def test_what_is_held_back_does_not_end_it(waiting: Waiting, enough: int) -> None:
    waiting.held_back.add(A)
    wait = waiting.begin(enough)
    waiting.logs[A].fill(*[0] * 200)
    assert not wait.is_over(A)


@pytest.mark.parametrize("enough", [1, 100])
@pytest.mark.parametrize("what", ["refused", "truncated", "deleted"])
def test_an_error_ends_it(waiting: Waiting, enough: int, what: str) -> None:
    wait = waiting.begin(enough)
    if what == "refused":
        waiting.refused.add(A)
    elif what == "truncated":
        waiting.logs[A].truncate_to(5)
    else:
        waiting.logs[A].fill(0)
        waiting.logs[A].log_start_offset = 11
    assert wait.is_over(A)


def test_what_was_counted_and_is_gone_ends_it(waiting: Waiting) -> None:
    """Else the wait would count bytes that the consumer cannot read any more."""
    wait = waiting.begin(100)
    waiting.logs[A].fill(0, 0)
    assert not wait.is_over(A)
    waiting.logs[A].truncate_to(11)
    assert wait.is_over(A)


def test_a_partition_that_is_added_counts_like_the_others(waiting: Waiting) -> None:
    wait = FetchWait([], [], 2, Bound.LOG_END, waiting._log_for, lambda partition: False)
    for name in (A, B):
        wait.add(FetchPartition(name, 10, 100))
    for name, over in ((A, False), (B, True)):
        waiting.logs[name].fill(0)
        assert wait.is_over(name) is over
