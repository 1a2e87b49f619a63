"""A process with a real controller and a simulated broker."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from klamm.controller.controller import Controller
from klamm.model.brokers import Broker, Endpoint
from klamm.model.config import BrokerConfig
from klamm.model.errors import KafkaError, ZooKeeperError
from klamm.model.ids import BrokerId
from klamm.model.ports import CreateMode
from klamm.net.listener import Listener
from klamm.server.registration import Registration
from klamm.simulation.broker import SimulatedBroker
from klamm.simulation.invariants import SESSION_TIMEOUT_MS
from klamm.simulation.isr import IsrUpkeep
from klamm.simulation.process import (
    BROKER_PORT,
    LINGERS_SECONDS,
    LISTENER,
    SHUTDOWN_TRIES,
    ZOOKEEPER_PORT,
    SimulatedProcess,
)
from klamm.telemetry.metrics import MetricsRegistry
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.znodes import log_dir_event
from klamm.zookeeper.znodes.persistent import PERSISTENT_PATHS

if TYPE_CHECKING:
    from klamm.simulation.cluster import SimulatedCluster

FRAME_BYTES_MAX: Final = 100 << 20


class ControllerProcess(SimulatedProcess):
    def __init__(self, cluster: SimulatedCluster, broker: BrokerId) -> None:
        super().__init__(cluster, broker)
        self._simulated: SimulatedBroker | None = None

    async def kill(self) -> None:
        self._simulated = None
        await super().kill()

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
            self.broker = self._simulated = broker
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
            if registration.session_id != zk.session_id:
                await self.controller.after_new_session()  # as in server/broker_core.py
            await asyncio.get_running_loop().create_future()

    def _keeper_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._cluster.checker.fail(error)

    # --- shutdown and disk failure ---

    async def shut_down(self) -> None:
        """A controlled shutdown: ask the controller a few times to move the leaderships, then stop."""
        life, broker = self.life, self._simulated
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
        broker, zk = self._simulated, self.zk
        if broker is None or zk is None or not broker.roles:
            return
        names = sorted(broker.roles)
        broker.offline.update(self._cluster.random.sample(names, self._cluster.random.randint(1, len(names))))
        document = log_dir_event.encode(self.id)
        while self._simulated is broker:
            try:
                await zk.create(log_dir_event.PREFIX, document, CreateMode.PERSISTENT_SEQUENTIAL)
                return
            except ZooKeeperError:
                await asyncio.sleep(0.2)

    def repair(self) -> bool:
        return self._simulated is not None and bool(self._simulated.offline)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
