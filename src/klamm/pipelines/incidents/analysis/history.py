"""The history of every partition: one row per version of its state, ordered by version and not by time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, TypeVar

from klamm.pipelines.incidents.record import Record

T = TypeVar("T")

STATES: Final = frozenset(
    {"part.online", "part.isr_cut", "isr.updated", "isrctl.updated", "lead.start", "lai.sent", "lai.recv"}
    | {"um.sent", "um.cached"}
)
SETTLE_MS: Final = 500
"""A new topic's first state may stand in a log this much before the creation, if clocks differ."""
RECOVERING: Final = "RECOVERING"


class Place(NamedTuple):
    """A partition of one life of a topic: a topic that is deleted and created again starts over."""

    topic: str
    partition: int
    incarnation: int


class State(NamedTuple):
    place: Place
    version: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    since: int
    until: int
    """When the next version was first seen, or the partition's end."""
    decided_by: int | None
    recovering: bool


class Lives:
    """When topics were created and deleted."""

    def __init__(self, records: Iterable[Record], end: int) -> None:
        self._created: dict[str, list[int]] = {}
        self._deleted: dict[str, list[int]] = {}
        self._end = end
        for record in records:
            if record.kind == "topics.new":
                for topic in (record.text or "").split(", "):
                    self._created.setdefault(topic, []).append(record.t)
            elif record.kind == "del.asked":
                for topic in (record.text or "").split(","):
                    self._deleted.setdefault(topic, []).append(record.t)
            elif record.kind == "del.done" and record.topic is not None:
                self._deleted.setdefault(record.topic, []).append(record.t)
        for times in (*self._created.values(), *self._deleted.values()):
            times.sort()

    def incarnation(self, topic: str, t: int) -> int:
        return bisect_right(self._created.get(topic, []), t + SETTLE_MS)

    def end(self, place: Place) -> int:
        """When its deletion was asked for, the topic was created again, or the logs end."""
        created = self._created.get(place.topic, [])
        born = created[place.incarnation - 1] if 0 < place.incarnation <= len(created) else 0
        later = created[place.incarnation] if place.incarnation < len(created) else self._end
        deleted = [t for t in self._deleted.get(place.topic, []) if t > born]
        return min([later, self._end, *deleted[:1]])


def partition_history(records: Iterable[Record], lives: Lives) -> dict[Place, list[State]]:
    by_version: dict[Place, dict[int, list[Record]]] = {}
    for record in records:
        if record.kind not in STATES or record.version is None or record.topic is None or record.partition is None:
            continue
        place = Place(record.topic, record.partition, lives.incarnation(record.topic, record.t))
        by_version.setdefault(place, {}).setdefault(record.version, []).append(record)
    return {place: _states(place, by_version[place], lives.end(place)) for place in sorted(by_version)}


def _states(place: Place, versions: dict[int, list[Record]], end: int) -> list[State]:
    rows: list[State] = []
    leader, leader_epoch, isr, replicas = -1, -1, (), ()  # type: int, int, tuple[int, ...], tuple[int, ...]
    for version in sorted(versions):
        told = sorted(versions[version], key=lambda record: record.t)
        if rows and told[0].t >= end:
            break  # what a deletion, or the stop of the whole cluster, does to the partition
        leader = _first(told, "leader", leader, _writer(told))
        leader_epoch = _first(told, "leader_epoch", leader_epoch)
        isr = _first(told, "brokers", isr)
        replicas = _first(told, "replicas", replicas) or isr
        decided = next((r.broker for r in told if r.kind in ("part.online", "part.isr_cut")), None)
        recovering = any(r.text == RECOVERING for r in told)
        since = min(told[0].t, end)
        rows.append(State(place, version, leader, leader_epoch, isr, replicas, since, end, decided, recovering))
    return _with_ends(rows)


def _with_ends(rows: Sequence[State]) -> list[State]:
    """A state ends with the next one. With wrong clocks a later version may stand earlier: then it has no length."""
    ended = [row._replace(until=max(row.since, later.since)) for row, later in pairwise(rows)]
    return [*ended, *rows[-1:]]


def _first(told: Sequence[Record], field: str, before: T, otherwise: T | None = None) -> T:
    found = next((value for record in told if (value := getattr(record, field)) is not None), otherwise)
    return before if found is None else found


def _writer(told: Sequence[Record]) -> int | None:
    """The leader writes the ISR, and only a leader starts to lead."""
    return next((record.broker for record in told if record.kind in ("isr.updated", "lead.start")), None)


def state_at(rows: Sequence[State], t: int) -> State | None:
    """The state at a time: the last version that was seen before."""
    return next((row for row in reversed(rows) if row.since <= t), None)
