"""A rule that is asked once for all partitions that look alike gives the same answers as one asked for each."""

from __future__ import annotations

import random

import pytest

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.controller.decisions import leadership
from klamm.controller.decisions.shared_rule import SharedRule, decide
from klamm.controller.decisions.steps import Change, KeepState, Rule, WriteState
from klamm.model.brokers import Broker, Endpoint, LiveBroker
from klamm.model.elections import UncleanElection
from klamm.model.ids import BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch
from klamm.model.partition import Assignment, LeaderAndIsr

EPOCH = ControllerEpoch(5)
BROKERS = [BrokerId(n) for n in range(1, 6)]


def some_cluster(rng: random.Random) -> ControllerContext:
    """Four of five brokers are alive and one of them shuts down. Some log directories failed, some topics are being
    deleted, some allow unclean elections."""
    context = ControllerContext(EPOCH)
    for broker in BROKERS[:4]:
        live = Broker(broker, (Endpoint("PLAINTEXT", "h", 1),))
        context.brokers[broker] = LiveBroker(live, BrokerEpoch(1))
    context.shutting_down.add(BrokerId(4))
    for name in "abcdef":
        assignments = {n: Assignment(tuple(rng.sample(BROKERS, 3))) for n in range(30)}
        for partition in context.add_partitions(name, assignments):
            replicas = context.assignment_of(partition).replicas
            isr = tuple(rng.sample(replicas, rng.randrange(1, 4)))
            epochs = LeaderEpoch(rng.randrange(3)), ControllerEpoch(rng.choice([4, 5, 5, 6]))
            context.put_state(partition, LeaderAndIsr(rng.choice(isr), epochs[0], isr, epochs[1]), 0)
    if rng.random() < 0.7:
        context.mark_offline_dirs(BrokerId(2), rng.sample(range(180), 20))
        context.start_deleting("b")
    return context


def rules_of(view: ControllerContext) -> list[Rule]:
    return [
        leadership.offline_rule(view),
        leadership.offline_rule(view, UncleanElection.ALLOWED),
        leadership.controlled_shutdown_rule(view),
        leadership.preferred_rule(view),
        leadership.removal_rule(view, BrokerId(1)),
        leadership.suspicion_rule(view, BrokerId(3)),
    ]


@pytest.mark.parametrize("seed", range(10))
def test_shared_answers_are_those_of_each(seed: int) -> None:
    view = some_cluster(random.Random(seed))
    partitions = list(view.all_partitions())
    states = [state for i in partitions if (state := view.state_of(i)) is not None]
    for rule in rules_of(view):
        assert isinstance(rule, SharedRule)
        assert decide(rule, partitions, states) == [rule(i, state) for i, state in zip(partitions, states, strict=True)]
        assert decide(rule, partitions[::-1], states[::-1]) == decide(rule, partitions, states)[::-1]


def test_alike_is_asked_once_and_the_peculiar_each_time() -> None:
    context = ControllerContext(EPOCH)
    assignment = Assignment((BrokerId(1), BrokerId(2)))
    partitions = context.add_partitions("t", dict.fromkeys(range(10), assignment))
    state = LeaderAndIsr(BrokerId(1), LeaderEpoch(0), (BrokerId(1),), EPOCH)
    context.put_states(partitions, [state] * 10, range(10))
    asked: list[PartitionIndex] = []

    def rule(partition: PartitionIndex, seen: LeaderAndIsr) -> Change:
        asked.append(partition)
        return KeepState(seen) if partition in (3, 4) else WriteState(seen, ())

    shared = SharedRule(context, rule, apart={3, 4})
    changes = shared.decide(partitions, [state] * 10)
    assert [type(change) for change in changes] == [KeepState if n in (3, 4) else WriteState for n in range(10)]
    assert asked == [0, 3, 4]
    shared.decide(partitions, [state] * 10)
    assert asked == [0, 3, 4, 3, 4]
