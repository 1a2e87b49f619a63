from __future__ import annotations

import asyncio
from pathlib import Path

import orjson

from klamm.model.events import Decision, StateChange, StateChanges
from klamm.model.partition import LeaderAndIsr
from klamm.telemetry.state_changes import (
    BUSY_SECONDS,
    GIVE_WAY_SECONDS,
    StateChangeWriter,
    formatted,
    formatted_changes,
)


class FixedClock:
    now = 0.0

    def wall_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic(self) -> float:
        return self.now


CHANGE = StateChange(
    1_700_000_000_123,
    9,
    "controller",
    5,
    "t",
    0,
    "OfflinePartition",
    "OnlinePartition",
    2,
    7,
    (2, 3),
    11,
    "b1 died",
)
DECISION = Decision(1_700_000_000_124, 9, "controller", 5, "broker-failure", "broker 1 died", 3.25, {"partitions": 1})


async def test_both_files_hold_what_was_emitted(tmp_path: Path) -> None:
    writer = StateChangeWriter([str(tmp_path)], 9, FixedClock())
    async with writer.running():
        writer.emit([DECISION, CHANGE])
    events = [orjson.loads(line) for line in (tmp_path / "state-change.json").read_text().splitlines()]
    assert events[0]["event"] == "broker-failure" and events[0]["counts"] == {"partitions": 1}
    assert events[1] == {
        "v": 1,
        "kind": "state-change",
        "time_ms": 1_700_000_000_123,
        "broker": 9,
        "role": "controller",
        "controller_epoch": 5,
        "topic": "t",
        "partition": 0,
        "from": "OfflinePartition",
        "to": "OnlinePartition",
        "leader": 2,
        "leader_epoch": 7,
        "isr": [2, 3],
        "zk_version": 11,
        "cause": "b1 died",
    }
    assert (tmp_path / "state-change.log").read_text().count("\n") == 2


def test_a_line_reads_as_kafkas() -> None:
    assert (
        "[Controller id=9 epoch=5] Changed partition t-0 from OfflinePartition to OnlinePartition with state "
        "LeaderAndIsr(leader=2, leaderEpoch=7, isr=List(2, 3), zkVersion=11)"
    ) in formatted([CHANGE]).line


def test_changes_that_share_their_words_keep_their_own() -> None:
    """The text around topic and partition is made once per slice, so every field that differs must show."""
    other = {
        "time_ms": 1_700_000_000_999,
        "broker": 8,
        "role": "broker",
        "controller_epoch": 6,
        "topic": 'a "quoted" name',
        "partition": 1,
        "from_state": "Follower",
        "to_state": "Leader",
        "leader": 3,
        "leader_epoch": 8,
        "isr": (3,),
        "zk_version": 12,
        "cause": "another",
    }
    changes = [CHANGE, *(CHANGE._replace(**{field: value}) for field, value in other.items())]
    together = formatted(changes)
    assert together.line == "".join(formatted([change]).line for change in changes)
    assert together.json == "".join(formatted([change]).json for change in changes)
    for change, line in zip(changes, together.json.splitlines(), strict=True):
        told = orjson.loads(line)
        names = {"from_state": "from", "to_state": "to"}
        assert all(told[names.get(f, f)] == (list(v) if f == "isr" else v) for f, v in change._asdict().items())


async def test_what_does_not_fit_is_counted_and_reported(tmp_path: Path) -> None:
    writer = StateChangeWriter([str(tmp_path)], 9, FixedClock(), buffer_max=2)
    async with writer.running():
        writer.emit([CHANGE] * 5)
    events = [orjson.loads(line) for line in (tmp_path / "state-change.json").read_text().splitlines()]
    assert [event["kind"] for event in events] == ["state-change", "state-change", "decision"]
    assert events[2]["event"] == "events-dropped" and events[2]["counts"] == {"dropped": 3}


COLUMNS = StateChanges(
    1_700_000_000_123,
    9,
    "controller",
    5,
    'a "cause"',
    topics=["t", "t", "ü", "t"],
    partitions=[0, 1, 0, 2],
    from_states=["OfflinePartition", "OnlinePartition", "OnlinePartition", "OnlinePartition"],
    to_states=["OnlinePartition"] * 4,
    states=[LeaderAndIsr(2, 7, (2, 3), 5), LeaderAndIsr(-1, 8, (), 5), *[LeaderAndIsr(1, 1, (1,), 5)] * 2],
    zk_versions=[1, 2, 3, 4],
)


def test_columns_are_written_as_their_records() -> None:
    assert formatted_changes(COLUMNS) == formatted(list(COLUMNS))
    assert formatted_changes(COLUMNS).json.count("\n") == len(COLUMNS) == 4
    as_broker = StateChanges(
        1,
        2,
        "broker",
        3,
        "why",
        topics=["t", "t"],
        partitions=[0, 1],
        from_states=["Follower", "None"],
        to_states=["Leader", "Follower"],
        states=[LeaderAndIsr(2, 7, (2, 3), 5)] * 2,
        zk_versions=[1, 1],
    )
    assert formatted_changes(as_broker) == formatted(list(as_broker))


async def test_columns_and_records_keep_their_order_and_share_the_bound(tmp_path: Path) -> None:
    writer = StateChangeWriter([str(tmp_path)], 9, FixedClock(), buffer_max=7)
    async with writer.running():
        writer.emit([DECISION])
        writer.emit(COLUMNS)
        writer.emit(COLUMNS)  # two of its rows fit
    kinds = [orjson.loads(line) for line in (tmp_path / "state-change.json").read_text().splitlines()]
    assert [k["kind"] for k in kinds] == ["decision", *["state-change"] * 6, "decision"]
    assert kinds[-1]["event"] == "events-dropped" and kinds[-1]["counts"] == {"dropped": 2}
    assert writer.dropped == 2 and writer.written == 8


async def test_the_writer_stands_back_while_the_loop_is_busy(tmp_path: Path) -> None:
    clock = FixedClock()
    writer = StateChangeWriter([str(tmp_path)], 9, clock)
    async with writer.running():
        writer.emit([DECISION])
        while not writer.written:
            clock.now += 2 * BUSY_SECONDS  # other work in every turn of the loop
            await asyncio.sleep(0)
        assert clock.now >= GIVE_WAY_SECONDS
        writer.emit([DECISION])
        idle_since = clock.now
        while writer.written < 2:
            await asyncio.sleep(0)
        assert clock.now == idle_since
