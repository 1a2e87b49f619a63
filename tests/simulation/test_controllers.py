"""Real controllers in a simulated world: crashes, expiries, lost replies, and invariants checked after every event."""

from __future__ import annotations

import os
import random

import pytest

from klamm.model.ids import TopicPartition
from klamm.model.partition import LeaderAndIsr
from klamm.simulation.checker import Checker, Violation
from klamm.simulation.cluster import Scenario, simulate
from klamm.zookeeper.znodes import partition_state

SEEDS = 2_000 if os.environ.get("KLAMM_SCALE") == "full" else 50


@pytest.mark.parametrize("seed", range(SEEDS))
def test_invariants_hold_and_the_cluster_heals(seed: int) -> None:
    shape = random.Random(seed)
    outcome = simulate(
        Scenario(seed=seed, nodes=shape.choice([3, 4, 5]), crashes=shape.randint(2, 6), expiries=shape.randint(0, 3))
    )
    assert outcome.healed
    assert outcome.elections > 1, "no controller ever fell: the run shows nothing"


def test_one_seed_is_one_run() -> None:
    assert simulate(Scenario(seed=7)) == simulate(Scenario(seed=7))
    assert simulate(Scenario(seed=7)).trace_hash != simulate(Scenario(seed=8)).trace_hash


class Frozen:
    def wall_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        return 0.0


STATE = "/brokers/topics/t/partitions/0/state"
TREE = {
    "/brokers/topics/t": b'{"version":2,"partitions":{"0":[1,2]},"adding_replicas":{},"removing_replicas":{}}',
    "/controller_epoch": b"1",
}


def checker_with(tree: dict[str, bytes]) -> Checker:
    checker = Checker(Frozen(), tree.get)
    checker.on_write("set", "/controller_epoch", 77)
    return checker


def write(checker: Checker, tree: dict[str, bytes], state: LeaderAndIsr, session: int = 77) -> None:
    tree[STATE] = partition_state.encode(state)
    checker.on_write("set", STATE, session)


@pytest.mark.parametrize(
    ("state", "session", "invariant"),
    [
        (LeaderAndIsr(1, 0, (2,), 1), 77, "leader-in-isr"),
        (LeaderAndIsr(1, 0, (1, 3), 1), 77, "isr-in-ar"),
        (LeaderAndIsr(-1, 0, (), 1), 77, "isr-in-ar"),
        (LeaderAndIsr(1, 0, (1,), 1), 78, "one-controller"),
    ],
)
def test_each_checker_fails_on_its_planted_violation(state: LeaderAndIsr, session: int, invariant: str) -> None:
    tree = dict(TREE)
    with pytest.raises(Violation, match=invariant):
        write(checker_with(tree), tree, state, session)


def test_epochs_going_back_are_found() -> None:
    tree = dict(TREE)
    checker = checker_with(tree)
    write(checker, tree, LeaderAndIsr(1, 5, (1, 2), 1))
    with pytest.raises(Violation, match="epochs-rise"):
        write(checker, tree, LeaderAndIsr(1, 4, (1, 2), 1))
    tree["/controller_epoch"] = b"1"
    with pytest.raises(Violation, match="epochs-rise"):
        checker.on_write("set", "/controller_epoch", 77)


def test_a_zombies_write_is_found() -> None:
    tree = dict(TREE)
    checker = checker_with(tree)
    tree["/controller_epoch"] = b"2"
    checker.on_write("set", "/controller_epoch", 78)
    with pytest.raises(Violation, match="no-zombie"):
        write(checker, tree, LeaderAndIsr(1, 1, (1, 2), 1))


def test_two_leaders_of_one_epoch_are_found() -> None:
    checker = checker_with(dict(TREE))
    checker.on_leader(TopicPartition("t", 0), 3, 1)
    checker.on_leader(TopicPartition("t", 0), 4, 2)
    with pytest.raises(Violation, match="one-leader"):
        checker.on_leader(TopicPartition("t", 0), 4, 1)
