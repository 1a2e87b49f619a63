"""The planner: what it moves, what it leaves alone, and what it refuses."""

from __future__ import annotations

import random

import pytest

from klamm.admin.balancing.load import Goals, PartitionLoad, Plan, PlannedBroker
from klamm.admin.balancing.planner import PlanRefused, plan
from klamm.admin.balancing.validation import violations

GB = 1 << 30


def brokers(count: int, racks: int = 0) -> list[PlannedBroker]:
    return [PlannedBroker(b, f"rack-{b % racks}" if racks else None) for b in range(1, count + 1)]


def after(partitions: list[PartitionLoad], made: Plan) -> list[PartitionLoad]:
    planned = {(change.topic, change.partition): change.after for change in made.changes}
    return [e._replace(replicas=planned.get((e.topic, e.partition), e.replicas)) for e in partitions]


def sizes(made: Plan) -> dict[int, int]:
    return {load.broker: load.size_bytes for load in made.after}


def test_bytes_replicas_and_leaders_of_a_crowded_cluster_become_even() -> None:
    crowded = [PartitionLoad("t", n, (1, 2), GB) for n in range(30)]
    made = plan(crowded, brokers(3))
    assert {(load.size_bytes, load.replicas, load.leaders) for load in made.after} == {(20 * GB, 20, 10)}
    assert made.bytes_to_copy == 20 * GB, "the least that can be copied"


def test_an_even_cluster_needs_no_plan_and_says_so() -> None:
    even = [PartitionLoad("t", n, (n % 3 + 1, (n + 1) % 3 + 1), GB) for n in range(9)]
    made = plan(even, brokers(3))
    assert made.changes == ()
    assert made.reasons == ("every broker is within 5% of its even share, and leaders are even",)


def test_uneven_leaders_are_mended_by_the_order_of_replicas_alone() -> None:
    led_by_one = [PartitionLoad("t", n, (1, 2 + n % 2), GB) for n in range(6)]
    spread = [PartitionLoad("u", n, (2, 3), GB) for n in range(3)]
    made = plan([*led_by_one, *spread], brokers(3))
    assert made.bytes_to_copy == 0
    assert {load.leaders for load in made.after} == {3}


def test_a_chain_evens_leaders_where_no_neighbour_has_few() -> None:
    """Broker 3 has no partition in common with broker 1, which leads too much: 2 hands one on."""
    chain = [PartitionLoad("a", n, (1, 2), 1) for n in range(4)] + [PartitionLoad("b", n, (2, 3), 1) for n in range(2)]
    made = plan(chain, brokers(3), Goals(start_beyond=10.0))
    assert [load.leaders for load in made.after] == [2, 2, 2]


def test_a_drained_broker_keeps_nothing_and_the_rest_stays_even() -> None:
    spread = [PartitionLoad("t", n, (n % 4 + 1, (n + 1) % 4 + 1), GB) for n in range(24)]
    goals = Goals(drained=frozenset({4}))
    made = plan(spread, brokers(4), goals)
    assert violations(made, spread, brokers(4), goals) == []
    assert sizes(made) == {1: 16 * GB, 2: 16 * GB, 3: 16 * GB, 4: 0}


def test_new_brokers_get_their_share() -> None:
    spread = [PartitionLoad("t", n, (n % 2 + 1,), GB) for n in range(40)]
    made = plan(spread, brokers(4))
    assert set(sizes(made).values()) == {10 * GB}
    assert made.bytes_to_copy == 20 * GB


@pytest.mark.parametrize(("factor", "copied"), [(3, 12 * GB), (1, 0)])
def test_another_replication_factor(factor: int, copied: int) -> None:
    pairs = [PartitionLoad("t", n, (n % 3 + 1, (n + 1) % 3 + 1), GB) for n in range(12)]
    goals = Goals(replication_factor=factor)
    made = plan(pairs, brokers(3), goals)
    assert violations(made, pairs, brokers(3), goals) == []
    assert {len(entry.replicas) for entry in after(pairs, made)} == {factor}
    assert made.bytes_to_copy == copied
    assert all(change.after[0] in change.before for change in made.changes), "a leader that must not move stays"


def test_fewer_replicas_and_a_drained_broker_in_one_plan() -> None:
    everywhere = [PartitionLoad("t", n, (n % 3 + 1, (n + 1) % 3 + 1, (n + 2) % 3 + 1), GB) for n in range(12)]
    goals = Goals(drained=frozenset({2}), replication_factor=2)
    made = plan(everywhere, brokers(3), goals)
    assert violations(made, everywhere, brokers(3), goals) == []
    assert sizes(made) == {1: 12 * GB, 2: 0, 3: 12 * GB}
    assert made.bytes_to_copy == 0, "dropping the replicas of the drained broker is enough"


def test_replicas_that_share_a_rack_are_separated() -> None:
    shared = [PartitionLoad("t", 0, (1, 3), GB), PartitionLoad("t", 1, (2, 4), GB)]
    made = plan(shared, brokers(4, racks=2))
    for entry in after(shared, made):
        assert len({broker % 2 for broker in entry.replicas}) == 2


def test_no_rack_is_given_up_for_even_bytes() -> None:
    lopsided = [PartitionLoad("t", n, (1, 2), GB) for n in range(10)]
    made = plan(lopsided, [PlannedBroker(1, "a"), PlannedBroker(2, "b"), PlannedBroker(3, "b")])
    assert sizes(made)[1] == 10 * GB
    assert {load // GB for broker, load in sizes(made).items() if broker > 1} <= {4, 5, 6}


def test_large_partitions_that_meet_on_one_broker_are_separated_first() -> None:
    """Moving the small ones away instead would empty the broker and still leave it overloaded."""
    large = [PartitionLoad("large", n, (1,), 90 * GB) for n in range(2)]
    small = [PartitionLoad("small", n, (n % 3 + 1,), GB) for n in range(90)]
    made = plan([*large, *small], brokers(3))
    assert max(sizes(made).values()) <= 1.02 * 90 * GB
    assert sum(change.topic == "large" for change in made.changes) == 1


def test_a_partition_larger_than_a_share_is_named_and_shares_a_broker_with_little() -> None:
    giant = PartitionLoad("giant", 0, (1,), 100 * GB)
    small = [PartitionLoad("small", n, (1 + n % 2,), GB) for n in range(30)]
    made = plan([giant, *small], brokers(3))
    assert sizes(made)[1] <= 102 * GB
    assert made.reasons == ("brokers with a partition larger than an even share hold more than the others: giant-0",)
    assert after([giant, *small], made)[0].replicas == (1,), "moving it gains nothing"


def test_few_large_partitions_are_spread_as_well_as_they_fit() -> None:
    few = [PartitionLoad(f"t{size}", n, (1, 2), size * GB) for size in (600, 200, 50) for n in range(4)]
    made = plan(few, brokers(3))
    even = sum(sizes(made).values()) / 3
    assert all(abs(load - even) < 0.03 * even for load in sizes(made).values())


def test_a_broker_of_twice_the_weight_gets_twice_the_bytes() -> None:
    spread = [PartitionLoad("t", n, (n % 3 + 1,), GB) for n in range(60)]
    made = plan(spread, [PlannedBroker(1, weight=2.0), PlannedBroker(2), PlannedBroker(3)])
    assert sizes(made) == {1: 30 * GB, 2: 15 * GB, 3: 15 * GB}


@pytest.mark.parametrize(
    ("partitions", "cluster", "goals", "message"),
    [
        ([PartitionLoad("t", 0, (1, 7), 1)], brokers(2), Goals(), r"t-0 has replicas on brokers \[7\].*not alive"),
        ([PartitionLoad("t", 0, (1,), 1)], brokers(2), Goals(drained=frozenset({9})), r"cannot drain brokers \[9\]"),
        ([PartitionLoad("t", 0, (1,), 1)], brokers(1), Goals(drained=frozenset({1})), "no broker would be left"),
        ([PartitionLoad("t", 0, (1,), 1)], brokers(2), Goals(replication_factor=3), "2 are left"),
        ([PartitionLoad("t", 0, (1, 1), 1)], brokers(2), Goals(), "each broker once"),
        ([], [PlannedBroker(1, "a"), PlannedBroker(2)], Goals(), r"brokers \[2\] name no rack"),
        ([], [PlannedBroker(1, weight=0)], Goals(), "weight"),
    ],
)
def test_refusals_say_why(
    partitions: list[PartitionLoad], cluster: list[PlannedBroker], goals: Goals, message: str
) -> None:
    with pytest.raises(PlanRefused, match=message):
        plan(partitions, cluster, goals)


def random_cluster(seed: int) -> tuple[list[PartitionLoad], list[PlannedBroker], Goals]:
    chance = random.Random(seed)
    count, racks = chance.randint(3, 12), chance.choice([0, 0, 2, 3])
    cluster = brokers(count, racks)
    skew, zipf = chance.uniform(0, 3), chance.uniform(0, 1.1)
    factor = chance.randint(1, 3)
    partitions = []
    for n in range(chance.randint(1, 300)):
        order = sorted(range(1, count + 1), key=lambda b: chance.random() ** (1 + skew * b / count))
        partitions.append(PartitionLoad(f"t{n % 7}", n, tuple(order[:factor]), int(1e9 / (n + 1) ** zipf)))
    drained = frozenset(chance.sample(range(1, count + 1), chance.choice([0, 0, 1]))) if count > 4 else frozenset()
    return partitions, cluster, Goals(drained=drained, replication_factor=chance.choice([None, None, 2]))


@pytest.mark.parametrize("seed", range(200))
def test_plans_of_random_clusters_pass_the_validator_and_are_final(seed: int) -> None:
    partitions, cluster, goals = random_cluster(seed)
    made = plan(partitions, cluster, goals)
    assert violations(made, partitions, cluster, goals) == []
    assert plan(partitions, cluster, goals) == made, "the same input gives the same plan"
    again = plan(after(partitions, made), cluster, goals)
    assert again.changes == (), "a second plan is empty"
