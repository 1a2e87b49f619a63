"""What `klamm up` shows: health in a sentence, changes in words, and only the news of an event file."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from klamm.server.cluster_status import BrokerStatus, ClusterStatus, summary
from klamm.server.live_view import picture
from klamm.telemetry.event_files import EventTail, in_words


def partition(leader: int, replicas: list[int], isr: list[int]) -> Any:
    return SimpleNamespace(leader_id=leader, replica_nodes=replicas, isr_nodes=isr)


def broker(number: int, *, alive: bool = True, is_ready: bool = True) -> Any:
    return SimpleNamespace(id=number, address=f"127.0.0.1:{number}", alive=alive, is_ready=alive and is_ready)


def test_a_summary_counts_leaders_replicas_and_what_is_missing() -> None:
    topic = SimpleNamespace(
        partitions=[partition(1, [1, 2], [1, 2]), partition(1, [1, 2], [1]), partition(-1, [2], [2])]
    )
    status = summary(SimpleNamespace(controller_id=2, topics=[topic]), [broker(1), broker(2, alive=False)])
    assert status.brokers == [
        BrokerStatus(1, "127.0.0.1:1", "up", False, leaders=2, replicas=2, lagging=0),
        BrokerStatus(2, "127.0.0.1:2", "down", True, leaders=0, replicas=3, lagging=1),
    ]
    assert (status.topics, status.partitions, status.offline, status.under_replicated) == (1, 3, 1, 1)
    assert summary(None, [broker(1)]).controller == ""


def test_a_broker_that_starts_does_not_serve_yet() -> None:
    status = summary(None, [broker(1), broker(2, is_ready=False)])
    assert [each.state for each in status.brokers] == ["up", "starting"]
    assert status.health == "1 broker down: 2"


UP = BrokerStatus(1, "a:1", "up", True, 1, 1, 0)
DOWN = BrokerStatus(2, "a:2", "down", False, 0, 1, 1)


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (ClusterStatus([UP]), "healthy"),
        (ClusterStatus([UP], under_replicated=1), "1 partition under-replicated"),
        (ClusterStatus([UP, DOWN], under_replicated=3), "1 broker down: 2"),
        (ClusterStatus([UP, DOWN], offline=2), "2 partitions without a leader"),
    ],
)
def test_health_is_one_sentence(status: ClusterStatus, sentence: str) -> None:
    assert status.health == sentence


def test_the_picture_shows_everything() -> None:
    status = ClusterStatus(
        [UP, DOWN], "broker 1, epoch 3", 2, 7, 0, 1, 1234.0, 2048.0, ["12:00:00  t-0: broker 1 leads"]
    )
    console = Console(file=io.StringIO(), width=120)
    console.print(picture(status, ["klamm is up"], ["broker 2 was killed"]))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for part in (
        "klamm is up",
        "1 broker down: 2; 2 topics, 7 partitions; 1,234 records/s, 2.0 KiB/s in",
        "controller   broker 1, epoch 3",
        "1 controller",
        "t-0: broker 1 leads",
        "broker 2 was killed",
    ):
        assert part in text, text


def test_only_what_people_need_to_see_is_said() -> None:
    decision = {"kind": "decision", "role": "controller", "broker": 1, "event": "broker-change", "cause": "dead [2]"}
    assert in_words(decision) == "controller 1 sees brokers come or go (dead 2)"
    assert in_words({**decision, "event": "loop-held"}) == ""
    assert in_words({**decision, "role": "broker"}) == ""


def test_a_tail_gives_only_news_and_survives_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "events"
    tail = EventTail(path)
    assert tail.news() == []
    path.write_text('{"time_ms": 1}\n{"time_ms": 2}\n{"time_')
    assert [event["time_ms"] for event in tail.news()] == [1, 2]
    with path.open("a") as file:
        file.write('ms": 3}\n')
    assert [event["time_ms"] for event in tail.news()] == [3]
    path.write_text('{"time_ms": 4}\n')
    assert [event["time_ms"] for event in tail.news()] == [4]
