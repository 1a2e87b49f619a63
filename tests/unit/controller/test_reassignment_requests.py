"""Which requests for a reassignment are refused, which wait, and which start: tables. The replicas are 1, 2 and 3."""

from __future__ import annotations

import pytest

from klamm.controller.context.controller_context import ControllerContext
from klamm.controller.decisions.deletion import complete_deletion, topics_to_queue
from klamm.controller.decisions.reassignment import still_asked, wanted, what_to_wait_for
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import BrokerId, TopicPartition
from klamm.model.partition import Assignment

from .test_request_batch import context_of

T0 = TopicPartition("t", 0)


def ids(*brokers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, brokers))


def context(*live: int) -> ControllerContext:
    made = context_of(*live)
    made.add_partitions("t", {0: Assignment(ids(1, 2, 3))})
    return made


@pytest.mark.parametrize(
    ("target", "waits"),
    [
        ((4, 5), True),
        ((0, 4), True),  # broker 0 is a broker like others
        ((1, 2), False),
        ((6, 1), False),  # no replica yet, but alive
        ((3, 1), False),  # dead, but a replica already
        ((), False),  # what is wrong is refused at once, and does not wait
        ((4, 4), False),
        ((-1, 4), False),
    ],
)
def test_a_target_that_is_not_alive_is_waited_for(target: tuple[int, ...], waits: bool) -> None:
    view = context(1, 2, 6)
    assert bool(what_to_wait_for(view, T0, ids(*target))) is waits
    assert bool(still_asked(view, {T0: ids(*target)})) is waits
    view.deleting.add("t")
    assert not what_to_wait_for(view, T0, ids(*target)), "a topic that is being deleted is not moved"


@pytest.mark.parametrize(
    ("name", "target", "error"),
    [
        (T0, (0, 1), None),
        (T0, (3, 1), None),  # 3 is dead, but a replica already
        (T0, (), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (T0, (1, 1), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (T0, (-1, 1), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (T0, (1, 4), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (T0, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        (TopicPartition("unknown", 0), (1,), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TopicPartition("leaving", 0), (1,), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_which_requests_are_refused(
    name: TopicPartition, target: tuple[int, ...] | None, error: ErrorCode | None
) -> None:
    view = context(0, 1, 2)
    view.add_partitions("leaving", {0: Assignment(ids(1))})
    view.deleting.add("leaving")
    found = wanted(view, name, None if target is None else ids(*target))
    assert (found.code if isinstance(found, KafkaError) else None) is error


@pytest.mark.parametrize(
    ("target", "reason"),
    [((), "is empty"), ((4, 4), "twice"), ((-1, 1), "negative broker id"), ((1, 4), "[4] are not")],
)
def test_a_refusal_says_what_is_wrong(target: tuple[int, ...], reason: str) -> None:
    assert reason in str(wanted(context(1, 2), T0, ids(*target)))


def test_which_marked_topics_are_queued() -> None:
    view = context(1)
    view.add_partitions("leaving", {0: Assignment(ids(1))})
    view.deleting.add("leaving")
    assert topics_to_queue(view, ["t", "leaving", "unknown"], enabled=True) == ["t"]
    assert topics_to_queue(view, ["t"], enabled=False) == []


def test_an_answer_about_what_is_not_being_deleted_changes_nothing() -> None:
    """It comes late, or names a partition that was created again since."""
    view = context(1, 2, 3)
    answered = {T0: True, TopicPartition("unknown", 0): True}
    for is_leaving in (False, True):
        if is_leaving:
            view.deleting.add("t")
        steps = [type(step).__name__ for step in complete_deletion(view, BrokerId(1), answered)]
        assert "MoveReplicas" not in steps
