"""The real network: TCP on the running event loop (asyncio's own or uvloop). Every failure to connect is an OSError.

Nagle's algorithm must be off on both sides: an acknowledged produce is a chain of small messages, and each would wait
for the other side's delayed ACK. asyncio and uvloop both set TCP_NODELAY on every TCP transport, also on accepted
connections; a test checks that. A test may pass `route` to redirect connections to a proxy, or to raise the error that
a dead or silent host would cause.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from klamm.model.ports import Listening, ProtocolFactory

Route = Callable[[str, int], tuple[str, int]]
"""Returns where a connection to (host, port) really goes; may raise ConnectionRefusedError or TimeoutError."""

ACCEPT_BACKLOG = 512
"""Generous, because a full backlog looks like a silent host to the probes of fast fail-over (design D11)."""


class AsyncioListening:
    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self._port = int(server.sockets[0].getsockname()[1])

    @property
    def port(self) -> int:
        return self._port

    def close(self) -> None:
        self._server.close()

    async def wait_closed(self) -> None:
        await self._server.wait_closed()


class AsyncioNetwork:
    def __init__(self, route: Route | None = None) -> None:
        self._route = route

    async def connect(self, factory: ProtocolFactory, host: str, port: int) -> asyncio.Transport:
        if self._route is not None:
            host, port = self._route(host, port)
        try:
            transport, _ = await asyncio.get_running_loop().create_connection(factory, host, port)
        except OSError as error:
            if error.errno is not None:
                raise
            # The name has several addresses that failed differently, and asyncio and uvloop do not say how.
            transport = await self._connect_to_one_of(factory, host, port)
        except (ValueError, OverflowError) as error:
            # No resolver was asked: an empty or overlong label (UnicodeError), a zero byte, a port above 65535.
            raise socket.gaierror(socket.EAI_NONAME, f"{host!r}:{port} is not an address: {error}") from error
        return transport

    async def _connect_to_one_of(self, factory: ProtocolFactory, host: str, port: int) -> asyncio.Transport:
        """Raises ConnectionRefusedError only if every address refuses: the broker may live behind a silent one."""
        loop = asyncio.get_running_loop()
        reason: OSError = ConnectionRefusedError(f"{host}:{port} refused")
        for *_, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            try:
                transport, _ = await loop.create_connection(factory, str(address[0]), port)
                return transport
            except ConnectionRefusedError:
                continue
            except OSError as error:
                reason = error
        raise reason

    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> Listening:
        server = await asyncio.get_running_loop().create_server(factory, host or None, port, backlog=ACCEPT_BACKLOG)
        return AsyncioListening(server)
