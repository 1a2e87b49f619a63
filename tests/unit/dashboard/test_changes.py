"""Two looks at ZooKeeper tell what changed and why, as far as they show."""

from __future__ import annotations

from klamm.dashboard.changes import CHANGES_MAX, Entry, compare, summarized

from .clusters import P, snapshot


def told(*looks: object, **how: bool) -> list[str]:
    before, after = looks
    return [f"{entry.kind}: {entry.text} | {entry.cause}" for entry in compare(before, after, **how)]  # type: ignore[arg-type]


def test_a_broker_dies() -> None:
    before = snapshot({"t": [P([2, 1]), P([1, 2])]})
    after = snapshot({"t": [P([2, 1], leader=1, isr=[1], epoch=1), P([1, 2], isr=[1], epoch=1)]}, brokers=(1, 3))
    assert told(before, after) == [
        "broker: broker 2 is gone | its session in ZooKeeper ended",
        "partition: t-0: broker 1 leads, in sync 1 | broker 2 is gone",
        "partition: t-1: in sync 1 | broker 2 is gone",
    ]
    back = told(after, before)
    assert back == [
        "broker: broker 2 is there | it registered in ZooKeeper",
        "partition: t-0: broker 2 leads, in sync 2,1 | the preferred leader took over",
        "partition: t-1: in sync 1,2 | broker 2 caught up",
    ]


def test_a_controller_change() -> None:
    before = snapshot({}, leading=2, epoch=4, since_ms=10)
    replaced = snapshot({}, leading=3, epoch=5, since_ms=20)
    assert told(before, replaced) == [
        "controller: broker 3 is the controller, epoch 5 | broker 2 resigned or was replaced"
    ]
    died = snapshot({}, leading=3, epoch=5, since_ms=20, brokers=(1, 3))
    assert told(before, died)[1:] == ["controller: broker 3 is the controller, epoch 5 | broker 2 is gone"]
    none = snapshot({}, leading=None)
    assert told(before, none) == ["controller: no broker is the controller | broker 2 resigned or was replaced"]
    assert told(none, replaced)[0].endswith("| the cluster had no controller")


def test_moves_and_topics() -> None:
    before = snapshot({"t": [P([1, 2])], "old": [P([1])]})
    moving = snapshot({"t": [P([3, 2, 1], leader=1, isr=[1, 2], adding=[3], removing=[1])], "new": [P([1])]})
    assert told(before, moving) == [
        "topic: topic new exists, with 1 partition | it was created",
        "topic: topic old no longer exists | it was deleted",
        "partition: t-0: moves to 3,2 | a reassignment was started",
    ]


def test_with_events_only_what_leaders_write_is_compared() -> None:
    before = snapshot({"t": [P([1, 2, 3]), P([1, 2, 3])]})
    after = snapshot({"t": [P([1, 2, 3], isr=[1, 2]), P([1, 2, 3], leader=2, isr=[2, 3], epoch=1)]}, leading=2, epoch=5)
    assert told(before, after, only_isr=True) == ["partition: t-0: in sync 1,2 | broker 3 is behind, stopped or gone"]


def test_a_storm_is_bounded() -> None:
    before = snapshot({"t": [P([1, 2])] * (CHANGES_MAX + 7)})
    after = snapshot({"t": [P([1, 2], isr=[1])] * (CHANGES_MAX + 7)})
    entries = compare(before, after)
    assert len(entries) == CHANGES_MAX + 1
    assert entries[-1].text == "and 7 partitions more"


def test_many_partitions_with_one_cause_are_one_line() -> None:
    def moved(topic: str, number: int, cause: str = "broker 2 suspected") -> Entry:
        return Entry(1, "partition", f"{topic}-{number}: broker 1 leads", cause, topic, number)

    gone = [Entry(2, "broker", f"broker {broker} is gone", "its session ended") for broker in (2, 3)]
    same = [moved("t", number) for number in range(3)]
    entries = [*gone, *same, moved("u", 0), moved("u", 1, "other"), moved("v", 0, "third")]
    shown = summarized(entries, 4)
    assert [entry.text for entry in shown] == [
        "broker 2 is gone",
        "broker 3 is gone",
        "4 partitions, such as t-0: broker 1 leads",
        "u-1: broker 1 leads",
    ]
    assert [entry.topic for entry in shown[2:]] == [None, "u"], "no link to one of several topics"
    assert summarized(same, 4)[0].topic == "t"
