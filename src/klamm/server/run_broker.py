"""klamm broker: run one broker in the foreground."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from klamm.model.config import BrokerConfig, read_broker_config
from klamm.server import runtime
from klamm.server.broker_server import BrokerServer

logger = logging.getLogger(__name__)


def run_broker(properties: Mapping[str, str]) -> None:
    config, warnings = read_broker_config(properties)
    runtime.log_to_stderr()
    for warning in warnings:
        logger.warning("%s", warning)
    runtime.run(_serve(config))


async def _serve(config: BrokerConfig) -> int:
    stop = runtime.stop_on_signals()
    server = BrokerServer(config, runtime.real_ports())
    async with server.running():
        if server.http is not None:
            logger.info("metrics at %s/metrics", server.http.url)
        print(f"broker {server.id} ready: {', '.join(map(str, server.endpoints))}", flush=True)
        await stop.wait()
        logger.info("stopping: controlled shutdown")
    return 0
