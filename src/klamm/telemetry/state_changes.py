"""The state-change writer (design D10): writes events to two files, in bulk and off the critical path.

`state-change.log` has one line per partition in the format of Kafka's own log.
`state-change.json` has one JSON object per line, with schema version `v`, for programs. A decision hands over tuples or
columns. One task formats and writes them in slices, so 60,000 changes never hold the loop. For the first second it
works only while the loop is idle, so a broker's death is handled first and recorded afterwards. The buffer is bounded:
records that do not fit are dropped and counted, and the drop itself is written as an event.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from itertools import islice
from typing import Final, NamedTuple

import orjson

from klamm.model.errors import ConfigError
from klamm.model.events import EVENT_SCHEMA_VERSION, Decision, EventRecord, StateChange, StateChanges
from klamm.model.ids import BrokerId, ControllerEpoch, LeaderEpoch
from klamm.model.ports import Clock
from klamm.telemetry.rotating_file import RotatingFile

logger = logging.getLogger(__name__)

LINES_FILE: Final = "state-change.log"
EVENTS_FILE: Final = "state-change.json"
BUFFER_RECORDS_MAX: Final = 2_000_000
"""Two changes of every partition of a very large cluster. If more wait, the disk is the problem."""
SLICE_RECORDS: Final = 1_000
"""Records formatted in one turn of the loop, in about 2 ms."""
GIVE_WAY_SECONDS: Final = 1.0
"""How long the writer waits for an idle loop, because the loop's other work is more urgent than its records."""
BUSY_SECONDS: Final = 0.001
"""The loop is busy if a turn takes longer."""
LOOK_AGAIN_SECONDS: Final = 0.01


class Text(NamedTuple):
    """The same content in the formats of both files."""

    line: str
    json: str


class _Shape(NamedTuple):
    """The text around topic and partition, the state, and the version. All changes of a decision between the same two
    states share it."""

    line_head: str
    line_middle: str
    line_tail: str
    json_head: str
    json_middle: str
    json_tail: str


def formatted(records: Iterable[EventRecord]) -> Text:
    """Lines for both files. Tens of thousands of changes differ in little but topic, partition and version, so the text
    around those is made once per slice. Making it for each change took a third of the time to handle a broker's
    death."""
    shapes: dict[tuple[object, ...], _Shape] = {}
    lines: list[str] = []
    events: list[str] = []
    for record in records:
        if isinstance(record, Decision):
            lines.append(_decision_line(record))
            events.append(_decision_json(record))
            continue
        key = (*record[:4], *record[6:8], record.cause)
        shape = shapes.get(key) or shapes.setdefault(key, _shape(record))
        state, quoted = _state(record.leader, record.leader_epoch, record.isr), orjson.dumps(record.topic).decode()
        _append(lines, events, shape, state, record.topic, quoted, record.partition, record.zk_version)
    return Text("".join(lines), "".join(events))


def formatted_changes(changes: StateChanges) -> Text:
    """As `formatted`, from columns, without creating records."""
    moves = list(zip(changes.from_states, changes.to_states, strict=True))
    shapes = {move: _shape(changes.row(n)) for move, n in dict(zip(moves, range(len(moves)), strict=True)).items()}
    states = {key: _state(*state[:3]) for key, state in {id(state): state for state in changes.states}.items()}
    quoted = {topic: orjson.dumps(topic).decode() for topic in set(changes.topics)}
    lines: list[str] = []
    events: list[str] = []
    rows = zip(changes.topics, changes.partitions, moves, changes.states, changes.zk_versions, strict=True)
    for topic, partition, move, state, version in rows:
        _append(lines, events, shapes[move], states[id(state)], topic, quoted[topic], partition, version)
    return Text("".join(lines), "".join(events))


def _append(
    lines: list[str],
    events: list[str],
    shape: _Shape,
    state: Text,
    topic: str,
    quoted: str,
    partition: int,
    version: int,
) -> None:
    head, middle, tail, json_head, json_middle, json_tail = shape
    line, json = state
    lines.append(f"{head}{topic}-{partition}{middle}{line}{version}{tail}")
    events.append(f'{json_head}{quoted},"partition":{partition},{json_middle}{json}{version}{json_tail}')


def _state(leader: BrokerId, leader_epoch: LeaderEpoch, isr: Sequence[BrokerId]) -> Text:
    """The text of a state, up to the version."""
    members = list(map(str, isr))
    return Text(
        f"LeaderAndIsr(leader={leader}, leaderEpoch={leader_epoch}, isr=List({', '.join(members)}), zkVersion=",
        f'"leader":{leader},"leader_epoch":{leader_epoch},"isr":[{",".join(members)}],"zk_version":',
    )


def _shape(change: StateChange) -> _Shape:
    """The format of Kafka's StateChangeLogger, with the cause at the end."""
    prefix = _prefix(change.time_ms)
    if change.role == "controller":
        head = f"{prefix}[Controller id={change.broker} epoch={change.controller_epoch}] Changed partition "
        middle = f" from {change.from_state} to {change.to_state} with state "
        tail = f") because {change.cause}\n"
    else:
        head = f"{prefix}[Broker id={change.broker}] {change.to_state} for partition "
        middle = f" from controller epoch {change.controller_epoch} with state "
        tail = f") (was {change.from_state})\n"
    fields = {
        "v": EVENT_SCHEMA_VERSION,
        "kind": "state-change",
        "time_ms": change.time_ms,
        "broker": change.broker,
        "role": change.role,
        "controller_epoch": change.controller_epoch,
    }
    moved = orjson.dumps({"from": change.from_state, "to": change.to_state}).decode()
    cause = orjson.dumps({"cause": change.cause}).decode()
    return _Shape(
        head,
        middle,
        tail,
        f'{orjson.dumps(fields).decode().removesuffix("}")},"topic":',
        f"{moved.removeprefix('{').removesuffix('}')},",
        f",{cause.removeprefix('{')}\n",
    )


def _prefix(time_ms: int) -> str:
    moment = datetime.fromtimestamp(time_ms / 1000)
    return f"[{moment:%Y-%m-%d %H:%M:%S},{time_ms % 1000:03d}] INFO "


def _decision_line(decision: Decision) -> str:
    who = f"[Broker id={decision.broker}]"
    if decision.role == "controller":
        who = f"[Controller id={decision.broker} epoch={decision.controller_epoch}]"
    counts = " ".join(f"{key}={value}" for key, value in decision.counts.items())
    about = " ".join(part for part in (counts, decision.detail) if part)
    said = f"{decision.event}: {decision.cause} ({decision.duration_ms:.1f} ms) {about}"
    return f"{_prefix(decision.time_ms)}{who} {said}".rstrip() + "\n"


def _decision_json(decision: Decision) -> str:
    fields = {
        "v": EVENT_SCHEMA_VERSION,
        "kind": "decision",
        "time_ms": decision.time_ms,
        "broker": decision.broker,
        "role": decision.role,
        "controller_epoch": decision.controller_epoch,
        "event": decision.event,
        "cause": decision.cause,
        "duration_ms": round(decision.duration_ms, 3),
        "counts": dict(decision.counts),
        "detail": decision.detail,
    }
    return orjson.dumps(fields).decode() + "\n"


class StateChangeWriter:
    """An EventSink that writes two files. `emit` appends to a buffer; `running()` owns the task that empties it."""

    def __init__(
        self, directories: Sequence[str], broker: BrokerId, clock: Clock, buffer_max: int = BUFFER_RECORDS_MAX
    ) -> None:
        """Writes to the first of `directories` that can be used."""
        self._directories = directories
        self._directory = ""
        self._broker = broker
        self._clock = clock
        self._buffer: deque[EventRecord | StateChanges] = deque()
        self._buffered = 0
        """Number of records. A StateChanges counts as many as it holds."""
        self._buffer_max = buffer_max
        self._wake = asyncio.Event()
        self.written = 0
        self.dropped = 0
        self._dropped_reported = 0

    def emit(self, records: Iterable[EventRecord]) -> None:
        room = self._buffer_max - self._buffered
        if isinstance(records, StateChanges) and len(records) <= room:
            self._buffer.append(records)
            self._buffered += len(records)
        else:
            iterator = iter(records)
            taken = list(islice(iterator, room))
            self._buffer.extend(taken)
            self._buffered += len(taken)
            self.dropped += sum(1 for _ in iterator)
        self._wake.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[StateChangeWriter]:
        lines, events = self._open()
        task = asyncio.create_task(self._write_forever(lines, events), name="state-change-writer")
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            while self._buffer:
                self._write_slice(lines, events)
            lines.close()
            events.close()

    def _open(self) -> tuple[RotatingFile, RotatingFile]:
        reasons = []
        for directory in self._directories:
            try:
                os.makedirs(directory, exist_ok=True)
                files = [RotatingFile(os.path.join(directory, name)) for name in (LINES_FILE, EVENTS_FILE)]
            except OSError as error:
                reasons.append(f"{directory}: {error.strerror}")
            else:
                self._directory = directory
                return files[0], files[1]
        raise ConfigError(f"cannot write {LINES_FILE} and {EVENTS_FILE}, because {'; '.join(reasons)}")

    async def _write_forever(self, lines: RotatingFile, events: RotatingFile) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            deadline = self._clock.monotonic() + GIVE_WAY_SECONDS
            while self._buffer:
                await self._give_way(deadline)
                try:
                    self._write_slice(lines, events)
                except OSError as error:
                    # A full disk must not stop the broker: drop and count what cannot be written.
                    self.dropped += self._buffered
                    self._buffer.clear()
                    self._buffered = 0
                    logger.error("cannot write state changes to %s: %s", self._directory, error)

    async def _give_way(self, deadline: float) -> None:
        while True:
            began = self._clock.monotonic()
            await asyncio.sleep(0)
            now = self._clock.monotonic()
            if now - began < BUSY_SECONDS or now >= deadline:
                return
            await asyncio.sleep(LOOK_AGAIN_SECONDS)

    def _write_slice(self, lines: RotatingFile, events: RotatingFile) -> None:
        count, text = self._next_slice()
        lines.write(text.line)
        events.write(text.json)
        self._buffered -= count
        self.written += count
        if self.dropped > self._dropped_reported:
            self.emit((self._drop_report(),))

    def _next_slice(self) -> tuple[int, Text]:
        """One StateChanges alone, or single records up to the next StateChanges."""
        buffer = self._buffer
        if isinstance(buffer[0], StateChanges):
            changes = buffer[0]
            buffer.popleft()
            return len(changes), formatted_changes(changes)
        records: list[EventRecord] = []
        while buffer and len(records) < SLICE_RECORDS and not isinstance(buffer[0], StateChanges):
            records.append(buffer[0])
            buffer.popleft()
        return len(records), formatted(records)

    def _drop_report(self) -> Decision:
        lost = self.dropped - self._dropped_reported
        self._dropped_reported = self.dropped
        return Decision(
            self._clock.wall_ms(),
            self._broker,
            "broker",
            ControllerEpoch(0),
            "events-dropped",
            "the buffer of state changes was full",
            0.0,
            {"dropped": lost},
        )


class DiscardEvents:
    """An EventSink for tools and tests that do not read events."""

    def emit(self, records: Iterable[EventRecord]) -> None:
        for _ in records:
            pass


class EventList:
    """An EventSink that keeps everything, for tests and the simulation."""

    def __init__(self) -> None:
        self.records: list[EventRecord] = []

    def emit(self, records: Iterable[EventRecord]) -> None:
        self.records.extend(records)
