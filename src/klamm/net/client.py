"""A connection to a broker: requests out, responses back in the order of the requests.

The controller's channels, the fetchers and the command line use it. A connection that breaks fails the requests in
flight with ConnectionError and stays broken; its owner makes a new one. It checks correlation ids, because an answer to
another request is worse than none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final, cast

from klamm.model.ports import Buffer, Clock, Network
from klamm.wire.apis import APIS, ApiKey
from klamm.wire.errors import ProtocolError
from klamm.wire.server_connection import CORRELATION, SIZE, RequestHeader, request_head
from klamm.wire.tags import skip_tags

RESPONSE_BYTES_MAX: Final = 256 << 20
CORRELATION_MODULUS: Final = 2**31


class BrokerConnection:
    def __init__(self, network: Network, host: str, port: int, client_id: str | None, clock: Clock) -> None:
        self._network = network
        self.host = host
        self.port = port
        self._client_id = client_id
        self._clock = clock
        self._wire: _Wire | None = None
        self._correlation_id = 0

    @property
    def is_connected(self) -> bool:
        return self._wire is not None and self._wire.is_open

    @property
    def is_receiving(self) -> bool:
        """Part of an answer has arrived."""
        return self._wire is not None and self._wire.has_part

    async def connect(self, timeout: float = 30.0) -> None:
        """Raises OSError, also after a timeout; ConnectionRefusedError only if the other side actively refused."""
        async with asyncio.timeout(timeout):
            wire = _Wire()
            await self._network.connect(lambda: wire, self.host, self.port)
            self._wire = wire

    async def request(
        self, api_key: ApiKey, version: int, chunks: Sequence[Buffer], *, timeout: float | None = None
    ) -> memoryview:
        """The response's body. A timeout closes the connection: a late answer could be taken for another one."""
        if self._wire is None or not self._wire.is_open:
            raise ConnectionError(f"not connected to {self.host}:{self.port}")
        future = self.send(api_key, version, chunks)
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            self.abort()
            raise TimeoutError(f"{self.host}:{self.port} did not answer {api_key.name} within {timeout} s") from None
        except asyncio.CancelledError:
            self.abort()
            raise

    def send(self, api_key: ApiKey, version: int, chunks: Sequence[Buffer]) -> asyncio.Future[memoryview]:
        """Send without waiting for the answer. Answers come in the order of the requests."""
        assert self._wire is not None, "connect first"
        self._correlation_id = (self._correlation_id + 1) % CORRELATION_MODULUS
        header = RequestHeader(api_key, version, self._correlation_id, self._client_id)
        return self._wire.send(header, [request_head(header, sum(map(len, chunks))), *chunks])

    def send_only(self, api_key: ApiKey, version: int, chunks: Sequence[Buffer]) -> None:
        """Send a request that the broker does not answer: Produce with acks=0."""
        assert self._wire is not None, "connect first"
        self._correlation_id = (self._correlation_id + 1) % CORRELATION_MODULUS
        header = RequestHeader(api_key, version, self._correlation_id, self._client_id)
        self._wire.write([request_head(header, sum(map(len, chunks))), *chunks])

    async def wait_lost(self) -> None:
        """Wait until the current connection has ended, from either side. Returns at once if there is none."""
        if self._wire is not None:
            await self._wire.lost.wait()

    def abort(self) -> None:
        if self._wire is not None:
            self._wire.abort(ConnectionError(f"connection to {self.host}:{self.port} aborted"))

    async def close(self) -> None:
        if self._wire is not None:
            self._wire.abort(ConnectionError(f"connection to {self.host}:{self.port} closed"))
            await self._wire.lost.wait()
            self._wire = None


class _Wire(asyncio.Protocol):
    """One TCP connection."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._waiting: deque[tuple[RequestHeader, asyncio.Future[memoryview]]] = deque()
        self._error: Exception | None = None
        self.lost = asyncio.Event()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and self._error is None

    @property
    def has_part(self) -> bool:
        return len(self._buffer) > 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport does not inherit from it

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc if isinstance(exc, OSError) else ConnectionResetError("the broker closed the connection"))
        self.lost.set()

    def send(self, header: RequestHeader, chunks: Sequence[Buffer]) -> asyncio.Future[memoryview]:
        future: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        if self._transport is None or self._error is not None:
            future.set_exception(self._error or ConnectionError("not connected"))
            return future
        self._waiting.append((header, future))
        self._transport.writelines(chunks)
        return future

    def write(self, chunks: Sequence[Buffer]) -> None:
        if self._transport is None or self._error is not None:
            raise self._error or ConnectionError("not connected")
        self._transport.writelines(chunks)

    def abort(self, error: Exception) -> None:
        self._fail(error)
        if self._transport is None:
            self.lost.set()
        else:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            while len(self._buffer) >= SIZE.size:
                (size,) = SIZE.unpack_from(self._buffer)
                if not CORRELATION.size <= size <= RESPONSE_BYTES_MAX:
                    raise ProtocolError(f"response of {size} bytes")
                end = SIZE.size + size
                if len(self._buffer) < end:
                    return
                frame = memoryview(bytes(memoryview(self._buffer)[SIZE.size : end]))
                del self._buffer[:end]
                self._on_response(frame)
        except ProtocolError as error:
            self.abort(ConnectionError(f"the broker sent an invalid answer: {error}"))

    def _on_response(self, frame: memoryview) -> None:
        (correlation_id,) = CORRELATION.unpack_from(frame)
        if not self._waiting:
            raise ProtocolError("a response without a request")
        header, future = self._waiting.popleft()
        if correlation_id != header.correlation_id:
            self._waiting.appendleft((header, future))
            raise ProtocolError(f"correlation id {correlation_id}, expected {header.correlation_id}")
        position = CORRELATION.size
        if APIS[header.api_key].response_header_version(header.api_version) >= 1:
            position = skip_tags(frame, position)
        if not future.done():
            future.set_result(frame[position:])

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        while self._waiting:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_exception(self._error)
