"""The timeline of state changes, newest first, with causes, by topic, broker and kind.

Neighbouring partitions with the same cause are one row, unless `each` asks for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from klamm.dashboard.changes import Entry, summarized
from klamm.dashboard.formats import clock
from klamm.dashboard.paging import natural, page_of
from klamm.dashboard.time_axis import MARKS_MAX, Mark, marks_axis
from klamm.dashboard.web import web_of

KINDS: Final = ("controller", "broker", "topic", "partition", "decision")
ROWS: Final = 100


async def page(request: Request) -> Response:
    web = web_of(request)
    observation = web.feed.current
    if observation.snapshot is None:
        return web.render(request, "waiting.html")
    query = request.query_params
    topic, broker, kind = query.get("topic", ""), natural(query.get("broker"), -1), query.get("kind", "")
    until_ms, each = natural(query.get("until"), -1), "each" in query
    found = [
        entry
        for entry in observation.entries
        if (not topic or entry.topic == topic)
        and (broker < 0 or broker in entry.brokers)
        and (not kind or entry.kind == kind)
        and (until_ms < 0 or entry.time_ms <= until_ms)
    ]
    rows = found if each else summarized(found)
    return web.render(
        request,
        "timeline.html",
        page=page_of(rows, query.get("page"), ROWS),
        axis=_axis(rows, web.confirmed_ms() if until_ms < 0 else until_ms),
        has_folded=len(rows) < len(found),
        topic=topic,
        broker=broker,
        kind=kind,
        kinds=KINDS,
        brokers=list(observation.snapshot.brokers),
    )


def _axis(entries: Sequence[Entry], now_ms: int) -> Markup:
    shown = entries[:MARKS_MAX]
    if not shown:
        return Markup("")
    start, end = min(entry.time_ms for entry in shown), max(now_ms, shown[0].time_ms)
    marks = [Mark(entry.time_ms, entry.kind, f"{clock(entry.time_ms)} {entry.text}: {entry.cause}") for entry in shown]
    lanes = [kind for kind in KINDS if any(entry.kind == kind for entry in shown)]
    return marks_axis(marks, lanes, start, end, "state changes over time, by kind")
