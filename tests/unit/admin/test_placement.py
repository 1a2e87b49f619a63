"""Placements worked out by hand from Kafka's algorithm (KIP-36), and the behaviour cases with a fixed start."""

from __future__ import annotations

from collections import Counter

import pytest

from klamm.admin.placement import PlacementBroker, RackMode, growth_start, place, rack_alternated
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import BrokerId


def brokers(*ids: int, racks: dict[int, str] | None = None) -> list[PlacementBroker]:
    return [PlacementBroker(BrokerId(b), (racks or {}).get(b)) for b in ids]


SIX_IN_THREE = {0: "r1", 1: "r3", 2: "r3", 3: "r2", 4: "r2", 5: "r1"}


def test_without_racks_the_shift_grows_after_each_round() -> None:
    assert place(brokers(1, 2, 3, 4), range(6), 2, start=2, shift=1) == {
        0: (3, 1),
        1: (4, 2),
        2: (1, 3),
        3: (2, 4),
        4: (3, 2),
        5: (4, 3),
    }


@pytest.mark.case("TOP-04")
def test_five_brokers_from_start_zero() -> None:
    placed = place(brokers(4, 0, 3, 1, 2), range(10), 3, start=0, shift=0)
    assert list(placed.values()) == [
        (0, 1, 2),
        (1, 2, 3),
        (2, 3, 4),
        (3, 4, 0),
        (4, 0, 1),
        (0, 2, 3),
        (1, 3, 4),
        (2, 4, 0),
        (3, 0, 1),
        (4, 1, 2),
    ]


def test_even_racks() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
    placed = place(brokers(*racks, racks=racks), range(7), 3, start=1, shift=2)
    assert list(placed.values()) == [(3, 2, 6), (5, 4, 1), (2, 6, 3), (4, 1, 5), (6, 3, 2), (1, 5, 4), (3, 1, 5)]


def test_uneven_racks_give_uneven_load() -> None:
    racks = {1: "a", 2: "a", 3: "b"}
    placed = place(brokers(*racks, racks=racks), range(3), 2, start=0, shift=0)
    assert list(placed.values()) == [(1, 3), (3, 2), (2, 3)]


@pytest.mark.case("TOP-06")
def test_rack_alternated_order_and_placement() -> None:
    six = brokers(*SIX_IN_THREE, racks=SIX_IN_THREE)
    assert [b.id for b in rack_alternated(six)] == [0, 3, 1, 5, 4, 2]
    assert [b.id for b in rack_alternated(six[:5])] == [0, 3, 1, 4, 2]
    placed = place(six, range(7), 3, start=0, shift=0)
    assert list(placed.values()) == [(0, 3, 1), (3, 1, 5), (1, 5, 4), (5, 4, 2), (4, 2, 0), (2, 0, 3), (0, 4, 2)]


@pytest.mark.case("TOP-07")
def test_more_replicas_than_racks_still_touches_every_rack() -> None:
    placed = place(brokers(*SIX_IN_THREE, racks=SIX_IN_THREE), range(12), 5, start=3, shift=1)
    assert all({SIX_IN_THREE[b] for b in replicas} == {"r1", "r2", "r3"} for replicas in placed.values())
    assert all(len(set(replicas)) == 5 for replicas in placed.values())


@pytest.mark.case("TOP-08")
def test_some_racks_missing() -> None:
    mixed = brokers(1, 2, 3, racks={1: "a", 2: "b"})
    with pytest.raises(KafkaError) as refused:
        place(mixed, range(1), 2, start=0, shift=0)
    assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert place(mixed, range(3), 2, start=0, shift=0, mode=RackMode.SAFE) == {0: (1, 2), 1: (2, 3), 2: (3, 1)}
    assert place(mixed[:2], range(1), 2, start=0, shift=0) == {0: (1, 2)}


@pytest.mark.case("TOP-05")
@pytest.mark.parametrize("replication_factor", [-1, 0, 4])
def test_replication_factor_out_of_range(replication_factor: int) -> None:
    with pytest.raises(KafkaError) as refused:
        place(brokers(1, 2, 3), range(1), replication_factor, start=0, shift=0)
    assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR


@pytest.mark.case("TOP-14")
def test_growing_continues_from_the_head_of_partition_zero() -> None:
    four = brokers(0, 1, 2, 3)
    start = growth_start(four, BrokerId(1))
    assert place(four, range(1, 3), 2, start=start, shift=start) == {1: (2, 0), 2: (3, 1)}


@pytest.mark.case("TOP-13")
def test_growing_a_topic_that_every_broker_holds() -> None:
    four = brokers(0, 1, 2, 3)
    start = growth_start(four, BrokerId(2))
    placed = place(four, range(1, 7), 4, start=start, shift=start)
    assert [replicas[0] for replicas in placed.values()] == [3, 0, 1, 2, 3, 0]


def test_growing_after_the_head_has_left_the_cluster() -> None:
    assert growth_start(brokers(0, 2, 4), BrokerId(3)) == 2
    assert growth_start(brokers(0, 2, 4), BrokerId(9)) == 0


def test_one_broker_alone() -> None:
    assert place(brokers(7), range(2), 1, start=0, shift=0) == {0: (7,), 1: (7,)}
    assert place(brokers(7, racks={7: "a"}), range(2), 1, start=0, shift=0) == {0: (7,), 1: (7,)}


@pytest.mark.case("RAS-24")
def test_a_proposal_with_racks_is_spread_and_balanced() -> None:
    placed = place(brokers(*SIX_IN_THREE, racks=SIX_IN_THREE), range(12), 3, start=2, shift=0)
    for replicas in placed.values():
        assert len({SIX_IN_THREE[int(broker)] for broker in replicas}) == 3
    leaders = Counter(replicas[0] for replicas in placed.values())
    held = Counter(broker for replicas in placed.values() for broker in replicas)
    assert set(leaders.values()) == {2}
    assert set(held.values()) == {6}
