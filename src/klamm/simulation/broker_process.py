"""A process with a whole real broker: the composition of the product (`server/broker_core`) on simulated ports.

Its disk outlives it. `kill` is kill -9: the page cache survives. `lose_power` also forgets what was not synced.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from klamm.broker.appends import ACKS_ALL
from klamm.broker.broker import BrokerNode
from klamm.broker.fetcher import FetchState
from klamm.broker.isr import NEVER
from klamm.broker.partition import Partition
from klamm.broker.replica_manager import ReplicaManager
from klamm.log.log_manager import LogManager
from klamm.model.config import BrokerConfig
from klamm.model.errors import ErrorCode
from klamm.model.ids import (
    INITIAL_CONTROLLER_EPOCH,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    TopicPartition,
)
from klamm.model.partition import LeaderAndIsr
from klamm.model.ports import Buffer, Ports
from klamm.model.requests import RequestContext
from klamm.net.listener import Handler
from klamm.server.broker_core import BrokerCore
from klamm.simulation.checker import CONTROL_REQUESTS, Violation
from klamm.simulation.disk import SimulatedDisk
from klamm.simulation.healed import Metadata
from klamm.simulation.invariants import SESSION_TIMEOUT_MS, Problem, RequestEpochs
from klamm.simulation.process import BROKER_PORT, LISTENER, ZOOKEEPER_PORT, SimulatedProcess
from klamm.simulation.survival import Survival
from klamm.telemetry.metrics import MetricsRegistry
from klamm.wire.apis import ApiKey
from klamm.wire.batch import read_header
from klamm.wire.control.decoders import decode_leader_and_isr
from klamm.wire.control.schema_requests import stop_replica
from klamm.wire.errors import CloseConnection
from klamm.wire.messages import decode_response
from klamm.wire.produce import decode_request
from klamm.wire.server_connection import RequestHeader
from klamm.wire.slices import finish
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.client.end_session import end_session

if TYPE_CHECKING:
    from klamm.simulation.cluster import SimulatedCluster

DIRECTORIES: Final = ("/data/1", "/data/2")
CONTROL_HEAD: Final = struct.Struct(">iiq")
"""Controller id, controller epoch, broker epoch."""
HALTED_SECONDS: Final = 3.0
MAX_LAG_SECONDS: Final = 3.0


class RealBroker:
    """A look into a real broker."""

    def __init__(self, node: BrokerNode, version_of: Callable[[TopicPartition], int]) -> None:
        self.node = node
        self._version_of = version_of

    @property
    def replicas(self) -> ReplicaManager:
        return self.node.replicas

    @property
    def logs(self) -> LogManager:
        return self.node.replicas.logs

    @property
    def epoch(self) -> BrokerEpoch:
        return self.replicas.broker_epoch

    @property
    def controller_epoch(self) -> ControllerEpoch:
        return self.replicas.controller_epoch

    @property
    def metadata(self) -> Metadata:
        """A broker does not keep the version of a state, so it counts as right."""
        cache = self.node.metadata
        partitions = {
            name: (
                LeaderAndIsr(known.leader, known.leader_epoch, known.isr, INITIAL_CONTROLLER_EPOCH),
                self._version_of(name),
                known.replicas,
            )
            for topic in cache.topics()
            for number, known in (cache.topic(topic) or {}).items()
            if (name := TopicPartition(topic, number))
        }
        return Metadata(cache.brokers.keys(), partitions)

    def leads(self) -> Mapping[TopicPartition, LeaderEpoch]:
        """A replica on a failed directory leads nothing any more, and as in Kafka it is sent no LeaderAndIsr."""
        return {
            name: p.leader_epoch
            for name, p in self.replicas.partitions.items()
            if p.is_leader and p.log is not None and not p.log.failed
        }

    def follows(self, leader: BrokerId, name: TopicPartition, epoch: LeaderEpoch) -> bool:
        """It plays this role, and fetches from this leader."""
        partition = self.replicas.partitions.get(name)
        if partition is None or (partition.leader, partition.leader_epoch) != (leader, epoch):
            return False
        return self.fetching(partition) is not None

    def fetching(self, partition: Partition) -> FetchState | None:
        """None if it does not fetch this partition from its leader, or failed to."""
        fetcher, name = self.replicas.fetchers.of(partition.leader), partition.topic_partition
        return None if fetcher is None or name in fetcher.failed else fetcher.state_of(name)

    def partition(self, name: TopicPartition) -> Partition | None:
        return self.replicas.partitions.get(name)

    def defects(self) -> dict[str, int]:
        """Unexpected exceptions, by the kind of task that raised them."""
        return {**self.replicas.guard.failures, **self.logs.guard.failures}


class SessionMemory:
    """A session file: a killed process leaves it behind, and a new boot ignores it."""

    def __init__(self) -> None:
        self._former: tuple[int, bytes] | None = None

    async def end_former(self, ports: Ports, connect_string: str) -> None:
        if self._former is not None:
            await end_session(ports.network, ports.clock, connect_string, *self._former)
            self._former = None

    def remember(self, zk: ZooKeeperClient) -> None:
        self._former = (zk.session_id, zk.session_password)

    def forget(self) -> None:
        self._former = None


class BrokerProcess(SimulatedProcess):
    def __init__(self, cluster: SimulatedCluster, broker: BrokerId) -> None:
        super().__init__(cluster, broker)
        self.disk = SimulatedDisk(cluster.clock, random.Random(f"{cluster.scenario.seed} {self.host} disk"))
        self.disk.job_seconds = cluster.disk_seconds
        for path in DIRECTORIES:
            self.disk.make_directories(path)
        for path in ("/", "/data"):
            self.disk.sync_directory(path)
        self._session = SessionMemory()
        self._stop = asyncio.Event()
        self.real: RealBroker | None = None
        self.is_leaving = False
        self._survival = Survival()
        self.lost_power_at = NEVER
        self.began_at = NEVER

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    # --- life ---

    async def kill(self) -> None:
        self._remember(power_lost=False)
        self.disk.end_process()
        await self._end()

    def black_out(self) -> None:
        """Lose power, at once; `lose_power` then ends the process."""
        if self.disk.has_power:
            self._session.forget()
            self.disk.before = None
            self.lost_power_at = self._cluster.clock.monotonic()
            self._remember(power_lost=True)
            self.disk.cut_power()
            self._cluster.network.kill(self.host)
            if self._cluster.data is not None:
                self._cluster.data.lost_power(self.id)

    async def lose_power(self) -> None:
        self.black_out()
        await self._end()

    def _remember(self, *, power_lost: bool) -> None:
        """What the logs must still have at the next start."""
        self.look_at_high_watermarks()
        if self.real is not None:
            self._cluster.checker.recovered.add(self.id)
        if self.real is None:
            self._survival.ends_again(power_lost=power_lost)
        elif self._stop.is_set() or self.disk.is_failing:
            self._survival.forget()
        else:
            self._survival.ends(self.real.logs.logs(), power_lost=power_lost)

    def look_at_high_watermarks(self) -> None:
        if self._cluster.data is not None:
            self._cluster.data.note_committed(self)

    def _opened(self, core: BrokerCore) -> None:
        """The logs are open, and nobody knows this broker yet."""
        data, checker = self._cluster.data, self._cluster.checker
        assert core.broker is not None
        if not self.disk.has_power:
            return  # it has just ended again
        if data is None or self.disk.is_failing:
            self._survival.forget()
            return
        wrong = self._survival.begins(core.broker.replicas.logs, data.committed)
        if wrong is not None:
            checker.fail(checker.violation_of("survival", f"broker {self.id}: {wrong}"))

    async def _end(self) -> None:
        self.real = None
        if self.runs:
            await super().kill()
        self.disk.restore_power()
        self._cluster.availability_changed()

    async def leave(self) -> None:
        """A clean stop, without a word to the controller. A process that has not started yet is killed."""
        if self.real is None:
            await self.kill()
            return
        self.is_leaving = True
        self._stop.set()
        assert self._task is not None
        await asyncio.gather(self._task, return_exceptions=True)
        self.controller = self.broker = self.zk = self.real = None
        self._cluster.availability_changed()

    def _halt(self, life: int) -> None:
        """All directories failed."""
        if life == self.life and self.runs and self.disk.has_power:
            self._cluster.checker.note("halt", self.id)
            self._cluster.failures.spawn(self._halted())

    async def _halted(self) -> None:
        if self.runs:
            await self.kill()
            self.disk.heal_all()
            self.start_later(HALTED_SECONDS)

    async def _live(self) -> None:
        cluster, life = self._cluster, self.life
        self.began_at = cluster.clock.monotonic()
        self._stop = asyncio.Event()
        self.is_leaving = False
        self.metrics = MetricsRegistry()
        rng = random.Random(f"{cluster.scenario.seed} {self.host} {life}")
        core = BrokerCore(
            self._config(),
            Ports(cluster.clock, cluster.network.host(self.host), self.disk, rng),
            cluster.checker,
            self.metrics,
            session_in=lambda directory: self._session,
            halt=lambda code: self._halt(life),
            around=lambda handle: self._serve(core, handle, rng),
        )
        try:
            async with core.running():
                assert core.broker is not None
                self.zk, self.controller = core.zk, core.controller
                self.broker = self.real = RealBroker(core.broker, cluster.checker.version_of)
                cluster.availability_changed()
                await self._stop.wait()
                self._survival.forget()
                if not self.is_leaving:
                    await core.hand_over()
            self._survival.closed(core.broker.replicas.logs.logs())
            cluster.checker.recovered.discard(self.id)
        finally:
            self.look_at_high_watermarks()
            self.controller = self.broker = self.zk = self.real = None

    def _serve(self, core: BrokerCore, handle: Handler, rng: random.Random) -> Handler:
        self._opened(core)
        return _Around(handle, rng, self)

    @property
    def epochs(self) -> RequestEpochs | None:
        return None if self.real is None else RequestEpochs(self.real.epoch, self.real.controller_epoch)

    def obeyed(self, header: RequestHeader, request: memoryview, known: RequestEpochs, answer: bytes) -> None:
        """`known` is what the broker knew when the request came. Both messages begin with what matters here."""
        _, controller_epoch, broker_epoch = CONTROL_HEAD.unpack_from(request)
        checker = self._cluster.checker
        if answer[:2] == b"\0\0":
            asked = RequestEpochs(BrokerEpoch(broker_epoch), ControllerEpoch(controller_epoch))
            try:
                checker.on_obeyed(self.id, header.api_key, asked, known)
                if header.api_key is ApiKey.STOP_REPLICA:
                    checker.require("role", self._still_fetches(header.api_version, request, answer))
            except Violation as error:
                checker.fail(error)

    def is_asked(self, version: int, request: memoryview) -> None:
        """From now on it may have the logs of these partitions, again."""
        if self._survival.deleted:
            self._survival.deleted -= {
                order.partition for order in finish(decode_leader_and_isr(version, request)).partitions
            }

    def _still_fetches(self, version: int, request: memoryview, answer: bytes) -> Problem:
        """A replica that was stopped fetches no more."""
        response = decode_response(ApiKey.STOP_REPLICA, version, memoryview(answer))
        refused = {(e.topic_name, e.partition_index) for e in response.partition_errors if e.error_code}
        for order in stop_replica(version, request).partitions:
            partition = None if self.real is None else self.real.partition(order.partition)
            if tuple(order.partition) in refused:
                continue
            if order.delete:
                self._survival.deleted.add(order.partition)
            if partition is None or self.real is None:
                continue
            if self.real.fetching(partition) is not None:
                return f"broker {self.id} stopped {order.partition}, but fetches it from {partition.leader}"
        return None

    def produced(self, version: int, request: memoryview, answer: bytes) -> None:
        """The broker is about to answer a Produce."""
        if self.real is None or self._cluster.data is None:
            return
        response = decode_response(ApiKey.PRODUCE, version, memoryview(answer))
        acknowledged = {
            TopicPartition(topic.name, entry.index): int(entry.base_offset)
            for topic in response.responses
            for entry in topic.partition_responses
            if entry.error_code == ErrorCode.NONE
        }
        if acknowledged:
            asked = decode_request(version, request)
            counts = {name: read_header(records).last_offset_delta + 1 for name, records in asked.entries}
            ends = {name: offset + counts[name] for name, offset in acknowledged.items()}
            self._cluster.data.acknowledges(self, ends, to_all=asked.acks == ACKS_ALL)

    def _config(self) -> BrokerConfig:
        cluster = self._cluster
        return BrokerConfig(
            broker_id=self.id,
            zookeeper_connect=",".join(f"{host}:{ZOOKEEPER_PORT}" for host in cluster.zookeepers),
            zookeeper_session_timeout_ms=SESSION_TIMEOUT_MS,
            listeners=(f"{LISTENER}://{self.host}:{BROKER_PORT}",),
            fast_failover=cluster.fast_failover,
            log_dirs=DIRECTORIES,
            auto_create_topics_enable=False,
            replica_lag_time_max_ms=int(MAX_LAG_SECONDS * 1000),
            replica_fetch_wait_max_ms=1_000,
            replica_socket_timeout_ms=5_000,
            log_flush_offset_checkpoint_interval_ms=4_000,
            log_flush_start_offset_checkpoint_interval_ms=3_000,
            log_segment_delete_delay_ms=2_000,
            controlled_shutdown_retry_backoff_ms=500,
            log_cleaner_enable=False,
        )

    # --- shutdown and disk failure ---

    async def shut_down(self) -> None:
        """It asks the controller to move its leaderships, closes its logs, and starts again later."""
        task = self._task
        if task is None or self.real is None:
            return
        self._cluster.shutting_down.add(self.id)
        self._stop.set()
        await asyncio.gather(task, return_exceptions=True)
        self._cluster.shutting_down.discard(self.id)
        self._cluster.availability_changed()
        if self._task is task:
            self.start_later(self._cluster.random.uniform(0.1, 8.0))

    async def fail_directory(self) -> None:
        """The broker notices at its next access."""
        if self.real is not None:
            self.disk.fail(self._cluster.random.choice(DIRECTORIES))

    def repair(self) -> bool:
        failed = self.disk.is_failing or bool(self.offline())
        self.disk.heal_all()
        return self.runs and failed

    def offline(self) -> Collection[TopicPartition]:
        return () if self.real is None else self.real.logs.offline.keys()


class _Around:
    """Loses and delays requests of one broker, and their answers."""

    def __init__(self, handle: Handler, rng: random.Random, process: BrokerProcess) -> None:
        self._handle = handle
        self._random = rng
        self._process = process

    def __call__(
        self, context: RequestContext, header: RequestHeader, body: memoryview
    ) -> Awaitable[Sequence[Buffer] | None]:
        return self._answer(context, header, body)

    async def _answer(
        self, context: RequestContext, header: RequestHeader, body: memoryview
    ) -> Sequence[Buffer] | None:
        faults = self._process.faults
        if self._random.random() < faults.lose_request:
            raise CloseConnection("the request got lost")
        if faults.seconds_late:
            await asyncio.sleep(self._random.uniform(0, faults.seconds_late))
        known = self._process.epochs
        if header.api_key is ApiKey.LEADER_AND_ISR:
            self._process.is_asked(header.api_version, body)
        self._process.look_at_high_watermarks()
        answer = await self._handle(context, header, body)
        self._process.look_at_high_watermarks()
        if header.api_key in CONTROL_REQUESTS and known is not None and answer is not None:
            self._process.obeyed(header, body, known, b"".join(answer))
        if header.api_key is ApiKey.PRODUCE and answer is not None:
            self._process.produced(header.api_version, body, b"".join(answer))
        if self._random.random() < faults.lose_reply:
            raise CloseConnection("the answer got lost")
        return answer
