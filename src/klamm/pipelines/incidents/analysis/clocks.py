"""Zones and clock skew of brokers, so that the times of all logs can be compared.

Kafka writes local times without a zone, but prints its start in milliseconds since 1970 too: the difference, rounded to
a quarter of an hour, is the zone.

Skew comes from causes and effects on two brokers. A broker obeys a request after the controller has decided it, so the
smallest difference is at least the skew. A controller hears of a broker's work after the broker has done it, so the
smallest difference in that direction is at least the opposite of the skew. The middle of both bounds is the estimate,
half of their distance its error. Only pairs that occur once on both sides count, because requests are sent again.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import median_low
from typing import Final, NamedTuple

from klamm.pipelines.incidents.record import Record

QUARTER_MS: Final = 15 * 60 * 1000
ZONE_MAX_MS: Final = 14 * 60 * 60 * 1000
NOTICEABLE_MS: Final = 50
"""Skew below this is not corrected: the error of an estimate is about as large."""
PLAUSIBLE_MS: Final = 60 * 60 * 1000
"""A pair that lies further apart is not a pair."""

_EMBEDDED: Final = re.compile(r"(lastCaughtUpTimeMs: )(\d+)")

Pair = tuple[object, ...]


class Skew(NamedTuple):
    broker: int
    offset_ms: int
    """How far its clock is ahead of the one that is taken as right."""
    error_ms: int | None
    """None if there is only one bound."""
    pairs: int
    corrected: bool


def zones(records: Iterable[Record]) -> dict[int, int]:
    """Milliseconds to subtract from the times of a broker."""
    found: dict[int, int] = {}
    for record in records:
        if record.kind == "srv.zone" and record.number is not None and record.broker is not None:
            zone = round((record.t - record.number) / QUARTER_MS) * QUARTER_MS
            if abs(zone) <= ZONE_MAX_MS:
                found[record.broker] = zone
    return found


def shifted(records: Iterable[Record], offsets: Mapping[int, int]) -> list[Record]:
    return [
        record if (offset := offsets.get(_broker(record), 0)) == 0 else record._replace(t=record.t - offset)
        for record in records
    ]


def without_skew(records: Iterable[Record], skews: Iterable[Skew]) -> list[Record]:
    """Times as the right clock would have them, also those inside of entries: in UTC, but by the same clock."""
    offsets = {skew.broker: skew.offset_ms for skew in skews if skew.corrected}
    return [_within(record, offsets.get(_broker(record), 0)) for record in shifted(records, offsets)]


def _within(record: Record, offset: int) -> Record:
    if offset == 0 or record.kind != "isr.shrink" or record.text is None:
        return record
    return record._replace(text=_EMBEDDED.sub(lambda found: f"{found[1]}{int(found[2]) - offset}", record.text))


def _broker(record: Record) -> int:
    return -1 if record.broker is None else record.broker


def estimate_skew(records: Sequence[Record]) -> list[Skew]:
    """The skew of every broker against one whose clock is in the middle. Brokers that never met are linked by the
    controllers of successive terms."""
    bounds = _bounds(records)
    neighbours: dict[int, dict[int, tuple[float, float | None, int]]] = {}
    for one, two in {tuple(sorted(pair)) for pair in bounds}:
        ahead, behind = bounds.get((one, two)), bounds.get((two, one))
        measured = _middle(ahead, behind)
        neighbours.setdefault(one, {})[two] = measured
        neighbours.setdefault(two, {})[one] = (-measured[0], measured[1], measured[2])
    if not neighbours:
        return []
    found = _from_broker(min(neighbours), neighbours)
    middle = median_low(skew.offset_ms for skew in found)
    close = [skew.broker for skew in found if abs(skew.offset_ms - middle) <= NOTICEABLE_MS]
    best = max(close, key=lambda broker: sum(pairs for _, _, pairs in neighbours[broker].values()))
    return _from_broker(best, neighbours)


def _from_broker(right: int, neighbours: Mapping[int, Mapping[int, tuple[float, float | None, int]]]) -> list[Skew]:
    found = {right: Skew(right, 0, 0, 0, False)}
    waiting = deque([right])
    while waiting:
        known = found[waiting.popleft()]
        for broker, (offset, error, pairs) in sorted(neighbours[known.broker].items()):
            if broker in found:
                continue
            total = round(known.offset_ms + offset)
            sum_error = None if error is None or known.error_ms is None else round(known.error_ms + error)
            certain = abs(total) > max(NOTICEABLE_MS, sum_error or 0)
            found[broker] = Skew(broker, total, sum_error, pairs, certain)
            waiting.append(broker)
    return [found[broker] for broker in sorted(found)]


Bound = tuple[int, int]
"""The smallest time from a cause on one broker to its effect on another, and the number of pairs."""


def _middle(ahead: Bound | None, behind: Bound | None) -> tuple[float, float | None, int]:
    """How far the second broker's clock is ahead of the first's."""
    if ahead is not None and behind is not None:
        return (ahead[0] - behind[0]) / 2, (ahead[0] + behind[0]) / 2, ahead[1] + behind[1]
    if ahead is not None:
        return min(0, ahead[0]), None, ahead[1]  # an effect before its cause: at least this much behind
    assert behind is not None
    return max(0, -behind[0]), None, behind[1]


def _bounds(records: Sequence[Record]) -> dict[tuple[int, int], Bound]:
    causes: dict[Pair, list[Record]] = {}
    effects: dict[Pair, list[Record]] = {}
    for record in records:
        if record.broker is None:
            continue
        for key in _cause_keys(record):
            causes.setdefault(key, []).append(record)
        for key in _effect_keys(record):
            effects.setdefault(key, []).append(record)
    smallest: dict[tuple[int, int], int] = {}
    pairs: Counter[tuple[int, int]] = Counter()
    for key, cause in causes.items():
        effect = effects.get(key, [])
        if len(cause) != 1 or len(effect) != 1 or cause[0].broker == effect[0].broker:
            continue
        between = (_broker(cause[0]), _broker(effect[0]))
        difference = effect[0].t - cause[0].t
        if abs(difference) < PLAUSIBLE_MS:
            smallest[between] = min(smallest.get(between, difference), difference)
            pairs[between] += 1
    return {between: (smallest[between], pairs[between]) for between in smallest}


def _cause_keys(record: Record) -> Iterable[Pair]:
    state = (record.topic, record.partition, record.version)
    match record.kind:
        case "lai.sent":
            yield ("request", record.broker, record.other, *state, record.leader_epoch, record.epoch)
        case "part.online" if record.leader is not None and record.leader >= 0:
            yield ("leader", record.leader, *state[:2], record.leader_epoch)
        case "lai.done":
            yield ("answer", record.other, record.epoch, record.broker, record.number)
        case "isr.updated":
            yield ("isr", *state)


def _effect_keys(record: Record) -> Iterable[Pair]:
    state = (record.topic, record.partition, record.version)
    match record.kind:
        case "lai.recv":
            yield ("request", record.other, record.broker, *state, record.leader_epoch, record.epoch)
        case "lead.start":
            yield ("leader", record.broker, *state[:2], record.leader_epoch)
        case "resp":
            yield ("answer", record.broker, record.epoch, record.other, record.number)
        case "um.sent":
            yield ("isr", *state)
