"""A connection to one broker and the versions that it serves."""

from __future__ import annotations

from typing import Any, Final

from klamm.client.addresses import Address
from klamm.client.errors import ClientError
from klamm.model.errors import ErrorCode
from klamm.model.ports import Clock, Network
from klamm.net.client import BrokerConnection
from klamm.wire.apis import APIS, ApiKey
from klamm.wire.errors import ProtocolError
from klamm.wire.messages import decode_response, encode_request, request_class

NEGOTIATION_VERSIONS: Final = (3, 0)
"""A broker that does not know the first answers in the form of version 0 that it does not."""
CONNECT_TIMEOUT: Final = 5.0


class BrokerLink:
    def __init__(self, network: Network, clock: Clock, address: Address, client_id: str) -> None:
        self.address = address
        self._connection = BrokerConnection(network, address.host, address.port, client_id, clock)
        self._versions: dict[int, tuple[int, int]] = {}

    @property
    def is_open(self) -> bool:
        return self._connection.is_connected

    async def connect(self, timeout: float) -> None:
        """Raises OSError, also if what answers is not a Kafka broker."""
        await self._connection.connect(min(timeout, CONNECT_TIMEOUT))
        try:
            await self._negotiate(timeout)
        except ProtocolError as error:
            self._connection.abort()
            raise ConnectionError(f"what listens there does not speak Kafka's protocol: {error}") from error
        except BaseException:
            self._connection.abort()
            raise

    async def _negotiate(self, timeout: float) -> None:
        cls = request_class(ApiKey.API_VERSIONS)
        for version in NEGOTIATION_VERSIONS:
            body = encode_request(cls(client_software_name="klamm", client_software_version="1"), version)
            raw = await self._connection.request(ApiKey.API_VERSIONS, version, [body], timeout=timeout)
            if int.from_bytes(raw[:2], "big") == ErrorCode.UNSUPPORTED_VERSION:
                continue
            answer = decode_response(ApiKey.API_VERSIONS, version, raw)
            self._versions = {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}
            return
        raise ProtocolError("it supports no version of ApiVersions that klamm knows")

    def version_of(self, key: ApiKey, newest: int | None = None) -> int:
        """The newest version that the broker serves and that is not above `newest`, or what klamm's brokers serve."""
        oldest, theirs = self._versions.get(key, (0, -1))
        ours = APIS[key].max_version if newest is None else newest
        version = min(theirs, ours)
        if version < oldest:
            serves = f"only versions {oldest} to {theirs}" if theirs >= 0 else "not at all"
            raise ClientError(f"the broker at {self.address} serves {APIS[key].name} {serves}; klamm knows 0 to {ours}")
        return version

    async def ask(self, key: ApiKey, request: Any, timeout: float, newest: int | None = None) -> Any:
        """Raises OSError if the broker cannot be reached, does not answer in time, or answers nonsense."""
        version = self.version_of(key, newest)
        raw = await self._connection.request(key, version, [encode_request(request, version)], timeout=timeout)
        try:
            return decode_response(key, version, raw)
        except ProtocolError as error:
            self._connection.abort()
            raise ConnectionError(f"the answer to {APIS[key].name} cannot be read: {error}") from error

    def tell(self, key: ApiKey, request: Any) -> None:
        """Send a request that has no answer."""
        version = self.version_of(key)
        self._connection.send_only(key, version, [encode_request(request, version)])

    async def close(self) -> None:
        await self._connection.close()
