"""Ends a session that another process opened, by its id and password.

A process that was killed leaves its session behind, and with it its ephemeral nodes, until the server's timeout. A
successor that knows the password reconnects to that session and closes it. A server that no longer knows the session,
or gets a wrong password, answers with an empty one.
"""

from __future__ import annotations

import asyncio
from typing import Final

from klamm.model.errors import ZooKeeperError
from klamm.model.ports import Clock, Network
from klamm.zookeeper import jute
from klamm.zookeeper.client.address import ConnectString, ServerAddress
from klamm.zookeeper.client.connection import PendingRequest, ZooKeeperConnection
from klamm.zookeeper.jute import OpCode

TIMEOUT_SECONDS: Final = 2.0
SESSION_TIMEOUT_MS: Final = 4_000


async def end_session(network: Network, clock: Clock, connect_string: str, session_id: int, password: bytes) -> bool:
    """Return whether a server closed the session. False if it is gone, or if no server answers in time."""
    servers, _ = ConnectString.parse(connect_string)
    for server in servers:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                return await _end_on(server, network, clock, session_id, password)
        except (OSError, ZooKeeperError):
            continue  # TimeoutError is an OSError: another server may answer
    return False


async def _end_on(server: ServerAddress, network: Network, clock: Clock, session_id: int, password: bytes) -> bool:
    connection = ZooKeeperConnection(clock, lambda event: None)
    try:
        await network.connect(lambda: connection, server.host, server.port)
        request = jute.ConnectRequest(0, SESSION_TIMEOUT_MS, session_id, password, read_only=False)
        response = await connection.handshake(request)
        if response.timeout_ms <= 0 or response.session_id != session_id:
            return False
        farewell = PendingRequest(OpCode.CLOSE_SESSION, b"", "")
        connection.send(farewell)
        await farewell.future
        return True
    finally:
        connection.abort("former session ended")
