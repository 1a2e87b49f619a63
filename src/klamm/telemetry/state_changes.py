"""The state-change writer (design D10): events to two files, formatted in bulk, off the critical path.

`state-change.log` has a line per partition in the shape that Kafka's own log has, for the eyes and greps of those who
know it. `state-change.json` has one JSON object a line, schema version `v`, for everything else. A decision hands over
tuples; one task formats and writes them in slices, so that 60,000 changes never hold the loop. The buffer is bounded:
what does not fit is dropped, counted, and the drop itself is written as an event.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import datetime
from itertools import islice
from typing import Final, TextIO

import orjson

from klamm.model.events import EVENT_SCHEMA_VERSION, Decision, EventRecord, StateChange
from klamm.model.ids import BrokerId, ControllerEpoch
from klamm.model.ports import Clock

logger = logging.getLogger(__name__)

BUFFER_RECORDS_MAX: Final = 2_000_000
"""Two changes of every partition of a very large cluster: beyond that the disk is the problem, not the event."""
SLICE_RECORDS: Final = 2_000
"""Formatted between two turns of the loop: about 5 ms."""


def as_json(record: EventRecord) -> bytes:
    if isinstance(record, StateChange):
        return orjson.dumps(
            {
                "v": EVENT_SCHEMA_VERSION,
                "kind": "state-change",
                "time_ms": record.time_ms,
                "broker": record.broker,
                "role": record.role,
                "controller_epoch": record.controller_epoch,
                "topic": record.topic,
                "partition": record.partition,
                "from": record.from_state,
                "to": record.to_state,
                "leader": record.leader,
                "leader_epoch": record.leader_epoch,
                "isr": record.isr,
                "zk_version": record.zk_version,
                "cause": record.cause,
            }
        )
    return orjson.dumps(
        {
            "v": EVENT_SCHEMA_VERSION,
            "kind": "decision",
            "time_ms": record.time_ms,
            "broker": record.broker,
            "role": record.role,
            "controller_epoch": record.controller_epoch,
            "event": record.event,
            "cause": record.cause,
            "duration_ms": round(record.duration_ms, 3),
            "counts": dict(record.counts),
            "detail": record.detail,
        }
    )


def as_line(record: EventRecord) -> str:
    """As Kafka writes state changes, with the cause behind it."""
    moment = datetime.fromtimestamp(record.time_ms / 1000)
    prefix = f"[{moment:%Y-%m-%d %H:%M:%S},{record.time_ms % 1000:03d}] INFO "
    if isinstance(record, Decision):
        who = f"[Controller id={record.broker} epoch={record.controller_epoch}]"
        counts = " ".join(f"{key}={value}" for key, value in record.counts.items())
        about = " ".join(part for part in (counts, record.detail) if part)
        return f"{prefix}{who} {record.event}: {record.cause} ({record.duration_ms:.1f} ms) {about}".rstrip()
    isr = ", ".join(map(str, record.isr))
    state = (
        f"LeaderAndIsr(leader={record.leader}, leaderEpoch={record.leader_epoch}, isr=List({isr}), "
        f"zkVersion={record.zk_version})"
    )
    if record.role == "controller":
        return (
            f"{prefix}[Controller id={record.broker} epoch={record.controller_epoch}] Changed partition "
            f"{record.topic}-{record.partition} from {record.from_state} to {record.to_state} with state {state} "
            f"because {record.cause}"
        )
    return (
        f"{prefix}[Broker id={record.broker}] {record.to_state} for partition {record.topic}-{record.partition} "
        f"from controller epoch {record.controller_epoch} with state {state} (was {record.from_state})"
    )


class StateChangeWriter:
    """An EventSink on two files. `emit` appends to a buffer; `running()` owns the task that empties it."""

    def __init__(self, directory: str, broker: BrokerId, clock: Clock, buffer_max: int = BUFFER_RECORDS_MAX) -> None:
        self._directory = directory
        self._broker = broker
        self._clock = clock
        self._buffer: deque[EventRecord] = deque()
        self._buffer_max = buffer_max
        self._wake = asyncio.Event()
        self.written = 0
        self.dropped = 0
        self._dropped_reported = 0

    def emit(self, records: Iterable[EventRecord]) -> None:
        room = self._buffer_max - len(self._buffer)
        iterator = iter(records)
        self._buffer.extend(islice(iterator, room))
        self.dropped += sum(1 for _ in iterator)
        self._wake.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[StateChangeWriter]:
        os.makedirs(self._directory, exist_ok=True)
        with (
            open(os.path.join(self._directory, "state-change.log"), "a", encoding="utf-8") as lines,
            open(os.path.join(self._directory, "state-change.json"), "a", encoding="utf-8") as events,
        ):
            task = asyncio.create_task(self._write_forever(lines, events), name="state-change-writer")
            try:
                yield self
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                while self._buffer:
                    self._write_slice(lines, events)

    async def _write_forever(self, lines: TextIO, events: TextIO) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._buffer:
                try:
                    self._write_slice(lines, events)
                except OSError as error:
                    # A full disk must not end the cluster's work: what cannot be written is dropped and counted.
                    self.dropped += len(self._buffer)
                    self._buffer.clear()
                    logger.error("state changes cannot be written to %s: %s", self._directory, error)
                await asyncio.sleep(0)

    def _write_slice(self, lines: TextIO, events: TextIO) -> None:
        records: list[EventRecord] = [self._buffer.popleft() for _ in range(min(SLICE_RECORDS, len(self._buffer)))]
        if self.dropped > self._dropped_reported:
            records.append(self._drop_report())
        lines.write("".join([as_line(record) + "\n" for record in records]))
        lines.flush()
        events.write("".join([as_json(record).decode() + "\n" for record in records]))
        events.flush()
        self.written += len(records)

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
