"""One process of the simulated cluster: its life and death. `kill` is kill -9.

`controller_process` runs a real controller and a simulated broker in it, `broker_process` a whole real broker.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

from klamm.controller.controller import Controller
from klamm.controller.controller_state import ControllerState
from klamm.controller.term import Term
from klamm.model.errors import ConfigError, ZooKeeperError
from klamm.model.ids import BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from klamm.simulation.healed import Metadata
from klamm.telemetry.metrics import MetricsRegistry
from klamm.zookeeper.client import ZooKeeperClient

if TYPE_CHECKING:
    from klamm.simulation.cluster import SimulatedCluster

ZOOKEEPER_HOST: Final = "zookeeper"
FOLLOWER_HOST: Final = "zookeeper-2"
ZOOKEEPER_PORT: Final = 2181
BROKER_PORT: Final = 9092
LISTENER: Final = "PLAINTEXT"
SHUTDOWN_TRIES: Final = 3
LINGERS_SECONDS: Final = 3.0


class RequestFaults:
    """How the network treats requests to one broker. Changes during the run."""

    def __init__(self) -> None:
        self.end()

    def end(self) -> None:
        self.lose_request = 0.0
        self.lose_reply = 0.0
        self.seconds_late = 0.0


class BrokerView(Protocol):
    """What the simulation looks at in a broker, real or not."""

    @property
    def epoch(self) -> BrokerEpoch: ...

    @property
    def controller_epoch(self) -> ControllerEpoch: ...

    @property
    def metadata(self) -> Metadata: ...

    def leads(self) -> Mapping[TopicPartition, LeaderEpoch]: ...

    def follows(self, leader: BrokerId, name: TopicPartition, epoch: LeaderEpoch) -> bool: ...


class SimulatedProcess(ABC):
    def __init__(self, cluster: SimulatedCluster, broker: BrokerId) -> None:
        self._cluster = cluster
        self.id = broker
        self.host = f"broker-{broker}"
        self.faults = RequestFaults()
        self.zk: ZooKeeperClient | None = None
        self.broker: BrokerView | None = None
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
        if not controller.is_active:
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
        self._cluster.checker.starts(self.id)
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
                return
            except (ZooKeeperError, ConfigError) as error:
                self._cluster.checker.note("start failed", self.id, type(error).__name__, error)
                await asyncio.sleep(1)
            except Exception as error:
                self._cluster.checker.fail(error)
                raise

    @abstractmethod
    async def _live(self) -> None:
        """Run until cancelled, or until the process leaves by itself. ZooKeeperError and ConfigError mean: start again
        later."""

    # --- shutdown and disk failure ---

    @abstractmethod
    async def shut_down(self) -> None:
        """A controlled shutdown, and a later start."""

    @abstractmethod
    async def fail_directory(self) -> None:
        """Lose some replicas; the broker keeps running and notifies the controller."""

    @abstractmethod
    def repair(self) -> bool:
        """Repair its disk. True if the process must restart before it uses it again."""
