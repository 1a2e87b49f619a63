"""The registration of this broker, and what to do when its id or an address is already registered.

- The same id with the same endpoints belongs to an earlier process of this broker, which was killed and whose session
  is still alive. Log it and wait until ZooKeeper ends that session, for at most the session timeout and two seconds.
- The same id with other endpoints, or one of the addresses under another id, is a configuration error, and the broker
  does not start. So is an address that no controller would accept.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from klamm.model.brokers import Broker
from klamm.model.errors import ConfigError, NodeExists, NoNode, ZNodeError
from klamm.model.ids import BrokerEpoch
from klamm.model.ports import Clock, ZooKeeper
from klamm.zookeeper.znodes import broker_id, registration

logger = logging.getLogger(__name__)

WAIT_BEYOND_SESSION: Final = 2.0
POLL: Final = 0.1


class Registration:
    def __init__(self, zk: ZooKeeper, clock: Clock, me: Broker) -> None:
        self._zk = zk
        self._clock = clock
        self._me = me
        self.session_id: int | None = None
        """The session of the last registration."""

    async def first(self) -> BrokerEpoch:
        """Register at the start of the process."""
        self._refuse_bad_addresses()
        await self._refuse_taken_addresses()
        deadline = self._clock.monotonic() + self._zk.session_timeout_ms / 1000 + WAIT_BEYOND_SESSION
        logged = False
        while True:
            try:
                return await self.again()
            except NodeExists as taken:
                former = await self._registered()
                if former is not None and former.endpoints != self._me.endpoints:
                    raise ConfigError(
                        f"broker.id={self._me.id} is registered by another broker at "
                        f"{', '.join(map(str, former.endpoints))}: every broker needs its own id"
                    ) from None
                if self._clock.monotonic() > deadline:
                    raise ConfigError(f"broker.id={self._me.id} is still registered: {taken}") from None
                if not logged:
                    logger.info("waiting for the session of an earlier process of this broker to end (%s)", taken)
                    logged = True
                await asyncio.sleep(POLL)

    async def again(self) -> BrokerEpoch:
        """Register again after each new session. The epoch identifies this registration."""
        document = broker_id.encode(self._me, self._clock.wall_ms())
        epoch = await registration.register(self._zk, self._me.id, document, previous_session_id=self.session_id)
        if self._me.recovered is True:  # when only the session is new, the logs have lost nothing more
            self._me = self._me._replace(recovered=epoch)
        self.session_id = self._zk.session_id
        return epoch

    async def _registered(self) -> Broker | None:
        path = broker_id.path(self._me.id)
        try:
            return broker_id.decode(path, (await self._zk.get(path)).data)
        except NoNode:
            return None
        except ZNodeError as error:
            raise ConfigError(f"broker.id={self._me.id} has an unreadable registration: {error}") from None

    def _refuse_bad_addresses(self) -> None:
        try:
            broker_id.decode(broker_id.path(self._me.id), broker_id.encode(self._me, 0))
        except ZNodeError as error:
            raise ConfigError(f"advertised.listeners: {error.reason}") from None

    async def _refuse_taken_addresses(self) -> None:
        ours = {(endpoint.host, endpoint.port) for endpoint in self._me.endpoints}
        names = [name for name in await self._zk.children(broker_id.PARENT) if name != str(self._me.id)]
        paths = [f"{broker_id.PARENT}/{name}" for name in sorted(names)]
        for path, node in zip(paths, await self._zk.get_many(paths), strict=True):
            if node is None:
                continue
            try:
                other = broker_id.decode(path, node.data)
            except ZNodeError:
                continue  # the controller reports it; there is no address to compare
            for endpoint in other.endpoints:
                if (endpoint.host, endpoint.port) in ours:
                    raise ConfigError(
                        f"advertised.listeners: {endpoint.host}:{endpoint.port} is registered by broker {other.id}"
                    )
