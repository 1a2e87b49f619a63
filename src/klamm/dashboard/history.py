"""The timeline and the controller's terms, collected from looks at ZooKeeper and from klamm's event files.

Bounded: the oldest entries go first. With event files, causes are the controller's own words; without them, the causes
are what two looks show (`changes`).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from klamm.admin.controller_history import ELECTED, NOTED, RESIGNED, ControllerTerm, Note, notes, read_events, terms
from klamm.dashboard.changes import ENTRIES_MAX, Entry, compare, why_controller_ended
from klamm.dashboard.snapshot import ClusterSnapshot
from klamm.telemetry.event_files import EventTail, in_words, readable
from klamm.telemetry.state_changes import EVENTS_FILE

BROKER: Final = re.compile(r"\bbroker (\d+)\b")
TERMS_MAX: Final = 200
NOTES_MAX: Final = 50
FILES_MAX: Final = 100
CONTROLLER_EVENTS_MAX: Final = 5_000
EVENTS_LATE_MS: Final = 5_000
"""How late the first event of a term may be: the brokers write events when they have nothing more urgent to do."""
RECENT: Final = 1_000
"""Entries in which a new one must find its place in time; older ones stay where they are."""


def entry_of_event(event: Mapping[str, Any]) -> Entry | None:
    """None for what people need not see, and for an event that does not have the fields of its kind."""
    try:
        words = in_words(dict(event))
        if not words:
            return None
        cause = readable(str(event["cause"]))
        text = words.removesuffix(f" ({cause})")
        if event["kind"] == "state-change":
            blamed = map(int, BROKER.findall(cause))  # the one that died is neither leader nor in sync any more
            brokers = {int(event["leader"]), *map(int, event["isr"]), *blamed} - {-1}
            place = (str(event["topic"]), int(event["partition"]))
            return Entry(int(event["time_ms"]), "partition", text, cause, *place, tuple(sorted(brokers)))
        kind = "controller" if str(event["event"]).startswith("controller") else "decision"
        return Entry(int(event["time_ms"]), kind, text, cause, brokers=(int(event["broker"]),))
    except (KeyError, TypeError, ValueError):
        return None


class EventFiles:
    """The event files below some directories. Brokers may come later, so the directories are looked through again."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = directories
        self._tails: dict[Path, EventTail] = {}

    @property
    def found(self) -> bool:
        return bool(self._tails)

    def discover(self) -> list[dict[str, Any]]:
        """The events about the controller in files that are new here, with the rotated parts of each."""
        events: list[dict[str, Any]] = []
        for directory in self._directories:
            for path in sorted(directory.rglob(EVENTS_FILE)):
                if path not in self._tails and len(self._tails) < FILES_MAX:
                    self._tails[path] = EventTail(path)
                    events += _controller_events(sorted(path.parent.glob(f"{EVENTS_FILE}*"), reverse=True))
        return events

    def news(self) -> list[dict[str, Any]]:
        events = [event for tail in self._tails.values() for event in tail.news()]
        return sorted(events, key=lambda event: int(event["time_ms"]))


def _controller_events(files: Iterable[Path]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    for file in files:
        try:
            with file.open("rb") as lines:
                events += read_events(lines)
        except OSError:
            continue  # rotated away meanwhile
    return events[-CONTROLLER_EVENTS_MAX:]


class History:
    def __init__(self, files: EventFiles) -> None:
        self._files = files
        self._entries: deque[Entry] = deque(maxlen=ENTRIES_MAX)
        self._events: deque[dict[str, Any]] = deque(maxlen=CONTROLLER_EVENTS_MAX)
        self._seen: set[tuple[int, int, str]] = set()
        self._observed: deque[ControllerTerm] = deque(maxlen=TERMS_MAX)
        self._former: ClusterSnapshot | None = None

    @property
    def reads_events(self) -> bool:
        return self._files.found

    def discover(self) -> None:
        for event in self._files.discover():
            self._remember(event)

    def read_files(self) -> bool:
        """Whether anything is new."""
        news = self._files.news()
        for event in news:
            self._remember(event)
        self._add([entry for event in news if (entry := entry_of_event(event)) is not None])
        return bool(news)

    def take(self, snapshot: ClusterSnapshot) -> None:
        """The next look at ZooKeeper."""
        former, self._former = self._former, snapshot
        self._observe_term(former, snapshot)
        if former is not None:
            self._add(compare(former, snapshot, only_isr=self._records(snapshot)))

    def _records(self, snapshot: ClusterSnapshot) -> bool:
        """Whether this controller's events can be read here. Those of a new one may come a little later."""
        if not self.reads_events or snapshot.controller_epoch is None:
            return False
        if any(e["event"] == ELECTED and e["controller_epoch"] == snapshot.controller_epoch for e in self._events):
            return True
        return snapshot.read_at_ms - (snapshot.controller_since_ms or 0) < EVENTS_LATE_MS

    def entries(self) -> list[Entry]:
        """Newest first."""
        return list(reversed(self._entries))

    def terms(self) -> list[ControllerTerm]:
        """Newest first. What klamm recorded says more than what was observed."""
        recorded = {term.epoch: term for term in terms(self._events) if term.broker is not None}
        by_epoch = {term.epoch: term for term in self._observed} | recorded
        ordered = [by_epoch[epoch] for epoch in sorted(by_epoch)][-TERMS_MAX:]
        for n, (term, following) in enumerate(pairwise(ordered)):
            if term.until_ms is None:
                ended_by = f"broker {following.broker} took over"
                ordered[n] = term._replace(until_ms=following.since_ms, ended_by=ended_by)
        return ordered[::-1]

    def notes(self) -> list[Note]:
        """Newest first."""
        return notes(self._events)[-NOTES_MAX:][::-1]

    def _remember(self, event: dict[str, Any]) -> None:
        """Keep an event about the controller, once: the first reading of a file overlaps with its tail."""
        if event.get("event") not in (ELECTED, RESIGNED, *NOTED):
            return
        key = (int(event["time_ms"]), int(event["broker"]), str(event["event"]))
        if key not in self._seen:
            if len(self._events) == CONTROLLER_EVENTS_MAX:
                oldest = self._events[0]
                self._seen.discard((int(oldest["time_ms"]), int(oldest["broker"]), str(oldest["event"])))
            self._seen.add(key)
            self._events.append(event)

    def _add(self, entries: Iterable[Entry]) -> None:
        added = list(entries)
        if not added:
            return
        recent = [self._entries.pop() for _ in range(min(RECENT, len(self._entries)))][::-1]
        self._entries.extend(sorted([*recent, *added], key=lambda entry: entry.time_ms))

    def _observe_term(self, former: ClusterSnapshot | None, now: ClusterSnapshot) -> None:
        last = self._observed[-1] if self._observed else None
        is_same = last is not None and (last.broker, last.epoch) == (now.controller, now.controller_epoch)
        if is_same:
            return
        ended = why_controller_ended(former, now) if former is not None else ""
        if last is not None and last.until_ms is None:
            until = now.controller_since_ms if now.controller is not None else now.read_at_ms
            self._observed[-1] = last._replace(until_ms=until, ended_by=ended)
        if now.controller is not None and now.controller_epoch is not None:
            why = ended or "elected before the dashboard was started"
            since = now.controller_since_ms
            self._observed.append(ControllerTerm(now.controller_epoch, now.controller, since, why))
