"""Controller terms derived from events, and what a deletion waits for."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from klamm.admin.controller_history import ControllerTerm, Note, notes, read_events, terms
from klamm.admin.pending_deletions import waits_for
from klamm.model.partition import Assignment


def line(time_ms: int, broker: int, epoch: int, event: str, cause: str, **more: Any) -> bytes:
    fields = {"time_ms": time_ms, "broker": broker, "controller_epoch": epoch, "event": event, "cause": cause}
    return orjson.dumps({"v": 1, "kind": "decision", **fields, **more})


def test_terms_of_several_brokers_in_the_order_of_epochs() -> None:
    lines = [
        line(500, 2, 4, "controller-elected", "asked for by an operator"),
        b'{"v":1,"kind":"state-change","topic":"controller-elected"}',
        line(100, 1, 1, "controller-elected", "/controller was free"),
        line(300, 1, 1, "controller-resigned", "/controller names 7"),
        line(480, 2, 0, "controller-moved", "asked for by an operator", detail="from broker 7 to broker 2"),
        line(490, 2, 4, "topic-created", "t"),
        line(600, 2, 5, "controller-elected", "a term that has not ended")[:-9],  # torn
        b"decision, but no JSON",
    ]
    events = list(read_events(lines))
    assert terms(events) == [
        ControllerTerm(1, 1, 100, "/controller was free", 300, "/controller names 7"),
        ControllerTerm(2, None, None, "not recorded by klamm"),  # 2 and 3 belong to a JVM broker
        ControllerTerm(4, 2, 500, "asked for by an operator"),
    ]
    assert notes(events) == [Note(480, 2, "controller-moved", "asked for by an operator", "from broker 7 to broker 2")]
    assert terms([]) == []


def test_a_killed_controller_ends_its_term_when_the_next_one_begins() -> None:
    lines = [
        line(100, 1, 1, "controller-elected", "/controller was free"),
        line(300, 2, 2, "controller-elected", "/controller was free"),
        line(500, 3, 4, "controller-elected", "/controller was free"),
    ]
    first, second, gap, last = terms(read_events(lines))
    assert (first.until_ms, first.ended_by) == (300, "broker 2 took over")
    assert (second.until_ms, second.ended_by) == (None, "another broker took over"), "at a time that no one wrote"
    assert gap.broker is None
    assert (last.until_ms, last.ended_by) == (None, "")


@pytest.mark.parametrize(
    ("partitions", "rest", "reason"),
    [
        ({0: Assignment((1, 2))}, {"has_controller": False}, "a controller"),
        (None, {}, "the controller to remove the marker: the topic is gone"),
        ({0: Assignment((1, 2))}, {}, "brokers [1, 2] to delete their replicas"),
        ({0: Assignment((1, 3)), 1: Assignment((4, 1))}, {}, "replicas on brokers [3, 4], which are not registered"),
        ({0: Assignment((1, 2)), 1: Assignment((1, 2), adding=(2,))}, {}, "the reassignment of partitions [1]"),
        ({0: Assignment((1, 3))}, {"quarantined": True}, "a change of its znode: the topic is quarantined"),
    ],
)
def test_what_a_deletion_waits_for(partitions: Any, rest: dict[str, bool], reason: str) -> None:
    assert waits_for(partitions, {1, 2}, **{"has_controller": True, **rest}) == reason
