"""Everything that the records tell, put together: the input of the tables and of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final, NamedTuple

from klamm.pipelines.incidents.analysis.clocks import Skew, estimate_skew, shifted, without_skew, zones
from klamm.pipelines.incidents.analysis.controllers import Term, controller_terms
from klamm.pipelines.incidents.analysis.history import STATES, Lives, Place, State, partition_history
from klamm.pipelines.incidents.analysis.losses import Loss, broker_losses
from klamm.pipelines.incidents.analysis.outages import Interval, Leaderships, Outage, intervals, outages
from klamm.pipelines.incidents.analysis.procedures import Deletion, Reassignment, deletions, reassignments
from klamm.pipelines.incidents.analysis.replicas import Churn, UncleanElection, isr_churn, unclean_elections
from klamm.pipelines.incidents.analysis.settings import Settings, read_settings
from klamm.pipelines.incidents.parser import UNKNOWN
from klamm.pipelines.incidents.record import Record, in_order

TRACED: Final = frozenset({"lai.recv", "lai.sent"})
OF_KAFKA: Final = frozenset({"version", "srv.zone", "isr.shrink", "part.isr_cut", "isrctl.updated"})
"""Kinds that klamm does not write."""

HOLE_MS: Final = 30 * 60 * 1000
"""Without changes a cluster may be silent for longer; with changes it writes."""


class Findings(NamedTuple):
    start: int
    end: int
    records: Sequence[Record]
    """With corrected times, in order."""
    settings: Settings
    zones: Mapping[int, int]
    skews: Sequence[Skew]
    history: Mapping[Place, Sequence[State]]
    losses: Sequence[Loss]
    terms: Sequence[Term]
    intervals: Sequence[Interval]
    outages: Sequence[Outage]
    churn: Sequence[Churn]
    unclean: Sequence[UncleanElection]
    reassignments: Sequence[Reassignment]
    deletions: Sequence[Deletion]
    missing: Sequence[str]
    """What these logs cannot tell."""


def analyse(
    raw: Sequence[Record], writers: Sequence[int], start: int | None = None, end: int | None = None
) -> Findings:
    """`raw`: the folded records of all files, each with its broker. `writers`: the brokers whose logs were read.

    `start` and `end` limit what is reported. The records before and after still explain it.
    """
    known = [r for r in raw if r.kind != UNKNOWN and r.t > 0]
    in_zone = zones(known)
    in_utc = shifted(known, in_zone)
    skews = estimate_skew(in_utc)
    records = in_order(without_skew(in_utc, skews))
    first, last = (records[0].t, _last(records, writers)) if records else (0, 0)
    settings = read_settings(records)
    history = partition_history(records, Lives(records, last))
    losses = broker_losses(records, settings, last)
    answers = _answers(records)
    holes = missing_stretches(records, history)
    found = intervals(history, losses, Leaderships(records), settings, answers, last, holes)
    begin, stop = max(first, start or first), min(last, end or last)
    return Findings(
        start=begin,
        end=stop,
        records=records,
        settings=settings,
        zones=in_zone,
        skews=skews,
        history=history,
        losses=[x for x in losses if x.fault <= stop and (x.back or stop) >= begin],
        terms=[
            t for t in controller_terms(records, losses) if (t.since or begin) <= stop and (t.until or stop) >= begin
        ],
        intervals=[i for i in found if i.start <= stop and i.end >= begin],
        outages=[o for o in outages(found, history, last) if o.start <= stop and o.end >= begin],
        churn=isr_churn(history, losses),
        unclean=[u for u in unclean_elections(history, records) if begin <= u.t <= stop],
        reassignments=[r for r in reassignments(records) if r.start <= stop and (r.end or stop) >= begin],
        deletions=[d for d in deletions(records) if (d.start or d.end or begin) <= stop and (d.end or stop) >= begin],
        missing=[*map(_told, holes), *_missing(records, writers, settings, history, in_zone)],
    )


def _last(records: Sequence[Record], writers: Sequence[int]) -> int:
    """The end of what is reported: the last record, or the moment when the stop of the whole cluster began."""
    stopped: dict[int, int] = {}
    for record in records:
        if record.broker is None:
            continue
        if record.kind == "srv.stop":
            stopped.setdefault(record.broker, record.t)
        elif record.kind == "srv.start":
            stopped.pop(record.broker, None)
    if writers and set(writers) <= set(stopped):
        return min(stopped.values())
    return records[-1].t


def missing_stretches(records: Sequence[Record], history: Mapping[Place, Sequence[State]]) -> list[tuple[int, int]]:
    """Times without any record in which states changed nevertheless, as versions tell: files are missing."""
    silent = [(before.t, later.t) for before, later in pairwise(records) if later.t - before.t > HOLE_MS]
    if not silent:
        return []
    jumps = [
        (before.since, row.since)
        for rows in history.values()
        for before, row in pairwise(rows)
        if row.version > before.version + 1
    ]
    return [(start, end) for start, end in silent if any(old <= start and end <= new for old, new in jumps)]


def _told(hole: tuple[int, int]) -> str:
    start, end = (datetime.fromtimestamp(t / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S") for t in hole)
    return (
        f"From {start} to {end} these logs hold nothing, although states of partitions changed: files are missing. "
        "What happened then is unknown."
    )


def _answers(records: Sequence[Record]) -> dict[tuple[str, int, int], list[int]]:
    found: dict[tuple[str, int, int], list[int]] = {}
    for r in records:
        if r.kind == "isr.updated" and r.topic is not None and r.partition is not None and r.broker is not None:
            found.setdefault((r.topic, r.partition, r.broker), []).append(r.t)
    return found


def _missing(
    records: Sequence[Record],
    writers: Sequence[int],
    settings: Settings,
    history: Mapping[Place, Sequence[State]],
    in_zone: Mapping[int, int],
) -> list[str]:
    kinds = {r.kind for r in records}
    told: list[str] = []
    named = {b for rows in history.values() for row in rows for b in row.replicas} - set(writers)
    told += [f"Broker {broker} is named in these logs, but its own logs are missing." for broker in sorted(named)]
    if kinds & OF_KAFKA and not kinds & TRACED:
        told.append(
            "No log is at TRACE, as Kafka 3 ships it: requests cannot be paired with their receipt, so clock skew is "
            "estimated from elections alone."
        )
    if records and "ctl.elected" not in kinds:
        told.append("No controller.log tells of an election: terms of controllers and their causes are unknown.")
    if records and not kinds & STATES:
        told.append("No state-change.log was found: leaders and ISRs are unknown.")
    if history and "lead.start" not in kinds:
        told.append("No log tells when a leader began to lead: outages end with the election.")
    zoneless = [
        b for b in writers if b not in in_zone and any(r.broker == b and r.kind == "um.cached" for r in records)
    ]
    if zoneless:
        told.append(f"The zone of brokers {zoneless} is not in their logs: their times are taken as UTC.")
    told += [f"No log names {name.partition('=')[0]}: {name} is assumed." for name in settings.assumed]
    return told
