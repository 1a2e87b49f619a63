"""klamm broker: run one broker in the foreground."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Mapping
from typing import Final

from klamm import __version__
from klamm.model.config import BrokerConfig, read_broker_config
from klamm.server import runtime
from klamm.server.broker_server import BrokerServer
from klamm.server.generated_id import with_id
from klamm.server.loop_watchdog import LoopWatchdog
from klamm.telemetry.log_file import HEADING

logger = logging.getLogger(__name__)

SECRET_WORDS: Final = ("password", "secret", "master.key", "jaas")


def run_broker(properties: Mapping[str, str], *, json_log: bool = False, log_file: str | None = None) -> None:
    config, warnings = read_broker_config(properties)
    runtime.start_logging(json=json_log, file=log_file)
    runtime.raise_descriptor_limit()
    version = platform.python_version()
    logger.info("klamm %s, Python %s, process %d", __version__, version, os.getpid(), extra=HEADING)
    settings = ", ".join(f"{key}={shown(key, value)}" for key, value in sorted(properties.items()))
    logger.info("settings: %s", settings, extra=HEADING)
    for warning in warnings:
        logger.warning("%s", warning)
    runtime.run(_serve(config))


def shown(key: str, value: str) -> str:
    """The value of a setting as a log may show it.

    >>> shown("ssl.key.password", "x"), shown("num.partitions", "3")
    ('[hidden]', '3')
    """
    return "[hidden]" if any(word in key for word in SECRET_WORDS) else value


async def _serve(config: BrokerConfig) -> int:
    stop = runtime.stop_on_signals()
    ports = runtime.real_ports()
    server = BrokerServer(await with_id(config, ports), ports)
    async with LoopWatchdog().running(), server.running():
        if server.http is not None:
            logger.info("metrics at %s/metrics", server.http.url)
        print(f"broker {server.id} ready: {', '.join(map(str, server.endpoints))}", flush=True)
        await stop.wait()
        logger.info("stopping: controlled shutdown")
    return 0
