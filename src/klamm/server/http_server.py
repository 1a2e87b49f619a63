"""The server behind a broker's HTTP listener: Starlette and Prometheus' client on uvicorn.

Its imports take a quarter of a second and ten megabytes, so `http` imports this module late, in a thread. A fork server
imports it once for all brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Final

import uvicorn
from prometheus_client import ProcessCollector
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from klamm.broker.handlers.slices import in_slices
from klamm.telemetry.metrics import MetricsRegistry
from klamm.telemetry.prometheus import exposition

CONNECTIONS_MAX: Final = 64
"""More connections get 503, because scrapers must not use up the descriptors that the log needs."""
GRACE_SECONDS: Final = 1
"""Time to finish a scrape when the broker stops."""


def http_server(metrics: MetricsRegistry, not_ready: Callable[[], str]) -> uvicorn.Server:
    """A server that leaves signals and logging alone."""
    process = ProcessCollector(registry=None)

    async def scraped(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        snapshot = await in_slices(metrics.snapshot())
        text = await asyncio.to_thread(exposition, snapshot, encode, process)
        return Response(text, headers={"Content-Type": content_type})

    async def healthy(_request: Request) -> Response:
        return Response("ok\n", media_type="text/plain")

    async def ready(_request: Request) -> Response:
        reason = not_ready()
        return Response(f"{reason or 'ok'}\n", 503 if reason else 200, media_type="text/plain")

    routes = {"/metrics": scraped, "/healthz": healthy, "/readyz": ready}

    class Embedded(uvicorn.Server):
        def capture_signals(self) -> Any:
            return nullcontext()

    config = uvicorn.Config(
        Starlette(routes=[Route(path, answer, methods=["GET"]) for path, answer in routes.items()]),
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=GRACE_SECONDS,
        limit_concurrency=CONNECTIONS_MAX,
    )
    config.load()
    return Embedded(config)
