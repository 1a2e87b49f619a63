"""The HTTP listener of a broker process: `/metrics` for Prometheus, `/healthz` and `/readyz` for supervisors.

It is off unless `klamm.http.listener` is set. `/healthz` answers 200 while the event loop runs. `/readyz` answers 200
while the broker serves clients and has a ZooKeeper session, otherwise 503 with the reason.

Starlette runs on uvicorn in the broker's own event loop (`http_server`), without uvicorn's signal handlers, because
`runtime` handles signals. These packages and Prometheus' client take a quarter of a second to import. A thread imports
them when the broker already answers, so that neither a cold start nor an election waits for them. The port is bound
early, so that an address in use makes the start fail with a clear message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from klamm.net.listening_socket import listening_socket
from klamm.telemetry.metrics import MetricsRegistry

if TYPE_CHECKING:
    from uvicorn import Server


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
        server = await asyncio.to_thread(self._server)
        if stop.is_set():
            return
        serving = asyncio.create_task(server.serve(sockets=[self._socket]), name="http-server")
        await stop.wait()
        server.should_exit = True
        await serving

    def _server(self) -> Server:
        """Runs in a thread, because it does the slow imports."""
        from klamm.server.http_server import http_server

        return http_server(self._metrics, self._not_ready)
