"""The events that brokers write to state-change.json: read, selected, merged in order of time, and told. Pure.

Each file is in order of its broker's clock. Events of one millisecond keep the order of their file, and brokers are
told one after the other.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import orjson

Event = dict[str, Any]


class Selection(NamedTuple):
    """What to show; empty means everything."""

    topics: frozenset[str] = frozenset()
    brokers: frozenset[int] = frozenset()
    kinds: frozenset[str] = frozenset()
    """`state-change`, `decision`, or the name of a decision."""
    since_ms: int = 0

    def takes(self, event: Event) -> bool:
        if event["time_ms"] < self.since_ms:
            return False
        if self.topics and event.get("topic") not in self.topics:
            return False
        if self.brokers and event.get("broker") not in self.brokers:
            return False
        return not self.kinds or bool(self.kinds & {event.get("kind"), event.get("event")})


def events_in(lines: Iterable[bytes]) -> Iterator[Event]:
    """Torn lines, which a killed broker leaves, are skipped."""
    for line in lines:
        try:
            event = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(event, dict) and isinstance(event.get("time_ms"), int):
            yield event


def merged(files: Iterable[Iterable[Event]]) -> Iterator[Event]:
    return heapq.merge(*files, key=lambda event: int(event["time_ms"]))


def sentence(event: Event) -> str:
    """
    >>> sentence({"kind": "decision", "role": "controller", "broker": 2, "event": "controller-elected", "cause": "why"})
    'broker 2 (controller): controller-elected: why'
    >>> sentence({"kind": "state-change", "role": "broker", "broker": 3, "topic": "t", "partition": 0, "from": "leader",
    ...           "to": "follower", "leader": 1, "cause": "leader-and-isr from controller 2"})
    'broker 3 (broker): t-0 leader -> follower, leader 1: leader-and-isr from controller 2'
    """
    who = f"broker {event.get('broker', '?')} ({event.get('role', '?')})"
    cause = f": {event['cause']}" if event.get("cause") else ""
    if event.get("kind") == "state-change":
        states = f"{event.get('from', '?')} -> {event.get('to', '?')}"
        leader = event.get("leader", -1)
        led = f"leader {leader}" if leader >= 0 else "no leader"
        in_sync = f", in sync {','.join(map(str, event['isr'])) or 'none'}" if "isr" in event else ""
        return f"{who}: {event.get('topic')}-{event.get('partition')} {states}, {led}{in_sync}{cause}"
    detail = f" ({event['detail']})" if event.get("detail") else ""
    return f"{who}: {event.get('event', event.get('kind', '?'))}{cause}{detail}"
