"""The channel from the controller to one broker: one connection, one request in flight, order kept.

A request that fails is sent again every 100 ms, until the broker's registration ends and the channel closes. Repeating
is safe: epochs make receivers idempotent. While ZooKeeper is silent nothing is sent: this broker may no longer be the
controller, and a StopReplica cannot be called back (design D1).

The connection is made when the channel opens, and kept even when there is nothing to send, so that its end is noticed:
with fast fail-over a broker that then refuses connections becomes an event, and so does its return (see `suspicion`). A
suspect's channel keeps its waiting requests, like that of any slow broker. If the suspect is alive, it receives
everything in the order in which it was decided, each request fenced by its epochs, and after that the whole start-up
sequence.

An unexpected exception in a channel concerns its broker alone: it is reported, and the channel goes on after a pause,
with the requests that it still has.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from klamm.controller.events import BrokerConnected, BrokerRefused, BrokerResponse, ControllerEvent
from klamm.controller.liveness.kept_connection import KeptConnection
from klamm.controller.liveness.suspicion import Evidence
from klamm.model.brokers import LiveBroker
from klamm.model.config import BrokerConfig
from klamm.model.errors import ErrorCode
from klamm.model.ids import BrokerId
from klamm.model.ports import Buffer, Clock, Network
from klamm.net.client import BrokerConnection
from klamm.wire.apis import ApiKey
from klamm.wire.errors import ProtocolError

log = logging.getLogger(__name__)

RETRY_PAUSE_S: Final = 0.1
CRASH_PAUSE_S: Final = 1.0
CRASH_PAUSE_MAX_S: Final = 30.0
SILENCE_PAUSE_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class ControlRequest:
    api_key: ApiKey
    version: int
    chunks: Sequence[Buffer] = field(repr=False)
    decode_response: Callable[[memoryview], BrokerResponse | None] = field(repr=False)
    """None where the response does not matter. Raises ProtocolError for a response that cannot be decoded."""


class BrokerChannel:
    def __init__(
        self,
        live: LiveBroker,
        *,
        config: BrokerConfig,
        clock: Clock,
        network: Network,
        enqueue: Callable[[ControllerEvent], None],
        may_act: Callable[[], bool],
        record_wait: Callable[[float], None],
        on_crash: Callable[[BrokerId, BaseException], None],
        evidence: Evidence,
    ) -> None:
        """`record_wait` gets the milliseconds that each request waited; `on_crash` an exception that should not occur;
        `evidence` is what this process saw of the broker before the term began."""
        endpoint = live.broker.endpoint(config.control_plane_listener)
        assert endpoint is not None, "registrations without the control-plane listener are not admitted"
        self.broker = live.broker.id
        self._epoch = live.epoch
        self._config = config
        self._clock = clock
        self._enqueue = enqueue
        self._may_act = may_act
        self._record_wait = record_wait
        self._on_crash = on_crash
        self._kept = KeptConnection(
            BrokerConnection(network, endpoint.host, endpoint.port, str(config.broker_id), clock),
            clock,
            config.controller_socket_timeout_ms / 1000,
            on_refused=self._on_refused,
            evidence=evidence,
        )
        self._refusal_reported = False
        """True once a refusal was reported: then the broker's return must be reported too."""
        self._queue: deque[tuple[ControlRequest, float]] = deque()
        self._wakeup = asyncio.Event()

    @property
    def evidence(self) -> Evidence:
        return self._kept.evidence

    def __len__(self) -> int:
        return len(self._queue)

    def put_nowait(self, request: ControlRequest) -> None:
        self._queue.append((request, self._clock.monotonic()))
        self._wakeup.set()

    async def run(self) -> None:
        pause = CRASH_PAUSE_S
        while True:
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._kept.run(), name=f"controller-connection-{self.broker}")
                    tasks.create_task(self._send_queued(), name=f"controller-requests-{self.broker}")
            except ExceptionGroup as crash:
                self._on_crash(self.broker, crash.exceptions[0])
            await asyncio.sleep(pause)
            pause = min(2 * pause, CRASH_PAUSE_MAX_S)

    async def _send_queued(self) -> None:
        while True:
            while not self._queue:
                self._wakeup.clear()
                await self._wakeup.wait()
            request, put_at = self._queue[0]
            self._record_wait((self._clock.monotonic() - put_at) * 1000)
            response = await self._send(request)
            self._queue.popleft()
            self._on_response(request, response)

    async def _send(self, request: ControlRequest) -> memoryview:
        connection, timeout = self._kept.connection, self._config.request_timeout_ms / 1000
        failures = 0
        while True:
            await self._kept.wait_connected()
            if not self._may_act():
                await asyncio.sleep(SILENCE_PAUSE_S)
                continue
            try:
                return await connection.request(request.api_key, request.version, request.chunks, timeout=timeout)
            except OSError as error:
                if failures == 0:
                    log.warning("%s to broker %d failed, trying again: %s", request.api_key.name, self.broker, error)
                failures += 1
                connection.abort()
                await asyncio.sleep(RETRY_PAUSE_S)

    def _on_response(self, request: ControlRequest, body: memoryview) -> None:
        try:
            response = request.decode_response(body)
        except ProtocolError as error:
            log.error("the answer of broker %d to %s is invalid: %s", self.broker, request.api_key.name, error)
            return
        if response is not None:
            self._enqueue(response)
        # A connection is not enough: a broker that restarts listens before it registers, and the registration under
        # which it is suspected is the old one.
        is_stale = response is not None and response.error == ErrorCode.STALE_BROKER_EPOCH
        if self._refusal_reported and not is_stale:
            self._refusal_reported = False
            self._enqueue(BrokerConnected(self.broker, self._epoch))

    def _on_refused(self) -> None:
        # Never suspect our own broker: its listener is the first thing that closes when this process stops.
        if self._config.fast_failover and self.broker != self._config.broker_id:
            self._refusal_reported = True
            self._enqueue(BrokerRefused(self.broker, self._epoch))
