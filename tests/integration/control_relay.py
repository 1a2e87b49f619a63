"""A relay in front of a broker's inter-broker listener that records control requests and can hold them back.

It stands for the network: what it holds has left the controller but has reached no broker. It forwards all other
requests unread.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from klamm.model.errors import ErrorCode
from klamm.testing.relay import End, Relay, Ways
from klamm.wire.apis import APIS, ApiKey
from klamm.wire.control.schema_requests import iter_stopped_replicas
from klamm.wire.messages import decode_request, decode_response
from klamm.wire.server_connection import CORRELATION, SIZE, RequestHeader, parse_request

CONTROL = frozenset({ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA})


@dataclass(eq=False)
class ControlRequest:
    """A control request that passed the relay."""

    api_key: ApiKey
    sender: str
    """The client id, which is the broker id of the controller."""
    controller_epoch: int
    deletes: bool
    answer: ErrorCode | None = None


Unanswered = dict[int, tuple[RequestHeader, ControlRequest]]
"""Requests of one connection by correlation id."""


class ControlRelay(Relay):
    """Once armed for a sender, it holds back its first StopReplica that deletes and all its later requests."""

    def __init__(self, target_port: int) -> None:
        super().__init__(target_port)
        self.requests: list[ControlRequest] = []
        self.held: list[ControlRequest] = []
        self._armed_for: str | None = None
        self._is_released = asyncio.Event()

    def arm(self, sender: str) -> None:
        self._armed_for = sender

    def release(self) -> None:
        self._is_released.set()

    def ways(self, client: End, server: End) -> Ways:
        unanswered: Unanswered = {}
        return self._requests(client, server, unanswered), self._answers(server, client, unanswered)

    async def _requests(self, source: End, target: End, unanswered: Unanswered) -> None:
        while frame := await _frame(source.reader):
            header, body = parse_request(memoryview(frame)[SIZE.size :])
            if header.api_key in CONTROL:
                request = _read(header, body)
                self.requests.append(request)
                unanswered[header.correlation_id] = (header, request)
                if request.sender == self._armed_for and (request.deletes or self.held):
                    self.held.append(request)
                    await self._is_released.wait()
            target.writer.write(frame)
            await target.writer.drain()

    async def _answers(self, source: End, target: End, unanswered: Unanswered) -> None:
        while frame := await _frame(source.reader):
            (correlation_id,) = CORRELATION.unpack_from(frame, SIZE.size)
            if (known := unanswered.pop(correlation_id, None)) is not None:
                header, request = known
                tags = 1 if APIS[header.api_key].response_header_version(header.api_version) >= 1 else 0
                body = memoryview(frame)[SIZE.size + CORRELATION.size + tags :]
                answer = decode_response(header.api_key, header.api_version, body)
                request.answer = ErrorCode(answer.error_code)
            target.writer.write(frame)
            await target.writer.drain()


def _read(header: RequestHeader, body: memoryview) -> ControlRequest:
    request: Any = decode_request(header.api_key, header.api_version, body)
    deletes = header.api_key is ApiKey.STOP_REPLICA and any(delete for _, _, delete in iter_stopped_replicas(request))
    return ControlRequest(header.api_key, header.client_id or "", request.controller_epoch, deletes)


async def _frame(reader: asyncio.StreamReader) -> bytes:
    """A frame with its size in front; empty at the end of the stream."""
    try:
        size = await reader.readexactly(SIZE.size)
        return size + await reader.readexactly(SIZE.unpack(size)[0])
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""
