"""The timeline and the terms: from event files, from looks, in order, and bounded."""

from __future__ import annotations

from pathlib import Path

import orjson

from klamm.dashboard.history import ENTRIES_MAX, EventFiles, History, entry_of_event
from klamm.dashboard.views.controller import term_rows

from .clusters import P, snapshot


def decision(time_ms: int, event: str, *, broker: int = 1, epoch: int = 1, cause: str = "because") -> bytes:
    fields = {"v": 1, "kind": "decision", "time_ms": time_ms, "broker": broker, "role": "controller"}
    return orjson.dumps({**fields, "controller_epoch": epoch, "event": event, "cause": cause}) + b"\n"


def change(time_ms: int, topic: str, leader: int, isr: list[int], cause: str) -> bytes:
    fields = {"v": 1, "kind": "state-change", "time_ms": time_ms, "broker": 1, "role": "controller", "topic": topic}
    state = {"partition": 0, "from": "OnlinePartition", "to": "OnlinePartition", "leader": leader, "isr": isr}
    return orjson.dumps({**fields, "controller_epoch": 1, **state, "cause": cause}) + b"\n"


def test_event_files_of_all_brokers_in_order_of_time(tmp_path: Path) -> None:
    files = [tmp_path / f"broker-{n}" / "data" / "state-change.json" for n in (1, 2)]
    for file in files:
        file.parent.mkdir(parents=True)
    files[0].write_bytes(decision(1_000, "controller-elected", cause="/controller was free"))
    files[1].write_bytes(change(900, "t", 2, [2, 3], "broker 1 failed") + b'{"torn')
    history = History(EventFiles([tmp_path]))
    history.discover()
    assert history.reads_events
    assert history.read_files()
    assert not history.read_files(), "only news"
    told = [(entry.time_ms, entry.kind, entry.text, entry.cause, entry.brokers) for entry in history.entries()]
    assert told == [
        (1_000, "controller", "controller 1 is elected", "/controller was free", (1,)),
        (900, "partition", "t-0: broker 2 leads, in sync 2,3", "broker 1 failed", (1, 2, 3)),
    ]
    files[0].write_bytes(files[0].read_bytes() + decision(3_000, "controller-resigned", cause="moved"))
    files[1].write_bytes(decision(3_500, "controller-elected", broker=2, epoch=2, cause="asked"))
    history.read_files()
    terms = [(t.epoch, t.broker, t.since_ms, t.until_ms, t.why, t.ended_by) for t in history.terms()]
    assert terms == [(2, 2, 3_500, None, "asked", ""), (1, 1, 1_000, 3_000, "/controller was free", "moved")]
    rows = term_rows(history.terms(), now_ms=5_500)
    assert [(row.lasted_s, row.gap_s) for row in rows] == [(2.0, 0.5), (2.0, None)]


def test_a_broker_that_comes_later_is_found(tmp_path: Path) -> None:
    history = History(EventFiles([tmp_path]))
    history.discover()
    assert not history.reads_events
    file = tmp_path / "state-change.json"
    file.with_name("state-change.json.1").write_bytes(decision(500, "controller-elected", epoch=1))
    file.write_bytes(decision(1_000, "controller-elected", epoch=2, broker=3))
    history.discover()
    history.read_files()
    assert [term.epoch for term in history.terms()] == [2, 1], "also from rotated files, each once"


def test_without_files_terms_are_what_was_observed() -> None:
    history = History(EventFiles(()))
    history.take(snapshot({}, leading=1, epoch=4, since_ms=5_000, read_at_ms=6_000))
    history.take(snapshot({}, leading=None, epoch=4, read_at_ms=7_000, brokers=(2, 3)))
    history.take(snapshot({}, leading=2, epoch=5, since_ms=8_000, read_at_ms=9_000, brokers=(2, 3)))
    terms = [(t.epoch, t.broker, t.since_ms, t.until_ms, t.why, t.ended_by) for t in history.terms()]
    assert terms == [
        (5, 2, 8_000, None, "the cluster had no controller", ""),
        (4, 1, 5_000, 7_000, "elected before the dashboard was started", "broker 1 is gone"),
    ]
    assert history.entries()[0].text == "broker 2 is the controller, epoch 5"


def test_junk_in_an_event_file_is_skipped(tmp_path: Path) -> None:
    lines = [
        b"junk\n",
        b'{"time_ms": 1}\n',
        b'{"time_ms": 1, "kind": "state-change", "role": "controller", "leader": 1}\n',
    ]
    (tmp_path / "state-change.json").write_bytes(b"".join(lines) + change(2, "t", 1, [1], "fine"))
    history = History(EventFiles([tmp_path]))
    history.discover()
    history.read_files()
    assert [entry.cause for entry in history.entries()] == ["fine"]


def test_the_timeline_is_bounded() -> None:
    history = History(EventFiles(()))
    for n in range(ENTRIES_MAX // 100 + 2):
        isr = [1, 2] if n % 2 else [1]
        history.take(snapshot({"t": [P([1, 2], isr=isr)] * 100}, read_at_ms=n))
    entries = history.entries()
    assert len(entries) == ENTRIES_MAX
    assert entries[0].time_ms == ENTRIES_MAX // 100 + 1, "the newest stay"


def test_decisions_of_a_controller_that_records_nothing_are_compared(tmp_path: Path) -> None:
    """Its file may be on another machine, or it is Apache Kafka's."""
    (tmp_path / "state-change.json").write_bytes(decision(1_000, "controller-elected", epoch=4))
    history = History(EventFiles([tmp_path]))
    history.discover()
    history.read_files()
    before, after = {"t": [P([1, 2])]}, {"t": [P([1, 2], leader=2, epoch=1)]}
    seen = len(history.entries())
    for look in (before, after):
        history.take(snapshot(look, epoch=4))
    assert len(history.entries()) == seen, "epoch 4 is recorded: its own words come from the file"
    for look in (before, after):
        history.take(snapshot(look, epoch=5, since_ms=50_000, read_at_ms=100_000))
    assert history.entries()[0].text == "t-0: broker 2 leads, in sync 1,2"


def test_a_change_concerns_the_broker_that_caused_it() -> None:
    event = {"time_ms": 1, "kind": "state-change", "role": "controller", "topic": "t", "partition": 0}
    entry = entry_of_event({**event, "leader": 2, "isr": [2, 3], "cause": "broker 1 suspected"})
    assert entry is not None and entry.brokers == (1, 2, 3)
