"""The channels of one term to all registered brokers. A slow or broken one concerns no other broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from klamm.controller.events import ControllerEvent
from klamm.controller.execution.broker_channel import BrokerChannel, ControlRequest
from klamm.controller.liveness.suspicion import UNHARMED, Evidence
from klamm.model.brokers import LiveBroker
from klamm.model.config import BrokerConfig
from klamm.model.ids import BrokerEpoch, BrokerId
from klamm.model.ports import Clock, Network
from klamm.telemetry.metrics import MetricsRegistry

log = logging.getLogger(__name__)

GROUP: Final = "kafka.controller"
TYPE: Final = "ControllerChannelManager"


class Channels:
    def __init__(
        self,
        *,
        config: BrokerConfig,
        clock: Clock,
        network: Network,
        metrics: MetricsRegistry,
        enqueue: Callable[[ControllerEvent], None],
        may_act: Callable[[], bool],
        on_crash: Callable[[BrokerId, BaseException], None],
        earlier_evidence: Callable[[BrokerId, BrokerEpoch], Evidence],
    ) -> None:
        """`earlier_evidence`: what this process saw of a broker before the term began."""
        self._config = config
        self._clock = clock
        self._network = network
        self._metrics = metrics
        self._enqueue = enqueue
        self._may_act = may_act
        self._on_crash = on_crash
        self._earlier_evidence = earlier_evidence
        self._channels: dict[BrokerId, BrokerChannel] = {}
        self._tasks: dict[BrokerId, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        metrics.read(GROUP, TYPE, "TotalQueueSize", lambda: float(sum(map(len, self._channels.values()))))

    def open(self, live: LiveBroker) -> None:
        broker, tag = live.broker.id, str(live.broker.id)
        channel = BrokerChannel(
            live,
            config=self._config,
            clock=self._clock,
            network=self._network,
            enqueue=self._enqueue,
            may_act=self._may_act,
            record_wait=self._metrics.timer(GROUP, TYPE, "RequestRateAndQueueTimeMs", broker_id=tag).update,
            on_crash=self._on_crash,
            evidence=self._earlier_evidence(broker, live.epoch),
        )
        self._channels[broker] = channel
        self._tasks[broker] = asyncio.create_task(channel.run(), name=f"controller-channel-{broker}")
        self._metrics.read(GROUP, TYPE, "QueueSize", lambda: float(len(channel)), broker_id=tag)

    def send(self, broker: BrokerId, request: ControlRequest) -> None:
        channel = self._channels.get(broker)
        if channel is None:
            log.warning("no channel to broker %d: %s is dropped", broker, request.api_key.name)
        else:
            channel.put_nowait(request)

    def evidence(self, broker: BrokerId) -> Evidence:
        channel = self._channels.get(broker)
        return UNHARMED if channel is None else channel.evidence

    def refusing(self) -> frozenset[BrokerId]:
        """Brokers with complete evidence against them."""
        return frozenset(broker for broker, channel in self._channels.items() if channel.evidence.is_complete)

    def close_one(self, broker: BrokerId) -> None:
        """The broker's registration ended. Drop its waiting requests: if it registers again, it receives everything."""
        if self._channels.pop(broker, None) is None:
            return
        task = self._tasks.pop(broker)
        task.cancel()
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        self._metrics.remove(GROUP, TYPE, "QueueSize", broker_id=str(broker))
        self._metrics.remove(GROUP, TYPE, "RequestRateAndQueueTimeMs", broker_id=str(broker))

    async def close(self) -> None:
        for broker in list(self._channels):
            self.close_one(broker)
        if self._closing:
            await asyncio.wait(self._closing)
        self._metrics.read(GROUP, TYPE, "TotalQueueSize", lambda: 0.0)  # zero, not absent, on brokers that do not lead
