"""Configuration that may change while a broker runs: that of topics, and the replication throttles.

Topics follow Kafka's order of precedence: overrides in /config/topics/<t> come before this broker's own values. The two
replication rates exist only in /config/brokers/<id>. A value that cannot be used is reported and left out.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from klamm.broker.replication_quota import ReplicationQuota
from klamm.broker.topic_configs import TopicConfigs
from klamm.log.log_manager import LogManager
from klamm.model.errors import ZNodeError
from klamm.model.ids import BrokerId
from klamm.model.ports import ZooKeeper
from klamm.zookeeper.znodes import config

log = logging.getLogger(__name__)

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"


class DynamicConfigs:
    def __init__(
        self,
        me: BrokerId,
        zk: ZooKeeper,
        topics: TopicConfigs,
        logs: LogManager,
        leader_quota: ReplicationQuota,
        follower_quota: ReplicationQuota,
    ) -> None:
        self._path = config.path(config.BROKERS, str(me))
        self._zk = zk
        self._topics = topics
        self._logs = logs
        self._leader_quota = leader_quota
        self._follower_quota = follower_quota

    async def apply(self, entity: str) -> None:
        """`entity` is a path below /config. Only topics and this broker matter here."""
        kind, _, name = entity.partition("/")
        if kind == config.TOPICS:
            self._topics.generation += 1
            configs = await self._topics.read([name])
            self._logs.reconfigure(name, configs[name])
        elif f"{config.PARENT}/{entity}" == self._path:
            await self.apply_rates()

    async def apply_rates(self) -> None:
        (node,) = await self._zk.get_many([self._path])
        try:
            overrides = config.decode(self._path, node.data if node is not None else None)
        except ZNodeError as error:
            log.error("ignoring the configuration of this broker: %s", error)
            return
        self._leader_quota.limit = self._rate(overrides, LEADER_RATE)
        self._follower_quota.limit = self._rate(overrides, FOLLOWER_RATE)

    def _rate(self, overrides: Mapping[str, str], key: str) -> float | None:
        raw = overrides.get(key)
        if raw is None:
            return None
        if raw.isdecimal():
            return float(raw)
        log.warning("%s: %s=%s has no effect: the value must be a number of bytes per second", self._path, key, raw)
        return None
