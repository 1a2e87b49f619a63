"""Which broker was controller, since when and why, from the events that klamm brokers write to state-change.json.

A term begins with `controller-elected` and ends with `controller-resigned` of the same epoch, or when the next term
begins. Epochs without an event belong to other brokers: they are listed as unknown, not left out.

>>> lines = [b'{"v":1,"kind":"decision","time_ms":1000,"broker":2,"role":"controller","controller_epoch":3,'
...          b'"event":"controller-elected","cause":"/controller was free"}']
>>> terms(read_events(lines))
[ControllerTerm(epoch=3, broker=2, since_ms=1000, why='/controller was free', until_ms=None, ended_by='')]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import orjson

ELECTED: Final = "controller-elected"
RESIGNED: Final = "controller-resigned"
NOTED: Final = (
    "controller-moved",
    "controller-healed",
    "controller-epoch-healed",
    "controller-failed",
    "controller-unfit",
    "quarantined",
    "quarantine-ended",
)
"""Other events about the controller, listed in order of time."""


class ControllerTerm(NamedTuple):
    epoch: int
    broker: int | None
    """None if no klamm broker recorded this term."""
    since_ms: int | None
    why: str
    until_ms: int | None = None
    ended_by: str = ""


class Note(NamedTuple):
    time_ms: int
    broker: int
    event: str
    cause: str
    detail: str


def read_events(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Decisions about who is controller. A torn last line and lines of a later schema are skipped."""
    for line in lines:
        if b'"decision"' not in line:
            continue  # state changes are many, and none of them is about the controller
        try:
            event = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if event.get("event") in (ELECTED, RESIGNED, *NOTED):
            yield event


def terms(events: Iterable[dict[str, Any]]) -> list[ControllerTerm]:
    by_epoch: dict[int, ControllerTerm] = {}
    ends: dict[int, tuple[int, str]] = {}
    for event in events:
        epoch = event["controller_epoch"]
        if event["event"] == ELECTED:
            by_epoch[epoch] = ControllerTerm(epoch, event["broker"], event["time_ms"], event["cause"])
        elif event["event"] == RESIGNED:
            ends[epoch] = (event["time_ms"], event["cause"])
    if not by_epoch:
        return []
    told: list[ControllerTerm] = []
    for epoch in range(min(by_epoch), max(by_epoch) + 1):
        term = by_epoch.get(epoch)
        if term is None:
            if told and told[-1].broker is None:
                continue  # one line for a gap of any width
            term = ControllerTerm(epoch, None, None, "not recorded by klamm")
        elif epoch in ends:
            term = term._replace(until_ms=ends[epoch][0], ended_by=ends[epoch][1])
        if told and told[-1].since_ms is not None and told[-1].until_ms is None:
            told[-1] = told[-1]._replace(until_ms=term.since_ms, ended_by=_replaced_by(term))
        told.append(term)
    return told


def _replaced_by(term: ControllerTerm) -> str:
    """A controller that was killed, or cut off, did not write the end of its term."""
    successor = "another broker" if term.broker is None else f"broker {term.broker}"
    return f"{successor} took over"


def notes(events: Iterable[dict[str, Any]]) -> list[Note]:
    noted = (e for e in events if e["event"] in NOTED)
    return sorted(Note(e["time_ms"], e["broker"], e["event"], e["cause"], e.get("detail", "")) for e in noted)
