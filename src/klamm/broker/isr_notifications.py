"""Tells the controller which ISRs changed, many partitions in one znode.

A check runs every 2.5 s. If changes are pending, and the last change is more than 5 s or the last notification more
than 60 s ago, one sequential node under /isr_change_notification lists all of them, as Kafka's ReplicaManager does. The
controller needs ISR changes only for its metadata, so a late notification is fine and a storm of them is not.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from klamm.model.errors import ZooKeeperError
from klamm.model.ids import TopicPartition
from klamm.model.ports import Clock, CreateMode, ZooKeeper
from klamm.zookeeper.znodes import isr_change

CHECK_EVERY: Final = 2.5
QUIET_FOR: Final = 5.0
AT_LATEST_AFTER: Final = 60.0

log = logging.getLogger(__name__)


class IsrNotifications:
    def __init__(self, zk: ZooKeeper, clock: Clock) -> None:
        self._zk = zk
        self._clock = clock
        self._pending: dict[TopicPartition, None] = {}
        self._last_change = clock.monotonic()
        self._last_sent = clock.monotonic()

    def record(self, partition: TopicPartition) -> None:
        self._pending[partition] = None
        self._last_change = self._clock.monotonic()

    def is_due(self) -> bool:
        now = self._clock.monotonic()
        return bool(self._pending) and (now - self._last_change > QUIET_FOR or now - self._last_sent > AT_LATEST_AFTER)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY)
            if self.is_due():
                await self.send()

    async def send(self) -> None:
        """The next check repeats a failed attempt; sending a notification twice does no harm."""
        partitions, self._pending = list(self._pending), {}
        try:
            await self._zk.create(isr_change.PREFIX, isr_change.encode(partitions), CreateMode.PERSISTENT_SEQUENTIAL)
        except ZooKeeperError as error:
            log.warning("cannot announce the ISR changes of %d partitions yet: %s", len(partitions), error)
            self._pending = dict.fromkeys(partitions) | self._pending
            return
        self._last_sent = self._clock.monotonic()
