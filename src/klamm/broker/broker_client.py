"""A broker as another broker asks it: one connection, one request at a time, the address looked up at each connect.

Brokers do not negotiate versions with each other. Whatever goes wrong is an OSError, after which the next request makes
a new connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from klamm.model.brokers import Endpoint
from klamm.model.ids import BrokerId
from klamm.model.ports import Buffer, Ports
from klamm.net.client import BrokerConnection
from klamm.wire.apis import ApiKey
from klamm.wire.errors import ProtocolError
from klamm.wire.messages import decode_response, encode_request


class BrokerClient:
    def __init__(
        self,
        broker: BrokerId,
        client_id: str,
        timeout: float,
        ports: Ports,
        find: Callable[[BrokerId], Endpoint | None],
    ) -> None:
        self.broker = broker
        self._client_id = client_id
        self._timeout = timeout
        self._ports = ports
        self._find = find
        self._connection: BrokerConnection | None = None

    @property
    def is_answering(self) -> bool:
        return self._connection is not None and self._connection.is_receiving

    async def message(self, key: ApiKey, version: int, request: Any) -> Any:
        answer = await self.request(key, version, [encode_request(request, version)])
        try:
            return decode_response(key, version, answer)
        except ProtocolError as malformed:
            raise ConnectionError(f"broker {self.broker}: {malformed}") from malformed

    async def request(self, key: ApiKey, version: int, body: Sequence[Buffer]) -> memoryview:
        if self._connection is None or not self._connection.is_connected:
            self._connection = await self._connect()
        return await self._connection.request(key, version, body, timeout=self._timeout)

    async def _connect(self) -> BrokerConnection:
        endpoint = self._find(self.broker)
        if endpoint is None:
            raise ConnectionError(f"broker {self.broker} is not alive, as far as this broker knows")
        network, clock = self._ports.network, self._ports.clock
        connection = BrokerConnection(network, endpoint.host, endpoint.port, self._client_id, clock)
        await connection.connect(self._timeout)
        return connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.abort()
            self._connection = None
