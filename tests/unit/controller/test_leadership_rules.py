"""The rules that change one partition's state: what each makes of a state, as tables. The replicas are 1, 2 and 3."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.controller.decisions import leadership
from klamm.controller.decisions.recovered_brokers import recovered_rule
from klamm.controller.decisions.shared_rule import decide
from klamm.controller.decisions.steps import KeepState, Refuse, Rule, WriteState
from klamm.model.ids import BrokerId, ControllerEpoch, LeaderEpoch
from klamm.model.partition import Assignment, LeaderAndIsr

from .test_request_batch import EPOCH, context_of

LIVE = (1, 2, 3)
NOBODY = -1
Outcome = tuple[int, tuple[int, ...], tuple[int, ...]] | str
"""Leader, ISR and recipients of what is written; or what else is decided."""
MakeRule = Callable[[ControllerContext, PartitionIndex], Rule]


def ids(*brokers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, brokers))


def outcome(
    make: MakeRule, leader: int, isr: tuple[int, ...], live: tuple[int, ...] = LIVE, *, written_under: int = 3
) -> Outcome:
    context = context_of(*live)
    (partition,) = context.add_partitions("t", {0: Assignment(ids(1, 2, 3))})
    state = LeaderAndIsr(BrokerId(leader), LeaderEpoch(7), ids(*isr), ControllerEpoch(written_under))
    context.put_state(partition, state, 11)
    (change,) = decide(make(context, partition), [partition], [state])
    if isinstance(change, WriteState):
        assert (change.state.leader_epoch, change.state.controller_epoch) == (8, EPOCH)
        return change.state.leader, change.state.isr, change.recipients
    if isinstance(change, KeepState):
        assert change.state[:3] == state[:3]
        return "keep"
    assert isinstance(change, Refuse)
    return "refuse"


def suspect_one(context: ControllerContext, partition: PartitionIndex) -> Rule:
    context.suspects.add(BrokerId(1))
    return leadership.suspicion_rule(context, BrokerId(1))


def remove_one(context: ControllerContext, partition: PartitionIndex) -> Rule:
    return leadership.removal_rule(context, BrokerId(1))


def reassigned_from_four(context: ControllerContext, partition: PartitionIndex) -> Rule:
    """The replicas were 4, 1, 2 and 3."""
    return leadership.reassigned_rule(context, {partition: ids(4, 1, 2, 3)})


def fence_without_three(context: ControllerContext, partition: PartitionIndex) -> Rule:
    return leadership.fence_rule(context, {partition: ids(1, 2, 3)}, {partition: ids(1, 2)})


def raise_epoch(context: ControllerContext, partition: PartitionIndex) -> Rule:
    return leadership.epoch_rule(context)


def unless_three_is_the_last(context: ControllerContext, partition: PartitionIndex) -> Rule:
    return leadership.unless_last_in_sync(leadership.epoch_rule(context), {partition: ids(1, 2)})


RULES = [suspect_one, remove_one, reassigned_from_four, fence_without_three, raise_epoch]


@pytest.mark.parametrize("make", RULES)
def test_what_a_newer_controller_wrote_is_not_changed(make: MakeRule) -> None:
    assert outcome(make, 1, (1, 2, 3), written_under=EPOCH + 1) == "refuse"
    assert outcome(make, 1, (1, 2, 3), written_under=EPOCH) != "refuse"


@pytest.mark.parametrize(
    ("leader", "isr", "live", "expected"),
    [
        (1, (1, 2, 3), LIVE, (2, (2, 3), (2, 3))),
        (1, (1, 3), LIVE, (3, (3,), (2, 3))),
        (1, (1,), LIVE, "keep"),  # no other can lead: it may be alive
        (1, (1, 2), (1, 3), "keep"),
        (2, (1, 2, 3), LIVE, (2, (2, 3), (2, 3))),
        (2, (2, 3), LIVE, "keep"),  # it is not in the ISR
        (2, (1, 2, 3), (1, 3), "keep"),  # the leader is dead: an election comes, which is another rule's
        (NOBODY, (1, 2), LIVE, "keep"),
    ],
)
def test_a_suspect(leader: int, isr: tuple[int, ...], live: tuple[int, ...], expected: Outcome) -> None:
    assert outcome(suspect_one, leader, isr, live) == expected


@pytest.mark.parametrize(
    ("leader", "isr", "expected"),
    [
        (2, (1, 2, 3), (2, (2, 3), (2, 3))),
        (1, (1, 2), (NOBODY, (2,), (2, 3))),
        (1, (1,), (NOBODY, (1,), (2, 3))),  # the last member stays
        (2, (2, 3), "keep"),
    ],
)
def test_a_replica_that_goes_offline(leader: int, isr: tuple[int, ...], expected: Outcome) -> None:
    assert outcome(remove_one, leader, isr) == expected


@pytest.mark.parametrize(
    ("leader", "isr", "live", "expected"),
    [
        (2, (4, 1, 2, 3), LIVE, (2, (4, 1, 2, 3), (1, 2, 3))),  # it stays, and with it the whole ISR
        (2, (2, 9), LIVE, (2, (2,), (1, 2, 3))),  # 9 is no replica any more
        (4, (4, 1, 2), (*LIVE, 4), (1, (4, 1, 2), (1, 2, 3))),  # it lives, but is no target
        (4, (4, 2), LIVE, (2, (4, 2), (1, 2, 3))),  # the first target is not in the ISR
        (4, (4,), LIVE, "refuse"),
        (2, (1, 2), (1, 3), (1, (1, 2), (1, 2, 3))),  # the leader is a target, but dead
        (2, (2,), (1, 3), "refuse"),
    ],
)
def test_the_end_of_a_reassignment(leader: int, isr: tuple[int, ...], live: tuple[int, ...], expected: Outcome) -> None:
    assert outcome(reassigned_from_four, leader, isr, live) == expected


@pytest.mark.parametrize(
    ("leader", "isr", "expected"),
    [
        (1, (1, 2, 3), (1, (1, 2, 3), (1, 2))),
        (1, (1, 9), (1, (1,), (1, 2))),
        (1, (9,), (1, (9,), (1, 2))),  # an ISR is never empty
        (3, (1, 2, 3), "keep"),  # it loses its epoch with its own removal
    ],
)
def test_a_leader_that_stays_is_fenced(leader: int, isr: tuple[int, ...], expected: Outcome) -> None:
    assert outcome(fence_without_three, leader, isr) == expected


@pytest.mark.parametrize(("isr", "expected"), [((1, 3), "written"), ((2,), "written"), ((3,), "refuse")])
def test_the_last_replica_in_sync_is_not_dropped(isr: tuple[int, ...], expected: str) -> None:
    found = outcome(unless_three_is_the_last, isr[0], isr)
    assert (found if isinstance(found, str) else "written") == expected


@pytest.mark.parametrize(
    ("leader", "isr", "recovered", "live", "expected"),
    [
        (1, (3, 2, 1), (1,), LIVE, (2, (3, 2), (1, 2, 3))),  # in the order of the replicas
        (2, (1, 2, 3), (3,), LIVE, (2, (1, 2), (1, 2, 3))),  # the leader stays
        (2, (3, 2, 1), (1,), (1, 2), (2, (3, 2), (1, 2))),  # a member that is away stays in sync, and is told nothing
        (1, (1, 2), (1,), (1, 3), (1, (1, 2), (1, 3))),
        (2, (1, 2), (1,), (1, 3), "keep"),  # the leader is away, and has lost nothing
        (1, (1, 2), (3,), LIVE, "keep"),
    ],
)
def test_recovered_brokers(
    leader: int, isr: tuple[int, ...], recovered: tuple[int, ...], live: tuple[int, ...], expected: Outcome
) -> None:
    def make(context: ControllerContext, partition: PartitionIndex) -> Rule:
        return recovered_rule(context, {partition: ids(*recovered)})

    assert outcome(make, leader, isr, live) == expected
    assert outcome(make, leader, isr, live, written_under=EPOCH + 1) == "refuse"
