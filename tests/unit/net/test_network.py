"""The real network and clock: Nagle's algorithm is off on both ends, and a route redirects or cuts."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

import pytest
import uvloop

from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork


class Recorder(asyncio.Protocol):
    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.made = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transport does not inherit from it
        self.made.set()


async def connect_both_ends() -> tuple[int, int]:
    network = AsyncioNetwork()
    server_side = Recorder()
    listening = await network.listen(lambda: server_side, "127.0.0.1", 0)
    client = await network.connect(asyncio.Protocol, "127.0.0.1", listening.port)
    await server_side.made.wait()
    assert server_side.transport is not None
    flags = tuple(
        transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        for transport in (client, server_side.transport)
    )
    client.close()
    server_side.transport.close()
    listening.close()
    await listening.wait_closed()
    return flags[0], flags[1]


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_nagle_is_off_on_both_ends(new_loop: object) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:  # type: ignore[arg-type]
        assert all(runner.run(connect_both_ends()))


async def test_route_redirects() -> None:
    server_side = Recorder()
    listening = await AsyncioNetwork().listen(lambda: server_side, "127.0.0.1", 0)
    network = AsyncioNetwork(lambda host, port: ("127.0.0.1", listening.port) if host == "broker-2" else (host, port))
    client = await network.connect(asyncio.Protocol, "broker-2", 1)
    await server_side.made.wait()
    client.close()
    listening.close()


@pytest.mark.parametrize("error", [ConnectionRefusedError, TimeoutError])
async def test_route_cuts(error: type[OSError]) -> None:
    def cut(host: str, port: int) -> tuple[str, int]:
        raise error(host)

    with pytest.raises(error):
        await AsyncioNetwork(cut).connect(asyncio.Protocol, "127.0.0.1", 1)


async def test_nobody_listening_is_a_refusal() -> None:
    listening = await AsyncioNetwork().listen(asyncio.Protocol, "127.0.0.1", 0)
    port = listening.port
    listening.close()
    await listening.wait_closed()
    with pytest.raises(ConnectionRefusedError):
        await AsyncioNetwork().connect(asyncio.Protocol, "127.0.0.1", port)


async def test_clock_measures_with_the_loop() -> None:
    clock = SystemClock()
    assert abs(clock.monotonic() - asyncio.get_running_loop().time()) < 1
    assert clock.wall_ms() > 1_600_000_000_000


@pytest.mark.parametrize(
    ("addresses", "refused"), [(("127.0.0.1", "127.0.0.2"), True), (("127.0.0.1", "255.255.255.255"), False)]
)
async def test_a_name_of_several_addresses_refuses_only_if_all_of_them_do(
    addresses: tuple[str, ...], refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    async def resolve(host: str, port: int, **kinds: object) -> list[Any]:
        found = addresses if host == "broker.example" else (host,)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    with pytest.raises(OSError) as failed:  # noqa: PT011 -- which error it is, is asserted below
        await AsyncioNetwork().connect(asyncio.Protocol, "broker.example", port)
    assert isinstance(failed.value, ConnectionRefusedError) is refused


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize(
    ("host", "port"), [("broker-7..svc", 9092), ("x" * 64 + ".org", 9092), ("a\0b", 9092), ("127.0.0.1", 70_000)]
)
def test_an_address_that_no_resolver_takes_is_an_os_error(new_loop: Any, host: str, port: int) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner, pytest.raises(OSError, match=r"."):
        runner.run(AsyncioNetwork().connect(asyncio.Protocol, host, port))
