"""The second look at a plan finds each kind of mistake that a planner could make."""

from __future__ import annotations

import pytest

from klamm.admin.balancing.load import Change, Goals, PartitionLoad, Plan, PlannedBroker, Replicas, loads
from klamm.admin.balancing.validation import violations

BROKERS = [PlannedBroker(1, "a"), PlannedBroker(2, "b"), PlannedBroker(3, "a"), PlannedBroker(4, "b")]
PARTITIONS = [PartitionLoad("t", 0, (1, 2), 10), PartitionLoad("t", 1, (2, 1), 10)]


def plan_of(*changes: Change, promised: Replicas | None = None) -> Plan:
    moved = {(change.topic, change.partition): change.after for change in changes}
    ids = [broker.id for broker in BROKERS]
    after = [e._replace(replicas=promised or moved.get((e.topic, e.partition), e.replicas)) for e in PARTITIONS]
    return Plan(changes, loads(PARTITIONS, ids), loads(after, ids))


def move(after: Replicas, before: Replicas = (1, 2), topic: str = "t", size: int = 10) -> Change:
    return Change(topic, 0, before, after, size)


@pytest.mark.parametrize(
    ("made", "found"),
    [
        (plan_of(move((3, 2))), []),
        (plan_of(move((3, 2)), move((3, 2))), ["t-0 is in the plan 2 times"]),
        (plan_of(move((3, 2), topic="u")), ["u-0 does not exist"]),
        (plan_of(move((3, 2), before=(2, 1))), ["t-0 has changed since the plan was made"]),
        (plan_of(move((3, 2), size=9)), ["t-0 has changed since the plan was made"]),
        (
            plan_of(move((2, 2))),
            ["t-0 would have two replicas on one broker", "t-0 would be in fewer racks than before"],
        ),
        (
            plan_of(move((1, 4))),
            [
                "t-0 would go to brokers [4], which may not have it",
                "t-0 would stay on brokers [4], which are to be drained",
            ],
        ),
        (plan_of(move((1, 2, 3))), ["t-0 would have 3 replicas"]),
        (plan_of(move((1, 3))), ["t-0 would be in fewer racks than before"]),
        (plan_of(move((3, 2)), promised=(1, 2)), ["the loads that the plan promises are not those of its changes"]),
    ],
)
def test_violations(made: Plan, found: list[str]) -> None:
    assert violations(made, PARTITIONS, BROKERS, Goals(drained=frozenset({4}))) == found


def test_a_replica_that_could_leave_a_drained_broker_must() -> None:
    found = violations(plan_of(), PARTITIONS, BROKERS, Goals(drained=frozenset({1})))
    assert found == [f"t-{n} would stay on brokers [1], which are to be drained" for n in (0, 1)]
