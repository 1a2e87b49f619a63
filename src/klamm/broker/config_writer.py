"""Writes overrides to /config: the entity first, the notification that makes brokers read it second (KIP-21)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from klamm.model.errors import BadVersion, ErrorCode, KafkaError, NodeExists, NoNode, ZooKeeperError
from klamm.model.ports import Check, Create, Op, Set, ZooKeeper
from klamm.zookeeper.change_notifications import announce
from klamm.zookeeper.znodes import config, config_change

Change = Callable[[dict[str, str]], Mapping[str, str]]
"""From the overrides that are stored to those that shall be. Raises KafkaError to refuse."""


class ConfigWriter:
    def __init__(self, zk: ZooKeeper) -> None:
        self._zk = zk

    async def read(self, entity: str) -> dict[str, str]:
        """`entity` is a path below /config, such as `topics/orders`."""
        path = f"{config.PARENT}/{entity}"
        (node,) = await self._zk.get_many([path])
        return config.decode(path, node.data if node is not None else None)

    async def change(self, entity: str, change: Change, *, owner: str | None = None, validate_only: bool) -> None:
        """Apply `change` to what is stored, and tell the brokers. Two writers at the same time do not lose each other's
        keys: the write is conditional on the version that was read. `owner` is a znode without which the overrides must
        not exist: those of a topic that is gone would wait for the next topic of that name."""
        path = f"{config.PARENT}/{entity}"
        while True:
            (node,) = await self._zk.get_many([path])
            wanted = dict(change(config.decode(path, node.data if node is not None else None)))
            if validate_only:
                return
            data = config.encode(wanted)
            ops: list[Op] = [Create(path, data) if node is None else Set(path, data, node.stat.version)]
            if owner is not None:
                ops.append(Check(owner, -1))
            results = await self._zk.multi(ops)
            if isinstance(results[0], NoNode) and node is None:
                await self._zk.ensure_path(path.rpartition("/")[0])
            elif owner is not None and isinstance(results[-1], NoNode):
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            elif not isinstance(results[0], (BadVersion, NodeExists, NoNode)):
                for failed in results:
                    if isinstance(failed, ZooKeeperError):
                        raise failed
                break
        await announce(self._zk, config_change.PREFIX, config_change.encode(entity))
