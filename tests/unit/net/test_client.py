"""The client's side of a connection, on a transport that the test plays: answers in order, and every way to end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from klamm.model.ports import Buffer
from klamm.net.client import BrokerConnection
from klamm.net.clock import SystemClock
from klamm.wire.apis import ApiKey


class Transport:
    def __init__(self) -> None:
        self.written = bytearray()
        self.aborted = 0

    def writelines(self, chunks: Sequence[Buffer]) -> None:
        self.written += b"".join(chunks)

    def abort(self) -> None:
        self.aborted += 1


class Net:
    """ports.Network: the connection is made at once, unless `silent`."""

    def __init__(self) -> None:
        self.transport = Transport()
        self.protocol: Any = None
        self.silent = False

    async def connect(self, factory: Any, host: str, port: int) -> None:
        self.protocol = factory()
        if self.silent:
            await asyncio.Event().wait()
        self.protocol.connection_made(self.transport)


@pytest.fixture
def net() -> Net:
    return Net()


@pytest.fixture
async def connection(net: Net) -> BrokerConnection:
    connection = BrokerConnection(net, "h", 1, "me", SystemClock())  # type: ignore[arg-type]
    await connection.connect()
    return connection


def answer(correlation_id: int, body: bytes) -> bytes:
    payload = correlation_id.to_bytes(4, "big") + body
    return len(payload).to_bytes(4, "big") + payload


async def test_answers_arrive_in_pieces_and_in_order(net: Net, connection: BrokerConnection) -> None:
    first, second = (connection.send(ApiKey.METADATA, 1, [b"x"]) for _ in range(2))
    data = answer(1, b"one") + answer(2, b"two")
    for at in range(len(data)):
        net.protocol.data_received(data[at : at + 1])
        assert connection.is_receiving is (at not in (len(data) // 2 - 1, len(data) - 1))
    assert (bytes(await first), bytes(await second)) == (b"one", b"two")


async def test_a_request_without_an_answer_counts_too(net: Net, connection: BrokerConnection) -> None:
    connection.send_only(ApiKey.PRODUCE, 3, [b"records"])
    assert net.transport.written.endswith(b"records")
    future = connection.send(ApiKey.METADATA, 1, [b""])
    net.protocol.data_received(answer(2, b"two"))
    assert bytes(await future) == b"two"


@pytest.mark.parametrize(
    "data",
    [
        answer(1, b"a")[:4] + (9).to_bytes(4, "big") + b"a",
        (3).to_bytes(4, "big"),
        (2**31 - 1).to_bytes(4, "big"),
        (-1).to_bytes(4, "big", signed=True),
        answer(1, b"a") + answer(2, b"nothing was asked"),
    ],
)
async def test_an_answer_that_cannot_be_right_ends_the_connection(
    net: Net, connection: BrokerConnection, data: bytes
) -> None:
    future = connection.send(ApiKey.METADATA, 1, [b""])
    net.protocol.data_received(data)
    assert not connection.is_connected
    assert net.transport.aborted == 1
    if data.startswith(answer(1, b"a")):
        assert bytes(await future) == b"a"
    else:
        with pytest.raises(ConnectionError, match="invalid answer"):
            await future
    with pytest.raises(ConnectionError):
        connection.send_only(ApiKey.PRODUCE, 3, [b""])
    with pytest.raises(ConnectionError):
        await connection.send(ApiKey.METADATA, 1, [b""])
    with pytest.raises(ConnectionError, match="not connected"):
        await connection.request(ApiKey.METADATA, 1, [b""])


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_late_answer_is_never_taken_for_another_one(
    net: Net, connection: BrokerConnection, cancelled: bool
) -> None:
    asking = asyncio.create_task(
        connection.request(ApiKey.METADATA, 1, [b""], timeout=60 if cancelled else 0.001),
    )
    await asyncio.sleep(0)
    if cancelled:
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    else:
        with pytest.raises(TimeoutError, match="h:1 did not answer METADATA"):
            await asking
    assert (connection.is_connected, net.transport.aborted) == (False, 1)


async def test_a_lost_connection_fails_what_waits(net: Net, connection: BrokerConnection) -> None:
    futures = [connection.send(ApiKey.METADATA, 1, [b""]) for _ in range(3)]
    futures[1].cancel()
    waiting = asyncio.create_task(connection.wait_lost())
    await asyncio.sleep(0)
    assert not waiting.done()
    net.protocol.connection_lost(BrokenPipeError("gone"))
    await waiting
    for future in (futures[0], futures[2]):
        with pytest.raises(BrokenPipeError):
            await future
    assert not connection.is_connected


async def test_closing_waits_for_the_end(net: Net, connection: BrokerConnection) -> None:
    future = connection.send(ApiKey.METADATA, 1, [b""])
    closing = asyncio.create_task(connection.close())
    await asyncio.sleep(0)
    assert (closing.done(), net.transport.aborted) == (False, 1)
    net.protocol.connection_lost(None)
    await closing
    with pytest.raises(ConnectionError, match="closed"):
        await future
    assert not connection.is_connected
    await connection.wait_lost()
    await connection.close()
    connection.abort()


async def test_a_connection_that_is_never_made(net: Net) -> None:
    net.silent = True
    connection = BrokerConnection(net, "h", 1, "me", SystemClock())  # type: ignore[arg-type]
    with pytest.raises(TimeoutError):
        await connection.connect(0.001)
    assert not connection.is_connected
    net.protocol.abort(ConnectionError("given up"))
    assert net.protocol.lost.is_set()
    with pytest.raises(ConnectionError, match="given up"):
        net.protocol.write([b""])
