"""The terms of controllers: who, since when, why the term before ended, and how long there was no controller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from klamm.pipelines.incidents.analysis.losses import Loss
from klamm.pipelines.incidents.record import Record


class Term(NamedTuple):
    epoch: int
    broker: int | None
    """None if no log tells who it was."""
    since: int | None
    ready: int | None
    until: int | None
    cause: str
    """Why this term began."""
    gap_ms: int | None
    """From the end of the term before to the election. None for the first one, or if the end is not known."""


def controller_terms(records: Sequence[Record], losses: Sequence[Loss]) -> list[Term]:
    elected = {r.epoch: r for r in records if r.kind == "ctl.elected" and r.epoch is not None}
    if not elected:
        return []
    ready = {r.epoch: r.t for r in reversed(records) if r.kind == "ctl.ready" and r.epoch is not None}
    given_up = [r for r in records if r.kind in ("ctl.resigning", "ctl.resigned")]
    terms: list[Term] = []
    before: Record | None = None
    for epoch in sorted(elected):
        record = elected[epoch]
        if terms and terms[-1].epoch + 1 < epoch:
            terms.append(Term(terms[-1].epoch + 1, None, None, None, None, "not in these logs", None))
            before = None
        cause, gap = _cause(before, record, losses, given_up)
        terms.append(Term(epoch, record.broker, record.t, ready.get(epoch), None, cause, gap))
        before = record
    following = [*terms[1:], None]
    return [t._replace(until=later.since if later else None) for t, later in zip(terms, following, strict=True)]


def _cause(
    before: Record | None, record: Record, losses: Sequence[Loss], given_up: Sequence[Record]
) -> tuple[str, int | None]:
    told = f" ({record.text})" if record.text else ""
    if before is None:
        return f"the first controller in these logs{told}", None
    lost = [x for x in losses if x.broker == before.broker and before.t < x.fault <= record.t <= x.noticed + 1000]
    if lost:
        loss = lost[-1]
        return f"broker {loss.broker} was {loss.how}{told}", record.t - loss.fault
    resigned = [r.t for r in given_up if r.broker == before.broker and before.t < r.t]
    at_once = [t for t in resigned if t <= record.t + 100]
    if at_once:
        what = "/controller was deleted or given away" if not record.text else "it gave the role away"
        return f"broker {before.broker} resigned: {what}{told}", max(0, record.t - at_once[-1])
    if before.broker == record.broker:
        return f"broker {record.broker} was elected again{told}", None
    return f"broker {before.broker} lost the role, the logs do not say why{told}", None
