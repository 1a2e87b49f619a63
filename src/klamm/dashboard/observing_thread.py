"""Runs the observer in a thread of its own, with an event loop of its own: decoding 100,000 partitions must not keep a
page waiting. Observations are immutable values; the thread hands each to the loop that serves the pages.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Final

from klamm.client.addresses import addresses
from klamm.client.cluster import ClusterClient
from klamm.dashboard.history import EventFiles, History
from klamm.dashboard.observation import Observation
from klamm.dashboard.observer import Observer
from klamm.dashboard.settings import DashboardSettings
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.zookeeper.client import ZooKeeperClient

SESSION_TIMEOUT_MS: Final = 10_000
BROKER_TIMEOUT: Final = 3.0


class ObservingThread:
    def __init__(self, settings: DashboardSettings, deliver: Callable[[Observation], None]) -> None:
        self._settings = settings
        self._deliver = deliver

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Future[None]]:
        """On entry brokers and ZooKeeper have answered; raises what keeps them. The future ends only if observing
        fails, which is a bug."""
        pages = asyncio.get_running_loop()
        connected: asyncio.Future[None] = pages.create_future()
        ended: asyncio.Future[None] = pages.create_future()
        runner = asyncio.Runner()
        stop: list[Callable[[], object]] = []

        async def observe() -> None:
            task = asyncio.current_task()
            assert task is not None
            loop = asyncio.get_running_loop()
            stop.append(lambda: _tell(loop, task.cancel))
            await self._observe(
                lambda: _tell(pages, lambda: connected.set_result(None)),
                lambda observation: _tell(pages, lambda: self._deliver(observation)),
            )

        def thread() -> None:
            try:
                with runner:
                    runner.run(observe())
            except asyncio.CancelledError:
                pass
            except BaseException as error:  # handed to the other loop, which raises it
                failure = error
                _tell(pages, lambda: _fail(connected, ended, failure))

        worker = threading.Thread(target=thread, name="observer", daemon=True)
        worker.start()
        try:
            await connected
            yield ended
        finally:
            for end in stop:
                end()
            await asyncio.to_thread(worker.join, SESSION_TIMEOUT_MS / 1000)

    async def _observe(self, connected: Callable[[], None], publish: Callable[[Observation], None]) -> None:
        settings, clock = self._settings, SystemClock()
        zk = ZooKeeperClient(AsyncioNetwork(), clock, Random(), settings.zookeeper, SESSION_TIMEOUT_MS)
        cluster = ClusterClient(addresses(settings.bootstrap), client_id="klamm-dashboard", timeout=BROKER_TIMEOUT)
        async with cluster.running(), zk.running():
            connected()
            history = History(EventFiles(settings.events))
            await Observer(zk, cluster, history, clock, publish).run()


def _tell(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        pass  # that loop has ended: nothing is left to tell


def _fail(connected: asyncio.Future[None], ended: asyncio.Future[None], error: BaseException) -> None:
    target = ended if connected.done() else connected
    if not target.done():
        target.set_exception(error)
