"""The connection of a starting broker to ZooKeeper: it waits as long as the configuration says, and says so."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from klamm.model.config import BrokerConfig
from klamm.model.errors import ConfigError, ConnectionLoss
from klamm.model.ports import Ports
from klamm.zookeeper.client import ZooKeeperClient

logger = logging.getLogger(__name__)

SILENT_WAIT: Final = 1.0
"""Seconds until a broker says that it waits for ZooKeeper."""


async def connect(config: BrokerConfig, ports: Ports) -> ZooKeeperClient:
    """A new session. Raises ConfigError if no server answers in time."""
    zk = ZooKeeperClient(
        ports.network,
        ports.clock,
        ports.random,
        config.zookeeper_connect,
        config.zookeeper_session_timeout_ms,
        connection_timeout_ms=max(config.zookeeper_connection_timeout_ms, 0) or None,
    )
    waiting = asyncio.get_running_loop().call_later(SILENT_WAIT, _say_waiting, config, zk)
    try:
        await zk.start()
    except ConnectionLoss as error:
        raise ConfigError(f"zookeeper.connect={config.zookeeper_connect}: {error}") from None
    finally:
        waiting.cancel()
    return zk


def _say_waiting(config: BrokerConfig, zk: ZooKeeperClient) -> None:
    logger.warning("waiting for ZooKeeper, zookeeper.connect=%s: %s", config.zookeeper_connect, zk.last_error)
