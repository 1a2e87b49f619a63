"""The timeline of state changes, newest first, with causes, by topic, broker and kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from klamm.dashboard import pictures
from klamm.dashboard.changes import Entry
from klamm.dashboard.formats import clock
from klamm.dashboard.paging import natural, page_of
from klamm.dashboard.web import web_of

KINDS: Final = ("partition", "broker", "controller", "topic", "decision")
ROWS: Final = 100


async def page(request: Request) -> Response:
    web = web_of(request)
    observation = web.feed.current
    if observation.snapshot is None:
        return web.render(request, "waiting.html")
    query = request.query_params
    topic, broker, kind = query.get("topic", ""), natural(query.get("broker"), -1), query.get("kind", "")
    found = [
        entry
        for entry in observation.entries
        if (not topic or entry.topic == topic)
        and (broker < 0 or broker in entry.brokers)
        and (not kind or entry.kind == kind)
    ]
    return web.render(
        request,
        "timeline.html",
        page=page_of(found, query.get("page"), ROWS),
        axis=_axis(found, observation.snapshot.read_at_ms),
        topic=topic,
        broker=broker,
        kind=kind,
        kinds=KINDS,
        brokers=list(observation.snapshot.brokers),
    )


def _axis(entries: Sequence[Entry], now_ms: int) -> Markup:
    shown = entries[: pictures.AXIS_MARKS_MAX]
    if not shown:
        return Markup("")
    start, end = min(entry.time_ms for entry in shown), max(now_ms, shown[0].time_ms)
    marks = [(entry.time_ms, entry.kind, f"{clock(entry.time_ms)} {entry.text}: {entry.cause}") for entry in shown]
    return pictures.marks_axis(marks, (clock(start), clock(end)), start, end)
