"""The real world behind the ports, and how a server process runs in it: uvloop and signals."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import signal
import sys
from collections.abc import Coroutine
from typing import Any, Final

import uvloop

from klamm.log.disk import FileDisk
from klamm.model.ports import Ports
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork

GC_THRESHOLD: Final = 10_000
"""Objects that may come without one going before the collector looks at the young ones. Python's 700 are for scripts: a
server makes that many with every large request, and finds no garbage in them."""


def real_ports(disk_workers: int = 4) -> Ports:
    return Ports(SystemClock(), AsyncioNetwork(), FileDisk(disk_workers), random.Random())


def run(main: Coroutine[Any, Any, int]) -> None:
    """Run a server to its end in this process and exit with its code."""
    gc.set_threshold(GC_THRESHOLD)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(main))


def stop_on_signals() -> asyncio.Event:
    """Set by SIGTERM or SIGINT. A second one finds the default handler and ends the process at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(number: int) -> None:
        loop.remove_signal_handler(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    return stop


def log_to_stderr(level: int = logging.INFO) -> None:
    logging.basicConfig(
        level=level, stream=sys.stderr, format="[%(asctime)s] %(levelname)s %(message)s (%(name)s)", force=True
    )
