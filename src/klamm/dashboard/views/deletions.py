"""Topics that are marked for deletion, and what each waits for."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from klamm.dashboard.paging import page_of
from klamm.dashboard.web import web_of


async def page(request: Request) -> Response:
    web = web_of(request)
    snapshot = web.feed.current.snapshot
    if snapshot is None:
        return web.render(request, "waiting.html")
    return web.render(request, "deletions.html", page=page_of(snapshot.deletions, request.query_params.get("page")))
