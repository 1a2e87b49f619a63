"""The HTTP listener of a broker process: `/metrics` for Prometheus. Off unless `klamm.http.listener` is set.

Starlette runs on uvicorn in the broker's own event loop, without uvicorn's signal handlers, because `runtime` handles
signals. These packages and Prometheus' client take a quarter of a second to import. A thread imports them when the
broker already answers, so that neither a cold start nor an election waits for them. The port is bound early, so that an
address in use makes the start fail with a clear message.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from klamm.model.errors import ConfigError
from klamm.telemetry.metrics import MetricsRegistry

if TYPE_CHECKING:
    from starlette.requests import Request

BACKLOG: Final = 64
CONNECTIONS_MAX: Final = 64
"""More connections get 503, because scrapers must not use up the descriptors that the log needs."""
GRACE_SECONDS: Final = 1
"""Time to finish a scrape when the broker stops."""


class HttpListener:
    def __init__(self, host: str, port: int, metrics: MetricsRegistry) -> None:
        self._metrics = metrics
        metrics.read("klamm", "Process", "TaskCount", lambda: len(asyncio.all_tasks()))
        self._socket = _bind(host, port)
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
        server = await asyncio.to_thread(_server, self._metrics)
        if stop.is_set():
            return
        serving = asyncio.create_task(server.serve(sockets=[self._socket]), name="http-server")
        await stop.wait()
        server.should_exit = True
        await serving


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ConfigError(f"klamm.http.listener: cannot listen on {host}:{port}: {reason}") from None
    return listening


def _server(metrics: MetricsRegistry) -> Any:
    """A uvicorn server that leaves signals and logging alone. Runs in a thread, because it does the slow imports."""
    import uvicorn
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.exposition import choose_encoder
    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Route

    from klamm.telemetry.prometheus import RegistryCollector

    registry = CollectorRegistry()
    registry.register(RegistryCollector(metrics))
    ProcessCollector(registry=registry)

    async def scraped(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"Content-Type": content_type})

    class Embedded(uvicorn.Server):
        def capture_signals(self) -> Any:
            return nullcontext()

    config = uvicorn.Config(
        Starlette(routes=[Route("/metrics", scraped, methods=["GET"])]),
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=GRACE_SECONDS,
        limit_concurrency=CONNECTIONS_MAX,
    )
    config.load()
    return Embedded(config)
