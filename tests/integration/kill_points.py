"""A cluster in virtual time whose controller is killed, or loses its session, at one chosen write to ZooKeeper.

Everything in klamm.controller and klamm.zookeeper is real. Controllers run apart from the brokers, so that each write
of their session comes from the controller. The ZooKeeper server sees every request before it applies it: there the
writes are counted and the cut is made. *Before* means that the write never arrives. *After* means that it is applied
but its answer never arrives. A killed controller sends nothing more, and its session ends by its timeout. A controller
whose session expired lives on, learns of it at its next request, and goes through `before_new_session` and
`after_new_session`.

Transactions are small (`OPERATIONS_PER_MULTI`), so that a step of a few partitions takes several writes and can be cut
in the middle.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, TypeVar

from klamm.controller.controller import Controller
from klamm.model.config import BrokerConfig
from klamm.model.errors import KafkaError
from klamm.model.ids import (
    BrokerId,
    TopicPartition,
)
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.net.listener import Listener
from klamm.simulation.loop import VirtualClock, VirtualTimeLoop, run_in_virtual_time
from klamm.simulation.network import SimulatedNetwork
from klamm.telemetry.metrics import MetricsRegistry
from klamm.telemetry.state_changes import DiscardEvents
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.jute import OpCode
from klamm.zookeeper.server.faults import Fault, RequestInfo
from klamm.zookeeper.server.memory import MemoryZooKeeper
from klamm.zookeeper.znodes import (
    broker_id,
    delete_topics,
    isr_change,
    partition_state,
    preferred_replica_election,
    reassign_partitions,
    registration,
)
from klamm.zookeeper.znodes import config as config_znode
from klamm.zookeeper.znodes import controller as controller_znode
from klamm.zookeeper.znodes import controller_epoch as controller_epoch_znode
from klamm.zookeeper.znodes import topic as topic_znode
from klamm.zookeeper.znodes.persistent import PERSISTENT_PATHS

from .simple_brokers import LISTENER, PORT, Obedience, SimpleBroker, document_of

T = TypeVar("T")

OPERATIONS_PER_MULTI: Final = 2
"""Operations in one transaction, besides the fence."""
BROKERS: Final = (1, 2, 3, 4)
ZOOKEEPER: Final = ("zookeeper", 2181)
SESSION_TIMEOUT_MS: Final = 6_000
SETTLED_S: Final = 2.0
LOOK_EVERY_S: Final = 0.25
FINISH_S_MAX: Final = 150.0
"""Longer than the slow retry, which comes every 30 s."""

_WRITES: Final = {OpCode.CREATE, OpCode.CREATE2, OpCode.SET_DATA, OpCode.DELETE, OpCode.MULTI}


class Way(Enum):
    KILLED = "killed, another controller follows"
    EXPIRED = "expired, the same process follows itself"
    EXPIRED_BESIDE = "expired, another controller follows beside it"


class Moment(Enum):
    BEFORE = "before"
    AFTER = "after"


class Cut(NamedTuple):
    way: Way
    write: int
    """1 is the first write of the operation."""
    moment: Moment


class Switch:
    """Sees every request to ZooKeeper, counts the writes of one session from `arm` on, and cuts at the chosen one."""

    def __init__(self, cut: Cut | None, fire: Callable[[int], None]) -> None:
        self._cut = cut
        self._fire = fire
        self._session = 0
        self.writes: list[list[str]] = []
        self.has_fired = False

    def arm(self, session: int) -> None:
        self._session = session

    def on_request(self, request: RequestInfo) -> Fault:
        if request.session_id != self._session or request.opcode not in _WRITES:
            return Fault.NONE
        self.writes.append([])
        cut = self._cut
        if cut is None or len(self.writes) != cut.write:
            return Fault.NONE
        self.has_fired = True
        self._fire(self._session)
        self._session = 0
        return Fault.LOSE_REQUEST if cut.moment is Moment.BEFORE else Fault.LOSE_REPLY

    def reply_delay(self) -> float:
        return 0.0

    def on_write(self, kind: str, path: str, session: int) -> None:
        if session == self._session and self.writes:
            self.writes[-1].append(f"{kind} {path}")


# --- participants ----------------------------------------------------------------------------------------------------


class ControllerProcess:
    """A broker without replicas that stands for election. `kill` is kill -9."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._number = BrokerId(number)
        self._obedience = Obedience()
        self.host = f"controller-{number}"
        self.zk = world.client(self.host)
        # An automatic balance of leaders would hide a forgotten election.
        config = BrokerConfig(
            broker_id=self._number,
            zookeeper_connect="{}:{}".format(*ZOOKEEPER),
            listeners=(f"{LISTENER}://{self.host}:{PORT}",),
            auto_leader_rebalance_enable=False,
        )
        self.controller = Controller(
            config=config,
            clock=world.clock,
            network=world.network.host(self.host),
            random=random.Random(self.host),
            zk=self.zk,
            events=DiscardEvents(),
            metrics=MetricsRegistry(),
            register_broker=self._register,
        )
        self._task: asyncio.Task[None] | None = None
        self.is_dead = False

    async def _register(self) -> None:
        self._obedience.epoch = await registration.register(self.zk, self._number, document_of(self._number, self.host))

    @property
    def is_active(self) -> bool:
        return not self.is_dead and self.controller.is_active

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=self.host)

    async def _run(self) -> None:
        async with self._world.listener(self.host, self._obedience).running(), self.zk.running():
            await self._register()
            async with self.controller.running():
                await asyncio.get_running_loop().create_future()

    def kill(self) -> None:
        """Disconnect it first, so that nothing its `finally` blocks send arrives."""
        assert self._task is not None
        self.is_dead = True
        self._world.network.kill(self.host)
        self._task.cancel()

    async def wait_ended(self) -> None:
        """Cancel repeatedly, because the listener of a dead process waits for peers that will never close."""
        assert self._task is not None
        while not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=5)


# --- the simulated cluster -------------------------------------------------------------------------------------------


class PartitionView(NamedTuple):
    leader: int
    isr: frozenset[int]
    leader_epoch: int


class Tree(NamedTuple):
    """What must be equal in the end. The controller and its epoch may differ, because another one leads."""

    paths: frozenset[str]
    data: Mapping[str, bytes | None]
    """Data of all znodes except states."""
    partitions: Mapping[str, PartitionView]


class World:
    def __init__(self, cut: Cut | None, way: Way) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        self.clock = VirtualClock(loop)
        self.network = SimulatedNetwork(random.Random("network"))
        self.switch = Switch(cut, self._fire)
        self.server = MemoryZooKeeper(
            self.network.host(ZOOKEEPER[0]),
            self.clock,
            random.Random("zookeeper"),
            faults=self.switch,
            on_write=lambda kind, path, session: self.switch.on_write(kind, path, session),
        )
        self._way = way
        self.brokers = {number: SimpleBroker(self, number) for number in BROKERS}
        self.lagging: set[BrokerId] = set()
        """Brokers that never catch up."""
        self.controllers: list[ControllerProcess] = []
        self.operator = self.client("operator")

    def client(self, host: str) -> ZooKeeperClient:
        network, rng = self.network.host(host), random.Random(f"session of {host}")
        return ZooKeeperClient(network, self.clock, rng, "{}:{}".format(*ZOOKEEPER), SESSION_TIMEOUT_MS)

    def listener(self, host: str, obedience: Obedience) -> Listener:
        network = self.network.host(host)
        return Listener(network, LISTENER, host, PORT, obedience.handle, privileged=True, frame_bytes_max=100 << 20)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[World]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.server.running(*ZOOKEEPER))
            await stack.enter_async_context(self.operator.running())
            for path in PERSISTENT_PATHS:
                await self.operator.ensure_path(path)
            stack.push_async_callback(self._end)
            for broker in self.brokers.values():
                await broker.start()
            await self._add_controller(101)
            await self.until(lambda: self.active is not None, "a first controller")
            if self._way is not Way.EXPIRED:
                await self._add_controller(102)
            yield self

    async def _add_controller(self, number: int) -> None:
        controller = ControllerProcess(self, number)
        self.controllers.append(controller)
        controller.start()

    async def _end(self) -> None:
        for controller in self.controllers:
            await controller.wait_ended()
        for broker in self.brokers.values():
            if broker.runs:
                await broker.stop()

    def arm(self) -> None:
        """From here on, writes of the acting controller belong to the operation."""
        self.switch.arm(self.controllers[0].zk.session_id)

    def _fire(self, session: int) -> None:
        if self._way is Way.KILLED:
            self.controllers[0].kill()
        else:
            asyncio.get_running_loop().call_soon(self.server.expire, session)

    # --- inspection ---

    @property
    def active(self) -> Controller | None:
        acting = [process.controller for process in self.controllers if process.is_active]
        return acting[0] if len(acting) == 1 else None

    @property
    def live(self) -> frozenset[int]:
        return frozenset(number for number, broker in self.brokers.items() if broker.runs)

    def follows(self, broker: BrokerId, name: TopicPartition, leader: LeaderAndIsr) -> bool:
        """Whether the replica was told to follow and keeps up."""
        follower = self.brokers[broker]
        role = follower.roles.get(name)
        return (
            follower.runs
            and broker not in self.lagging
            and role is not None
            and (role.state.leader, role.state.leader_epoch) == (leader.leader, leader.leader_epoch)
        )

    def assignments(self) -> dict[TopicPartition, Assignment]:
        nodes = self.server.service.database.tree.nodes
        found = {}
        for path in nodes:
            if path.startswith(f"{topic_znode.PARENT}/") and path.count("/") == 3:
                topic = path.rpartition("/")[2]
                document = topic_znode.decode(topic, nodes[path].data)
                found.update({TopicPartition(topic, n): a for n, a in document.partitions.items()})
        return found

    def state(self, name: TopicPartition) -> LeaderAndIsr | None:
        path = partition_state.path(name)
        node = self.server.service.database.tree.nodes.get(path)
        return None if node is None else partition_state.decode(path, node.data)

    def left_behind(self) -> list[str]:
        """Replicas on live brokers that ZooKeeper does not know, so that no controller will ever delete them."""
        assignments = self.assignments()
        return [
            f"{name} on broker {number}"
            for number, broker in self.brokers.items()
            for name in sorted(broker.roles)
            if broker.runs and (name not in assignments or number not in assignments[name].replicas)
        ]

    def what_is_open(self) -> str:
        """The first thing that is left to do; empty if there is none."""
        nodes = self.server.service.database.tree.nodes
        if self.active is None:
            return "there is not exactly one controller"
        for path in (reassign_partitions.PATH, preferred_replica_election.PATH):
            if path in nodes:
                return f"{path} is still there"
        for parent in (delete_topics.PARENT, isr_change.PARENT):
            if left := [path for path in nodes if path.startswith(f"{parent}/")]:
                return f"{left[0]} is still there"
        assignments = self.assignments()
        for name, assignment in assignments.items():
            state = self.state(name)
            alive = self.live & set(assignment.replicas)
            if assignment.is_being_reassigned:
                return f"{name} is still being reassigned: {assignment}"
            if state is None or state.leader not in alive or not alive - self.lagging <= set(state.isr) <= alive:
                return f"{name} with replicas {assignment.replicas} is left as {state}"
        for number, broker in self.brokers.items():
            lacking = {name for name, a in assignments.items() if number in a.replicas} - broker.roles.keys()
            if broker.runs and lacking:
                return f"broker {number} lacks {sorted(lacking)}"
        return ""

    def tree(self) -> Tree:
        nodes = self.server.service.database.tree.nodes
        apart = {
            controller_znode.PATH,
            controller_epoch_znode.PATH,
            *(path for path in nodes if path.startswith(f"{broker_id.PARENT}/10")),
        }
        data = {path: node.data for path, node in nodes.items() if path not in apart and not path.endswith("/state")}
        partitions = {}
        for name in self.assignments():
            if (state := self.state(name)) is not None:
                partitions[str(name)] = PartitionView(state.leader, frozenset(state.isr), state.leader_epoch)
        return Tree(frozenset(nodes.keys() - apart), data, partitions)

    # --- actions ---

    async def until(self, condition: Callable[[], bool], what: str, timeout_s: float = FINISH_S_MAX) -> None:
        deadline = self.clock.monotonic() + timeout_s
        while not condition():
            assert self.clock.monotonic() < deadline, f"gave up after {timeout_s:.0f} s of waiting for {what}"
            await asyncio.sleep(0.1)

    async def settled(self) -> None:
        """Wait until nothing is left to do and for a while nothing new comes up."""
        deadline = self.clock.monotonic() + FINISH_S_MAX
        since = self.clock.monotonic()
        while self.clock.monotonic() - since < SETTLED_S:
            await asyncio.sleep(LOOK_EVERY_S)
            if left := self.what_is_open():
                since = self.clock.monotonic()
                assert since < deadline, f"after {FINISH_S_MAX:.0f} s: {left}"

    async def create_topic(self, topic: str, replicas: Sequence[Collection[int]]) -> None:
        assigned = {n: Assignment(tuple(map(BrokerId, ids))) for n, ids in enumerate(replicas)}
        await self.operator.create(config_znode.topic_path(topic), config_znode.encode({}))
        await self.operator.create(topic_znode.path(topic), topic_znode.encode(assigned))

    async def ask(self, call: Callable[[Controller], Awaitable[T]]) -> T:
        """Call the controller like a client: retry with the next one if it was lost."""
        while True:
            await self.until(lambda: self.active is not None, "a controller")
            controller = self.active
            assert controller is not None
            try:
                async with asyncio.timeout(10):
                    return await call(controller)
            except (KafkaError, TimeoutError):
                await asyncio.sleep(0.3)


@dataclass(frozen=True)
class Operation:
    name: str
    prepare: Callable[[World], Awaitable[None]]
    perform: Callable[[World], Awaitable[None]]


class Run(NamedTuple):
    tree: Tree
    left_behind: list[str]
    writes: list[list[str]]
    seconds: float
    """Virtual time from the start of the operation until everything is done."""


def run(operation: Operation, way: Way, cut: Cut | None = None) -> Run:
    async def main() -> Run:
        async with World(cut, way).running() as world:
            await operation.prepare(world)
            began = world.clock.monotonic()
            world.arm()
            await operation.perform(world)
            await world.settled()
            assert world.switch.has_fired == (cut is not None), f"{cut} was never reached"
            return Run(world.tree(), world.left_behind(), list(world.switch.writes), world.clock.monotonic() - began)

    return run_in_virtual_time(main())
