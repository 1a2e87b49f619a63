"""The configuration of topics: ZooKeeper's overrides on top of this broker's defaults.

It is read when a log is created. A bad znode (edited by hand, or written by a newer version) must not keep a partition
offline: bad keys are reported and left out, the rest applies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence

from klamm.model.config import TopicConfig, topic_config, topic_keys_without_effect
from klamm.model.errors import ConnectionLoss, KafkaError, SessionExpired, ZNodeError
from klamm.model.ports import Clock, Node, ZooKeeper
from klamm.zookeeper.retries import RECONNECT_PAUSE_S
from klamm.zookeeper.znodes import config

log = logging.getLogger(__name__)


class TopicConfigs:
    def __init__(self, zk: ZooKeeper, clock: Clock, defaults: TopicConfig, patience: float) -> None:
        self._zk = zk
        self._clock = clock
        self.defaults = defaults
        self._patience = patience
        self.generation = 0
        """Grows with every reported change of overrides: what was read before may be outdated."""

    async def read(self, topics: Iterable[str]) -> dict[str, TopicConfig]:
        """Raises ConnectionLoss or SessionExpired."""
        names = sorted(topics)
        paths = [config.topic_path(name) for name in names]
        nodes = await self.nodes(paths)
        return {
            name: self._effective(path, node.data if node is not None else None)
            for name, path, node in zip(names, paths, nodes, strict=True)
        }

    async def nodes(self, paths: Sequence[str], *, synced: bool = False) -> list[Node | None]:
        """What an order needs to know of ZooKeeper. If `synced`, this and later reads are at least as new as the order:
        this broker's server may be behind the controller's. Retries for a while when the connection is lost, because
        the controller does not repeat a failed order."""
        deadline = self._clock.monotonic() + self._patience
        while True:
            try:
                if synced:
                    await self._zk.sync("/")
                return await self._zk.get_many(paths)
            except (ConnectionLoss, SessionExpired):
                if self._clock.monotonic() >= deadline:
                    raise
                await asyncio.sleep(RECONNECT_PAUSE_S)

    def _effective(self, path: str, data: bytes | None) -> TopicConfig:
        try:
            overrides = config.decode(path, data)
        except ZNodeError as error:
            log.error("ignoring a topic configuration: %s", error)
            return self.defaults
        return usable_config(self.defaults, overrides, path)


def usable_config(defaults: TopicConfig, overrides: Mapping[str, str], where: str) -> TopicConfig:
    usable, refused = usable_overrides(defaults, overrides)
    for key, reason in (refused | topic_keys_without_effect(usable)).items():
        log.warning("%s: %s=%s has no effect: %s", where, key, overrides[key], reason)
    return topic_config(defaults, usable)


def usable_overrides(defaults: TopicConfig, overrides: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """What can be used, each key together with those before it, and why each of the others cannot."""
    usable: dict[str, str] = {}
    refused: dict[str, str] = {}
    for key, value in overrides.items():
        try:
            topic_config(defaults, {**usable, key: value})
        except KafkaError as error:
            refused[key] = str(error.message)
        else:
            usable[key] = value
    return usable, refused
