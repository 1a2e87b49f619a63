"""The columns of the context: assignments, indexes, counters, reuse of a deleted topic's indexes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.controller.context.controller_context import ControllerContext, Counts
from klamm.controller.context.states import PartitionState, ReplicaState
from klamm.model.brokers import Broker, LiveBroker
from klamm.model.ids import BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch
from klamm.model.partition import Assignment, LeaderAndIsr


def ids(*brokers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, brokers))


def state(leader: int, *isr: int, epoch: int = 0) -> LeaderAndIsr:
    return LeaderAndIsr(BrokerId(leader), LeaderEpoch(epoch), ids(*isr), ControllerEpoch(1))


def with_brokers(*brokers: int) -> ControllerContext:
    context = ControllerContext(ControllerEpoch(5))
    for broker in brokers:
        context.brokers[BrokerId(broker)] = LiveBroker(Broker(BrokerId(broker), ()), BrokerEpoch(1))
    return context


@pytest.mark.case("CTX-01")
def test_an_assignment_is_replaced_and_read_back() -> None:
    context = ControllerContext(ControllerEpoch(5))
    (partition,) = context.add_partitions("t", {0: Assignment(ids(1, 2, 3))})
    context.replace_assignment(partition, Assignment(ids(4)))
    assert context.assignment_of(partition) == Assignment(ids(4))
    assert context.replicas.on(BrokerId(1)) == []
    assert context.replicas.on(BrokerId(4)) == [partition]
    moving = Assignment(ids(3), ids(1), ids(2))
    context.replace_assignment(partition, moving)
    assert context.assignment_of(partition) == moving


@pytest.mark.case("CTX-02")
@pytest.mark.case("CTX-03")
def test_unknown_names_and_topics_apart() -> None:
    context = ControllerContext(ControllerEpoch(5))
    context.add_partitions("a", {0: Assignment(ids(1)), 1: Assignment(ids(2))})
    context.add_partitions("b", {0: Assignment(ids(1))})
    assert context.partition("nobody", 0) is None
    assert context.partition("a", 7) is None
    assert context.partitions_of("nobody") == []
    assert [str(context.name_of(i)) for i in context.partitions_of("a")] == ["a-0", "a-1"]


@pytest.mark.parametrize(
    ("assignment", "moving", "target"),
    [
        pytest.param(((1, 2, 3, 4, 5, 6), (2, 3, 4), (1, 5, 6)), True, (2, 3, 4), marks=pytest.mark.case("CTX-04")),
        pytest.param(((1, 2, 3, 4), (), (1, 4)), True, (2, 3), marks=pytest.mark.case("CTX-05")),
        pytest.param(((1, 2, 3, 4), (4,), (2,)), True, (1, 3, 4), marks=pytest.mark.case("CTX-06")),
        pytest.param(((1, 2, 3, 4, 5, 6), (), ()), False, (1, 2, 3, 4, 5, 6), marks=pytest.mark.case("CTX-07")),
    ],
)
def test_target_replicas(assignment: tuple[tuple[int, ...], ...], moving: bool, target: tuple[int, ...]) -> None:
    value = Assignment(*(ids(*part) for part in assignment))
    assert (value.is_being_reassigned, value.target_replicas) == (moving, target)


@pytest.mark.parametrize(
    ("old", "new", "replicas", "adding", "removing"),
    [
        pytest.param((1, 2, 3, 4), (4, 2, 5, 3), (4, 2, 5, 3, 1), (5,), (1,), marks=pytest.mark.case("CTX-08")),
        pytest.param((1, 2, 3), (4, 5, 6), (4, 5, 6, 1, 2, 3), (4, 5, 6), (1, 2, 3), marks=pytest.mark.case("CTX-09")),
        pytest.param((1, 2, 3), (3, 1, 2), (3, 1, 2), (), (), marks=pytest.mark.case("CTX-10")),
    ],
)
def test_reassign_to(
    old: tuple[int, ...],
    new: tuple[int, ...],
    replicas: tuple[int, ...],
    adding: tuple[int, ...],
    removing: tuple[int, ...],
) -> None:
    assert Assignment(ids(*old)).reassign_to(ids(*new)) == Assignment(ids(*replicas), ids(*adding), ids(*removing))


def test_a_deleted_topics_ids_come_back_clean() -> None:
    context = with_brokers(1)
    old = context.add_partitions("old", {0: Assignment(ids(1)), 1: Assignment(ids(1))})
    context.move_partitions(old, PartitionState.NEW)
    context.replicas.move(BrokerId(1), old, ReplicaState.NEW)
    context.put_state(old[0], state(1, 1), 3)
    context.mark_offline_dirs(BrokerId(1), old)
    context.remove_topic("old")
    assert context.counts().partitions == 0
    assert context.leaderless() == []
    new = context.add_partitions("new", {0: Assignment(ids(2))})
    assert new[0] in old
    assert context.state_of(new[0]) is None
    assert context.partition_state_of(new[0]) is PartitionState.NON_EXISTENT
    assert context.replicas.state_of(new[0], BrokerId(1)) is ReplicaState.NON_EXISTENT
    assert context.replicas.on(BrokerId(1)) == []
    assert context.offline_dirs[BrokerId(1)] == set()


def test_a_failed_directory_takes_one_replica_not_the_broker() -> None:
    context = with_brokers(1, 2)
    first, second = context.add_partitions("t", {n: Assignment(ids(1, 2)) for n in range(2)})
    context.mark_offline_dirs(BrokerId(1), [first])
    assert not context.is_replica_online(BrokerId(1), first)
    assert context.is_replica_online(BrokerId(1), second)
    assert context.live_for(first, context.live) == {2}
    assert context.live_for(second, context.live) == {1, 2}


changes = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["put", "delete", "undelete"]), st.integers(1, 3)), max_size=40
)


@given(changes)
def test_the_imbalance_counter_equals_a_scan(script: list[tuple[int, str, int]]) -> None:
    context = with_brokers(1, 2, 3)
    for topic in range(4):
        context.add_partitions(f"t{topic}", {0: Assignment(ids(1, 2, 3)), 1: Assignment(ids(2, 3))})
    for topic, action, leader in script:
        name = f"t{topic}"
        if action == "put":
            context.put_state(context.partitions_of(name)[leader % 2], state(leader, leader), 1)
        elif action == "delete":
            context.start_deleting(name)
        else:
            context.stop_deleting(name)
        known = [i for i in context.all_partitions() if context.topic_of(i) not in context.deleting]
        states = [(context.state_of(i), context.assignment_of(i).replicas[0]) for i in known]
        scanned = sum(found is not None and found.leader != preferred for found, preferred in states)
        assert context.counts().preferred_replica_imbalance == scanned


def test_a_cleared_context_holds_nothing_and_can_be_filled_again() -> None:
    context = ControllerContext(ControllerEpoch(5))
    replicas = Assignment((BrokerId(1), BrokerId(2)))
    for _ in range(2):
        partitions = context.add_partitions("t", {0: replicas, 1: replicas})
        context.put_states(partitions, [state(1, 1)] * 2, [4, 5])
        context.move_partitions(partitions, PartitionState.NEW)
        assert partitions == [0, 1] and context.replicas.on(BrokerId(2)) == [0, 1]
        assert [context.zk_version_of(i) for i in partitions] == [4, 5]
        context.clear()
        assert not context.topics and not context.replicas.brokers and not context.leaderless()
        assert list(map(len, context.columns)) == [0] * 5
        assert context.counts() == Counts()
