"""Applies configuration changes to a running broker: /config/changes names the overrides to read again (KIP-21).

Writers store the overrides first and the notification second, so a reader of the notification finds the new overrides.
At the start the broker handles all notifications that exist: it misses none and may repeat some.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from klamm.model.errors import ZNodeError
from klamm.model.ports import Clock, ZooKeeper
from klamm.zookeeper.change_notifications import ChangeNotifications
from klamm.zookeeper.znodes import config_change

log = logging.getLogger(__name__)


class ConfigChanges:
    def __init__(self, zk: ZooKeeper, clock: Clock, apply: Callable[[str], Awaitable[None]]) -> None:
        """`apply` takes the path of the entity below /config, such as `topics/orders`."""
        self._notifications = ChangeNotifications(zk, clock, config_change.PREFIX, self._handle)
        self._apply = apply

    async def run(self) -> None:
        await self._notifications.run()

    async def _handle(self, path: str, data: bytes | None) -> None:
        try:
            entity = config_change.decode(path, data)
        except ZNodeError as error:
            log.error("configuration change skipped: %s", error)
            return
        await self._apply(entity)
