"""Stub brokers, registered in ZooKeeper, that answer every control request at once and note its time.

They create no logs and fetch nothing, so only the controller is measured. The time of a request is when its last byte
arrives.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from klamm.model.brokers import Broker, Endpoint
from klamm.model.errors import KlammError
from klamm.model.ids import BrokerId
from klamm.model.ports import Buffer, Clock, Network
from klamm.model.requests import RequestContext
from klamm.net.client import BrokerConnection
from klamm.net.listener import Listener
from klamm.wire.apis import APIS, ApiKey
from klamm.wire.errors import ProtocolError
from klamm.wire.messages import decode_response, encode_request, encode_response, request_class, response_class
from klamm.wire.server_connection import RequestHeader
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.znodes import broker_id, registration

LISTENER = "INTERNAL"
HOST = "127.0.0.1"
FRAME_BYTES_MAX = 1 << 30

QUIET_S = 1.5
PAUSE_S = 0.1
"""A ZooKeeper that takes longer for the smallest read is pausing."""
IDLE_SHARE = 0.1
"""Share of a CPU that an idle process may use. An idle JVM uses a few hundredths."""


class BenchFailed(KlammError):
    """The message says in one line why there are no figures."""


class Process(Protocol):
    """The controller process, seen from outside."""

    def cpu_seconds(self) -> float: ...

    def require_alive(self) -> None: ...


_ANSWERS = {
    ApiKey.LEADER_AND_ISR: response_class(ApiKey.LEADER_AND_ISR),
    ApiKey.STOP_REPLICA: response_class(ApiKey.STOP_REPLICA),
    ApiKey.UPDATE_METADATA: response_class(ApiKey.UPDATE_METADATA),
}


class StubBroker:
    def __init__(self, broker: int, network: Network, clock: Clock, connect: Callable[[], ZooKeeperClient]) -> None:
        self.id = BrokerId(broker)
        self._network = network
        self._clock = clock
        self._connect = connect
        self._zk: ZooKeeperClient | None = None
        self._listener = Listener(
            network, LISTENER, HOST, 0, self._handle, privileged=True, frame_bytes_max=FRAME_BYTES_MAX
        )
        self.received: Counter[str] = Counter()
        self.bytes_received = 0
        self.last_received = 0.0

    def forget(self) -> None:
        """Forget what was received; it is another controller's turn."""
        self.received = Counter()
        self.bytes_received = 0

    async def start(self) -> None:
        await self._listener.bind()
        self._listener.serve()
        await self.register()

    async def register(self) -> None:
        self._zk = self._connect()
        await self._zk.start()
        endpoint = Endpoint(LISTENER, HOST, self._listener.port)
        document = broker_id.encode(Broker(self.id, (endpoint,)), self._clock.wall_ms())
        await registration.register(self._zk, self.id, document)

    async def shut_down(self, controller: Endpoint) -> None:
        """Send ControlledShutdown; return when the answer says that this broker leads nothing."""
        assert self._zk is not None
        epoch = (await self._zk.get(broker_id.path(self.id))).stat.czxid
        connection = BrokerConnection(self._network, controller.host, controller.port, "stub", self._clock)
        await connection.connect()
        version = APIS[ApiKey.CONTROLLED_SHUTDOWN].max_version
        asked = request_class(ApiKey.CONTROLLED_SHUTDOWN)(broker_id=self.id, broker_epoch=epoch)
        body = await connection.request(ApiKey.CONTROLLED_SHUTDOWN, version, [encode_request(asked, version)])
        answer = decode_response(ApiKey.CONTROLLED_SHUTDOWN, version, body)
        await connection.close()
        if answer.error_code or answer.remaining_partitions:
            raise ProtocolError(f"controlled shutdown of {self.id} was answered {answer}")

    async def leave(self) -> None:
        """End the session and with it the registration, which is all that a controller sees of a broker's death."""
        assert self._zk is not None
        await self._zk.close()
        self._zk = None

    async def stop(self) -> None:
        if self._zk is not None:
            await self.leave()
        await self._listener.close()

    async def _handle(self, context: RequestContext, header: RequestHeader, body: memoryview) -> Sequence[Buffer]:
        answer = _ANSWERS.get(header.api_key)
        if answer is None:
            raise ProtocolError(f"a stub broker does not handle {header.api_key.name}")
        self.last_received = time.monotonic()
        self.received[header.api_key.name] += 1
        self.bytes_received += len(body)
        return [encode_response(answer(error_code=0), header.api_version)]


async def quiet(
    stubs: Sequence[StubBroker],
    since: float,
    process: Process,
    ask_zookeeper: Callable[[], Awaitable[object]],
    timeout_s: float = 600.0,
) -> float:
    """Seconds from `since` until the last control request.

    It was the last if nothing followed for `QUIET_S` while the controller was idle. A busy controller may send more,
    and so may one that waits for a ZooKeeper in a garbage collection.
    """
    deadline = time.monotonic() + timeout_s
    began, used = time.monotonic(), process.cpu_seconds()
    while time.monotonic() < deadline:
        await asyncio.sleep(0.05)
        process.require_alive()
        asked = time.monotonic()
        await ask_zookeeper()
        last, now = max(stub.last_received for stub in stubs), time.monotonic()
        if last < since or last > began or now - asked > PAUSE_S:
            began, used = now, process.cpu_seconds()
        elif now - began > QUIET_S:
            if process.cpu_seconds() - used < IDLE_SHARE * (now - began):
                return last - since
            began, used = now, process.cpu_seconds()
    raise BenchFailed(f"for {timeout_s:.0f} s the controller sent no request or did not stop sending")
