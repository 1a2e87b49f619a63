"""An asyncio client for ZooKeeper that reads and writes in bulk; implements `klamm.model.ports.ZooKeeper`."""

from klamm.zookeeper.client.client import ZooKeeperClient
from klamm.zookeeper.client.session import SessionState

__all__ = ["SessionState", "ZooKeeperClient"]
