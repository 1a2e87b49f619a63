"""Brokers without sockets: each answers the client's requests by a function, or refuses, or cannot be resolved."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Any

from klamm.model.ports import Listening, ProtocolFactory
from klamm.wire.apis import APIS, ApiKey
from klamm.wire.messages import decode_request, encode_response, response_class
from klamm.wire.server_connection import RequestHeader, parse_request, response_head

Answer = Callable[[ApiKey, int, Any], Any]
"""(key, version, request) -> response, or None for no answer; may raise ConnectionResetError to close."""
SERVED = {key: (api.min_version, api.max_version) for key, api in APIS.items()}


class FakeBroker:
    """Serves ApiVersions and Metadata by itself. `answers` has the others by key."""

    def __init__(self, number: int, world: FakeWorld, served: dict[ApiKey, tuple[int, int]] | None = None) -> None:
        self.number = number
        self.world = world
        self.served = SERVED if served is None else served
        self.answers: dict[ApiKey, Answer] = {}
        self.asked: list[tuple[ApiKey, int, Any]] = []

    def answer(self, key: ApiKey, version: int, request: Any) -> Any:
        self.asked.append((key, version, request))
        if key is ApiKey.API_VERSIONS:
            cls = response_class(key)
            ranges = [cls.ApiVersion(api_key=k, min_version=a, max_version=b) for k, (a, b) in self.served.items()]
            return cls(api_keys=ranges)
        if key is ApiKey.METADATA:
            return self.world.metadata(request)
        return self.answers[key](key, version, request)

    def keys(self) -> list[ApiKey]:
        return [key for key, _, _ in self.asked if key not in (ApiKey.API_VERSIONS, ApiKey.METADATA)]


class FakeWorld:
    """A network with brokers 1, 2, ... at the hosts `b1`, `b2`, ..., and the metadata that all of them tell."""

    def __init__(self, brokers: int = 2) -> None:
        self.brokers = {f"b{number}": FakeBroker(number, self) for number in range(1, brokers + 1)}
        self.failures: dict[str, OSError] = {}
        self.controller = 1
        self.leaders: dict[str, list[int]] = {}
        self.connections = 0

    def metadata(self, request: Any) -> Any:
        cls = response_class(ApiKey.METADATA)
        assert not request.allow_auto_topic_creation
        names = sorted(self.leaders) if request.topics is None else [topic.name for topic in request.topics]
        return cls(
            brokers=[
                cls.MetadataResponseBroker(node_id=broker.number, host=host, port=9092)
                for host, broker in self.brokers.items()
            ],
            cluster_id="world",
            controller_id=self.controller,
            topics=[self._topic(cls.MetadataResponseTopic, name) for name in names],
        )

    def _topic(self, cls: Any, name: str) -> Any:
        if name not in self.leaders:
            return cls(name=name, error_code=3)
        partition = cls.MetadataResponsePartition
        return cls(
            name=name,
            partitions=[
                partition(partition_index=index, leader_id=leader) for index, leader in enumerate(self.leaders[name])
            ],
        )

    async def connect(self, factory: ProtocolFactory, host: str, port: int) -> asyncio.Transport:
        if host in self.failures:
            raise self.failures[host]
        if host not in self.brokers:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        self.connections += 1
        protocol: Any = factory()
        transport = _Transport(protocol, self.brokers[host])
        protocol.connection_made(transport)
        return transport  # type: ignore[return-value]

    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> Listening:
        raise NotImplementedError


class _Transport:
    def __init__(self, protocol: Any, broker: FakeBroker) -> None:
        self._protocol = protocol
        self._broker = broker
        self._is_closed = False

    def writelines(self, chunks: Sequence[bytes]) -> None:
        request = parse_request(memoryview(b"".join(map(bytes, chunks)))[4:])
        header: RequestHeader = request.header
        body = bytes(request.body)
        try:
            message = decode_request(header.api_key, header.api_version, body)
            answer = self._broker.answer(header.api_key, header.api_version, message)
        except ConnectionResetError:
            self.abort()
            return
        if answer is not None:
            raw = encode_response(answer, header.api_version)
            frame = response_head(header, len(raw)) + raw
            asyncio.get_running_loop().call_soon(self._protocol.data_received, frame)

    def abort(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)
