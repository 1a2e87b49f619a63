"""One process of the simulated cluster: a session, a simulated broker and a real controller. `kill` is kill -9."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from klamm.controller.controller import Controller
from klamm.controller.controller_state import ControllerState
from klamm.controller.term import Term
from klamm.model.brokers import Broker, Endpoint
from klamm.model.config import BrokerConfig
from klamm.model.errors import ConfigError, KafkaError, ZooKeeperError
from klamm.model.ids import BrokerId, TopicPartition
from klamm.model.ports import CreateMode
from klamm.net.listener import Listener
from klamm.server.registration import Registration
from klamm.simulation.broker import RequestFaults, SimulatedBroker
from klamm.simulation.isr import IsrUpkeep
from klamm.telemetry.metrics import MetricsRegistry
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.znodes import log_dir_event
from klamm.zookeeper.znodes.persistent import PERSISTENT_PATHS

if TYPE_CHECKING:
    from klamm.simulation.cluster import SimulatedCluster

ZOOKEEPER_HOST: Final = "zookeeper"
FOLLOWER_HOST: Final = "zookeeper-2"
ZOOKEEPER_PORT: Final = 2181
BROKER_PORT: Final = 9092
LISTENER: Final = "PLAINTEXT"
SESSION_TIMEOUT_MS: Final = 6_000
FRAME_BYTES_MAX: Final = 100 << 20
SHUTDOWN_TRIES: Final = 3
LINGERS_SECONDS: Final = 3.0


class SimulatedProcess:
    def __init__(self, cluster: SimulatedCluster, broker: BrokerId) -> None:
        self._cluster = cluster
        self.id = broker
        self.host = f"broker-{broker}"
        self.faults = RequestFaults()
        self.zk: ZooKeeperClient | None = None
        self.broker: SimulatedBroker | None = None
        self.controller: Controller | None = None
        self.metrics = MetricsRegistry()
        self.life = 0
        self._task: asyncio.Task[None] | None = None
        self._start_timer: asyncio.TimerHandle | None = None

    @property
    def runs(self) -> bool:
        return self._task is not None and not self._task.done()

    @property
    def acts(self) -> bool:
        """Whether it is the active controller."""
        return self.controller is not None and self.controller.is_active

    @property
    def term_at_rest(self) -> Term | None:
        """Its term, if it is the controller, no event is pending and every request was answered."""
        controller = self.controller
        if controller is None or controller._queue.state is not ControllerState.IDLE or len(controller._queue):
            return None
        unanswered = self.metrics.value("kafka.controller", "ControllerChannelManager", "TotalQueueSize")
        return None if unanswered else controller._term

    # --- life ---

    def start(self) -> None:
        if self.runs:
            return
        if self._start_timer is not None:
            self._start_timer.cancel()
            self._start_timer = None
        self.life += 1
        self._cluster.checker.note("start", self.id)
        self._cluster.network.revive(self.host)
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"{self.host} life {self.life}")

    def start_later(self, seconds: float) -> None:
        self._start_timer = asyncio.get_running_loop().call_later(seconds, self.start)

    async def kill(self) -> None:
        """Disconnect it first, so that nothing its `finally` blocks send arrives."""
        self._cluster.network.kill(self.host)
        self.controller = self.broker = self.zk = None
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def leave(self) -> None:
        """End the session first, so that the registration goes at once."""
        if self.zk is not None and self.zk.session_id:
            self._cluster.server.expire(self.zk.session_id)
        await self.kill()

    async def _run(self) -> None:
        """Like a supervisor, retry a start that failed because of ZooKeeper, or because an earlier registration lasts
        too long or is unreadable. Anything else is a bug."""
        while True:
            try:
                await self._live()
            except (ZooKeeperError, ConfigError) as error:
                self._cluster.checker.note("start failed", self.id, type(error).__name__)
                await asyncio.sleep(1)
            except Exception as error:
                self._cluster.checker.fail(error)
                raise

    async def _live(self) -> None:
        cluster = self._cluster
        network = cluster.network.host(self.host)
        rng = random.Random(f"{cluster.scenario.seed} {self.host} {self.life}")
        config = BrokerConfig(
            broker_id=self.id,
            zookeeper_connect=",".join(f"{host}:{ZOOKEEPER_PORT}" for host in cluster.zookeepers),
            listeners=(f"{LISTENER}://{self.host}:{BROKER_PORT}",),
            fast_failover=cluster.fast_failover,
        )
        async with AsyncExitStack() as stack:
            zk = ZooKeeperClient(network, cluster.clock, rng, config.zookeeper_connect, SESSION_TIMEOUT_MS)
            await zk.start()
            self.zk = zk
            stack.push_async_callback(zk.close)
            for path in PERSISTENT_PATHS:
                await zk.ensure_path(path)
            broker = SimulatedBroker(self.id, rng, cluster.checker, self.faults)
            listener = Listener(
                network,
                LISTENER,
                self.host,
                BROKER_PORT,
                broker.handle,
                privileged=True,
                frame_bytes_max=FRAME_BYTES_MAX,
            )
            await listener.bind()
            stack.push_async_callback(listener.close)
            me = Broker(self.id, (Endpoint(LISTENER, self.host, BROKER_PORT),))
            registration = Registration(zk, cluster.clock, me)

            async def register() -> None:
                broker.epoch = await registration.again()

            broker.epoch = await registration.first()
            listener.serve()
            self.broker = broker
            upkeep = IsrUpkeep(broker, zk, rng, cluster.checker, cluster.fetches)
            keeper = asyncio.create_task(upkeep.run(), name=f"{self.host} ISRs")
            stack.push_async_callback(_ended, keeper)
            keeper.add_done_callback(self._keeper_ended)
            self.metrics = MetricsRegistry()
            self.controller = Controller(
                config=config,
                clock=cluster.clock,
                network=network,
                random=rng,
                zk=zk,
                events=cluster.checker,
                metrics=self.metrics,
                register_broker=register,
            )
            await stack.enter_async_context(self.controller.running())
            await asyncio.get_running_loop().create_future()

    def _keeper_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._cluster.checker.fail(error)

    # --- shutdown and disk failure ---

    async def shut_down(self) -> None:
        """A controlled shutdown: ask the controller a few times to move the leaderships, then stop."""
        life, broker = self.life, self.broker
        if broker is None:
            return  # it died before it could ask
        for _ in range(SHUTDOWN_TRIES):
            acting = next((process for process in self._cluster.processes if process.acts), None)
            if acting is not None:
                try:
                    controller = acting.controller
                    assert controller is not None
                    remaining = await self._cluster.call(
                        f"controlled shutdown of {self.id}",
                        acting,
                        controller.controlled_shutdown(self.id, broker.epoch),
                    )
                    if not remaining:
                        break
                except (KafkaError, ConnectionError):
                    pass
            await asyncio.sleep(0.5)
        await asyncio.sleep(self._cluster.random.uniform(0, LINGERS_SECONDS))  # a broker has more to close
        self._cluster.look()
        if self.life == life and self.runs:
            await self.leave()
            self.start_later(self._cluster.random.uniform(0.1, 8.0))

    async def fail_directory(self) -> None:
        """Lose some replicas; the broker keeps running and notifies the controller."""
        broker, zk = self.broker, self.zk
        if broker is None or zk is None or not broker.roles:
            return
        names = sorted(broker.roles)
        broker.offline.update(self._cluster.random.sample(names, self._cluster.random.randint(1, len(names))))
        document = log_dir_event.encode(self.id)
        while self.broker is broker:
            try:
                await zk.create(log_dir_event.PREFIX, document, CreateMode.PERSISTENT_SEQUENTIAL)
                return
            except ZooKeeperError:
                await asyncio.sleep(0.2)

    def offline(self) -> set[TopicPartition]:
        return set() if self.broker is None else self.broker.offline


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
