"""Keeps the processes of a local cluster running: says when one ends, and starts it again after a pause.

The pause doubles with each death, up to half a minute, and is short again once the process has lived for a while.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Protocol

from klamm.model.errors import KlammError
from klamm.server.local_cluster import LocalCluster
from klamm.server.server_process import ServerProcess
from klamm.telemetry.rotating_file import copy_and_truncate
from klamm.zookeeper.server.embedded import ZooKeeperNotStarted

PAUSE_FIRST: Final = 1.0
PAUSE_MAX: Final = 30.0
SETTLED_SECONDS: Final = 60.0
ROTATE_SECONDS: Final = 30.0

Say = Callable[[str], None]


class Process(Protocol):
    @property
    def alive(self) -> bool: ...

    async def start(self) -> object: ...

    async def wait_ended(self) -> int: ...


@asynccontextmanager
async def supervised(
    cluster: LocalCluster, say: Say, pause_first: float = PAUSE_FIRST, *, dashboard: ServerProcess | None = None
) -> AsyncIterator[None]:
    """For the length of the `with`, every process that ends is started again. Enter it when all of them run."""
    processes: dict[str, Process] = {broker.name: broker for broker in cluster.brokers.values()}
    if cluster.zookeeper_server is not None:
        processes["ZooKeeper"] = cluster.zookeeper_server
    if dashboard is not None:
        processes[dashboard.name] = dashboard
    keepers = [
        asyncio.create_task(_keep(name, process, say, pause_first), name=f"keep {name}")
        for name, process in processes.items()
    ]
    logs = [broker.log for broker in cluster.brokers.values()] + ([dashboard.log] if dashboard is not None else [])
    keepers.append(asyncio.create_task(_rotate(logs), name="rotate logs"))
    try:
        yield
    finally:
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)


async def _keep(name: str, process: Process, say: Say, pause_first: float) -> None:
    pause = pause_first
    while True:
        started = time.monotonic()
        code = await process.wait_ended()
        if time.monotonic() - started > SETTLED_SECONDS:
            pause = pause_first
        say(f"{name} {_how(code)}; it starts again in {pause:g} s")
        while True:
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX)
            began = time.monotonic()
            try:
                await process.start()
            except (KlammError, ZooKeeperNotStarted, OSError) as error:
                say(f"{name} did not start: {error}; next attempt in {pause:g} s")
            else:
                say(f"{name} is back after {time.monotonic() - began:.1f} s")
                break


async def _rotate(logs: Sequence[Path]) -> None:
    """Keep the logs of the brokers, which are their standard output, from growing without end."""
    while True:
        for log in logs:
            await asyncio.to_thread(copy_and_truncate, str(log))
        await asyncio.sleep(ROTATE_SECONDS)


def _how(code: int) -> str:
    """
    >>> _how(-9), _how(1)
    ('was killed by SIGKILL', 'ended with code 1')
    """
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
