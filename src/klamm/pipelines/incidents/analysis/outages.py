"""How long each partition could not be written, and why: no leader, too few in sync, or a follower that stalls it.

A producer with acks=all waits in all three cases, so an outage is the union of them. It is split into the time until
the fault was noticed (detect), until a leader was chosen (elect), and until that broker led (propagate).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from klamm.pipelines.incidents.analysis.history import Place, State, state_at
from klamm.pipelines.incidents.analysis.losses import CUT_OFF, OWN_LOG, PAUSED, SILENT, STOPPED, Loss
from klamm.pipelines.incidents.analysis.settings import Settings
from klamm.pipelines.incidents.record import Record

NO_LEADER: Final = "no leader"
UNDER_MIN_ISR: Final = "under min ISR"
STALLED: Final = "stalled"
CLOSED_MS: Final = 750
"""Intervals closer than this are one outage: a producer does not get a word in between."""

_ANSWER_MS: Final = 10_000
"""A leader that wakes up writes its ISRs soon, if it does."""


class Split(NamedTuple):
    detect_ms: int | None = None
    elect_ms: int | None = None
    propagate_ms: int | None = None


class Interval(NamedTuple):
    place: Place
    start: int
    end: int
    measure: str
    broker: int | None
    """The broker whose fault it is."""
    how: str
    split: Split = Split()


class Outage(NamedTuple):
    place: Place
    start: int
    end: int
    open: bool
    """It had not ended when the logs did."""
    no_leader_ms: int
    under_min_isr_ms: int
    stalled_ms: int
    split: Split
    broker: int | None
    how: str
    leader_before: int | None
    leader_after: int | None


class Leaderships:
    """When each broker began to lead a partition, and when it stopped to."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._leading: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
        self._following: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self._deaf: dict[int, list[int]] = {}
        for record in records:
            if record.kind == "srv.deaf" and record.broker is not None:
                self._deaf.setdefault(record.broker, []).append(record.t)
            if record.topic is None or record.partition is None or record.broker is None:
                continue
            name = (record.topic, record.partition)
            if record.kind == "lead.start" and record.leader_epoch is not None:
                self._leading.setdefault(name, []).append((record.t, record.leader_epoch, record.broker))
            elif record.kind == "follow.start":
                self._following.setdefault(name, []).append((record.t, record.broker))

    def began(self, state: State) -> int | None:
        """When the leader of this state began to lead in this epoch."""
        told = self._leading.get((state.place.topic, state.place.partition), [])
        times = [t for t, epoch, broker in told if epoch == state.leader_epoch and broker == state.leader]
        return next((t for t in times if t >= state.since - CLOSED_MS), None)

    def gave_up(self, place: Place, broker: int, after: int, before: int) -> int | None:
        told = self._following.get((place.topic, place.partition), [])
        return next((t for t, follower in told if follower == broker and after <= t <= before), None)

    def deaf_since(self, broker: int, after: int, before: int) -> int | None:
        """When a broker that stops no longer listened to clients."""
        return next((t for t in self._deaf.get(broker, []) if after <= t <= before), None)


def intervals(
    history: Mapping[Place, Sequence[State]],
    losses: Sequence[Loss],
    leaderships: Leaderships,
    settings: Settings,
    answers: Mapping[tuple[str, int, int], Sequence[int]],
    end: int,
    holes: Sequence[tuple[int, int]] = (),
) -> list[Interval]:
    """`answers`: when a broker wrote the ISR of a partition, the first sign of life of a leader that was silent.
    `holes`: stretches whose logs are missing. Nothing is known to last beyond the beginning of one."""
    found: list[Interval] = []
    for place, rows in history.items():
        for loss in losses:
            found += _of_loss(place, rows, loss, leaderships, answers)
        found += _offline(place, rows, leaderships, losses)
        found += _handovers(place, rows, losses, leaderships)
        found += _under_min_isr(place, rows, settings.min_isr_of(place.topic), losses)
    clipped = (i._replace(end=min([i.end, end, *(hole for hole, _ in holes if hole >= i.start)])) for i in found)
    return sorted((i for i in clipped if i.end > i.start), key=lambda i: (i.place, i.start, i.end, i.measure))


def _of_loss(
    place: Place,
    rows: Sequence[State],
    loss: Loss,
    leaderships: Leaderships,
    answers: Mapping[tuple[str, int, int], Sequence[int]],
) -> list[Interval]:
    if loss.how == STOPPED:
        return []  # it hands over first: see `_handovers`
    before = state_at(rows, loss.fault)
    if before is None or loss.fault >= rows[-1].until or _leads_on(before, loss):
        return []
    if before.leader == loss.broker:
        if loss.how == SILENT or (loss.how == PAUSED and not _led_by_another(rows, before, loss)):
            told = answers.get((place.topic, place.partition, loss.broker), [])
            position = bisect_left(told, loss.noticed)
            answered = told[position] if position < len(told) else loss.noticed
            late = loss.evidence != OWN_LOG and answered < loss.noticed + _ANSWER_MS
            woke = answered if late else loss.noticed
            return [Interval(place, loss.fault, woke, NO_LEADER, loss.broker, loss.how, Split(woke - loss.fault))]
        return _leader_lost(place, rows, before, loss, leaderships)
    if loss.broker in before.isr and before.leader >= 0:
        gone = next((row.since for row in rows if row.version > before.version and loss.broker not in row.isr), None)
        until = min(t for t in (gone, loss.back, rows[-1].until) if t is not None)
        return [Interval(place, loss.fault, until, STALLED, loss.broker, loss.how)]
    return []


def _leads_on(state: State, loss: Loss) -> bool:
    """A broker that is only cut off, and alone in sync, takes records from its producers all the time."""
    return loss.how == CUT_OFF and state.isr == (loss.broker,)


def _led_by_another(rows: Sequence[State], before: State, loss: Loss) -> bool:
    return any(
        r.version > before.version and r.leader >= 0 and r.leader != loss.broker and r.since <= (loss.back or r.since)
        for r in rows
    )


def _leader_lost(
    place: Place, rows: Sequence[State], before: State, loss: Loss, leaderships: Leaderships
) -> list[Interval]:
    """From the fault until a broker leads the next epoch, if need be the same one after its return."""
    later = (row for row in rows if row.version > before.version and row.leader_epoch > before.leader_epoch)
    returned = loss.back
    elected = next(
        (
            r
            for r in later
            if r.leader >= 0 and (r.leader != loss.broker or (returned is not None and r.since >= returned))
        ),
        None,
    )
    if elected is None:
        return [Interval(place, loss.fault, rows[-1].until, NO_LEADER, loss.broker, loss.how)]
    began = leaderships.began(elected)
    noticed = max(loss.fault, min(loss.noticed, elected.since))
    split = Split(
        noticed - loss.fault,
        elected.since - noticed,
        None if began is None else max(0, began - elected.since),
    )
    return [Interval(place, loss.fault, max(elected.since, began or 0), NO_LEADER, loss.broker, loss.how, split)]


def _offline(
    place: Place, rows: Sequence[State], leaderships: Leaderships, losses: Sequence[Loss]
) -> Iterable[Interval]:
    """Versions without a leader."""
    for number, row in enumerate(rows):
        if row.leader >= 0:
            continue
        later = next((r for r in rows[number + 1 :] if r.leader >= 0), None)
        until = rows[-1].until if later is None else max(later.since, leaderships.began(later) or 0)
        loss = _latest(losses, row.since, row.isr)
        if loss is not None and _leads_on(row, loss):
            continue
        if loss is not None and loss.how == PAUSED and loss.back is not None and row.isr == (loss.broker,):
            until = min(until, max(row.since, loss.back))  # it does not know that it was deposed, and leads on
        stopping = loss is not None and loss.how == STOPPED
        deaf = leaderships.deaf_since(loss.broker, loss.fault, row.since) if loss and stopping else None
        elected = Split() if later is None else Split(0, later.since - row.since, max(0, until - later.since))
        yield Interval(
            place,
            row.since if deaf is None else deaf,
            until,
            NO_LEADER,
            loss.broker if loss else None,
            loss.how if loss else "no live replica",
            elected,
        )


def _handovers(
    place: Place, rows: Sequence[State], losses: Sequence[Loss], leaderships: Leaderships
) -> Iterable[Interval]:
    """A leader that gave way on request: the partition has no leader until the next one has heard of it."""
    for before, row in pairwise(rows):
        if (
            row.leader < 0
            or before.leader < 0
            or row.leader == before.leader
            or row.leader_epoch == before.leader_epoch
        ):
            continue
        fault = next(
            (x for x in losses if x.broker == before.leader and x.fault <= row.since <= (x.back or row.since)), None
        )
        if fault is not None and fault.how != STOPPED:
            continue
        began = leaderships.began(row)
        until = row.since if began is None else max(row.since, began)
        start = leaderships.gave_up(place, before.leader, row.since, until) or row.since
        how = "handed over" if fault is None else STOPPED
        split = Split(0, 0, None if began is None else until - row.since)
        yield Interval(place, min(start, row.since), max(until, row.since + 1), NO_LEADER, before.leader, how, split)


def _under_min_isr(place: Place, rows: Sequence[State], min_isr: int, losses: Sequence[Loss]) -> Iterable[Interval]:
    for row in rows:
        if row.leader >= 0 and 0 < len(row.isr) < min_isr <= max(len(row.replicas), len(row.isr)):
            loss = _latest(losses, row.since, row.replicas)
            how = loss.how if loss else "out of sync"
            yield Interval(place, row.since, row.until, UNDER_MIN_ISR, loss.broker if loss else None, how)


def _latest(losses: Sequence[Loss], t: int, brokers: Sequence[int]) -> Loss | None:
    """The fault that explains a state: the last one of a broker that matters, which was not over yet."""
    found = [x for x in losses if x.fault <= t and (x.back is None or x.back >= t) and x.broker in brokers]
    return max(found, key=lambda x: x.fault, default=None)


def outages(found: Sequence[Interval], history: Mapping[Place, Sequence[State]], end: int) -> list[Outage]:
    """The union of the intervals of each partition."""
    result: list[Outage] = []
    group: list[Interval] = []
    for interval in found:
        if group and (interval.place != group[0].place or interval.start > max(i.end for i in group) + CLOSED_MS):
            result.append(_outage(group, history[group[0].place], end))
            group = []
        group.append(interval)
    if group:
        result.append(_outage(group, history[group[0].place], end))
    return sorted(result, key=lambda o: (o.start, o.place))


def _outage(group: Sequence[Interval], rows: Sequence[State], end: int) -> Outage:
    start, until = min(i.start for i in group), max(i.end for i in group)
    first = min(group, key=lambda i: (i.start, i.measure != NO_LEADER))
    leaderless = [i for i in group if i.measure == NO_LEADER and i.split != Split()]
    longest = max(leaderless, key=lambda i: i.end - i.start, default=None)
    before = state_at(rows, start - 1)
    after = state_at(rows, until + 1)
    is_open = until >= end and (after is None or after.leader < 0 or any(i.end >= end for i in group))
    return Outage(
        place=group[0].place,
        start=start,
        end=until,
        open=is_open,
        no_leader_ms=covered(i for i in group if i.measure == NO_LEADER),
        under_min_isr_ms=covered(i for i in group if i.measure == UNDER_MIN_ISR),
        stalled_ms=covered(i for i in group if i.measure == STALLED),
        split=longest.split if longest else Split(),
        broker=first.broker,
        how=first.how,
        leader_before=before.leader if before and before.leader >= 0 else None,
        leader_after=after.leader if after and after.leader >= 0 else None,
    )


def covered(intervals: Iterable[Interval]) -> int:
    """Milliseconds that at least one interval covers."""
    total, reached = 0, 0
    for interval in sorted(intervals, key=lambda i: i.start):
        total += max(0, interval.end - max(reached, interval.start))
        reached = max(reached, interval.end)
    return total
