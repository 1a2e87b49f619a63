"""Changed configuration reaches a running broker: /config/changes says whose overrides to read again (KIP-21).

Writers put the overrides first and the notification second; a reader lists the notifications, handles those that it has
not seen, in their order, and reads what they point to as it is by then. All are handled at the start and after every
new session: nothing can be missed, everything may be repeated. Old ones are swept away by whoever meets them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from klamm.model.errors import ConnectionLoss, NoNode, SessionExpired, ZNodeError
from klamm.model.ports import Clock, Delete, Node, WatchEvent, ZooKeeper
from klamm.zookeeper.znodes import config_change

log = logging.getLogger(__name__)

KEPT_MS: Final = 15 * 60 * 1000
RETRY_AFTER: Final = 0.5


class ConfigChanges:
    def __init__(self, zk: ZooKeeper, clock: Clock, apply: Callable[[str], Awaitable[None]]) -> None:
        """`apply` is given the path of the entity below /config, such as `topics/orders`."""
        self._zk = zk
        self._clock = clock
        self._apply = apply
        self._last = ""
        self._changed = asyncio.Event()

    # --- SessionListener: the watch went with the session ---

    async def before_new_session(self) -> None:
        pass

    async def after_new_session(self) -> None:
        self._changed.set()

    async def on_auth_failure(self) -> None:
        pass

    # --- life ---

    async def run(self) -> None:
        self._zk.add_session_listener(self)
        self._changed.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._handle_all()
            except (ConnectionLoss, SessionExpired) as error:
                log.info("configuration changes are read again soon: %s", error)
                await asyncio.sleep(RETRY_AFTER)
                self._changed.set()

    async def _handle_all(self) -> None:
        try:
            names = sorted(await self._zk.children(config_change.PARENT, self._on_watch))
        except NoNode:
            await self._zk.ensure_path(config_change.PARENT)
            names = sorted(await self._zk.children(config_change.PARENT, self._on_watch))
        paths = [config_change.path(name) for name in names]
        nodes = await self._zk.get_many(paths)
        for name, path, node in zip(names, paths, nodes, strict=True):
            if name > self._last:
                await self._handle(path, node)
                self._last = name
        await self._sweep(paths, nodes)

    async def _handle(self, path: str, node: Node | None) -> None:
        if node is None:
            return  # swept away meanwhile, so it was old
        try:
            entity = config_change.decode(path, node.data)
        except ZNodeError as error:
            log.error("configuration change skipped: %s", error)
            return
        await self._apply(entity)

    async def _sweep(self, paths: list[str], nodes: list[Node | None]) -> None:
        oldest = self._clock.wall_ms() - KEPT_MS
        old = [
            path for path, node in zip(paths, nodes, strict=True) if node is not None and node.stat.ctime_ms < oldest
        ]
        if old:
            await self._zk.write_many([Delete(path) for path in old])  # somebody else may be faster

    def _on_watch(self, event: WatchEvent) -> None:
        self._changed.set()
