"""klamm dashboard: the process. It observes the cluster in one thread and serves the pages in another."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from contextlib import nullcontext
from typing import Any, Final

import uvicorn

from klamm.dashboard.app import application
from klamm.dashboard.feed import Feed
from klamm.dashboard.observing_thread import ObservingThread
from klamm.dashboard.settings import DashboardSettings
from klamm.model.errors import ConfigError
from klamm.net.listening_socket import listening_socket

CONNECTIONS_MAX: Final = 256
GRACE_SECONDS: Final = 1


class _Server(uvicorn.Server):
    def capture_signals(self) -> Any:
        return nullcontext()  # they are handled here


def run_dashboard(settings: DashboardSettings) -> None:
    """Until SIGTERM or Ctrl-C. Raises ConfigError, NoBroker or ConnectionLoss if it cannot start."""
    settings.check()
    logging.basicConfig(level=logging.WARNING, format="[%(asctime)s] %(levelname)s %(message)s (%(name)s)")
    with listening_socket(settings.host, settings.port) as listening, asyncio.Runner() as runner:
        runner.run(serve(settings, listening))


async def serve(settings: DashboardSettings, listening: socket.socket) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    feed = Feed()
    port = int(listening.getsockname()[1])
    async with ObservingThread(settings, feed.put).running() as failed:
        server = server_of(settings, feed, port)
        serving = asyncio.create_task(server.serve(sockets=[listening]), name="pages")
        print(f"dashboard ready: {url(settings, port)}", flush=True)
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait((stopped, serving, failed), return_when=asyncio.FIRST_COMPLETED)
        feed.close()
        server.should_exit = True
        await serving
        stopped.cancel()
        if failed.done():
            failed.result()


def url(settings: DashboardSettings, port: int) -> str:
    scheme = "https" if settings.certificate is not None else "http"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{scheme}://{host}:{port}"


def server_of(settings: DashboardSettings, feed: Feed, port: int) -> uvicorn.Server:
    config = uvicorn.Config(
        application(settings, feed, port),
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
        limit_concurrency=CONNECTIONS_MAX,
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.key,
    )
    try:
        config.load()
    except OSError as error:
        raise ConfigError(f"--tls-certificate or --tls-key cannot be used: {error}") from None
    return _Server(config)
