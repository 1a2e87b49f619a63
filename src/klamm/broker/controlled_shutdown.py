"""The client side of a controlled shutdown: ask the controller to move this broker's leaderships before it stops.

The broker looks the controller up in the metadata cache, not in ZooKeeper: a dead ZooKeeper must not keep a broker from
stopping (KAFKA-9189). The request goes to the inter-broker listener. After the last failed attempt the broker stops
anyway, and its partitions move when its session ends.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from klamm.broker.metadata_cache import MetadataCache
from klamm.model.config import BrokerConfig
from klamm.model.errors import ErrorCode
from klamm.model.ids import BrokerEpoch, BrokerId
from klamm.model.ports import Ports
from klamm.model.wording import count
from klamm.net.client import BrokerConnection
from klamm.wire.apis import ApiKey
from klamm.wire.errors import ProtocolError
from klamm.wire.messages import decode_response, encode_request, request_class

VERSION: Final = 3
NAMED_MAX: Final = 3

log = logging.getLogger(__name__)


class ControlledShutdownClient:
    def __init__(self, me: BrokerId, config: BrokerConfig, ports: Ports, metadata: MetadataCache) -> None:
        self._me = me
        self._config = config
        self._ports = ports
        self._metadata = metadata

    async def run(self, broker_epoch: BrokerEpoch) -> bool:
        """True when this broker no longer leads anything."""
        attempts = self._config.controlled_shutdown_max_retries
        for attempt in range(1, attempts + 1):
            try:
                if await self._ask(broker_epoch):
                    return True
            except (OSError, ProtocolError) as error:
                log.warning("controlled shutdown, attempt %d of %d failed: %s", attempt, attempts, error)
            if attempt < attempts:
                await asyncio.sleep(self._config.controlled_shutdown_retry_backoff_ms / 1000)
        log.warning("controlled shutdown did not succeed, stopping anyway")
        return False

    async def _ask(self, broker_epoch: BrokerEpoch) -> bool:
        controller = self._metadata.controller_id
        endpoint = (
            None if controller is None else self._metadata.endpoint(controller, self._config.inter_broker_listener)
        )
        if endpoint is None:
            raise ConnectionError("the controller is unknown")
        connection = BrokerConnection(
            self._ports.network, endpoint.host, endpoint.port, str(self._me), self._ports.clock
        )
        try:
            await connection.connect(self._config.controller_socket_timeout_ms / 1000)
            request = request_class(ApiKey.CONTROLLED_SHUTDOWN)(broker_id=self._me, broker_epoch=broker_epoch)
            body = await connection.request(
                ApiKey.CONTROLLED_SHUTDOWN,
                VERSION,
                [encode_request(request, VERSION)],
                timeout=self._config.controller_socket_timeout_ms / 1000,
            )
        finally:
            await connection.close()
        answer = decode_response(ApiKey.CONTROLLED_SHUTDOWN, VERSION, body)
        if answer.error_code != ErrorCode.NONE:
            names = {int(code): code.name for code in ErrorCode}  # a newer controller may send unknown codes
            reason = names.get(answer.error_code, f"error {answer.error_code}")
            log.warning("controller %s refuses the shutdown: %s", controller, reason)
            return False
        if answer.remaining_partitions:
            some = [f"{entry.topic_name}-{entry.partition_index}" for entry in answer.remaining_partitions[:NAMED_MAX]]
            number = count(len(answer.remaining_partitions), "partition")
            log.info("waiting for other brokers to take over %s: %s ...", number, ", ".join(some))
            return False
        return True
