"""Failures of processes, disks, sessions, networks and ZooKeeper. All of them end, at the latest with the scenario."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from klamm.simulation.disk_failures import DiskFailures
from klamm.simulation.invariants import SESSION_TIMEOUT_MS
from klamm.simulation.process import ZOOKEEPER_HOST, ZOOKEEPER_PORT, SimulatedProcess

if TYPE_CHECKING:
    from klamm.simulation.cluster import SimulatedCluster

SESSION_SECONDS = SESSION_TIMEOUT_MS / 1000


class Failures:
    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._random = cluster.random
        self._tasks: set[asyncio.Task[None]] = set()
        self._outage: asyncio.Task[None] | None = None
        self.have_ended = False

    def kinds(self) -> dict[str, Callable[[], Awaitable[None]]]:
        kinds: dict[str, Callable[[], Awaitable[None]]] = {
            "crash": self.crash,
            "crash of the controller": self.crash_controller,
            "bounce": self.bounce,
            "expiry": self.expiry,
            "session given up": self.session_given_up,
            "connection cut": self.connection_cut,
            "lost answer of a controller's write": self.lost_write_answer,
            "controller cut off from ZooKeeper": self.cut_off_controller,
            "partition": self.partition,
            "stall": self.stall,
            "refusal": self.refusal,
            "slow broker": self.slow_broker,
            "lossy broker": self.lossy_broker,
            "directory failure": self.directory_failure,
            "controlled shutdown": self.controlled_shutdown,
        }
        if self._cluster.data is not None:
            disks = DiskFailures(self._cluster, self)
            kinds |= disks.kinds()
            kinds["leader cut off from ZooKeeper"] = self.cut_off_leader
            kinds["leader cut off from its followers"] = self.cut_off_from_followers
            kinds["leader deposed"] = self.depose_leader
            kinds["leaders rotated"] = self.rotate_leaders
            kinds["controller deposed"] = self.depose_controller
        if not self._cluster.follower_lag:
            kinds["ZooKeeper outage"] = self.outage  # a lone follower would keep serving, which a real one does not
        return kinds

    async def crash(self) -> None:
        """Kill a process and restart it before or after its session ends. Sometimes ZooKeeper ends the session late."""
        if victim := self.victim():
            session = victim.zk.session_id if victim.zk is not None else 0
            await victim.kill()
            if self._random.random() < 0.3:
                self._keep_alive(session, self._random.uniform(1, 2) * SESSION_SECONDS)
            victim.start_later(self._random.uniform(0.1, 2 * SESSION_SECONDS))

    async def crash_controller(self) -> None:
        acting = [process for process in self._cluster.processes if process.acts]
        if acting and len(self.running()) > 1:
            await acting[0].kill()
            acting[0].start_later(self._random.uniform(0.1, 2 * SESSION_SECONDS))

    async def bounce(self) -> None:
        """Restart a process so fast that the controller sees one change, or none."""
        if victim := self.victim():
            await victim.leave()
            victim.start_later(self._random.choice((0.0, 0.01, 0.1)))

    async def expiry(self) -> None:
        """Expire the session of a live process."""
        victims = [process for process in self.running() if process.zk is not None and process.zk.session_id]
        if victims:
            victim = self._random.choice(victims)
            assert victim.zk is not None
            self._cluster.server.expire(victim.zk.session_id)

    async def session_given_up(self) -> None:
        """A process that cannot reach ZooKeeper gives its session up, but ZooKeeper keeps it (ZOOKEEPER-2985). When the
        process returns, the ephemerals of the old session are still there (KAFKA-7165)."""
        victims = [process for process in self.running() if process.zk is not None and process.zk.session_id]
        if victims:
            victim, network = self._random.choice(victims), self._cluster.network
            assert victim.zk is not None
            seconds = self._random.uniform(1.4, 2) * SESSION_SECONDS
            self._keep_alive(victim.zk.session_id, seconds + self._random.uniform(0, SESSION_SECONDS))
            for zookeeper in self._cluster.zookeepers:
                network.cut(victim.host, zookeeper)
                network.cut(zookeeper, victim.host)
                self.later(seconds, partial(network.mend, victim.host, zookeeper))

    async def connection_cut(self) -> None:
        victims = [process for process in self.running() if process.zk is not None]
        if victims:
            victim = self._random.choice(victims)
            assert victim.zk is not None
            self._cluster.server.cut(victim.zk.session_id)

    async def lost_write_answer(self) -> None:
        """The next multi of the controller is applied, but its answer is lost."""
        for process in self._cluster.processes:
            if process.acts and process.zk is not None:
                self._cluster.faults.lose_next_write.add(process.zk.session_id)

    async def cut_off_controller(self) -> None:
        """The controller reaches all brokers, but not ZooKeeper, mostly for longer than its lease; and it has something
        to send: a broker that was late answers meanwhile."""
        acting = [process for process in self._cluster.processes if process.acts]
        if not acting:
            return
        network, host = self._cluster.network, acting[0].host
        if victim := self.victim():
            victim.faults.seconds_late = 2 * SESSION_SECONDS / 3
            self.later(SESSION_SECONDS, lambda: setattr(victim.faults, "seconds_late", 0.0))
        for zookeeper in self._cluster.zookeepers:
            network.cut(host, zookeeper)
            network.cut(zookeeper, host)
            self.later(self._random.uniform(0.5, 1.6) * SESSION_SECONDS, partial(network.mend, host, zookeeper))

    def _leader(self) -> SimulatedProcess | None:
        """A process that leads a partition with records."""
        names = () if self._cluster.data is None else self._cluster.data.partitions()
        leaders = [p for p in self.running() if p.broker is not None and not p.broker.leads().keys().isdisjoint(names)]
        return self._random.choice(leaders) if leaders else None

    async def cut_off_leader(self) -> None:
        """Clients and followers reach the leader, but another one may be elected meanwhile."""
        leader, network = self._leader(), self._cluster.network
        if leader is None:
            return
        seconds = self._random.uniform(0.5, 1.6) * SESSION_SECONDS
        for zookeeper in self._cluster.zookeepers:
            network.cut(leader.host, zookeeper)
            network.cut(zookeeper, leader.host)
            self.later(seconds, partial(network.mend, leader.host, zookeeper))

    async def cut_off_from_followers(self) -> None:
        """Clients reach the leader: what it takes is on no other replica. If ZooKeeper reaches it too, its ISR shrinks;
        if not, another leader is elected, and what this one took is truncated."""
        leader, network = self._leader(), self._cluster.network
        if leader is None:
            return
        seconds = self._random.uniform(0.5, 9)
        others = [process.host for process in self._cluster.processes if process is not leader]
        if self._random.random() < 0.6:
            others += self._cluster.zookeepers
        for other in others:
            network.cut(leader.host, other)
            network.cut(other, leader.host)
            self.later(seconds, partial(network.mend, leader.host, other))

    async def depose_leader(self) -> None:
        """A leader takes records that its followers do not get, and its session ends."""
        leader, network = self._leader(), self._cluster.network
        if leader is None or leader.zk is None:
            return
        for other in self._cluster.processes:
            if other is not leader:
                network.cut(leader.host, other.host)
                network.cut(other.host, leader.host)
                self.later(self._random.uniform(0.5, 4), partial(network.mend, leader.host, other.host))
        self.later(self._random.uniform(0, 1.5), partial(self._cluster.server.expire, leader.zk.session_id))

    async def depose_controller(self) -> None:
        """Another controller is elected while requests of the former one are on their way: to slow brokers, or because
        the former one hangs until after its session has ended."""
        slow = self.running()
        for process in slow:
            process.faults.seconds_late = self._random.choice((0.0, 0.3, 2.0))
            self.later(self._random.uniform(1, 4), partial(setattr, process.faults, "seconds_late", 0.0))
        self._cluster.operator.rotate_leaders()
        acting = [process.host for process in slow if process.acts]
        if acting and self._random.random() < 0.5:
            seconds = self._random.uniform(1.1, 1.5) * SESSION_SECONDS
            self.later(self._random.uniform(0, 0.6), partial(self._cluster.network.stall, acting[0], seconds))
        else:
            self.later(self._random.uniform(0, 1), self._cluster.operator.move_controller)

    async def rotate_leaders(self) -> None:
        """Leadership moves within the ISR, several times in a row: nobody fetches from the former leader any more, and
        what it alone has is older than the next epoch, or newer than the one after that."""
        for number in range(self._random.randint(1, 4)):
            self.later(number * self._random.uniform(0.02, 0.8), self._cluster.operator.rotate_leaders)

    async def partition(self) -> None:
        """Cut the network between the controller, or any process, and another one; in both directions or one."""
        processes = self._cluster.processes
        one = next((process for process in processes if process.acts), self._random.choice(processes))
        if self._cluster.data is not None and self._random.random() < 0.6:
            one = self._random.choice(processes)  # followers and leaders matter as much as the controller
        other = self._random.choice([process for process in processes if process is not one])
        self._cluster.network.cut(one.host, other.host)
        if self._random.random() < 0.7:
            self._cluster.network.cut(other.host, one.host)
        self.later(self._random.uniform(0.5, 10), lambda: self._cluster.network.mend(one.host, other.host))

    async def stall(self) -> None:
        """A process hangs, preferably the controller: everything it sends and receives is late."""
        acting = [process for process in self._cluster.processes if process.acts]
        victim = acting[0] if acting and self._random.random() < 0.6 else self.victim()
        if victim is not None:
            self._cluster.network.stall(victim.host, self._random.uniform(0.2, 2 * SESSION_SECONDS))

    async def refusal(self) -> None:
        """A listener refuses connections although its broker is alive (design D11)."""
        if victim := self.victim():
            self._cluster.network.refuse(victim.host)
            self.later(self._random.uniform(0.5, 10), lambda: self._cluster.network.accept(victim.host))

    async def slow_broker(self) -> None:
        if victim := self.victim():
            victim.faults.seconds_late = self._random.uniform(0.5, 3)
            self.later(self._random.uniform(3, 12), lambda: setattr(victim.faults, "seconds_late", 0.0))

    async def lossy_broker(self) -> None:
        def mend(process: SimulatedProcess) -> None:
            process.faults.lose_request = process.faults.lose_reply = 0.0

        if victim := self.victim():
            victim.faults.lose_request = victim.faults.lose_reply = 0.2
            self.later(self._random.uniform(3, 12), lambda: mend(victim))

    async def directory_failure(self) -> None:
        if victim := self.victim():
            self.spawn(victim.fail_directory())

    async def controlled_shutdown(self) -> None:
        victims = [process for process in self.running() if process.broker is not None]
        if len(victims) > 1:
            self.spawn(self._random.choice(victims).shut_down())

    async def outage(self) -> None:
        """Stop the whole ensemble, mostly for less than a session timeout. The sessions survive."""
        if self._outage is None or self._outage.done():
            self._outage = self.spawn(self._stop_zookeeper(self._random.uniform(0.1, 1.2) * SESSION_SECONDS))

    async def end(self) -> None:
        """End all failures that are still active."""
        self.have_ended = True
        if self._outage is not None:
            await asyncio.gather(self._outage)
        self._cluster.network.heal()
        for process in self._cluster.processes:
            process.faults.end()

    # --- internals ---

    async def _stop_zookeeper(self, seconds: float) -> None:
        server = self._cluster.server
        await server.stop()
        await asyncio.sleep(seconds)
        await server.start(ZOOKEEPER_HOST, ZOOKEEPER_PORT)

    def _keep_alive(self, session_id: int, seconds: float) -> None:
        """Make ZooKeeper expire a session late."""
        service = self._cluster.server.service
        session = service.sessions.get(session_id)
        if session is not None:
            service.sessions.touch(session, service.database.now_ms() + int(seconds * 1000))

    def running(self) -> list[SimulatedProcess]:
        return [process for process in self._cluster.processes if process.runs]

    def victim(self) -> SimulatedProcess | None:
        """A running process, unless it is the last one."""
        running = self.running()
        return self._random.choice(running) if len(running) > 1 else None

    def later(self, seconds: float, end: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(seconds, end)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._cluster.checker.fail(error)
