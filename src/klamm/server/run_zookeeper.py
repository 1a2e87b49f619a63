"""klamm zookeeper: run klamm's own ZooKeeper server in the foreground."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from klamm.model.errors import ConfigError
from klamm.server import runtime
from klamm.zookeeper.server.journal import FileJournal
from klamm.zookeeper.server.memory import MemoryZooKeeper

SESSION_TIMEOUT_MS_MAX: Final = 40_000
"""As in ZooKeeper's own default configuration. Less would cut Kafka's default of 18 s."""


def run_zookeeper(*, port: int, data: Path | None, sync: bool = True) -> None:
    runtime.start_logging()
    runtime.run(_serve(port, data, sync))


async def _serve(port: int, data: Path | None, sync: bool) -> int:
    stop = runtime.stop_on_signals()
    ports = runtime.real_ports()
    journal = None if data is None else FileJournal(data, sync=sync)
    server = MemoryZooKeeper(
        ports.network, ports.clock, ports.random, journal=journal, session_timeout_ms_max=SESSION_TIMEOUT_MS_MAX
    )
    try:
        async with server.running("127.0.0.1", port):
            print(f"ZooKeeper ready: 127.0.0.1:{server.port}", flush=True)
            stopping, failing = asyncio.create_task(stop.wait()), asyncio.create_task(server.failed())
            done, pending = await asyncio.wait((stopping, failing), return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
            return 1 if failing in done else 0
    except OSError as error:
        raise ConfigError(f"cannot listen on 127.0.0.1:{port}: {error.strerror or error}") from None
