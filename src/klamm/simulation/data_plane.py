"""The part of a run that only real brokers have: topics with records, producers, consumers, and what they prove."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Coroutine, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from klamm.broker.partition import Partition
from klamm.log.log import Log
from klamm.model.errors import KafkaError, ZNodeError
from klamm.model.ids import BrokerId, TopicPartition
from klamm.model.partition import Assignment
from klamm.simulation.broker_process import BrokerProcess
from klamm.simulation.clients import ALL, SimulatedConsumer, SimulatedProducer, sent_by
from klamm.simulation.healed import ClusterSnapshot, name_of_state
from klamm.simulation.history import PartitionHistory, once_and_in_order
from klamm.simulation.invariants import LEASE_SECONDS, Problem
from klamm.wire.records import iter_batches, iter_records, read_header
from klamm.zookeeper.znodes import broker_id, config, partition_state
from klamm.zookeeper.znodes import topic as topic_znode

if TYPE_CHECKING:
    from klamm.simulation.cluster import SimulatedCluster

PREFIX: Final = "data-"
"""Begins the names of topics that the operator may move, but neither deletes nor breaks."""
PRODUCERS: Final = ((ALL, True), (ALL, False), (1, False))
CONSUMERS: Final = 2
READ_BYTES: Final = 1 << 20


class DataPlane:
    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._random = random.Random(f"{cluster.scenario.seed} data")
        self.histories: list[PartitionHistory] = []
        self._by_name: dict[TopicPartition, PartitionHistory] = {}
        self._high_watermarks: dict[tuple[TopicPartition, BrokerId, int, int], int] = {}
        self._everyone = [process.id for process in cluster.processes]
        self._tasks: list[asyncio.Task[None]] = []
        self._producers: list[SimulatedProducer] = []
        self._consumers: list[SimulatedConsumer] = []

    # --- work ---

    def create_topics(self) -> None:
        for number, flushed in enumerate((True, False)):
            name = f"{PREFIX}{number}"
            settings = {"segment.bytes": str(self._random.choice((400, 2_000, 1 << 20)))}
            if flushed:
                settings["flush.messages"] = "1"
            least = self._random.choice((1, 1, 2))
            settings["min.insync.replicas"] = str(least)
            self._cluster.tree.put(config.topic_path(name), config.encode(settings))
            partitions = {n: Assignment(self._replicas()) for n in range(self._random.randint(1, 2))}
            for index in partitions:
                history = PartitionHistory(TopicPartition(name, index), flushed=flushed, min_insync_replicas=least)
                self.histories.append(history)
                self._by_name[history.name] = history
            self._cluster.tree.put(topic_znode.path(name), topic_znode.encode(partitions))

    def _replicas(self) -> tuple[BrokerId, ...]:
        brokers = [process.id for process in self._cluster.processes]
        return tuple(self._random.sample(brokers, self._random.choice((2, 3, 3))))

    def start_clients(self) -> None:
        self._producers = [
            SimulatedProducer(self._cluster, self.histories, number, acks=acks, idempotent=idempotent)
            for number, (acks, idempotent) in enumerate(PRODUCERS, 1)
        ]
        self._consumers = [
            SimulatedConsumer(self._cluster, self.histories, number) for number in range(1, CONSUMERS + 1)
        ]
        for client in (*self._producers, *self._consumers):
            self._spawn(client.run())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._cluster.checker.fail(error)

    async def stop_clients(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def partitions(self) -> list[TopicPartition]:
        return [history.name for history in self.histories]

    # --- what happened ---

    def on_write(self, path: str) -> None:
        name = name_of_state(path)
        history = None if name is None else self._by_name.get(name)
        if history is not None:
            try:
                history.state_is(partition_state.decode(path, self._cluster.tree.read(path)))
            except ZNodeError:
                return
            if (wrong := self._maximal_isr(history)) is not None:
                self._cluster.checker.fail(self._cluster.checker.violation_of("S3", wrong))
        if history is not None or path.startswith(f"{broker_id.PARENT}/"):
            self.availability_changed()

    def lost_power(self, broker: BrokerId) -> None:
        for history in self.histories:
            history.lost_power(broker)
        self.availability_changed()

    def availability_changed(self) -> None:
        for history in self.histories:
            if history.excuse(partial(self._can_lead, history.name), self._cluster.clock.monotonic()):
                self._cluster.checker.reached("promises excused by power cuts")

    def _can_lead(self, name: TopicPartition, broker: BrokerId) -> bool:
        process = self._process(broker)
        if process.real is None or broker in self._cluster.shutting_down:
            return False
        return broker_id.path(broker) in self._cluster.tree.nodes and name not in process.offline()

    def acknowledges(self, leader: BrokerProcess, ends: Mapping[TopicPartition, int], *, to_all: bool) -> None:
        """A leader is about to acknowledge what lies below these ends."""
        unheard, checker = self._cluster.unheard(leader), self._cluster.checker
        if unheard > LEASE_SECONDS:
            wrong = f"broker {leader.id} acknowledges a batch {unheard:.3f} s after ZooKeeper last heard it"
            checker.fail(checker.violation_of("lease", wrong))
        for name, end in ends.items():
            history = self._by_name.get(name)
            missing = self._not_in_sync(history, end) if history is not None and to_all else None
            if missing is not None:
                checker.fail(checker.violation_of("S1", missing))

    def _not_in_sync(self, history: PartitionHistory, end: int) -> Problem:
        """S1 at the moment of an acknowledgement: all members of the ISR have the batch, and have flushed it if
        flush.messages says so."""
        for broker in history.isr:
            log = _log_of(self._process(broker), history.name)
            if log is None or broker in history.suspects:
                continue
            has = log.recovery_point if history.is_flushed else log.log_end_offset
            if has < end:
                return f"{history.name} acknowledges up to {end}, broker {broker} of ISR {history.isr} has {has}"
        return None

    def _process(self, broker: BrokerId) -> BrokerProcess:
        process = self._cluster.process_of(broker)
        assert isinstance(process, BrokerProcess)
        return process

    def _running(self) -> Iterator[BrokerProcess]:
        for process in self._cluster.processes:
            if isinstance(process, BrokerProcess) and process.real is not None:
                yield process

    # --- checks ---

    def look(self) -> None:
        for process in self._running():
            assert process.real is not None
            if defects := process.real.defects():
                self._cluster.checker.require("D17", f"unexpected exceptions in broker {process.id}: {defects}")
        for history in self.histories:
            self._look_at(history)

    def _look_at(self, history: PartitionHistory) -> None:
        name, require = history.name, self._cluster.checker.require
        for process in self._running():
            log = _log_of(process, name)
            if log is not None:
                require("S13", epochs_are_in_order(name, log))
                require("S10", self._high_watermark_rises(process, name))
        require("S3", self._maximal_isr(history))
        if not history.excused_at:
            require("S9", self._replicas_agree(name, self._everyone))
            require("S1", self._isr_has_it(history))

    def _high_watermark_rises(self, process: BrokerProcess, name: TopicPartition) -> Problem:
        """S10: within one leader epoch of one process."""
        partition = None if process.real is None else process.real.partition(name)
        if partition is None or partition.log is None or not partition.is_leader:
            return None
        key, now = (name, process.id, process.life, partition.leader_epoch), partition.log.high_watermark
        before = self._high_watermarks.get(key, 0)
        self._high_watermarks[key] = now
        return (
            f"the high watermark of {name} on broker {process.id} went from {before} to {now}" if now < before else None
        )

    def _leaders(self, name: TopicPartition) -> Iterator[tuple[BrokerProcess, Partition, Log]]:
        """Brokers that believe to lead it."""
        for process in self._running():
            partition = None if process.real is None else process.real.partition(name)
            log = _log_of(process, name)
            if partition is not None and log is not None and partition.is_leader:
                yield process, partition, log

    def _maximal_isr(self, history: PartitionHistory) -> Problem:
        """S3: the leader waits for every replica that may be in the ISR of ZooKeeper."""
        for process, partition, _ in self._leaders(history.name):
            counted = {*partition.isr, *(partition.pending_isr or ())}
            if partition.leader_epoch == history.leader_epoch and not set(history.isr) <= counted:
                return f"leader {process.id} of {history.name} counts {sorted(counted)}, ZooKeeper has {history.isr}"
        return None

    def _isr_has_it(self, history: PartitionHistory) -> Problem:
        """S1: what a broker that believes to lead shows as committed, every running member of the ISR has."""
        for process, _, log in self._leaders(history.name):
            committed = content_of(log, log.high_watermark)
            for broker in history.isr:
                other = _log_of(self._process(broker), history.name)
                if other is not None and content_of(other, log.high_watermark) != committed:
                    return (
                        f"{history.name}: broker {process.id} has committed up to {log.high_watermark}, "
                        f"broker {broker} of the ISR {history.isr} does not have the same records"
                    )
        return None

    def _replicas_are_equal(self, history: PartitionHistory) -> Problem:
        """E2: the replicas have the same end and the same high watermark."""
        ends = {
            broker: (log.log_end_offset, log.high_watermark)
            for broker in history.isr
            if (log := _log_of(self._process(broker), history.name)) is not None
        }
        if len(set(ends.values())) > 1:
            return f"the replicas of {history.name} end at {ends} (log end, high watermark)"
        return self._replicas_agree(history.name, history.isr)

    def _replicas_agree(self, name: TopicPartition, among: Collection[BrokerId]) -> Problem:
        """S9: below the lowest of their high watermarks, these replicas have the same batches."""
        logs = {p.id: log for p in self._running() if p.id in among and (log := _log_of(p, name)) is not None}
        if len(logs) < 2:
            return None
        end = min(log.high_watermark for log in logs.values())
        contents = {broker: content_of(log, end) for broker, log in logs.items()}
        (first, expected), *others = contents.items()
        for broker, found in others:
            if found != expected:
                at = next(n for n, (a, b) in enumerate(zip([*found, b""], [*expected, b""], strict=False)) if a != b)
                return f"{name} differs between brokers {first} and {broker} below {end}, at batch {at}"
        return None

    def wrong(self, snapshot: ClusterSnapshot) -> Iterator[tuple[str, Problem]]:
        """What does not hold yet although all faults have ended."""
        for name, (state, _) in sorted(snapshot.states.items()):
            assignment = snapshot.assignments.get(name)
            if assignment is None or name in self._cluster.operator.edited_states or self._is_forked(name):
                continue
            if set(state.isr) != set(assignment.replicas):
                yield "E2", f"the ISR of {name} is {list(state.isr)}, its replicas are {list(assignment.replicas)}"
            for broker in assignment.replicas:
                yield "role", self._role(broker, name, state.leader, state.leader_epoch)
        for history in self.histories if not self._tasks else ():
            if not self._is_forked(history.name):
                yield "E2", self._replicas_are_equal(history)

    def _is_forked(self, name: TopicPartition) -> bool:
        """A leader that lost records in a power cut and leads on in its old epoch makes a second history in it. Its
        followers cannot see where the two part. Kafka has the same hole."""
        history = self._by_name.get(name)
        return history is not None and history.excused_at > 0 and name in self._cluster.checker.led_again

    def _role(self, broker: BrokerId, name: TopicPartition, leader: BrokerId, epoch: int) -> Problem:
        real = self._process(broker).real
        partition = None if real is None else real.partition(name)
        if real is None or partition is None:
            return f"broker {broker} does not know its replica of {name}"
        if (partition.leader, partition.leader_epoch) != (leader, epoch):
            return (
                f"broker {broker} follows {partition.leader} in {name} at epoch {partition.leader_epoch}, "
                f"decided is {leader} at {epoch}"
            )
        if broker != leader and not real.follows(leader, name, partition.leader_epoch):
            return f"broker {broker} does not fetch {name} from {leader}"
        return None

    async def last_writes(self) -> None:
        """E6: after healing, every partition takes an acks=all batch."""
        await self.stop_clients()
        writer = SimulatedProducer(self._cluster, self.histories, 9, acks=ALL, idempotent=False)
        for history in self.histories:
            if len(history.isr) < history.min_insync_replicas:
                continue  # a reassignment left too few replicas
            for _ in range(20):
                if await writer.send(history):
                    break
                await asyncio.sleep(0.5)
            else:
                self._cluster.checker.require("E6", f"{history.name} takes no acks=all batch after healing")

    def judge(self) -> None:
        """S2 and S11, at the very end."""
        for history in self.histories:
            state = partition_state.decode("", self._cluster.tree.read(partition_state.path(history.name)))
            log = _log_of(self._process(state.leader), history.name)
            assert log is not None, "the leader has a log: the roles were checked"
            found: dict[int, bytes] = {}
            for batch in content_of(log, log.high_watermark):
                for record in iter_records(memoryview(batch)):
                    found[record.offset] = record.value or b""
            require = self._cluster.checker.require
            require("S2", history.everything_is_there(found))
            offsets = sorted(found)
            if offsets != list(range(len(offsets))):
                require("S2", f"{history.name} has gaps: {offsets}")
            sent = [one for at in offsets if (one := sent_by(found[at])) is not None]
            require("S11", once_and_in_order(history.name, sent))


def _log_of(process: BrokerProcess, name: TopicPartition) -> Log | None:
    partition = None if process.real is None else process.real.partition(name)
    log = None if partition is None else partition.log
    return None if log is None or log.failed or process.disk.is_failing else log


def epochs_are_in_order(name: TopicPartition, log: Log) -> Problem:
    """S13: the epochs of batches never fall, and the epoch file says where each begins."""
    begins: dict[int, int] = {}
    for batch in content_of(log, log.log_end_offset):
        header = read_header(batch)
        if begins and header.leader_epoch < max(begins):
            return f"{name}: epoch {header.leader_epoch} after {max(begins)} at offset {header.base_offset}"
        begins.setdefault(header.leader_epoch, header.base_offset)
    known = {entry.epoch: entry.start_offset for entry in log.epochs.entries if entry.start_offset < log.log_end_offset}
    return None if known == begins else f"{name}: the epoch file has {known}, the batches have {begins}"


def content_of(log: Log, end: int) -> list[bytes]:
    """The batches below `end`."""
    found: list[bytes] = []
    at = log.log_start_offset
    while at < end:
        try:
            read = log.read(at, READ_BYTES, upper_bound=end, at_least_one=True)
        except KafkaError:
            break
        if not read.records:
            break
        view = memoryview(read.records)
        found += [bytes(view[p : p + header.size_in_bytes]) for p, header in iter_batches(view)]
        at = read.next_offset
    return found
