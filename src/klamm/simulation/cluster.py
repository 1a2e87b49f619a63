"""A cluster in virtual time: our ZooKeeper, nodes with a real controller and a simulated broker each, and an operator.

Everything random comes from one seed: delays, faults of ZooKeeper, who crashes when, what the operator does. The code
under klamm.controller and klamm.zookeeper runs as it is.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from dataclasses import dataclass

from klamm.controller.controller import Controller
from klamm.model.brokers import Broker, Endpoint
from klamm.model.config import BrokerConfig
from klamm.model.errors import NodeExists, ZooKeeperError
from klamm.model.ids import BrokerId, TopicPartition
from klamm.model.partition import Assignment
from klamm.net.listener import Listener
from klamm.simulation.broker import SimulatedBroker
from klamm.simulation.checker import Checker
from klamm.simulation.loop import VirtualClock, VirtualTimeLoop, run_in_virtual_time
from klamm.simulation.network import SimulatedNetwork
from klamm.telemetry.metrics import MetricsRegistry
from klamm.telemetry.state_changes import DiscardEvents
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.server.faults import SeededFaults
from klamm.zookeeper.server.memory import MemoryZooKeeper
from klamm.zookeeper.znodes import broker_id, delete_topics, partition_state, reassign_partitions, registration
from klamm.zookeeper.znodes import topic as topic_znode
from klamm.zookeeper.znodes.persistent import PERSISTENT_PATHS

ZOOKEEPER_HOST, ZOOKEEPER_PORT = "zookeeper", 2181
BROKER_PORT = 9092
LISTENER = "PLAINTEXT"
SESSION_TIMEOUT_MS = 6_000
FRAME_BYTES_MAX = 100 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A workload and its faults, as data."""

    seed: int
    nodes: int = 3
    topics: int = 4
    reassignments: int = 4
    partitions: int = 3
    crashes: int = 4
    expiries: int = 2
    seconds: float = 60.0
    lose_request: float = 0.002
    lose_reply: float = 0.002


@dataclass(frozen=True, slots=True)
class Outcome:
    seed: int
    trace_hash: str
    events: int
    elections: int
    crashes: int
    expiries: int
    topics_created: int
    topics_deleted: int
    reassigned: int
    healed: bool


class Node:
    """One process: a session, a simulated broker, a real controller. `kill` is kill -9."""

    def __init__(self, cluster: SimulatedCluster, broker: BrokerId) -> None:
        self._cluster = cluster
        self.id = broker
        self.host = f"broker-{broker}"
        self._task: asyncio.Task[None] | None = None
        self.zk: ZooKeeperClient | None = None
        self.controller: Controller | None = None
        self._life = 0

    @property
    def runs(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        self._life += 1
        self._cluster.network.revive(self.host)
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"{self.host} life {self._life}")

    async def kill(self) -> None:
        """Dead for the network first: what its `finally` blocks still send reaches nobody."""
        self._cluster.network.kill(self.host)
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.controller = None

    async def _run(self) -> None:
        """As under a supervisor: a start that failed for ZooKeeper's sake is tried again. Anything else is a bug."""
        while True:
            try:
                await self._live()
            except ZooKeeperError as error:
                self._cluster.checker.note("start failed", self.id, type(error).__name__)
                await asyncio.sleep(1)
            except Exception as error:
                self._cluster.fail(error)
                raise

    async def _live(self) -> None:
        cluster = self._cluster
        network = cluster.network.host(self.host)
        rng = random.Random(f"{cluster.scenario.seed} {self.host} {self._life}")
        config = BrokerConfig(
            broker_id=self.id,
            zookeeper_connect=f"{ZOOKEEPER_HOST}:{ZOOKEEPER_PORT}",
            listeners=(f"{LISTENER}://{self.host}:{BROKER_PORT}",),
        )
        async with AsyncExitStack() as stack:
            self.zk = zk = ZooKeeperClient(network, cluster.clock, rng, config.zookeeper_connect, SESSION_TIMEOUT_MS)
            await self._connect(zk)
            stack.push_async_callback(zk.close)
            for path in PERSISTENT_PATHS:
                await zk.ensure_path(path)
            broker = SimulatedBroker(self.id, zk, rng, cluster.checker)
            stack.callback(broker.stop)
            listener = Listener(
                network,
                LISTENER,
                self.host,
                BROKER_PORT,
                broker.handle,
                privileged=True,
                frame_bytes_max=FRAME_BYTES_MAX,
            )
            await stack.enter_async_context(listener.running())
            document = broker_id.encode(
                Broker(self.id, (Endpoint(LISTENER, self.host, BROKER_PORT),)), cluster.clock.wall_ms()
            )

            async def register() -> None:
                while True:
                    try:
                        broker.epoch = await registration.register(zk, self.id, document)
                        return
                    except NodeExists:
                        await asyncio.sleep(0.5)  # our former life's session has not ended yet

            await register()
            self.controller = Controller(
                config, cluster.clock, rng, zk, network, DiscardEvents(), MetricsRegistry(), register
            )
            await stack.enter_async_context(self.controller.running())
            await asyncio.get_running_loop().create_future()

    async def _connect(self, zk: ZooKeeperClient) -> None:
        while True:
            try:
                await zk.start()
                return
            except ZooKeeperError:
                await asyncio.sleep(0.2)


class SimulatedCluster:
    def __init__(self, scenario: Scenario) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        self.scenario = scenario
        self.random = random.Random(scenario.seed)
        self.clock = VirtualClock(loop)
        self.network = SimulatedNetwork(random.Random(f"{scenario.seed} network"))
        self.faults = SeededFaults(
            random.Random(f"{scenario.seed} faults"),
            lose_request=scenario.lose_request,
            lose_reply=scenario.lose_reply,
            delay_min=0.0001,
            delay_max=0.02,
        )
        self.server = MemoryZooKeeper(
            self.network.host(ZOOKEEPER_HOST),
            self.clock,
            random.Random(f"{scenario.seed} zookeeper"),
            faults=self.faults,
            on_write=self._on_write,
        )
        self.checker = Checker(self.clock, self.read)
        self.nodes = [Node(self, BrokerId(number)) for number in range(1, scenario.nodes + 1)]
        self.topics: set[str] = set()
        self.in_doubt: set[str] = set()
        """Topics whose deletion was asked for without an answer: the request may still be applied."""
        self.created = self.deleted = self.reassigned = self.crashes = self.expiries = 0
        self._violation: BaseException | None = None

    def read(self, path: str) -> bytes | None:
        node = self.server.service.database.tree.nodes.get(path)
        return None if node is None else node.data

    def _on_write(self, kind: str, path: str, session: int) -> None:
        try:
            self.checker.on_write(kind, path, session)
        except Exception as error:
            # Kept, and raised by the scenario itself: here it would end as one client's lost connection.
            self.fail(error)

    def fail(self, error: Exception) -> None:
        self._violation = self._violation or error

    def raise_violation(self) -> None:
        if self._violation is not None:
            raise self._violation

    async def run(self) -> Outcome:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.server.running(ZOOKEEPER_HOST, ZOOKEEPER_PORT))
            stack.push_async_callback(self._kill_all)
            for node in self.nodes:
                node.start()
            await self._let_things_happen()
            healed = await self._heal()
            self.raise_violation()
            return Outcome(
                self.scenario.seed,
                self.checker.trace_hash,
                self.checker.events,
                self.checker.elections,
                self.crashes,
                self.expiries,
                self.created,
                self.deleted,
                self.reassigned,
                healed,
            )

    async def _kill_all(self) -> None:
        for node in self.nodes:
            if node.runs:
                await node.kill()

    async def _let_things_happen(self) -> None:
        scenario = self.scenario
        moments = [(self.random.uniform(8, scenario.seconds), self._crash) for _ in range(scenario.crashes)]
        moments += [(self.random.uniform(8, scenario.seconds), self._expire) for _ in range(scenario.expiries)]
        moments += [(self.random.uniform(3, scenario.seconds), self._create) for _ in range(scenario.topics)]
        moments += [(self.random.uniform(15, scenario.seconds), self._delete) for _ in range(scenario.topics // 2)]
        moments += [(self.random.uniform(8, scenario.seconds), self._reassign) for _ in range(scenario.reassignments)]
        for moment, happen in sorted(moments, key=lambda entry: entry[0]):
            await asyncio.sleep(max(0.0, moment - self.clock.monotonic()))
            await happen()
            self.raise_violation()

    # --- what happens ---

    async def _crash(self) -> None:
        """The controller's node first, and more often than another; back after less or more than a session's life."""
        running = [node for node in self.nodes if node.runs]
        if len(running) < 2:
            return
        acting = [node for node in running if node.controller is not None and node.controller.is_active]
        hits_controller = acting and (self.crashes == 0 or self.random.random() < 0.7)
        victim = acting[0] if hits_controller else self.random.choice(running)
        self.crashes += 1
        self.checker.note("crash", victim.id)
        await victim.kill()
        asyncio.get_running_loop().call_later(self.random.uniform(0.1, 12.0), victim.start)

    async def _expire(self) -> None:
        running = [node for node in self.nodes if node.runs and node.zk is not None and node.zk.session_id]
        if running:
            victim = self.random.choice(running)
            self.expiries += 1
            self.checker.note("expire", victim.id)
            assert victim.zk is not None
            self.server.expire(victim.zk.session_id)

    async def _create(self) -> None:
        name = f"topic-{self.created}"
        count = self.scenario.partitions
        brokers = [node.id for node in self.nodes]
        partitions = {
            index: Assignment(tuple(self.random.sample(brokers, min(3, len(brokers))))) for index in range(count)
        }
        if await self._as_operator("create", name, topic_znode.encode(partitions)):
            self.created += 1
            self.topics.add(name)

    async def _delete(self) -> None:
        if self.topics:
            name = self.random.choice(sorted(self.topics))
            if await self._as_operator("delete", name, None):
                self.topics.discard(name)
                self.deleted += 1
            else:
                self.in_doubt.add(name)

    async def _reassign(self) -> None:
        """By the znode: as long as the one before is there, nothing new is asked for."""
        brokers = [node.id for node in self.nodes]
        targets = {
            TopicPartition(name, index): tuple(self.random.sample(brokers, self.random.randint(1, 3)))
            for name in self.random.sample(sorted(self.topics), min(2, len(self.topics)))
            for index in range(self.random.randint(1, self.scenario.partitions))
        }
        if targets and self.read(reassign_partitions.PATH) is None:
            self.reassigned += await self._as_operator("reassign", "", reassign_partitions.encode(targets))

    async def _as_operator(self, what: str, topic: str, document: bytes | None) -> bool:
        """A tool with a session of its own. A lost reply leaves it in doubt, and it asks."""
        network = self.network.host("operator")
        rng = random.Random(f"{self.scenario.seed} operator {self.clock.monotonic()}")
        client = ZooKeeperClient(network, self.clock, rng, f"{ZOOKEEPER_HOST}:{ZOOKEEPER_PORT}", SESSION_TIMEOUT_MS)
        path = {
            "create": topic_znode.path(topic),
            "delete": delete_topics.path(topic),
            "reassign": reassign_partitions.PATH,
        }[what]
        try:
            async with client.running():
                try:
                    await client.create(path, document)
                except NodeExists:
                    pass
                return True
        except ZooKeeperError:
            return self.read(path) is not None

    # --- after it ---

    async def _heal(self) -> bool:
        """No more faults, everybody runs: then one controller acts, every partition has a leader, no marker is left,
        and nothing is on the move."""
        self.network.heal()
        self.faults.lose_request = self.faults.lose_reply = 0.0
        await asyncio.sleep(15)  # whoever crashed is back
        deadline = self.clock.monotonic() + 120
        while self.clock.monotonic() < deadline:
            await asyncio.sleep(1)
            self.raise_violation()
            if self._is_healed():
                return True
        return False

    def _is_healed(self) -> bool:
        tree = self.server.service.database.tree
        active = [node for node in self.nodes if node.controller is not None and node.controller.is_active]
        if len(active) != 1 or not all(node.runs for node in self.nodes):
            return False
        if any(path.startswith(f"{delete_topics.PARENT}/") for path in tree.nodes):
            return False
        if reassign_partitions.PATH in tree.nodes:
            return False
        live = {node.id for node in self.nodes}
        gone = {name for name in self.in_doubt if self.read(topic_znode.path(name)) is None}
        return all(self._is_led(name, live) for name in self.topics - gone)

    def _is_led(self, topic: str, live: set[BrokerId]) -> bool:
        assigned = topic_znode.decode(topic, self.read(topic_znode.path(topic))).partitions
        if any(assignment.is_being_reassigned for assignment in assigned.values()):
            return False
        for index in range(self.scenario.partitions):
            path = partition_state.path(TopicPartition(topic, index))
            data = self.read(path)
            if data is None or partition_state.decode(path, data).leader not in live:
                return False
        return True


def simulate(scenario: Scenario) -> Outcome:
    """Run one scenario to its end. Raises Violation when an invariant breaks."""

    async def main() -> Outcome:
        return await SimulatedCluster(scenario).run()

    return run_in_virtual_time(main())
