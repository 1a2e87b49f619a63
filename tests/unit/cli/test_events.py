"""klamm events: several files in order of time, rotation, torn lines, filters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from klamm.cli import event_files as module
from klamm.cli.app import app
from klamm.cli.event_files import Tail, event_files, log_directories
from klamm.model.errors import KlammError


def event(time_ms: int, broker: int, **more: Any) -> str:
    fields = {"kind": "decision", "role": "broker", "event": f"e{time_ms}", "cause": "why"}
    return json.dumps({"time_ms": time_ms, "broker": broker, **fields, **more}) + "\n"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for broker in (1, 2):
        (tmp_path / str(broker)).mkdir()
    change = {"kind": "state-change", "topic": "t", "partition": 0, "from": "a", "to": "b", "leader": -1, "isr": []}
    (tmp_path / "1" / "state-change.json.1").write_text(event(1, 1))
    (tmp_path / "1" / "state-change.json").write_text(event(4, 1) + event(6, 1) + '{"time_ms": 7, "bro')
    (tmp_path / "2" / "state-change.json").write_text(event(2, 2) + event(5, 2, **change))
    return tmp_path


def times(*words: str) -> list[int]:
    result = CliRunner().invoke(app, ["events", *words, "--json"])
    assert result.exit_code == 0, result.output
    return [json.loads(line)["time_ms"] for line in result.stdout.splitlines()]


def test_events_of_all_brokers_in_order_of_time(data: Path) -> None:
    assert times("merge", str(data)) == [1, 2, 4, 5, 6]
    assert times("merge", str(data), "--broker", "2") == [2, 5]
    assert times("merge", str(data), "--topic", "t") == [5]
    assert times("merge", str(data), "--kind", "decision", "--since", "4") == [4, 6]
    assert times("merge", str(data), "--kind", "e2") == [2]
    assert times("tail", str(data), "-n", "2") == [5, 6]
    assert times("tail", str(data / "2" / "state-change.json")) == [2, 5]


def test_events_of_one_millisecond_keep_the_order_of_the_brokers(data: Path) -> None:
    for broker in (1, 2):
        with (data / str(broker) / "state-change.json").open("w") as stream:
            stream.write(event(9, broker, event="first") + event(9, broker, event="second"))
    said = CliRunner().invoke(app, ["events", "tail", str(data), "-n", "4", "--json"]).stdout.splitlines()
    order = [(found["broker"], found["event"]) for found in map(json.loads, said)]
    assert order == [(1, "first"), (1, "second"), (2, "first"), (2, "second")]


def test_events_in_words(data: Path) -> None:
    said = CliRunner().invoke(app, ["events", "merge", str(data)]).stdout.splitlines()
    assert said[3].endswith("  broker 2 (broker): t-0 a -> b, no leader, in sync none: why")
    assert said[4].endswith("  broker 1 (broker): e6: why")


def test_a_tail_goes_on_after_a_torn_line_and_a_rotation(data: Path) -> None:
    file = data / "1" / "state-change.json"
    tail = Tail(file)
    assert [found["time_ms"] for found in tail.news()] == [4, 6]
    with file.open("a") as stream:
        stream.write('ker": 1}\n')
    assert [found["time_ms"] for found in tail.news()] == [7]
    assert list(tail.news()) == []
    file.rename(data / "1" / "state-change.json.2")
    assert list(tail.news()) == []
    file.write_text("".join(event(number, 1) for number in range(8, 16)))  # larger than the old one already
    assert [found["time_ms"] for found in tail.news()] == list(range(8, 16))


def test_files_of_each_broker_oldest_first(data: Path) -> None:
    (data / "1" / "state-change.json.2").write_text(event(0, 1))
    assert [[file.name for file in group] for group in event_files([data], "unused:9092")] == [
        ["state-change.json.2", "state-change.json.1", "state-change.json"],
        ["state-change.json"],
    ]


def test_no_events(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["events", "merge", str(tmp_path)])
    assert (result.exit_code, result.stderr) == (1, f"klamm: no state-change.json in {tmp_path}\n")


def test_without_files_those_of_this_cluster_on_this_machine_count(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broker 1 is here; the directory of broker 2 belongs to another cluster; broker 3 is elsewhere, 4 is down."""
    (data / "1" / "meta.properties").write_text("version=0\nbroker.id=1\ncluster.id=ours\n")
    (data / "2" / "meta.properties").write_text("version=0\nbroker.id=2\ncluster.id=theirs\n")
    directories = {1: f"{data}/1,{data}/none", 2: f"{data}/2", 3: "/nowhere", 4: None}

    def run(answer: dict[Any, Any] | None) -> dict[Any, Any]:
        if answer is None:
            raise KlammError("no answer")
        return answer

    def settings(_: int, broker: str, keys: list[str]) -> dict[str, str | None] | None:
        found = directories[int(broker)]
        return None if found is None else dict.fromkeys(keys, found)

    admin = SimpleNamespace(brokers=lambda: directories, describe_configs=settings)

    @contextmanager
    def connected(address: str) -> Iterator[Any]:
        assert address == "here:9092"
        yield SimpleNamespace(run=run, admin=admin, cluster=SimpleNamespace(cluster_id="ours"))

    monkeypatch.setattr(module, "connected", connected)
    assert log_directories("here:9092") == [data / "1"]
    assert times("merge", "--bootstrap-server", "here:9092") == [1, 4, 6]
    (data / "1" / "meta.properties").unlink()
    result = CliRunner().invoke(app, ["events", "tail", "--bootstrap-server", "here:9092"])
    assert result.exit_code == 1
    assert "no broker of this cluster has its logs on this machine" in result.output
