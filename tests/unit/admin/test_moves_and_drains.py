"""Progress of moves, room for them, their throttles, and leaderships that a broker hands over."""

from __future__ import annotations

import pytest

from klamm.admin.leader_drain import LedPartition, plan_leader_drain
from klamm.admin.partition_health import Trouble, troubles
from klamm.admin.reassignment_progress import Move, MoveProgress, incoming_bytes, lacking_space, progress_of, rate_of
from klamm.admin.replication_throttles import FOLLOWER_REPLICAS, LEADER_REPLICAS, throttles_for
from klamm.model.ids import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def test_progress_counts_each_new_replica_up_to_what_the_leader_has() -> None:
    sizes = {A: {1: 100, 2: 40, 3: 130}, B: {2: 5}}
    assert progress_of([Move(A, 1, [2, 3]), Move(B, 1, [2])], sizes) == [
        MoveProgress(A, 140, 200, True),
        MoveProgress(B, 0, 0, False),
    ]


def test_the_rate_counts_moves_that_ended_meanwhile() -> None:
    before = [MoveProgress(A, 10, 100, True), MoveProgress(B, 0, 50, True)]
    rate = rate_of(before, [MoveProgress(A, 30, 100, True)], 10.0)
    assert rate == (7.0, 10.0)
    assert rate_of(before, before, 10.0).seconds_left is None
    assert rate_of(before, [], 10.0).seconds_left == 0.0


def test_room_is_judged_only_where_it_is_known() -> None:
    incoming = incoming_bytes({A: [1, 2, 3], B: [2]}, {A: [1, 2], B: [1]}, {A: {1: 100, 2: 90}, B: {1: 50}})
    assert incoming == {3: 100, 2: 50}
    assert lacking_space(incoming, {3: 100, 2: None}) == []
    assert lacking_space(incoming, {3: 99, 2: 60}) == ["broker 3 must receive 100 B and has 99 B free"]


def test_throttles_name_senders_and_receivers_of_moves_that_copy() -> None:
    found = throttles_for({A: [2, 3], B: [2, 1]}, {A: [1, 2], B: [1, 2]}, 5_000)
    assert found.topics == {"t": {LEADER_REPLICAS: "0:1,0:2", FOLLOWER_REPLICAS: "0:3"}}
    assert sorted(found.brokers) == [1, 2, 3]
    assert set(found.brokers[1].values()) == {"5000"}
    assert throttles_for({B: [2, 1]}, {B: [1, 2]}, 5_000) == ({}, {}), "only the order changes"


@pytest.mark.parametrize(
    ("leader", "replicas", "isr", "order", "is_elected"),
    [
        (1, [1, 2, 3], [1, 2, 3], [2, 3, 1], True),
        (1, [1, 2, 3], [1, 3], [3, 2, 1], True),
        (1, [2, 1], [1, 2], None, True),
        (2, [1, 2], [1, 2], [2, 1], False),
        (2, [2, 1], [1, 2], None, False),
        (2, [2, 3], [2, 3], None, False),
    ],
)
def test_leaderships_that_a_broker_hands_over(
    leader: int, replicas: list[int], isr: list[int], order: list[int] | None, is_elected: bool
) -> None:
    found = plan_leader_drain(1, [LedPartition(A, leader, replicas, isr)])
    assert found.orders.get(A) == order
    assert found.elections == ([A] if is_elected else [])
    assert found.stuck == {}


def test_leaderships_that_stay_say_why() -> None:
    found = plan_leader_drain(1, [LedPartition(A, 1, [1], [1]), LedPartition(B, 1, [1, 2], [1])])
    assert found.stuck == {A: "it has no other replica", B: "no other replica is in sync: ISR [1]"}
    assert (found.orders, found.elections) == ({}, [])


@pytest.mark.parametrize(
    ("leader", "isr", "adding", "wrong"),
    [
        (1, [1, 2, 3], [], set()),
        (2, [1, 2, 3], [], {Trouble.NOT_PREFERRED}),
        (1, [1, 2], [], {Trouble.UNDER_REPLICATED}),
        (1, [1, 2], [3], set()),
        (1, [1], [3], {Trouble.UNDER_REPLICATED, Trouble.UNDER_MIN_ISR}),
        (-1, [1], [], {Trouble.UNDER_REPLICATED, Trouble.UNDER_MIN_ISR, Trouble.OFFLINE}),
    ],
)
def test_what_is_wrong_with_a_partition(leader: int, isr: list[int], adding: list[int], wrong: set[Trouble]) -> None:
    assert troubles(leader=leader, replicas=[1, 2, 3], isr=isr, min_isr=2, adding=adding) == wrong
