"""A cluster in virtual time: klamm's ZooKeeper, processes with a real controller and a simulated broker, an operator.

One seed determines everything random: delays, faults, crashes, and the actions of the operator. It also selects the
kinds of failures and actions that occur at all, because a run with all kinds can hide a bug that a few kinds together
would show. The code in klamm.controller and klamm.zookeeper runs unchanged.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from klamm.model.errors import ZNodeError
from klamm.model.events import Decision
from klamm.model.ids import BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from klamm.simulation import healed
from klamm.simulation.broker_process import BrokerProcess
from klamm.simulation.checker import Checker, Violation
from klamm.simulation.controller_process import ControllerProcess
from klamm.simulation.data_plane import DataPlane
from klamm.simulation.failures import Failures
from klamm.simulation.loop import VirtualClock, VirtualTimeLoop, run_in_virtual_time
from klamm.simulation.network import SimulatedNetwork
from klamm.simulation.operator import Operator
from klamm.simulation.process import FOLLOWER_HOST, ZOOKEEPER_HOST, ZOOKEEPER_PORT, SimulatedProcess
from klamm.simulation.tree_access import TreeAccess
from klamm.simulation.zookeeper_faults import ZooKeeperFaults
from klamm.zookeeper.server.follower import LaggingFollower
from klamm.zookeeper.server.memory import MemoryZooKeeper
from klamm.zookeeper.znodes import broker_id
from klamm.zookeeper.znodes import controller as controller_znode
from klamm.zookeeper.znodes import topic as topic_znode

T = TypeVar("T")
Incident = tuple[str, Callable[[], Awaitable[None]]]

BEGIN_SECONDS: Final = 2.0
CREATED_AT_ONCE: Final = 2
LOOK_SECONDS: Final = 0.7
FAILURES_PER_REQUEST: Final = 4
DIVERGING: Final = ("leader deposed", "leaders rotated", "leader cut off from its followers", "controller deposed")
"""What makes a log depart from its leader's, or orders overtake each other."""
MOVING: Final = ("reassign", "elect preferred", "create with records", "move controller", "protect state")
"""Requests that concern records."""
HEALING_SECONDS_MAX: Final = 150.0
"""Enough for the slow retry (every 30 s), the timeout of a call (30 s) and a restart (12 s)."""
RUN_SECONDS_MAX: Final = 900.0
"""If a process does not stop, the run does not end."""
KIND_IS_ON: Final = 0.6
CLOSE_UPON_ANOTHER: Final = 0.4
CLOSE_SECONDS: Final = 0.3
"""The longest time that an answer of ZooKeeper may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A workload and its failures, as data."""

    seed: int
    brokers: int = 0
    """0 lets the seed choose three to five."""
    partitions: int = 3
    incidents: int = 32
    seconds: float = 45.0
    real: bool = False
    """Real brokers with producers and consumers, instead of simulated brokers."""


def with_brokers(seed: int) -> Scenario:
    """Real brokers, in shorter runs: a follower that fetches costs more than anything else."""
    return Scenario(seed=seed, real=True, incidents=24, seconds=30.0)


@dataclass(frozen=True, slots=True)
class RunSummary:
    seed: int
    digest: str
    events: int
    elections: int
    seconds: float
    """Virtual time."""
    ways: dict[str, int] = field(default_factory=dict)
    """Rare paths through the code, and how often the run took each."""


class SimulatedCluster:
    def __init__(self, scenario: Scenario) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        self._loop = loop
        self.scenario = scenario
        self.random = random.Random(scenario.seed)
        self.clock = VirtualClock(loop)
        self.network = SimulatedNetwork(random.Random(f"{scenario.seed} network"), self._delays(scenario))
        self.network.tap = self._on_sent
        rng = random.Random(f"{scenario.seed} faults")
        often = rng.choice((0.0, 0.002, 0.01))
        self.faults = ZooKeeperFaults(self.clock, rng, lose=often, delay_max=rng.choice((0.002, 0.02, 0.3)))
        self.server = MemoryZooKeeper(
            self.network.host(ZOOKEEPER_HOST),
            self.clock,
            random.Random(f"{scenario.seed} zookeeper"),
            faults=self.faults,
            on_write=self._on_write,
        )
        self.fast_failover = rng.random() < 0.5
        self.follower_lag = rng.choice((0.0, 0.0, 0.05, 0.5))
        """Seconds that a second ZooKeeper server may be behind. 0 means that there is none."""
        self.zookeepers = (ZOOKEEPER_HOST, FOLLOWER_HOST) if self.follower_lag else (ZOOKEEPER_HOST,)
        self.faults.listen_to(self.server.service.sessions)
        self.tree = TreeAccess(self.server.service)
        self.checker = Checker(self.clock, self.tree.nodes, self._on_decision)
        self._deletions_missed: set[str] = set()
        self.disk_seconds = self.random.choice((0.002, 0.05, 0.3)) if scenario.real else 0.0
        """How long a job of a disk takes at most."""
        count = scenario.brokers or self.random.choice((3, 3, 4, 5))
        kind = BrokerProcess if scenario.real else ControllerProcess
        self.processes: list[SimulatedProcess] = [kind(self, BrokerId(number)) for number in range(1, count + 1)]
        self._by_host = {process.host: process for process in self.processes}
        self._by_id = {process.id: process for process in self.processes}
        self._calls: dict[int, tuple[str, SimulatedProcess, int]] = {}
        """The call, the process that it went to, and the life of that process."""
        self._calls_made = 0
        self.data = DataPlane(self) if scenario.real else None
        self.operator = Operator(self)
        self.failures = Failures(self)
        self.shutting_down: set[BrokerId] = set()

    @staticmethod
    def _delays(scenario: Scenario) -> tuple[float, float]:
        """A slow network leaves time between two messages, in which a leader has records that no follower has."""
        slowest = random.Random(f"{scenario.seed} delays").choice((0.002, 0.02, 0.15))
        return 0.0001, slowest if scenario.real else 0.002

    async def run(self) -> RunSummary:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.server.running(ZOOKEEPER_HOST, ZOOKEEPER_PORT))
            if self.follower_lag:
                await stack.enter_async_context(self._follower().running(FOLLOWER_HOST, ZOOKEEPER_PORT))
            stack.push_async_callback(self._kill_all)
            if self.data is not None:
                stack.push_async_callback(self.data.stop_clients)
            for process in self.processes:
                process.start()
            await self._let_things_happen()
            await self._heal()
            if self.data is not None:
                await self._judge(self.data)
            self.checker.note("end", self._loop.turns)
            return RunSummary(
                self.scenario.seed,
                self.checker.digest,
                self.checker.events,
                self.checker.elections,
                self.clock.monotonic(),
                dict(sorted(self.checker.ways.items())),
            )

    def _follower(self) -> LaggingFollower:
        return LaggingFollower(
            self.server,
            self.network.host(FOLLOWER_HOST),
            self.clock,
            random.Random(f"{self.scenario.seed} follower"),
            delay_max=self.follower_lag,
        )

    async def _kill_all(self) -> None:
        for process in self.processes:
            if process.runs:
                await process.kill()

    async def _let_things_happen(self) -> None:
        incidents = self._chosen()
        await asyncio.sleep(self.random.uniform(0, BEGIN_SECONDS))
        for _ in range(CREATED_AT_ONCE):
            self.operator.create()
        if self.data is not None:
            self.data.create_topics()
            self.data.start_clients()
        for moment in self._moments():
            await self._wait_until(moment)
            name, happen = self.random.choice(incidents)
            self.checker.note(name)
            self.checker.reached(name)
            await happen()
            self.look()

    async def _wait_until(self, moment: float) -> None:
        """Between two incidents too, what went wrong may be right again when the next one comes."""
        while self.data is not None and moment - self.clock.monotonic() > LOOK_SECONDS:
            await asyncio.sleep(LOOK_SECONDS)
            self.checker.raise_violation()
            self.data.look()
        await asyncio.sleep(max(0.0, moment - self.clock.monotonic()))

    def _moments(self) -> list[float]:
        """Most incidents come alone, some shortly after another, because bugs show when an event is half done."""
        moments: list[float] = []
        for _ in range(self.scenario.incidents):
            if moments and self.random.random() < CLOSE_UPON_ANOTHER:
                moments.append(moments[-1] + self.random.uniform(0, CLOSE_SECONDS))
            else:
                moments.append(self.random.uniform(BEGIN_SECONDS, self.scenario.seconds))
        return sorted(moments)

    def _chosen(self) -> list[Incident]:
        """The kinds for this seed, all with the same probability; operator actions and failures have equal weight."""
        asked = [(name, _as_coroutine(action)) for name, action in self.operator.actions().items()]
        failing = list(self.failures.kinds().items())
        if self.data is not None:
            return self._chosen_for_records(asked, failing)
        some_asked = [entry for entry in asked if self.random.random() < KIND_IS_ON] or asked
        some_failing = [entry for entry in failing if self.random.random() < KIND_IS_ON] or failing
        return some_asked * len(some_failing) + some_failing * len(some_asked)

    def _chosen_for_records(self, asked: list[Incident], failing: list[Incident]) -> list[Incident]:
        """Records are lost by failures, not by requests, and by the same few again and again rather than by each kind
        once: a log must have departed from its leader's before the next failure can confuse both."""
        moving = [entry for entry in asked if entry[0] in MOVING]
        some_asked = [*self.random.sample(asked, 3), *self.random.sample(moving, 2)]
        power = [entry for entry in failing if entry[0].startswith("power cut")]
        some_failing = [*self.random.sample(failing, self.random.randint(2, 5)), *self.random.sample(power, 2)]
        some_failing += [entry for entry in failing if entry[0] in DIVERGING and self.random.random() < KIND_IS_ON]
        return some_asked * len(some_failing) + some_failing * (FAILURES_PER_REQUEST * len(some_asked))

    # --- calls of the processes and the operator ---

    def fetches(self, follower: BrokerId, leader: BrokerId, name: TopicPartition, epoch: LeaderEpoch) -> bool:
        one, other = self._by_id.get(follower), self._by_id[leader]
        if one is None or one.broker is None:
            return False
        reached = self.network.reaches(one.host, other.host) and self.network.reaches(other.host, one.host)
        return reached and one.broker.follows(leader, name, epoch)

    def process_of(self, broker: BrokerId) -> SimulatedProcess:
        return self._by_id[broker]

    def availability_changed(self) -> None:
        """A broker came or went, or its role may have changed."""
        if self.data is not None:
            self.data.availability_changed()

    async def call(self, what: str, process: SimulatedProcess, work: Awaitable[T]) -> T:
        """A request to the controller of a process. It must be answered unless the process dies (E4)."""
        self._calls_made += 1
        number = self._calls_made
        self._calls[number] = (what, process, process.life)
        try:
            return await work
        finally:
            del self._calls[number]

    def unanswered(self) -> list[str]:
        return [what for what, process, life in self._calls.values() if process.life == life and process.runs]

    def _on_sent(self, source: str, target: str, data: bytes) -> None:
        process = self._by_host.get(source)
        if process is not None and target in self._by_host:
            epoch: ControllerEpoch | None = None
            if process.controller is not None and process.controller.is_active:
                epoch = process.controller.controller_epoch
            self.checker.on_sent(source, data, epoch, self.unheard(process))

    def unheard(self, process: SimulatedProcess) -> float:
        """Seconds since ZooKeeper last heard this process, or since it last heard ZooKeeper, at most as long as it has
        heard no answer itself."""
        if process.zk is None:
            return 0.0
        heard = max(self.network.last_delivery(zookeeper, process.host) for zookeeper in self.zookeepers)
        deaf = self.clock.monotonic() - heard
        if self.follower_lag:
            return deaf  # requests to the follower do not pass the faults
        return max(deaf, self.faults.seconds_unheard(process.zk.session_id))

    def _on_decision(self, record: Decision) -> None:
        """Note topics whose deletion a broker does not learn about, because it has no readable registration."""
        if record.event == "topic-deleted":
            acting = self._by_id[record.broker].controller
            known = acting.statistics().live_brokers if acting is not None else ()
            registered = self.tree.children(broker_id.PARENT)
            unknown = [
                process for process in self.processes if process.id not in known or str(process.id) not in registered
            ]
            if any(process.broker is not None for process in unknown):
                self._deletions_missed.add(record.detail)

    def _on_write(self, kind: str, path: str, session: int) -> None:
        self.checker.on_write(kind, path, session)
        if self.data is not None:
            self.data.on_write(path)
        if kind == "delete" and path.startswith(f"{broker_id.PARENT}/"):
            for process in self.processes:
                if process.broker is not None and path == broker_id.path(process.id):
                    # Pending requests to it are dropped, and with them the deletion of topics.
                    cached = {name.topic for name in process.broker.metadata.partitions}
                    self._deletions_missed |= {t for t in cached if topic_znode.path(t) not in self.tree.nodes}

    # --- checks ---

    def look(self) -> None:
        """Between two events: raise any violation found so far, and check that a resigned controller keeps nothing."""
        self.checker.raise_violation()
        for process in self.processes:
            if process.controller is not None:
                self.checker.on_controller(process.id, is_active=process.acts, gauges=partial(gauges_of, process))
                self._look_at_brokers_of(process)
        if self.data is not None:
            self.data.look()

    def _look_at_brokers_of(self, acting: SimulatedProcess) -> None:
        """Check brokers to which no request is pending and which know no newer controller."""
        term = acting.term_at_rest
        if term is None:
            return
        decided = healed.decided_by(term.context, self.operator.edited_states)
        for broker, live in term.context.brokers.items():
            heard = self._by_id[broker].broker if broker not in term.context.suspects else None
            epochs = (live.epoch, term.context.controller_epoch)
            if heard is not None and (heard.epoch, heard.controller_epoch) == epochs:
                # A replica that was removed while its broker was down is never deleted, as in Kafka (KIP-550).
                mine = {term.context.name_of(i) for i in term.context.replicas.on(broker)}
                leads = {name: epoch for name, epoch in heard.leads().items() if name in mine}
                self.checker.on_rest(broker, decided, heard.metadata, leads, term.context.live)

    async def _heal(self) -> None:
        """End all faults, start all processes, repair what only an operator can; then the cluster must recover."""
        await asyncio.sleep(1)  # the last incident has started
        await self.failures.end()
        self.faults.end()
        self.operator.mend()
        if self.operator.edited_states:
            self.operator.move_controller()  # controllers do not watch states: after an edit a new one must load them
        for process in self.processes:
            if process.repair():
                await process.leave()
            process.start()
        deadline = self.clock.monotonic() + HEALING_SECONDS_MAX
        while True:
            await asyncio.sleep(1)
            self.look()
            wrong = self._wrong()
            if wrong is None:
                return
            if self.clock.monotonic() > deadline:
                self.checker.require(*wrong)

    async def _judge(self, data: DataPlane) -> None:
        """A last write to every partition, then all replicas must have everything that was promised."""
        await data.last_writes()
        deadline = self.clock.monotonic() + HEALING_SECONDS_MAX
        while (wrong := self._wrong()) is not None:
            if self.clock.monotonic() > deadline:
                self.checker.require(*wrong)
            await asyncio.sleep(1)
        self.look()
        data.judge()

    def _wrong(self) -> tuple[str, str] | None:
        """The first of E1, E3 and E4 that does not hold, and why."""
        snapshot = healed.of_zookeeper(self.tree.nodes)
        active = [process for process in self.processes if process.acts]
        running = [process.id for process in self.processes if process.runs]
        found = [
            ("E1", healed.one_controller([process.id for process in active], self._named_controller())),
            ("E1", healed.every_broker_is_registered(running, snapshot)),
            ("E3", healed.nothing_is_left(self.tree.nodes, snapshot)),
            ("E1", healed.every_partition_is_led(snapshot)),
            ("E4", healed.every_call_is_answered(self.unanswered())),
        ]
        for process in active:
            assert process.controller is not None
            term = process.controller._term
            assert term is not None
            found.append(("E1", healed.context_is_zookeeper(healed.of_context(term.context), snapshot)))
        removed = self.operator.removed_by_hand | self._deletions_missed
        found += [
            ("E1", healed.metadata_is_zookeeper(process.id, process.broker.metadata, snapshot, removed))
            for process in self.processes
            if process.broker is not None
        ]
        if self.data is not None:
            found += self.data.wrong(snapshot)
        return next(((invariant, wrong) for invariant, wrong in found if wrong is not None), None)

    def _named_controller(self) -> BrokerId | None:
        try:
            return controller_znode.decode(controller_znode.PATH, self.tree.read(controller_znode.PATH))
        except ZNodeError:
            return None


def gauges_of(process: SimulatedProcess) -> dict[str, float]:
    """The gauges of its controller about the cluster and pending requests."""
    return {
        str(name): process.metrics.value(name.group, name.type, name.name, **dict(name.tags))
        for name in process.metrics.names()
        if name.type in ("KafkaController", "ControllerChannelManager") and name.name not in NO_CONTENT
    }


NO_CONTENT: Final = ("ControllerState", "RequestRateAndQueueTimeMs")
"""Gauges that a resigned controller keeps: about its event queue and about the past."""


def _as_coroutine(action: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    async def act() -> None:
        action()

    return act


def simulate(scenario: Scenario) -> RunSummary:
    """Run one scenario to its end. Raises Violation if an invariant does not hold."""

    async def main() -> RunSummary:
        cluster = SimulatedCluster(scenario)
        try:
            async with asyncio.timeout(RUN_SECONDS_MAX):
                return await cluster.run()
        except TimeoutError:
            cluster.checker.require("E4", f"the run does not end within {RUN_SECONDS_MAX:.0f} s")
            raise

    return run_in_virtual_time(main())


__all__ = ["RunSummary", "Scenario", "SimulatedCluster", "Violation", "simulate", "with_brokers"]
