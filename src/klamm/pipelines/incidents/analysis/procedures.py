"""Reassignments and deletions of topics, from start to end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from klamm.pipelines.incidents.record import Record


class Reassignment(NamedTuple):
    what: str
    """The partition, or the cause that klamm names."""
    start: int
    end: int | None
    replicas_before: tuple[int, ...] | None
    replicas_after: tuple[int, ...] | None
    cancelled: bool


class Deletion(NamedTuple):
    topic: str
    start: int | None
    """None if no log tells when it was asked for."""
    end: int | None
    waited_for: str


def reassignments(records: Sequence[Record]) -> list[Reassignment]:
    running: dict[str, Reassignment] = {}
    done: list[Reassignment] = []
    for record in records:
        if record.kind == "reassign.set":
            adding, removing = record.brokers or (), _ids(record.text)
            name = f"{record.topic}-{record.partition}"
            replicas = record.replicas or ()
            if adding or removing:
                before = tuple(b for b in replicas if b not in adding)
                running.setdefault(name, Reassignment(name, record.t, None, before, None, cancelled=False))
            elif name in running:
                begun = running.pop(name)
                cancelled = set(replicas) == set(begun.replicas_before or ())
                done.append(begun._replace(end=record.t, replicas_after=replicas, cancelled=cancelled))
        elif record.kind == "reassign.begun":
            name = record.text or ""
            running.setdefault(name, Reassignment(name, record.t, None, None, None, cancelled=False))
        elif record.kind == "reassign.ended":
            begun_first = min((r for r in running.values() if r.replicas_before is None), default=None)
            if begun_first is not None:
                done.append(running.pop(begun_first.what)._replace(end=record.t))
    return sorted([*done, *running.values()], key=lambda r: (r.start, r.what))


def deletions(records: Sequence[Record]) -> list[Deletion]:
    running: dict[str, Deletion] = {}
    done: list[Deletion] = []
    for record in records:
        if record.kind == "del.asked":
            for topic in (record.text or "").split(","):
                running.setdefault(topic, Deletion(topic, record.t, None, ""))
        elif record.kind == "del.halted":
            for topic in (record.topic or "").split(","):
                known = running.get(topic, Deletion(topic, None, None, ""))
                running[topic] = known._replace(waited_for=record.text or "")
        elif record.kind == "del.done" and record.topic is not None:
            known = running.pop(record.topic, Deletion(record.topic, None, None, ""))
            done.append(known._replace(end=record.t))
    return sorted([*done, *running.values()], key=lambda d: (d.start or d.end or 0, d.topic))


def _ids(text: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in (text or "").split(",") if part)
