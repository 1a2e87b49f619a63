"""Configuration that may change while a broker runs: that of topics, and the dynamic keys of brokers (KIP-226).

Topics follow Kafka's order of precedence: overrides in /config/topics/<t> come before this broker's own values. A value
of another program that cannot be used is reported and left out; the others apply. Every change is computed from all
levels anew, so a removed key falls back to the level below (KAFKA-9625).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from klamm.broker.replication_quota import ReplicationQuota
from klamm.broker.topic_configs import TopicConfigs
from klamm.log.log_manager import LogManager
from klamm.model.config import BrokerConfig, topic_defaults
from klamm.model.config_levels import Overrides, levels_of, usable_overrides
from klamm.model.errors import ConfigError, ZNodeError
from klamm.model.ids import BrokerId
from klamm.model.ports import ZooKeeper
from klamm.model.settings import LONG_MAX
from klamm.zookeeper.znodes import config

log = logging.getLogger(__name__)

TOPICS_PER_SLICE: Final = 200
ALL_BROKERS: Final = config.path(config.BROKERS, config.DEFAULT_ENTITY)

Apply = Callable[[BrokerConfig], Awaitable[None]]


class DynamicConfigs:
    def __init__(
        self,
        me: BrokerId,
        file: BrokerConfig,
        zk: ZooKeeper,
        topics: TopicConfigs,
        logs: LogManager,
        leader_quota: ReplicationQuota,
        follower_quota: ReplicationQuota,
    ) -> None:
        self.me = me
        self.levels = levels_of(file, {}, {})
        self._path = config.path(config.BROKERS, str(me))
        self._zk = zk
        self._topics = topics
        self._logs = logs
        self._leader_quota = leader_quota
        self._follower_quota = follower_quota
        self._listeners: list[Apply] = []

    def when_changed(self, apply: Apply) -> None:
        """Call `apply` with the broker's configuration in effect after each change."""
        self._listeners.append(apply)

    async def apply(self, entity: str) -> None:
        """`entity` is a path below /config. Only topics and brokers matter here."""
        kind, _, name = entity.partition("/")
        if kind == config.TOPICS:
            self._topics.generation += 1
            configs = await self._topics.read([name])
            self._logs.reconfigure(name, configs[name])
        elif f"{config.PARENT}/{entity}" in (self._path, ALL_BROKERS):
            await self.load()

    async def load(self) -> None:
        """Read the overrides of this broker and of all brokers, and apply them."""
        paths = [ALL_BROKERS, self._path]
        nodes = await self._zk.get_many(paths)
        all_brokers, broker = (
            self._usable(path, node.data if node is not None else None) for path, node in zip(paths, nodes, strict=True)
        )
        try:
            self.levels = levels_of(self.levels.file, all_brokers, broker)
        except ConfigError as error:  # each value is valid, but not all of them together
            log.error("the dynamic configuration of this broker stays as it was: %s", error)
            return
        await self._apply_levels()

    async def _apply_levels(self) -> None:
        now = self.levels.config
        self._leader_quota.limit = _limit(self.levels.throttles.leader_rate)
        self._follower_quota.limit = _limit(self.levels.throttles.follower_rate)
        self._logs.use(now)
        await self._use_topic_defaults(now)
        for apply in self._listeners:
            try:
                await apply(now)
            except ConfigError as error:  # for instance a host name that has no address
                log.error("a changed setting has no effect: %s", error)

    async def _use_topic_defaults(self, now: BrokerConfig) -> None:
        defaults = topic_defaults(now)
        if defaults == self._topics.defaults:
            return
        self._topics.defaults = defaults
        self._topics.generation += 1
        names = sorted({log.topic_partition.topic for log in self._logs.logs()})
        for start in range(0, len(names), TOPICS_PER_SLICE):
            for name, effective in (await self._topics.read(names[start : start + TOPICS_PER_SLICE])).items():
                self._logs.reconfigure(name, effective)
            await asyncio.sleep(0)

    def _usable(self, path: str, data: bytes | None) -> Overrides:
        try:
            found = config.decode(path, data)
        except ZNodeError as error:
            log.error("ignoring a broker configuration: %s", error)
            return {}
        usable, refused = usable_overrides(found, for_one_broker=path == self._path)
        for key, reason in refused.items():
            log.warning("%s: %s has no effect: %s", path, key, reason)
        return usable


def _limit(rate: int) -> float | None:
    return None if rate == LONG_MAX else float(rate)
