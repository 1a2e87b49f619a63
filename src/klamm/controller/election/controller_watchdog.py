"""Each broker that is not the controller watches the one that is (design D11).

It keeps a connection to the controller's listener. When that breaks and two probes are refused, under the same four
guards as any suspicion, it enqueues `TakeOver` of exactly the /controller node that the dead broker owns: one multi.
Several brokers may do so at once; the multi lets one win, and the others find a different node and do nothing. A
controller that is alive behind a port that refuses is fenced by that multi and resigns when its watch fires.

The winner finds the dead controller's broker still registered. What the watchdog saw counts as evidence against it
(`evidence_against`), so one refused probe in the new term makes that broker suspect too. All other brokers start the
new term without suspicion: it is built on what a process has seen itself, and this one has seen nothing of them yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from klamm.controller.election.controller_election import NO_BROKER
from klamm.controller.events import ControllerEvent, TakeOver
from klamm.controller.liveness.kept_connection import KeptConnection
from klamm.controller.liveness.suspicion import ALL_BUT_ONE, UNHARMED, Evidence, Observation, objection
from klamm.controller.recorder import Recorder
from klamm.model.brokers import LiveBroker
from klamm.model.config import BrokerConfig
from klamm.model.errors import ZNodeError, ZooKeeperError
from klamm.model.ids import BrokerEpoch, BrokerId
from klamm.model.ports import Clock, Network, ZooKeeper
from klamm.net.client import BrokerConnection
from klamm.zookeeper.retries import children_or_none
from klamm.zookeeper.znodes import broker_id, candidates

RETRY_S: Final = 1.0
RETRY_MAX_S: Final = 30.0


class _Watched(NamedTuple):
    broker: BrokerId
    czxid: int
    """The /controller node that it owns: one term."""


class ControllerWatchdog:
    def __init__(
        self,
        *,
        config: BrokerConfig,
        clock: Clock,
        network: Network,
        zk: ZooKeeper,
        recorder: Recorder,
        enqueue: Callable[[ControllerEvent], None],
    ) -> None:
        self._config = config
        self._clock = clock
        self._network = network
        self._zk = zk
        self._recorder = recorder
        self._enqueue = enqueue
        self._watched: _Watched | None = None
        self._epoch: BrokerEpoch | None = None
        self._kept: KeptConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()

    def watch(self, broker: BrokerId, czxid: int) -> None:
        """Watch this broker, which is now the controller. Does nothing if it is our own, or if there is none."""
        watched = _Watched(broker, czxid) if broker not in (self._config.broker_id, NO_BROKER) else None
        if watched == self._watched or not self._config.fast_failover:
            return
        self._end()
        self._watched = watched
        if watched is not None:
            self._task = asyncio.create_task(self._watch(watched), name=f"controller-watchdog-{broker}")

    def evidence_against(self, broker: BrokerId, epoch: BrokerEpoch) -> Evidence:
        """For a term that begins: what this process saw of the former controller's broker under this broker epoch."""
        if self._watched is None or self._kept is None or (self._watched.broker, self._epoch) != (broker, epoch):
            return UNHARMED
        return ALL_BUT_ONE if self._kept.evidence.is_complete else UNHARMED

    async def close(self) -> None:
        self._end()
        if self._ending:
            await asyncio.wait(self._ending)

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._ending.add(self._task)
            self._task.add_done_callback(self._ending.discard)
        self._task = self._kept = self._epoch = self._watched = None

    async def _watch(self, watched: _Watched) -> None:
        """An unexpected exception is reported and ends nothing else: this broker goes on watching after a pause."""
        pause = RETRY_S
        while True:
            try:
                await self._watch_connection(watched)
            except Exception as error:
                self._recorder.crashed(f"watchdog of controller {watched.broker}", error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, RETRY_MAX_S)

    async def _watch_connection(self, watched: _Watched) -> None:
        live = await self._registration(watched.broker)
        self._epoch = live.epoch
        endpoint = live.broker.endpoint(self._config.control_plane_listener)
        assert endpoint is not None
        refused = asyncio.Event()
        self._kept = kept = KeptConnection(
            BrokerConnection(self._network, endpoint.host, endpoint.port, str(self._config.broker_id), self._clock),
            self._clock,
            self._config.controller_socket_timeout_ms / 1000,
            on_refused=refused.set,
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(kept.run(), name=f"controller-watchdog-connection-{watched.broker}")
            tasks.create_task(
                self._judge(watched, live.epoch, kept, refused), name=f"controller-watchdog-judge-{watched.broker}"
            )

    async def _registration(self, broker: BrokerId) -> LiveBroker:
        """Waits until the registration can be read and names the listener."""
        path = broker_id.path(broker)
        while True:
            try:
                (node,) = await self._zk.get_many([path])
                if node is not None:
                    found = broker_id.decode(path, node.data)
                    if found.endpoint(self._config.control_plane_listener) is not None:
                        return LiveBroker(found, BrokerEpoch(node.stat.czxid))
            except (ZooKeeperError, ZNodeError):
                pass  # the controller reports a bad registration; here it only means that there is nothing to watch
            await asyncio.sleep(RETRY_S)

    async def _judge(self, watched: _Watched, epoch: BrokerEpoch, kept: KeptConnection, refused: asyncio.Event) -> None:
        """Enqueues TakeOver every second as long as the controller refuses connections and owns the same node, because
        a broker that wins the race may fail. The suspicion is recorded once. A broker that is not a candidate leaves
        the first try to a live candidate (design D12)."""
        recorded = stood_back = False
        while True:
            await refused.wait()
            refused.clear()
            started = self._clock.monotonic()
            try:
                registered = await self._zk.children(broker_id.PARENT)
                preferred = await self._preferred(registered, watched.broker)
                (node,) = await self._zk.get_many([broker_id.path(watched.broker)])
            except ZooKeeperError as error:
                self._recorder.not_suspected(watched.broker, f"ZooKeeper: {error}")
                continue
            seen = Observation(
                evidence=kept.evidence,
                now=self._clock.monotonic(),
                epoch=epoch,
                registered_epoch=None if node is None else BrokerEpoch(node.stat.czxid),
                zookeeper_silence=self._zk.silence(),
                refusing=1,
                brokers=len(registered),
            )
            reason = objection(seen)
            if reason:
                self._recorder.not_suspected(watched.broker, reason)
                continue
            cause = f"controller {watched.broker} suspected"
            if not recorded:
                self._recorder.decision("controller-suspected", cause, started=started, detail=str(seen))
                recorded = True
            if preferred and str(self._config.broker_id) not in preferred and not stood_back:
                stood_back = True
                continue
            self._enqueue(TakeOver(watched.czxid, cause))

    async def _preferred(self, registered: list[str], dead: BrokerId) -> frozenset[str]:
        """Candidates that are registered, without the broker that is gone."""
        names = await children_or_none(self._zk, candidates.PARENT)
        return frozenset(names or ()) & frozenset(registered) - {str(dead)}
