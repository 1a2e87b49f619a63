"""The real ports, and how a server process runs: uvloop and signals."""

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
"""Number of new objects, minus freed ones, after which the garbage collector scans the young generation. Python's
default of 700 suits scripts: a server creates that many for every large request and finds no garbage in them."""


def real_ports(disk_workers: int = 4) -> Ports:
    return Ports(SystemClock(), AsyncioNetwork(), FileDisk(disk_workers), random.Random())


def run(main: Coroutine[Any, Any, int]) -> None:
    """Run a server in this process until it ends, and exit with its code."""
    gc.set_threshold(GC_THRESHOLD)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(main))


def stop_on_signals() -> asyncio.Event:
    """An event that SIGTERM or SIGINT sets. A second signal ends the process at once."""
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
