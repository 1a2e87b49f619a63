"""The transition tables, exhaustively: every pair of states is either allowed as in Kafka, or refused."""

from __future__ import annotations

from itertools import product

import pytest

from klamm.controller.context.controller_context import ControllerContext
from klamm.controller.context.states import (
    PARTITION_MAY_ENTER,
    PARTITION_MAY_FOLLOW,
    REPLICA_MAY_ENTER,
    REPLICA_MAY_FOLLOW,
    PartitionState,
    ReplicaState,
)
from klamm.model.ids import BrokerId, ControllerEpoch
from klamm.model.partition import Assignment

P, R = PartitionState, ReplicaState

ALLOWED_PARTITION = {
    (P.NON_EXISTENT, P.NEW),
    (P.NEW, P.ONLINE),
    (P.ONLINE, P.ONLINE),
    (P.OFFLINE, P.ONLINE),
    (P.NEW, P.OFFLINE),
    (P.ONLINE, P.OFFLINE),
    (P.OFFLINE, P.OFFLINE),
    (P.OFFLINE, P.NON_EXISTENT),
}

ALLOWED_REPLICA = {
    (R.NON_EXISTENT, R.NEW),
    (R.NEW, R.ONLINE),
    (R.ONLINE, R.ONLINE),
    (R.OFFLINE, R.ONLINE),
    (R.DELETION_INELIGIBLE, R.ONLINE),
    (R.NEW, R.OFFLINE),
    (R.ONLINE, R.OFFLINE),
    (R.OFFLINE, R.OFFLINE),
    (R.DELETION_INELIGIBLE, R.OFFLINE),
    (R.OFFLINE, R.DELETION_STARTED),
    (R.DELETION_STARTED, R.DELETION_SUCCESSFUL),
    (R.OFFLINE, R.DELETION_INELIGIBLE),
    (R.DELETION_STARTED, R.DELETION_INELIGIBLE),
    (R.DELETION_SUCCESSFUL, R.NON_EXISTENT),
}


def partition_in(state: PartitionState) -> ControllerContext:
    context = ControllerContext(ControllerEpoch(5))
    context.add_partitions("t", {0: Assignment((BrokerId(1),))})
    path = {P.NON_EXISTENT: [], P.NEW: [P.NEW], P.ONLINE: [P.NEW, P.ONLINE], P.OFFLINE: [P.NEW, P.OFFLINE]}
    for step in path[state]:
        assert context.move_partitions([0], step) == []
    return context


def replica_in(state: ReplicaState) -> ControllerContext:
    context = ControllerContext(ControllerEpoch(5))
    context.add_partitions("t", {0: Assignment((BrokerId(1),))})
    online, offline = [R.NEW, R.ONLINE], [R.NEW, R.OFFLINE]
    path = {
        R.NON_EXISTENT: [],
        R.NEW: [R.NEW],
        R.ONLINE: online,
        R.OFFLINE: offline,
        R.DELETION_STARTED: [*offline, R.DELETION_STARTED],
        R.DELETION_SUCCESSFUL: [*offline, R.DELETION_STARTED, R.DELETION_SUCCESSFUL],
        R.DELETION_INELIGIBLE: [*offline, R.DELETION_INELIGIBLE],
    }
    for step in path[state]:
        assert context.replicas.move(BrokerId(1), [0], step) == []
    return context


@pytest.mark.case("PSM-01")
@pytest.mark.case("PSM-02")
@pytest.mark.case("PSM-03")
@pytest.mark.case("PSM-06")
@pytest.mark.case("PSM-07")
@pytest.mark.case("PSM-09")
@pytest.mark.case("PSM-10")
@pytest.mark.case("PSM-14")
@pytest.mark.parametrize(("before", "after"), list(product(PartitionState, PartitionState)))
def test_partition_transition(before: PartitionState, after: PartitionState) -> None:
    context = partition_in(before)
    refused = context.move_partitions([0], after)
    if (before, after) in ALLOWED_PARTITION:
        assert (refused, context.partition_state_of(0)) == ([], after)
    else:
        assert (refused, context.partition_state_of(0)) == ([0], before)


@pytest.mark.case("RSM-06")
@pytest.mark.case("RSM-08")
@pytest.mark.case("RSM-11")
@pytest.mark.case("RSM-15")
@pytest.mark.case("RSM-16")
@pytest.mark.case("RSM-17")
@pytest.mark.case("RSM-18")
@pytest.mark.case("RSM-20")
@pytest.mark.case("RSM-22")
@pytest.mark.parametrize(("before", "after"), list(product(ReplicaState, ReplicaState)))
def test_replica_transition(before: ReplicaState, after: ReplicaState) -> None:
    context = replica_in(before)
    refused = context.replicas.move(BrokerId(1), [0], after)
    if (before, after) in ALLOWED_REPLICA:
        assert (refused, context.replicas.state_of(0, BrokerId(1))) == ([], after)
    else:
        assert (refused, context.replicas.state_of(0, BrokerId(1))) == ([0], before)


def test_the_tables_read_backwards_say_the_same() -> None:
    for before, after in product(PartitionState, PartitionState):
        assert (after in PARTITION_MAY_FOLLOW[before]) == (before in PARTITION_MAY_ENTER[after])
    for old, new in product(ReplicaState, ReplicaState):
        assert (new in REPLICA_MAY_FOLLOW[old]) == (old in REPLICA_MAY_ENTER[new])


@pytest.mark.case("PSM-15")
def test_the_offline_gauge_follows_the_moves() -> None:
    context = ControllerContext(ControllerEpoch(5))
    ids = context.add_partitions("t", {n: Assignment((BrokerId(1),)) for n in range(4)})
    context.move_partitions(ids, P.NEW)
    context.move_partitions(ids, P.OFFLINE)
    assert context.counts().offline_partitions == 4
    assert context.leaderless() == ids
    context.move_partitions(ids, P.ONLINE)
    assert context.counts().offline_partitions == 0
    assert context.leaderless() == []
