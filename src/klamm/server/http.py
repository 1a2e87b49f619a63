"""The HTTP listener of a broker process: `/metrics` for Prometheus, `/healthz` and `/readyz` for supervisors.

It is off unless `klamm.http.listener` is set. `/healthz` answers 200 while the event loop runs. `/readyz` answers 200
while the broker serves clients and has a ZooKeeper session, otherwise 503 with the reason.

Starlette runs on uvicorn in the broker's own event loop, without uvicorn's signal handlers, because `runtime` handles
signals. These packages and Prometheus' client take a quarter of a second to import. A thread imports them when the
broker already answers, so that neither a cold start nor an election waits for them. The port is bound early, so that an
address in use makes the start fail with a clear message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from klamm.broker.handlers.slices import in_slices
from klamm.net.listening_socket import listening_socket
from klamm.telemetry.metrics import MetricsRegistry

if TYPE_CHECKING:
    from starlette.requests import Request

CONNECTIONS_MAX: Final = 64
"""More connections get 503, because scrapers must not use up the descriptors that the log needs."""
GRACE_SECONDS: Final = 1
"""Time to finish a scrape when the broker stops."""


class HttpListener:
    def __init__(self, host: str, port: int, metrics: MetricsRegistry, not_ready: Callable[[], str]) -> None:
        """`not_ready` says why the broker is not ready; empty if it is."""
        self._metrics = metrics
        self._not_ready = not_ready
        metrics.read("klamm", "Process", "TaskCount", lambda: len(asyncio.all_tasks()))
        self._socket = listening_socket(host, port, "klamm.http.listener")
        self.url = f"http://{host or '127.0.0.1'}:{self._socket.getsockname()[1]}"

    def close(self) -> None:
        """Release the port, even if the listener was never `running`."""
        self._socket.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[HttpListener]:
        """Return at once; early requests wait in the backlog of the socket until the server is ready."""
        stop = asyncio.Event()
        serving = asyncio.create_task(self._serve(stop), name="http")
        try:
            yield self
        finally:
            stop.set()
            await serving

    async def _serve(self, stop: asyncio.Event) -> None:
        server = await asyncio.to_thread(_server, self._metrics, self._not_ready)
        if stop.is_set():
            return
        serving = asyncio.create_task(server.serve(sockets=[self._socket]), name="http-server")
        await stop.wait()
        server.should_exit = True
        await serving


def _server(metrics: MetricsRegistry, not_ready: Callable[[], str]) -> Any:
    """A uvicorn server that leaves signals and logging alone. Runs in a thread, because it does the slow imports."""
    import uvicorn
    from prometheus_client import ProcessCollector
    from prometheus_client.exposition import choose_encoder
    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Route

    from klamm.telemetry.prometheus import exposition

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
