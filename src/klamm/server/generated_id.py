"""The id of a broker whose file has none: the one that its log directories remember, else the next one of ZooKeeper.

Each set of a znode raises its version, so every broker of the cluster gets another number; generated ids begin above
those that files may have. The broker stores its id in meta.properties once it is registered, as any other id. A start
that fails before that wastes a number.
"""

from __future__ import annotations

from dataclasses import replace

from klamm.log.directories.log_directories import LogDirectories
from klamm.model.config import BrokerConfig
from klamm.model.ports import Ports
from klamm.server.zookeeper_connection import connect
from klamm.zookeeper.znodes.broker_id import SEQUENCE_PATH


async def with_id(config: BrokerConfig, ports: Ports) -> BrokerConfig:
    """The configuration with the broker's id. Raises ConfigError if ZooKeeper or the directories do not give one."""
    if config.broker_id >= 0 or not config.broker_id_generation_enable:
        return config
    stored = LogDirectories(ports.disk, config.log_dirs).read_meta().broker_id
    return replace(config, broker_id=await _next_id(config, ports) if stored is None else stored)


async def _next_id(config: BrokerConfig, ports: Ports) -> int:
    zk = await connect(config, ports)
    try:
        await zk.ensure_path(SEQUENCE_PATH)
        return config.reserved_broker_max_id + (await zk.set(SEQUENCE_PATH, None)).version
    finally:
        await zk.close()
