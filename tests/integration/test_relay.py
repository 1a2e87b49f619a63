"""The relay of the tests closes every connection, also one that arrives while it is being shut."""

from __future__ import annotations

import asyncio
import gc
import socket

import pytest

from klamm.testing.relay import HOST, Relay


@pytest.mark.parametrize("turns", range(6))
def test_a_connection_that_arrives_during_the_shutdown(turns: int) -> None:
    """Asyncio says that a transport was not closed, which fails the test. `turns`: how far the connection has come."""

    async def shut_with_a_new_connection() -> None:
        with socket.create_server((HOST, 0)) as target:
            relay = Relay(target.getsockname()[1])
            await relay.open()
            with socket.create_connection((HOST, relay.port)) as client:
                for _ in range(turns):
                    await asyncio.sleep(0)
                await relay.shut()
                assert not relay.is_open
                client.settimeout(30)
                try:
                    assert client.recv(1) == b""
                except ConnectionResetError:
                    pass  # it was not accepted yet

    asyncio.run(shut_with_a_new_connection())
    gc.collect()
