"""Connection limits, idle and throttled connections: what a listener does besides answering."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest
import uvloop

from klamm.model.ports import Buffer
from klamm.model.requests import RequestContext
from klamm.net.connections import Admission, ConnectionLimits
from klamm.net.listener import CLOSED_PER_SWEEP, Listener
from klamm.net.network import AsyncioNetwork
from klamm.telemetry.metrics import MetricsRegistry
from klamm.telemetry.prometheus import exposition
from klamm.wire.apis import ApiKey
from klamm.wire.server_connection import RequestHeader, request_head
from klamm.wire.slices import finish

BOTH_LOOPS = pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
REQUEST = request_head(RequestHeader(ApiKey.METADATA, 1, 7, "me"), 0)


class Guest:
    def __init__(self, host: str = "10.0.0.1", *, is_protected: bool = False, last_active: float = 0.0) -> None:
        self.host = host
        self.is_protected = is_protected
        self.last_active = last_active
        self.said: list[str] = []

    def admit(self) -> None:
        self.said.append("admitted")

    def close(self, reason: str) -> None:
        self.said.append(reason)


def test_an_address_gets_so_many_and_an_override_counts_first() -> None:
    limits = ConnectionLimits(per_ip=2, overrides={"10.0.0.9": 0, "10.0.0.8": 3})
    first, second = Guest(), Guest()
    assert [limits.entered(guest) for guest in (first, second, Guest())] == [
        Admission.ADMITTED,
        Admission.ADMITTED,
        Admission.REFUSED,
    ]
    assert limits.entered(Guest("10.0.0.2")) is Admission.ADMITTED
    assert limits.entered(Guest("10.0.0.9")) is Admission.REFUSED
    assert [limits.entered(Guest("10.0.0.8")) for _ in range(4)].count(Admission.ADMITTED) == 3
    limits.left(first)
    assert limits.entered(Guest()) is Admission.ADMITTED


def test_newcomers_wait_in_order_until_somebody_leaves() -> None:
    limits = ConnectionLimits(total=1, waiting=2)
    inside, first, second = Guest(), Guest(), Guest()
    assert [limits.entered(guest) for guest in (inside, first, second, Guest())] == [
        Admission.ADMITTED,
        Admission.WAITS,
        Admission.WAITS,
        Admission.REFUSED,
    ]
    limits.left(first)  # the client gave up
    limits.left(inside)
    assert (first.said, second.said) == ([], ["admitted"])


def test_a_broker_takes_the_place_of_the_quietest_client() -> None:
    limits = ConnectionLimits(total=2)
    quiet, busy = Guest(last_active=1.0), Guest(last_active=9.0)
    for guest in (quiet, busy):
        limits.entered(guest)
    assert limits.entered(Guest(is_protected=True, last_active=0.0)) is Admission.ADMITTED
    assert len(quiet.said) == 1 and not busy.said
    assert limits.entered(Guest(is_protected=True)) is Admission.ADMITTED
    assert len(quiet.said) == 1 and len(busy.said) == 1, "the next one replaces another, before the first has ended"
    limits.left(quiet)
    waiting = Guest()
    assert limits.entered(waiting) is Admission.WAITS


async def answer(context: RequestContext, header: RequestHeader, body: memoryview) -> Sequence[Buffer]:
    return [b"fine"]


def listener(handler: object = answer, **more: object) -> Listener:
    return Listener(
        AsyncioNetwork(),
        "CLIENT",
        "127.0.0.1",
        0,
        handler,  # type: ignore[arg-type]
        privileged=False,
        frame_bytes_max=1000,
        **more,  # type: ignore[arg-type]
    )


async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """False if the other side closed."""
    try:
        writer.write(REQUEST)
        return len(await reader.readexactly(12)) == 12
    except (asyncio.IncompleteReadError, ConnectionError):
        return False


def closings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "closing connection" in r.getMessage()]


@BOTH_LOOPS
def test_more_than_an_address_may_have_is_closed_with_one_line(new_loop: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(closes_what_an_address_may_not_have(caplog))


async def closes_what_an_address_may_not_have(caplog: pytest.LogCaptureFixture) -> None:
    async with asyncio.timeout(10), listener(limits=ConnectionLimits(per_ip=1)).running() as server:
        inside = await asyncio.open_connection("127.0.0.1", server.port)
        assert await answered(*inside)
        outside = await asyncio.open_connection("127.0.0.1", server.port)
        assert not await answered(*outside)
        outside[1].close()
        assert await answered(*inside)
        inside[1].close()
        assert len(closings(caplog)) == 1
        while server.connection_count:
            await asyncio.sleep(0)
        again = await asyncio.open_connection("127.0.0.1", server.port)
        assert await answered(*again)
        again[1].close()
        await again[1].wait_closed()


@BOTH_LOOPS
def test_a_full_broker_answers_the_next_one_when_another_leaves(new_loop: Any) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(answers_the_next_one_when_another_leaves())


async def answers_the_next_one_when_another_leaves() -> None:
    async with asyncio.timeout(10), listener(limits=ConnectionLimits(total=1)).running() as server:
        inside = await asyncio.open_connection("127.0.0.1", server.port)
        assert await answered(*inside)
        waiting = await asyncio.open_connection("127.0.0.1", server.port)
        answer = asyncio.create_task(answered(*waiting))
        await asyncio.sleep(0.05)
        assert not answer.done()
        inside[1].close()
        assert await answer
        waiting[1].close()
        for _, writer in (inside, waiting):
            await writer.wait_closed()


async def test_connections_that_are_idle_together_are_closed_in_several_sweeps() -> None:
    """Each of a thousand is a line in the log and a system call."""
    server, closed = listener(idle_seconds=1.5), []

    class Silent:
        last_active = -10.0

        def close(self, reason: str) -> None:
            closed.append(reason)

    for _ in range(CLOSED_PER_SWEEP + 1):
        server._connections[Silent()] = None  # type: ignore[index]
    server._close_idle()
    assert len(closed) == CLOSED_PER_SWEEP
    assert server._idle_sweep is not None and server._idle_sweep.when() < asyncio.get_running_loop().time() + 0.1
    server._idle_sweep.cancel()


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with asyncio.timeout(10), listener(idle_seconds=1.5).running() as server:
        idle = await asyncio.open_connection("127.0.0.1", server.port)
        busy = await asyncio.open_connection("127.0.0.1", server.port)
        ended = asyncio.create_task(idle[0].read())
        while not ended.done():
            assert await answered(*busy)
            await asyncio.sleep(0.02)
        await asyncio.gather(ended, return_exceptions=True)  # an orderly end and a reset are both fine
        assert await answered(*busy)
        assert server.connection_count == 1
        for _, writer in (idle, busy):
            writer.close()
    assert len(closings(caplog)) == 1


async def test_a_request_in_work_does_not_count_as_traffic() -> None:
    finished = asyncio.Event()

    async def slow(context: RequestContext, header: RequestHeader, body: memoryview) -> Sequence[Buffer]:
        left = asyncio.Event()
        assert context.connection is not None
        context.connection.when_gone(left.set)
        await left.wait()
        finished.set()
        return [b"fine"]

    async with asyncio.timeout(10), listener(slow, idle_seconds=0.5).running() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert not await answered(reader, writer)
        await finished.wait()  # the request is finished anyway
        writer.close()


async def test_a_throttled_client_is_answered_at_once_and_then_not_read() -> None:
    served: list[float] = []
    loop = asyncio.get_running_loop()

    async def throttling(context: RequestContext, header: RequestHeader, body: memoryview) -> Sequence[Buffer]:
        served.append(loop.time())
        assert context.connection is not None
        context.connection.throttle_ms = {1: 300, 3: 1_000_000}.get(len(served), 0)
        return [b"fine"]

    async with asyncio.timeout(10), listener(throttling).running() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(REQUEST * 4)
        await reader.readexactly(36)  # the third one is also answered before its mute
        assert served[1] - served[0] >= 0.3
        await asyncio.sleep(0.05)
        assert len(served) == 3
        writer.close()


async def test_a_client_that_leaves_ends_its_mute() -> None:
    async def forever(context: RequestContext, header: RequestHeader, body: memoryview) -> Sequence[Buffer]:
        assert context.connection is not None
        context.connection.throttle_ms = 1_000_000
        return [b"fine"]

    async with asyncio.timeout(10), listener(forever).running() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert await answered(reader, writer)
        writer.transport.abort()
        while server.connection_count:
            await asyncio.sleep(0.01)


async def test_traffic_is_counted_under_kafkas_names() -> None:
    metrics = MetricsRegistry()
    async with asyncio.timeout(10), listener().running() as server:
        server.register_metrics(metrics)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert await answered(reader, writer)

        def value(name: str) -> float:
            return metrics.value("kafka.server", "socket-server-metrics", name, listener="CLIENT", networkProcessor="0")

        assert value("connection-count") == value("connection-creation-total") == value("request-total") == 1
        assert (value("incoming-byte-total"), value("outgoing-byte-total")) == (len(REQUEST), 4)
        writer.close()
        while server.connection_count:
            await asyncio.sleep(0)
        assert (value("connection-count"), value("connection-close-total")) == (0, 1)
    text = exposition(finish(metrics.snapshot())).decode()
    assert (
        'kafka_server_socket_server_metrics_connection_creation_total{listener="CLIENT",networkProcessor="0"} 1.0'
        in text
    )
