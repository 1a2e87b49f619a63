"""Change notifications: sequential nodes below one parent that tell every broker what to read again.

Changes of configuration, ACLs and delegation tokens are announced this way (Kafka: ZkNodeChangeNotificationListener).
Each broker handles each node once, in the order of the sequence numbers; an error in one is reported and does not
affect the next. A broker does not delete a node that it has read, because others may not have read it; it deletes nodes
that are older than 15 minutes. At its start a broker handles all nodes that exist.

A watch only says that something is new. The sequence numbers say what to handle, so the next read makes up for merged
events, a lost connection or a new session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from klamm.model.errors import ConnectionLoss, NoNode, SessionExpired, ZooKeeperError
from klamm.model.ports import OPEN_ACL, Acl, Clock, CreateMode, Delete, Node, WatchEvent, ZooKeeper
from klamm.zookeeper.retries import children_or_none, until_connected

log = logging.getLogger(__name__)

PURGED_AFTER_MS: Final = 15 * 60 * 1000
RETRY_AFTER: Final = 0.1
SEQUENCE_DIGITS: Final = 10

Handle = Callable[[str, bytes | None], Awaitable[None]]
"""Path and content of a notification."""


async def announce(zookeeper: ZooKeeper, prefix: str, data: bytes, acl: tuple[Acl, ...] = OPEN_ACL) -> str:
    """Create the next notification, and its parent if that is missing. A duplicate after a lost reply does no harm."""
    return await until_connected(lambda: _create_notification(zookeeper, prefix, data, acl), pause_s=0)


async def _create_notification(zookeeper: ZooKeeper, prefix: str, data: bytes, acl: tuple[Acl, ...]) -> str:
    while True:
        try:
            path, _ = await zookeeper.create(prefix, data, CreateMode.PERSISTENT_SEQUENTIAL, acl)
            return path
        except NoNode:
            await zookeeper.ensure_path(prefix.rpartition("/")[0])


class ChangeNotifications:
    def __init__(self, zookeeper: ZooKeeper, clock: Clock, prefix: str, handle: Handle) -> None:
        self.last_handled = -1
        self._zookeeper = zookeeper
        self._clock = clock
        self._parent, _, self._name = prefix.rpartition("/")
        self._handle = handle
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Runs until its owner cancels it."""
        self._zookeeper.add_session_listener(self)
        self._wake.set()
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self.look()
            except SessionExpired:
                continue  # `after_new_session` wakes it again
            except ZooKeeperError as error:
                log.warning("cannot read the notifications below %s, will retry: %s", self._parent, error)
                self._wake.set()
                await asyncio.sleep(RETRY_AFTER)

    async def look(self) -> None:
        """Handle new notifications, delete old ones, watch for more. Raises ConnectionLoss and SessionExpired."""
        paths = await self._paths()
        nodes = await self._zookeeper.get_many(paths)
        for path, node in zip(paths, nodes, strict=True):
            number = _number(path)
            if node is not None and number > self.last_handled:
                await self._handle_one(path, node)
                self.last_handled = number
        await self._purge([path for path, node in zip(paths, nodes, strict=True) if node and self._is_old(node)])

    # --- SessionListener ---

    async def before_new_session(self) -> None:
        pass

    async def after_new_session(self) -> None:
        self._wake.set()  # the watch ended with the session

    async def on_auth_failure(self) -> None:
        pass

    # --- internals ---

    def _on_event(self, event: WatchEvent) -> None:
        self._wake.set()

    async def _paths(self) -> list[str]:
        names = await children_or_none(self._zookeeper, self._parent, self._on_event)
        if names is None:
            await self._zookeeper.ensure_path(self._parent)
            names = await self._zookeeper.children(self._parent, self._on_event)
        return sorted(
            (f"{self._parent}/{name}" for name in names if _is_numbered(name, self._name)),
            key=_number,
        )

    async def _handle_one(self, path: str, node: Node) -> None:
        try:
            await self._handle(path, node.data)
        except (ConnectionLoss, SessionExpired):
            raise  # the notification is not at fault: handle it again
        except Exception:
            log.exception("%s: not handled", path)

    def _is_old(self, node: Node) -> bool:
        return self._clock.wall_ms() - node.stat.ctime_ms > PURGED_AFTER_MS

    async def _purge(self, paths: list[str]) -> None:
        """If another broker deletes one of them first, the whole multi fails; the next look deletes the rest."""
        if paths:
            await self._zookeeper.write_many([Delete(path) for path in paths])


def _is_numbered(name: str, prefix: str) -> bool:
    number = name.removeprefix(prefix)
    return name.startswith(prefix) and len(number) == SEQUENCE_DIGITS and number.isascii() and number.isdigit()


def _number(path: str) -> int:
    return int(path[-SEQUENCE_DIGITS:])
