"""The controller: who, since when and why, its terms, and requests to move it or to prefer brokers for it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from klamm.admin.controller_history import ControllerTerm
from klamm.dashboard.actions import ActionRefused
from klamm.dashboard.formats import clock
from klamm.dashboard.paging import page_of
from klamm.dashboard.time_axis import Span, spans_axis
from klamm.dashboard.web import Fields, web_of, whole_number
from klamm.zookeeper import controller_requests

MOVE_SECONDS: Final = 15.0
TERMS_DRAWN: Final = 40


class TermRow(NamedTuple):
    term: ControllerTerm
    lasted_s: float | None
    gap_s: float | None
    """Without a controller before this term; None if that is not known."""


async def page(request: Request) -> Response:
    web = web_of(request)
    observation = web.feed.current
    snapshot = observation.snapshot
    if snapshot is None:
        return web.render(request, "waiting.html")
    now_ms = web.confirmed_ms()
    rows = term_rows(observation.terms, now_ms)
    current = next((term for term in observation.terms if term.epoch == snapshot.controller_epoch), None)
    return web.render(
        request,
        "controller.html",
        current=current,
        page=page_of(rows, request.query_params.get("page")),
        axis=_axis(observation.terms[:TERMS_DRAWN], now_ms),
        notes=observation.notes,
        registered=snapshot.registered,
        candidates=snapshot.candidates,
        others=[broker for broker in snapshot.registered if broker not in snapshot.candidates],
        targets=[broker for broker in snapshot.registered if broker != snapshot.controller],
    )


def term_rows(terms: Sequence[ControllerTerm], now_ms: int) -> list[TermRow]:
    """`terms` are newest first. A term that ended when the next began may have ended earlier: its gap is not known."""
    rows = []
    for term, former in pairwise([*terms, None]):
        assert term is not None
        lasted = None if term.since_ms is None else ((term.until_ms or now_ms) - term.since_ms) / 1000
        gap = None
        if former is not None and former.until_ms is not None and term.since_ms is not None:
            gap = (term.since_ms - former.until_ms) / 1000
        rows.append(TermRow(term, lasted, gap if gap is not None and gap > 0 else None))
    return rows


def _axis(terms: Sequence[ControllerTerm], now_ms: int) -> Markup:
    spans = [
        Span(
            term.since_ms,
            term.until_ms or max(now_ms, term.since_ms),
            f"epoch {term.epoch}: broker {term.broker} since {clock(term.since_ms, now_ms)}, because {term.why}",
            (f"broker {term.broker}, epoch {term.epoch}", f"broker {term.broker}", str(term.broker)),
            "now" if term.until_ms is None else "",
        )
        for term in reversed(terms)
        if term.since_ms is not None
    ]
    return spans_axis(spans, "terms of the controllers: broker and epoch")


async def add_candidate(request: Request) -> Response:
    web = web_of(request)

    async def action(fields: Fields, cluster_id: str) -> str:
        broker = whole_number(fields, "broker")
        async with web.access.zookeeper(cluster_id) as zk:
            is_new = await controller_requests.add_candidate(zk, broker)
        return f"broker {broker} is {'now' if is_new else 'already'} a candidate"

    return await web.act(request, "/controller", action)


async def remove_candidate(request: Request) -> Response:
    web = web_of(request)

    async def action(fields: Fields, cluster_id: str) -> str:
        broker = whole_number(fields, "broker")
        async with web.access.zookeeper(cluster_id) as zk:
            await controller_requests.remove_candidate(zk, broker)
        return f"broker {broker} is no longer a candidate"

    return await web.act(request, "/controller", action)


async def move(request: Request) -> Response:
    web = web_of(request)

    async def action(fields: Fields, cluster_id: str) -> str:
        broker = whole_number(fields, "broker")
        async with web.access.zookeeper(cluster_id) as zk:
            result = await controller_requests.move_controller(zk, broker, MOVE_SECONDS)
        if not result["moved"]:
            raise ActionRefused(f"broker {broker} is already the controller")
        return f"the controller moved to broker {broker}"

    return await web.act(request, "/controller", action)
