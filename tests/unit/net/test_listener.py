"""Listener and client over a real socket, on both event loops: order, back-pressure, disconnects, garbage."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import pytest
import uvloop

from klamm.model.byte_budget import ByteBudget
from klamm.model.ports import Buffer, Listening, ProtocolFactory
from klamm.model.requests import RequestContext
from klamm.net.client import BrokerConnection
from klamm.net.clock import SystemClock
from klamm.net.listener import Listener
from klamm.net.network import AsyncioNetwork
from klamm.telemetry.metrics import MetricsRegistry
from klamm.telemetry.request_times import RequestTimes
from klamm.wire.apis import ApiKey
from klamm.wire.errors import CloseConnection, ProtocolError
from klamm.wire.server_connection import RequestHeader, request_head

Handle = Callable[[RequestContext, RequestHeader, memoryview], Awaitable[Sequence[Buffer] | None]]
LIMIT_BYTES = 1 << 20


def on_both_loops(test: Callable[[], Coroutine[Any, Any, None]]) -> Any:
    @pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
    def run(new_loop: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(10):
                await test()

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(bounded())

    run.__doc__ = test.__doc__
    run.__name__ = test.__name__
    return run


def listener(handler: Handle, *, privileged: bool = False) -> Listener:
    return Listener(
        AsyncioNetwork(), "CLIENT", "127.0.0.1", 0, handler, privileged=privileged, frame_bytes_max=LIMIT_BYTES
    )


def client(server: Listener) -> BrokerConnection:
    return BrokerConnection(AsyncioNetwork(), "127.0.0.1", server.port, "me", SystemClock())


async def echo(context: RequestContext, header: RequestHeader, body: memoryview) -> Sequence[Buffer]:
    return [f"{context.listener} {context.client_id} {context.privileged} ".encode(), body]


def frame(key: int = ApiKey.METADATA, version: int = 1, correlation_id: int = 1, body: bytes = b"") -> bytes:
    return request_head(RequestHeader(ApiKey(key), version, correlation_id, "raw"), len(body)) + body


async def read_response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    payload = await reader.readexactly(size)
    return struct.unpack(">i", payload[:4])[0], payload[4:]


@on_both_loops
async def test_request_and_response() -> None:
    async with listener(echo, privileged=True).running() as server:
        connection = client(server)
        await connection.connect()
        for version in (1, 9):  # plain headers, flexible headers
            answer = await connection.request(ApiKey.METADATA, version, [b"he", b"llo"], timeout=5)
            assert bytes(answer) == b"CLIENT me True hello"
        assert server.connection_count == 1
        await connection.close()
        assert not connection.is_connected


@on_both_loops
async def test_pipelined_requests_are_handled_one_at_a_time_and_answered_in_order() -> None:
    running = 0

    async def slow_first(context: RequestContext, header: RequestHeader, body: memoryview) -> Sequence[Buffer]:
        nonlocal running
        running += 1
        assert running == 1
        for _ in range(20 if bytes(body) == b"0" else 1):
            await asyncio.sleep(0)
        running -= 1
        return [body]

    async with listener(slow_first).running() as server:
        connection = client(server)
        await connection.connect()
        futures = [connection.send(ApiKey.METADATA, 1, [str(i).encode()]) for i in range(50)]
        assert [int(bytes(await future)) for future in futures] == list(range(50))
        await connection.close()


@on_both_loops
async def test_a_long_poll_holds_up_nobody_else() -> None:
    release = asyncio.Event()

    async def poll(context: RequestContext, header: RequestHeader, body: memoryview) -> Sequence[Buffer]:
        if header.api_key is ApiKey.FETCH:
            await release.wait()
        return [b"done"]

    async with listener(poll).running() as server:
        waiting, other = client(server), client(server)
        await waiting.connect()
        await other.connect()
        long = asyncio.create_task(waiting.request(ApiKey.FETCH, 11, [], timeout=5))
        for _ in range(20):
            assert bytes(await other.request(ApiKey.METADATA, 1, [], timeout=5)) == b"done"
        assert not long.done()
        release.set()
        assert bytes(await long) == b"done"
        await waiting.close()
        await other.close()


@on_both_loops
async def test_large_frames_both_ways_and_slow_readers() -> None:
    async with listener(echo).running() as server:
        connection = client(server)
        await connection.connect()
        big = bytes(range(256)) * 3000
        answers = [connection.send(ApiKey.METADATA, 1, [big]) for _ in range(20)]
        for answer in answers:
            assert bytes(await answer)[-len(big) :] == big
        await connection.close()


@on_both_loops
async def test_a_client_that_pipelines_without_reading_is_not_buffered_for_ever() -> None:
    handled = 0

    async def generous(context: RequestContext, header: RequestHeader, body: memoryview) -> Sequence[Buffer]:
        nonlocal handled
        handled += 1
        return [bytes(500_000)]

    async with listener(generous).running() as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1)
        for i in range(500):
            writer.write(frame(correlation_id=i))
        await asyncio.sleep(0.2)  # a real socket must fill up
        stopped_at = handled
        await asyncio.sleep(0.1)
        assert handled == stopped_at < 100
        writer.transport.abort()


@on_both_loops
async def test_nothing_is_read_while_a_request_is_in_work() -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    async def blocked(context: RequestContext, header: RequestHeader, body: memoryview) -> Sequence[Buffer]:
        begun.set()
        await release.wait()
        return [b""]

    async with listener(blocked).running() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(frame())
        await begun.wait()
        count = 40
        for i in range(count):
            writer.write(frame(correlation_id=i + 2, body=bytes(LIMIT_BYTES // 2)))
        await asyncio.sleep(0.2)  # a real socket must fill up
        (connection,) = server._connections
        assert connection._wire.buffered_bytes < 2 * LIMIT_BYTES
        release.set()
        assert [(await read_response(reader))[0] for _ in range(count + 1)] == list(range(1, count + 2))
        writer.close()


@on_both_loops
async def test_no_response_where_none_is_wanted() -> None:
    async def silent(context: RequestContext, header: RequestHeader, body: memoryview) -> Sequence[Buffer] | None:
        return None if header.api_key is ApiKey.PRODUCE else [b"next"]

    async with listener(silent).running() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(frame(ApiKey.PRODUCE, 3, 1) + frame(ApiKey.METADATA, 1, 2))
        assert await read_response(reader) == (2, b"next")
        writer.close()


@on_both_loops
async def test_api_versions_response_has_the_plain_header_in_every_version() -> None:
    async def plain(context: RequestContext, header: RequestHeader, body: memoryview) -> Sequence[Buffer]:
        return [b"body"]

    async with listener(plain).running() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(frame(ApiKey.API_VERSIONS, 3, 7))
        assert await read_response(reader) == (7, b"body")
        writer.write(frame(ApiKey.METADATA, 9, 8))
        assert await read_response(reader) == (8, b"\x00body")
        writer.close()


@on_both_loops
async def test_a_request_outlives_its_client() -> None:
    begun, release, finished = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def append(context: RequestContext, header: RequestHeader, body: memoryview) -> Sequence[Buffer]:
        begun.set()
        await release.wait()
        finished.set()
        return [b"too late"]

    async with listener(append).running() as server:
        connection = client(server)
        await connection.connect()
        future = connection.send(ApiKey.PRODUCE, 3, [])
        await begun.wait()
        await connection.close()
        with pytest.raises(ConnectionError):
            await future
        release.set()
        await finished.wait()
        while server.connection_count:
            await asyncio.sleep(0.01)


@on_both_loops
async def test_closing_the_listener_ends_waiting_requests() -> None:
    async def never(context: RequestContext, header: RequestHeader, body: memoryview) -> Sequence[Buffer]:
        await asyncio.Event().wait()
        raise AssertionError

    async with listener(never).running() as server:
        connection = client(server)
        await connection.connect()
        future = connection.send(ApiKey.FETCH, 11, [])
        await asyncio.sleep(0.05)
    with pytest.raises(ConnectionError):
        await future
    assert not connection.is_connected
    with pytest.raises(ConnectionError):
        await connection.request(ApiKey.FETCH, 11, [], timeout=1)
    await connection.close()


class CapturingNetwork(AsyncioNetwork):
    """Remembers what serves accepted connections."""

    factory: ProtocolFactory

    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> Listening:
        self.factory = factory
        return await super().listen(factory, host, port)


@on_both_loops
async def test_a_connection_that_was_being_accepted_ends_with_the_listener() -> None:
    """An event loop finishes the accept after the listener has closed all connections that it knew."""
    network = CapturingNetwork()
    server = Listener(network, "CLIENT", "127.0.0.1", 0, echo, privileged=False, frame_bytes_max=LIMIT_BYTES)
    async with server.running():
        pass
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.setblocking(False)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_accepted_socket(network.factory, ours)
        try:
            assert await loop.sock_recv(theirs, 1) == b""
        finally:
            transport.abort()
    assert server.connection_count == 0


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "negative size": struct.pack(">i", -1),
    "huge size": struct.pack(">i", LIMIT_BYTES + 1),
    "no room for a header": struct.pack(">i", 3) + b"abc",
    "unknown key": struct.pack(">ihhih", 10, 999, 0, 1, -1),
    "negative key": struct.pack(">ihhih", 10, -1, 0, 1, -1),
    "client id past the end": struct.pack(">ihhih", 10, 3, 1, 1, 100),
    "header cut off": struct.pack(">ihhi", 8, 3, 1, 1),
    "tags past the end": struct.pack(">ihhihBB", 12, 3, 9, 1, -1, 1, 5),
    "client id no text": struct.pack(">ihhih", 11, 3, 1, 1, 1) + b"\xff",
}


@pytest.mark.parametrize("name", GARBAGE)
async def test_garbage_closes_the_connection_with_one_line(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with asyncio.timeout(5), listener(echo).running() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(GARBAGE[name])
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(1)
        writer.close()
        while server.connection_count:
            await asyncio.sleep(0.01)
    assert [record.levelname for record in caplog.records if record.name.startswith("klamm")] == ["WARNING"]


@on_both_loops
async def test_handlers_that_cannot_answer_close_their_connection_only() -> None:
    async def refusing(context: RequestContext, header: RequestHeader, body: memoryview) -> Sequence[Buffer]:
        if bytes(body) == b"close":
            raise CloseConnection("nothing to say")
        if bytes(body) == b"protocol":
            raise ProtocolError("no such version")
        return [b"fine"]

    async with listener(refusing).running() as server:
        other = client(server)
        await other.connect()
        for reason in (b"close", b"protocol"):
            connection = client(server)
            await connection.connect()
            with pytest.raises(ConnectionError):
                await connection.request(ApiKey.METADATA, 1, [reason], timeout=5)
            await connection.close()
        assert bytes(await other.request(ApiKey.METADATA, 1, [b""], timeout=5)) == b"fine"
        await other.close()


@on_both_loops
async def test_a_bound_listener_answers_only_when_it_serves() -> None:
    server = listener(echo)
    await server.bind()
    connection = client(server)
    await connection.connect()
    future = connection.send(ApiKey.METADATA, 1, [b"early"])
    await asyncio.sleep(0.05)
    assert not future.done()
    server.serve()
    assert bytes(await future).endswith(b"early")
    await connection.close()
    await server.close()


class Liar(asyncio.Protocol):
    """A broker with invalid answers."""

    answers: tuple[bytes, ...] = ()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        for answer in self.answers:
            self.transport.write(answer)


@pytest.mark.parametrize(
    "answer",
    [
        struct.pack(">ii", 4, 99),  # the correlation id of another request
        struct.pack(">i", -5),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">ii", 4, 1) * 2,  # an answer without a request
    ],
)
async def test_client_refuses_answers_that_make_no_sense(answer: bytes) -> None:
    class Answering(Liar):
        answers = (answer,)

    network = AsyncioNetwork()
    listening = await network.listen(Answering, "127.0.0.1", 0)
    connection = BrokerConnection(network, "127.0.0.1", listening.port, "me", SystemClock())
    await connection.connect()
    try:
        await connection.request(ApiKey.METADATA, 1, [], timeout=5)
        async with asyncio.timeout(5):
            while connection.is_connected:
                await asyncio.sleep(0)
    except ConnectionError:
        pass
    assert not connection.is_connected
    await connection.close()
    listening.close()


async def test_client_skips_tags_in_a_response_header() -> None:
    class Tagging(Liar):
        answers = (struct.pack(">ii", 8, 1) + b"\x01\x05\x01x" + b"",)

    network = AsyncioNetwork()
    listening = await network.listen(Tagging, "127.0.0.1", 0)
    connection = BrokerConnection(network, "127.0.0.1", listening.port, "me", SystemClock())
    await connection.connect()
    assert bytes(await connection.request(ApiKey.METADATA, 9, [], timeout=5)) == b""
    await connection.close()
    listening.close()


async def test_a_timeout_closes_the_connection() -> None:
    network = AsyncioNetwork()
    listening = await network.listen(Liar, "127.0.0.1", 0)
    connection = BrokerConnection(network, "127.0.0.1", listening.port, "me", SystemClock())
    await connection.connect()
    with pytest.raises(TimeoutError):
        await connection.request(ApiKey.METADATA, 1, [], timeout=0.05)
    assert not connection.is_connected
    await connection.close()
    listening.close()


@on_both_loops
async def test_no_request_is_read_while_the_budget_is_used_up() -> None:
    """Those that were read are answered first; the next one is read when there is room."""
    handled: list[int] = []
    gate = asyncio.Event()

    async def slow(context: RequestContext, header: RequestHeader, body: memoryview) -> Sequence[Buffer]:
        handled.append(header.correlation_id)
        await gate.wait()
        return [b"done"]

    budget = ByteBudget(1_000)
    server = Listener(
        AsyncioNetwork(), "CLIENT", "127.0.0.1", 0, slow, privileged=False, frame_bytes_max=LIMIT_BYTES, requests=budget
    )
    async with server.running():
        connections = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(4)]
        for number, (_, writer) in enumerate(connections):
            writer.write(frame(correlation_id=number, body=bytes(600)))
            await writer.drain()
            while sum(map(len, handled_or_waiting(server, handled))) <= number:
                await asyncio.sleep(0)
        assert handled == [0, 1], "the second one may exceed the budget"
        assert budget.used > 1_000
        gate.set()
        for reader, _ in connections:
            await reader.readexactly(8)
        assert sorted(handled) == [0, 1, 2, 3]
        while budget.used:
            await asyncio.sleep(0)
        for _, writer in connections:
            writer.close()


def handled_or_waiting(server: Listener, handled: list[int]) -> tuple[list[int], list[Any]]:
    """What has reached the handler, and the connections that wait for room."""
    return handled, [connection for connection in server._connections if connection._no_room is not None]


@on_both_loops
async def test_a_connection_that_ends_gives_its_bytes_back() -> None:
    budget = ByteBudget(10_000)
    server = Listener(
        AsyncioNetwork(), "CLIENT", "127.0.0.1", 0, echo, privileged=False, frame_bytes_max=LIMIT_BYTES, requests=budget
    )
    async with server.running():
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(frame(body=bytes(600))[:100])
        while not budget.used:
            await asyncio.sleep(0)
        writer.transport.abort()
        while budget.used:
            await asyncio.sleep(0)


class SlowInstants(SystemClock):
    """Its instants pass only when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 5.0

    def instant(self) -> float:  # type: ignore[override]
        return self.now


@on_both_loops
async def test_a_request_is_measured_within_a_turn_of_the_loop() -> None:
    """uvloop's own time stands still in a turn and counts whole milliseconds."""
    clock, metrics = SlowInstants(), MetricsRegistry()

    async def work(context: RequestContext, header: RequestHeader, body: memoryview) -> Sequence[Buffer]:
        assert context.connection is not None
        clock.now += 0.000_2
        context.connection.held_seconds = 0.000_125
        return [b"done"]

    server = Listener(
        *(AsyncioNetwork(), "CLIENT", "127.0.0.1", 0, work),
        privileged=False,
        frame_bytes_max=LIMIT_BYTES,
        times=RequestTimes(metrics, {ApiKey.METADATA: "Metadata"}, clock),
    )
    async with server.running():
        connection = client(server)
        await connection.connect()
        await connection.request(ApiKey.METADATA, 1, [b""], timeout=5)
        await connection.close()

    def measured(part: str) -> float:
        return metrics.bucket_timer("kafka.network", "RequestMetrics", part, request="Metadata").sum_ms

    assert [round(measured(part), 6) for part in ("LocalTimeMs", "RemoteTimeMs", "TotalTimeMs")] == [0.125, 0.075, 0.2]


@on_both_loops
async def test_instants_pass_within_a_turn_of_the_loop() -> None:
    clock = SystemClock()
    instants = {clock.instant() for _ in range(1000)}
    assert len(instants) > 500


@on_both_loops
async def test_a_request_with_a_defect_closes_its_connection_alone() -> None:
    async def defective(context: RequestContext, header: RequestHeader, body: memoryview) -> Sequence[Buffer]:
        if bytes(body) == b"bad":
            raise ValueError("a defect")
        return [body]

    async with listener(defective).running() as server:
        other, bad = client(server), client(server)
        await other.connect()
        await bad.connect()
        before = bad.send(ApiKey.METADATA, 1, [b"good"])
        with pytest.raises(ConnectionResetError):
            await bad.request(ApiKey.METADATA, 1, [b"bad"], timeout=5)
        assert bytes(await before) == b"good", "earlier answers still go out"
        assert bytes(await other.request(ApiKey.METADATA, 1, [b"on"], timeout=5)) == b"on"
        await bad.wait_lost()
        while server.connection_count > 1:
            await asyncio.sleep(0)
        await other.close()


@on_both_loops
async def test_a_client_that_reads_late_gets_everything() -> None:
    large = bytes(16 << 20)
    handled = 0

    async def answer(context: RequestContext, header: RequestHeader, body: memoryview) -> Sequence[Buffer]:
        nonlocal handled
        handled += 1
        return [large if handled == 1 else b"end"]

    async with listener(answer).running() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 16)
        writer.write(frame(correlation_id=1) + frame(correlation_id=2))
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert handled == 1, "the next request waits until the answer is read"
        assert await read_response(reader) == (1, large)
        assert await read_response(reader) == (2, b"end")
        writer.close()
        await writer.wait_closed()


@on_both_loops
async def test_a_client_that_goes_while_it_waits_for_room_leaves_nothing() -> None:
    budget = ByteBudget(10)
    release = asyncio.Event()

    async def hold(context: RequestContext, header: RequestHeader, body: memoryview) -> Sequence[Buffer]:
        await release.wait()
        return [body]

    server = listener(hold)
    server.request_budget = budget
    async with server.running():
        first, second = client(server), client(server)
        await first.connect()
        await second.connect()
        held = first.send(ApiKey.METADATA, 1, [bytes(100)])
        while budget.has_room:
            await asyncio.sleep(0)
        waiting = second.send(ApiKey.METADATA, 1, [bytes(100)])
        await asyncio.sleep(0.05)
        await second.close()
        with pytest.raises(ConnectionError):
            await waiting
        release.set()
        assert len(await held) == 100
        while server.connection_count > 1 or budget.left != 10:
            await asyncio.sleep(0)
        await first.close()
