"""The broker that does not lead keeps an eye on the one that does (design D11).

It holds a connection to the controller's own listener. When that breaks and two probes are refused, under the same four
guards as any suspicion, it asks for the office: `TakeOver` of the very /controller node that the dead one holds, one
multi. Several brokers do so at once; the multi lets one win, and the others find another node and do nothing. A
controller that lives behind a port that refuses is fenced by that multi and resigns on its watch.

The winner finds the dead controller's broker still registered. What the vigil saw counts as its own connection that
broke (`testimony`), so one refused probe of the new term makes that broker suspect, too. Everybody else starts without
suspicion in the new term: a suspicion is built on what one has seen, and a successor has seen nothing yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from klamm.controller.events import ControllerEvent, TakeOver
from klamm.controller.liveness.kept_connection import Lifeline
from klamm.controller.liveness.suspicion import ALL_BUT_ONE, UNHARMED, Evidence, Hearing, objection
from klamm.controller.recorder import Recorder
from klamm.model.brokers import LiveBroker
from klamm.model.config import BrokerConfig
from klamm.model.errors import ZNodeError, ZooKeeperError
from klamm.model.ids import BrokerEpoch, BrokerId
from klamm.model.ports import Clock, Network, ZooKeeper
from klamm.net.client import BrokerConnection
from klamm.zookeeper.znodes import broker_id, candidates

RETRY_S: Final = 1.0


class _Watched(NamedTuple):
    broker: BrokerId
    czxid: int
    """Of the /controller node: one reign."""


class Vigil:
    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        network: Network,
        zk: ZooKeeper,
        recorder: Recorder,
        *,
        enqueue: Callable[[ControllerEvent], None],
        on_crash: Callable[[BaseException], None],
    ) -> None:
        self._config = config
        self._clock = clock
        self._network = network
        self._zk = zk
        self._recorder = recorder
        self._enqueue = enqueue
        self._on_crash = on_crash
        self._watched: _Watched | None = None
        self._epoch: BrokerEpoch | None = None
        self._lifeline: Lifeline | None = None
        self._task: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()

    def keep(self, broker: BrokerId, czxid: int) -> None:
        """This one leads now. Ourselves or nobody: there is nothing to watch."""
        watched = _Watched(broker, czxid) if broker not in (self._config.broker_id, -1) else None
        if watched == self._watched or not self._config.fast_failover:
            return
        self._end()
        self._watched = watched
        if watched is not None:
            self._task = asyncio.create_task(self._watch(watched), name=f"vigil-{broker}")
            self._task.add_done_callback(self._ended)

    def testimony(self, broker: BrokerId, epoch: BrokerEpoch) -> Evidence:
        """For a term that begins: what was seen of this life of the former controller's broker."""
        if self._watched is None or self._lifeline is None or (self._watched.broker, self._epoch) != (broker, epoch):
            return UNHARMED
        return ALL_BUT_ONE if self._lifeline.evidence.is_complete else UNHARMED

    async def close(self) -> None:
        self._end()
        if self._ending:
            await asyncio.wait(self._ending)

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._ending.add(self._task)
            self._task.add_done_callback(self._ending.discard)
        self._task = self._lifeline = self._epoch = self._watched = None

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_crash(error)

    async def _watch(self, watched: _Watched) -> None:
        live = await self._registration(watched.broker)
        self._epoch = live.epoch
        endpoint = live.broker.endpoint(self._config.control_plane_listener)
        assert endpoint is not None
        refused = asyncio.Event()
        self._lifeline = lifeline = Lifeline(
            BrokerConnection(self._network, endpoint.host, endpoint.port, str(self._config.broker_id), self._clock),
            self._clock,
            self._config.controller_socket_timeout_ms / 1000,
            on_refused=refused.set,
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(lifeline.run(), name=f"vigil-lifeline-{watched.broker}")
            tasks.create_task(self._judge(watched, live.epoch, lifeline, refused), name=f"vigil-judge-{watched.broker}")

    async def _registration(self, broker: BrokerId) -> LiveBroker:
        """A broken or missing registration, or one without our listener, cannot be watched until it is mended."""
        path = broker_id.path(broker)
        while True:
            try:
                (node,) = await self._zk.get_many([path])
                if node is not None:
                    found = broker_id.decode(path, node.data)
                    if found.endpoint(self._config.control_plane_listener) is not None:
                        return LiveBroker(found, BrokerEpoch(node.stat.czxid))
            except (ZooKeeperError, ZNodeError):
                pass  # the controller itself reports a bad registration; here it only means that we cannot watch
            await asyncio.sleep(RETRY_S)

    async def _judge(self, watched: _Watched, epoch: BrokerEpoch, lifeline: Lifeline, refused: asyncio.Event) -> None:
        """Asks again every second as long as it refuses and this reign has not ended: whoever is faster may fail. That
        is one event, not many. One that is no candidate leaves the first try to a candidate that lives (design D12).
        """
        told = stood_back = False
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
            seen = Hearing(
                evidence=lifeline.evidence,
                now=self._clock.monotonic(),
                epoch=epoch,
                registered_epoch=None if node is None else BrokerEpoch(node.stat.czxid),
                zookeeper_silence=self._zk.silence(),
                accused=1,
                brokers=len(registered),
            )
            reason = objection(seen)
            if reason:
                self._recorder.not_suspected(watched.broker, reason)
                continue
            cause = f"controller {watched.broker} suspected"
            if not told:
                self._recorder.decision("controller-suspected", cause, started=started, detail=str(seen))
                told = True
            if preferred and str(self._config.broker_id) not in preferred and not stood_back:
                stood_back = True
                continue
            self._enqueue(TakeOver(watched.czxid, cause))

    async def _preferred(self, registered: list[str], dead: BrokerId) -> frozenset[str]:
        """Candidates that are registered, but for the one who is gone."""
        (names,) = await self._zk.children_many([candidates.PARENT])
        return frozenset(names or ()) & frozenset(registered) - {str(dead)}
