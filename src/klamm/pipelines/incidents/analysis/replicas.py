"""ISR churn with the broker to blame, and unclean elections, from the history of partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from klamm.pipelines.incidents.analysis.history import Place, State
from klamm.pipelines.incidents.analysis.losses import Loss
from klamm.pipelines.incidents.record import Record


class Churn(NamedTuple):
    """How often a broker left and joined ISRs, and the loss that explains it, if one does."""

    broker: int
    left: int
    joined: int
    unexplained: int
    """Times that it left while no log tells of a fault of the broker: a slow broker."""
    partitions: int
    out_ms: int
    """Partition-milliseconds outside of ISRs that it belonged to."""


class UncleanElection(NamedTuple):
    place: Place
    t: int
    leader: int
    leader_before: int | None
    isr_before: tuple[int, ...]
    offset: int | None
    """Where the new leader began. Records from here on that the former leader had are lost."""


def isr_churn(history: Mapping[Place, Sequence[State]], losses: Sequence[Loss]) -> list[Churn]:
    left: dict[int, list[tuple[Place, int]]] = {}
    joined: dict[int, int] = {}
    out: dict[int, int] = {}
    for place, rows in history.items():
        for before, row in pairwise(rows):
            for broker in (set(before.isr) - set(row.isr)) & set(row.replicas):  # not those that were moved away
                left.setdefault(broker, []).append((place, row.since))
            for broker in set(row.isr) - set(before.isr):
                joined[broker] = joined.get(broker, 0) + 1
        members = {broker for row in rows for broker in row.isr}
        for row in rows:
            for broker in (members & set(row.replicas)) - set(row.isr):
                out[broker] = out.get(broker, 0) + row.until - row.since
    return [
        Churn(
            broker,
            len(left.get(broker, ())),
            joined.get(broker, 0),
            sum(1 for _, t in left.get(broker, ()) if not _explained(broker, t, losses)),
            len({place for place, _ in left.get(broker, ())}),
            out.get(broker, 0),
        )
        for broker in sorted({*left, *joined})
    ]


def _explained(broker: int, t: int, losses: Sequence[Loss]) -> bool:
    """The broker itself was lost then, or a leader woke up that had been silent and so blamed everybody else."""
    return any(
        loss.fault - 500 <= t <= max(loss.noticed, loss.back or loss.noticed) + 30_000
        for loss in losses
        if loss.broker == broker or (loss.back is not None and loss.back - 500 <= t <= loss.back + 10_000)
    )


def unclean_elections(history: Mapping[Place, Sequence[State]], records: Iterable[Record]) -> list[UncleanElection]:
    """No log says "unclean": the new leader was not in the last ISR, or it is still recovering."""
    started = {(r.topic, r.partition, r.leader_epoch, r.broker): r.number for r in records if r.kind == "lead.start"}
    found = []
    for place, rows in history.items():
        for before, row in pairwise(rows):
            if row.leader < 0 or row.leader == before.leader or not before.isr or row.version != before.version + 1:
                continue
            if row.leader not in before.isr or (row.recovering and not before.recovering):
                offset = started.get((place.topic, place.partition, row.leader_epoch, row.leader))
                former = next((r.leader for r in reversed(rows) if r.version < row.version and r.leader >= 0), None)
                found.append(UncleanElection(place, row.since, row.leader, former, before.isr, offset))
    return sorted(found, key=lambda u: (u.t, u.place))
