"""From the controller to each broker: one connection, one request in flight, order kept, nothing lost while it lives.

A request that fails is sent again, the same one, every 100 ms, until the broker's registration is gone: receivers are
idempotent by their epochs. One slow broker delays nobody else. Answers come back as events. While ZooKeeper is silent
nothing is sent: we may no longer be the controller, and a StopReplica cannot be called back (design D1).

The connection is made when the channel opens and kept though nothing is sent, so that its end is news: with fast
fail-over a broker that then refuses becomes an event, and so does its return (`suspicion`). A suspect's channel stays
as it is, with what waits in it: to the channel it is a slow broker like any other. Should it live, it gets everything
in the order in which it was decided, each request fenced by its epochs, and after that the whole start-up sequence.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from klamm.controller.events import BrokerConnected, BrokerRefused, ControllerEvent
from klamm.controller.liveness.kept_connection import Lifeline
from klamm.controller.liveness.suspicion import UNHARMED, Evidence
from klamm.model.brokers import LiveBroker
from klamm.model.config import BrokerConfig
from klamm.model.errors import ErrorCode
from klamm.model.ids import BrokerEpoch, BrokerId
from klamm.model.ports import Buffer, Clock, Network
from klamm.net.client import BrokerConnection
from klamm.telemetry.metrics import MetricsRegistry
from klamm.wire.apis import ApiKey
from klamm.wire.errors import ProtocolError

log = logging.getLogger(__name__)

RETRY_PAUSE_S: Final = 0.1
SILENCE_PAUSE_S: Final = 0.05
GROUP: Final = "kafka.controller"
TYPE: Final = "ControllerChannelManager"


@dataclass(frozen=True, slots=True)
class ControlRequest:
    api_key: ApiKey
    version: int
    chunks: Sequence[Buffer] = field(repr=False)
    answered: Callable[[memoryview], ControllerEvent | None] = field(repr=False)
    """What the answer means; None where nobody waits for it. Raises ProtocolError for nonsense."""


class Channels:
    """The channels of one term."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        network: Network,
        metrics: MetricsRegistry,
        *,
        enqueue: Callable[[ControllerEvent], None],
        may_act: Callable[[], bool],
        on_crash: Callable[[BaseException], None],
        testimony: Callable[[BrokerId, BrokerEpoch], Evidence] = lambda broker, epoch: UNHARMED,
    ) -> None:
        """`testimony`: what this process saw of a broker before the term began."""
        self._config = config
        self._clock = clock
        self._network = network
        self._metrics = metrics
        self._enqueue = enqueue
        self._may_act = may_act
        self._on_crash = on_crash
        self._testimony = testimony
        self._channels: dict[BrokerId, _Channel] = {}
        self._closing: set[asyncio.Task[None]] = set()
        metrics.read(GROUP, TYPE, "TotalQueueSize", lambda: float(sum(map(len, self._channels.values()))))

    def open(self, live: LiveBroker) -> None:
        endpoint = live.broker.endpoint(self._config.control_plane_listener)
        assert endpoint is not None, "registrations without the control-plane listener are not admitted"
        lifeline = Lifeline(
            BrokerConnection(self._network, endpoint.host, endpoint.port, str(self._config.broker_id), self._clock),
            self._clock,
            self._config.controller_socket_timeout_ms / 1000,
            on_refused=lambda: self._refused(channel),
            evidence=self._testimony(live.broker.id, live.epoch),
        )
        channel = _Channel(self, live.broker.id, live.epoch, lifeline)
        self._channels[live.broker.id] = channel
        channel.task = asyncio.create_task(channel.run(), name=f"controller-channel-{live.broker.id}")
        channel.task.add_done_callback(self._ended)
        self._metrics.read(GROUP, TYPE, "QueueSize", lambda: float(len(channel)), broker_id=str(live.broker.id))

    def send(self, broker: BrokerId, request: ControlRequest) -> None:
        channel = self._channels.get(broker)
        if channel is None:
            log.warning("no channel to broker %d: %s is dropped", broker, request.api_key.name)
        else:
            channel.put_nowait(request)

    def evidence(self, broker: BrokerId) -> Evidence:
        channel = self._channels.get(broker)
        return UNHARMED if channel is None else channel.lifeline.evidence

    def refusing(self) -> frozenset[BrokerId]:
        """Brokers that we would accuse now."""
        return frozenset(b for b, channel in self._channels.items() if channel.lifeline.evidence.is_complete)

    def _refused(self, channel: _Channel) -> None:
        # Never ourselves: our own listener is the first thing that closes when this process stops.
        if self._config.fast_failover and channel.broker != self._config.broker_id:
            channel.accused = True
            self._enqueue(BrokerRefused(channel.broker, channel.epoch))

    def _is_back(self, channel: _Channel, answer: ControllerEvent | None) -> None:
        """An answer, not a connection: a broker that is started again listens before it registers its new life, and the
        registration that it is suspected under is the old one's."""
        if channel.accused and getattr(answer, "error", ErrorCode.NONE) != ErrorCode.STALE_BROKER_EPOCH:
            channel.accused = False
            self._enqueue(BrokerConnected(channel.broker, channel.epoch))

    def close_one(self, broker: BrokerId) -> None:
        """The broker is gone: what waits for it is dropped. A new life of it is told everything again."""
        channel = self._channels.pop(broker, None)
        if channel is not None and channel.task is not None:
            channel.task.cancel()
            self._closing.add(channel.task)
            channel.task.add_done_callback(self._closing.discard)
            self._metrics.remove(GROUP, TYPE, "QueueSize", broker_id=str(broker))
            self._metrics.remove(GROUP, TYPE, "RequestRateAndQueueTimeMs", broker_id=str(broker))

    async def close(self) -> None:
        for broker in list(self._channels):
            self.close_one(broker)
        if self._closing:
            await asyncio.wait(self._closing)
        self._metrics.read(GROUP, TYPE, "TotalQueueSize", lambda: 0.0)  # zero, not gone, where nobody leads

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_crash(error)

    async def deliver(self, lifeline: Lifeline, broker: BrokerId, request: ControlRequest) -> memoryview:
        connection, timeout = lifeline.connection, self._config.request_timeout_ms / 1000
        failures = 0
        while True:
            await lifeline.wait_connected()
            if not self._may_act():
                await asyncio.sleep(SILENCE_PAUSE_S)
                continue
            try:
                return await connection.request(request.api_key, request.version, request.chunks, timeout=timeout)
            except OSError as error:
                if failures == 0:
                    log.warning("%s to broker %d failed, trying again: %s", request.api_key.name, broker, error)
                failures += 1
                connection.abort()
                await asyncio.sleep(RETRY_PAUSE_S)

    def received(self, channel: _Channel, request: ControlRequest, body: memoryview) -> None:
        try:
            event = request.answered(body)
        except ProtocolError as error:
            log.error("broker %d answered %s with nonsense: %s", channel.broker, request.api_key.name, error)
            return
        if event is not None:
            self._enqueue(event)
        self._is_back(channel, event)

    def queue_timer(self, broker: BrokerId) -> Callable[[float], None]:
        return self._metrics.timer(GROUP, TYPE, "RequestRateAndQueueTimeMs", broker_id=str(broker)).update

    def now(self) -> float:
        return self._clock.monotonic()


class _Channel:
    def __init__(self, owner: Channels, broker: BrokerId, epoch: BrokerEpoch, lifeline: Lifeline) -> None:
        self._owner = owner
        self.broker = broker
        self.epoch = epoch
        self.lifeline = lifeline
        self.accused = False
        """That it refuses was reported: so must be its return."""
        self._queue: deque[tuple[ControlRequest, float]] = deque()
        self._wakeup = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._queue)

    def put_nowait(self, request: ControlRequest) -> None:
        self._queue.append((request, self._owner.now()))
        self._wakeup.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.lifeline.run(), name=f"controller-lifeline-{self.broker}")
            tasks.create_task(self._send(), name=f"controller-requests-{self.broker}")

    async def _send(self) -> None:
        waited = self._owner.queue_timer(self.broker)
        while True:
            while not self._queue:
                self._wakeup.clear()
                await self._wakeup.wait()
            request, put_at = self._queue[0]
            waited((self._owner.now() - put_at) * 1000)
            body = await self._owner.deliver(self.lifeline, self.broker, request)
            self._queue.popleft()
            self._owner.received(self, request, body)
