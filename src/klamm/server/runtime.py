"""The real ports, and how a server process runs: uvloop and signals."""

from __future__ import annotations

import asyncio
import encodings.idna  # noqa: F401 the first socket needs it, and a fork server has it at hand for all
import logging
import os
import random
import resource
import signal
import sys
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, Final

import orjson
import uvloop

from klamm.log.disk import FileDisk
from klamm.model.errors import ConfigError
from klamm.model.ports import Ports
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.server.garbage import GarbageCollection
from klamm.telemetry.log_file import LogFile

logger = logging.getLogger(__name__)

TEXT_FORMAT: Final = "[%(asctime)s] %(levelname)s %(message)s (%(name)s)"


def real_ports(disk_workers: int = 4) -> Ports:
    return Ports(SystemClock(), AsyncioNetwork(), FileDisk(disk_workers), random.Random())


def raise_descriptor_limit() -> None:
    """A broker needs a descriptor for every connection and every log in use, and the usual soft limit is 1,024. The JVM
    raises its own in the same way."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            logger.warning("the limit of %d open files cannot be raised to %d: %s", soft, hard, error)


def run(main: Coroutine[Any, Any, int]) -> None:
    """Run a server in this process until it ends, and exit with its code."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(_with_garbage_collection(main)))


async def _with_garbage_collection(main: Coroutine[Any, Any, int]) -> int:
    async with GarbageCollection().running():
        return await main


class Stop:
    """Set by the first SIGTERM, SIGINT or SIGHUP. The second calls `hurry`, which ends the process unless replaced."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self.hurry: Callable[[], object] = lambda: os._exit(1)

    async def wait(self) -> None:
        await self._asked.wait()

    def on_signal(self) -> None:
        if self._asked.is_set():
            self.hurry()
        self._asked.set()


def stop_on_signals() -> Stop:
    stop = Stop()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop.on_signal)
    return stop


class JsonLines(logging.Formatter):
    """One JSON object per line, for programs that collect logs."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(fields).decode()


def start_logging(level: int = logging.INFO, *, json: bool = False, file: str | None = None) -> None:
    """To stderr, or to a file that rotates. Raises ConfigError if that cannot be written."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if file is not None:
        try:
            handler = LogFile(file)
        except OSError as error:
            raise ConfigError(f"--log-file {file} cannot be written: {error.strerror}") from None
    handler.setFormatter(JsonLines() if json else logging.Formatter(TEXT_FORMAT))
    logging.basicConfig(level=level, handlers=[handler], force=True)
