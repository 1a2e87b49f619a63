"""Server-sent events: which version of the cluster is current, and how old it is. The script of the pages then fetches
its page again, so that what is live is exactly what a reload would show.

Each follower costs one connection and nothing that grows: a slow one misses versions, it does not queue them.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Final

import orjson
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from klamm.dashboard.web import Web, live_key, web_of

STREAMS_MAX: Final = 64
BEAT_SECONDS: Final = 2.0


async def live(request: Request) -> Response:
    web = web_of(request)
    if web.streams >= STREAMS_MAX:
        return PlainTextResponse("too many visitors follow live; this page does not\n", 503)
    headers = {"Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}
    return StreamingResponse(_events(web), headers=headers)


async def _events(web: Web) -> AsyncIterator[bytes]:
    if web.streams >= STREAMS_MAX:
        return
    web.streams += 1
    try:
        yield b"retry: 2000\n\n"
        version = -1
        while not web.feed.is_closed:
            observation = await web.feed.after(version, BEAT_SECONDS)
            version = observation.version
            now = time.monotonic()
            state = {"key": live_key(observation, now), "age": round(observation.age_s(now), 1)}
            yield b"event: state\ndata: " + orjson.dumps(state) + b"\n\n"
    finally:
        web.streams -= 1
