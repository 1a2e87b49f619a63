"""The part of a run that only real brokers have: topics with records, producers, consumers, and what they prove."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Collection, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from klamm.broker.isr import NEVER
from klamm.log.log import Log
from klamm.model.errors import ZNodeError
from klamm.model.ids import BrokerId, TopicPartition
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.model.settings import LONG_MAX
from klamm.simulation.broker_process import MAX_LAG_SECONDS, BrokerProcess
from klamm.simulation.clients import ALL, SimulatedConsumer, SimulatedProducer, SimulatedTrimmer, sent_by
from klamm.simulation.healed import ClusterSnapshot, name_of_state
from klamm.simulation.history import PartitionHistory, once_and_in_order
from klamm.simulation.invariants import LEASE_SECONDS, Problem
from klamm.simulation.log_checks import content_of, is_sound
from klamm.simulation.power import survives
from klamm.simulation.replicas import Replica, agree, is_known, isr_has_it, match, maximal_isr
from klamm.wire.records import iter_records
from klamm.zookeeper.znodes import broker_id, config, partition_state
from klamm.zookeeper.znodes import topic as topic_znode

if TYPE_CHECKING:
    from klamm.simulation.cluster import SimulatedCluster

PREFIX: Final = "data-"
"""Begins the names of topics that the operator may move, but neither deletes nor breaks."""
PRODUCERS: Final = ((ALL, True), (ALL, False), (1, False), (1, False))
CONSUMERS: Final = 2
PARTITIONS_MAX: Final = 5
LAGGARD_SECONDS: Final = 1.5 * MAX_LAG_SECONDS + 2
"""The lag limit, the pause between two looks at the ISR, and time for the write."""
FORGOTTEN_SECONDS: Final = 10.0


class DataPlane:
    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._random = random.Random(f"{cluster.scenario.seed} data")
        self._random_of_power = random.Random(f"{cluster.scenario.seed} what a power cut would leave")
        self.histories: list[PartitionHistory] = []
        self._by_name: dict[TopicPartition, PartitionHistory] = {}
        self._high_watermarks: dict[tuple[TopicPartition, BrokerId, int, int], int] = {}
        self._created = 0
        self._committed: dict[TopicPartition, int] = {}
        self._starts: dict[tuple[TopicPartition, BrokerId, int], int] = {}
        self._ends: dict[tuple[TopicPartition, BrokerId, int, int], deque[tuple[float, int]]] = {}
        """The ends of a leader's log in the last seconds, with their times, by process and epoch."""
        self._tasks: list[asyncio.Task[None]] = []
        self._producers: list[SimulatedProducer] = []
        self._consumers: list[SimulatedConsumer] = []

    # --- work ---

    def create_topics(self) -> None:
        for flushed in (True, False):
            self._create_topic(flushed=flushed, partitions=self._random.randint(1, 2))

    def create_topic(self) -> None:
        """One more, in the middle of everything."""
        if len(self.histories) < PARTITIONS_MAX:
            self._create_topic(flushed=self._random.random() < 0.7, partitions=1)

    def _create_topic(self, *, flushed: bool, partitions: int) -> None:
        name = f"{PREFIX}{self._created}"
        self._created += 1
        settings = {
            "segment.bytes": str(self._random.choice((400, 2_000, 1 << 20))),
            "index.interval.bytes": str(self._random.choice((0, 150, 4_096))),
        }
        if flushed:
            settings["flush.messages"] = "1"
        least = self._random.choice((1, 1, 2))
        settings["min.insync.replicas"] = str(least)
        self._cluster.tree.put(config.topic_path(name), config.encode(settings))
        assigned = {n: Assignment(self._replicas()) for n in range(partitions)}
        for index in assigned:
            history = PartitionHistory(TopicPartition(name, index), flushed=flushed, min_insync_replicas=least)
            self.histories.append(history)
            self._by_name[history.name] = history
        self._cluster.tree.put(topic_znode.path(name), topic_znode.encode(assigned))

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
        for client in (*self._producers, *self._consumers, SimulatedTrimmer(self._cluster, self.histories, "trimmer")):
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
                state = partition_state.decode(path, self._cluster.tree.read(path))
            except ZNodeError:
                return
            joined = self._joined_too_early(history, state) if state.leader_epoch == history.leader_epoch else None
            history.state_is(state)
            for wrong in (joined, self._maximal_isr(history)):
                if wrong is not None:
                    self._cluster.checker.fail(self._cluster.checker.violation_of("S3", wrong))
        if history is not None or path.startswith(f"{broker_id.PARENT}/"):
            self.availability_changed()

    def _joined_too_early(self, history: PartitionHistory, state: LeaderAndIsr) -> Problem:
        """The leader has added replicas to the ISR: each has what is committed, and what was there when the leader's
        epoch began (KAFKA-7128). A replica that has just lost power may have told the leader before that."""
        replicas = {replica.broker: replica for replica in self._replicas_of(history.name)}
        leader = replicas.get(state.leader)
        for broker in sorted(set(state.isr) - set(history.isr)):
            joined, now = replicas.get(broker), self._cluster.clock.monotonic()
            if joined is None or leader is None or leader.partition.leader_epoch != state.leader_epoch:
                continue
            least = max(leader.log.high_watermark, leader.partition.epoch_start_offset)
            if joined.log.log_end_offset < least and now - self._process(broker).lost_power_at > FORGOTTEN_SECONDS:
                return (
                    f"{history.name}: broker {broker} joins the ISR at {joined.log.log_end_offset}, {least} is needed"
                )
        return None

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

    def note_committed(self, process: BrokerProcess) -> None:
        for history in self.histories:
            partition = None if process.real is None else process.real.partition(history.name)
            log = None if partition is None else partition.log
            if log is not None:
                self._committed[history.name] = max(log.high_watermark, self._committed.get(history.name, 0))

    def committed(self, name: TopicPartition) -> int:
        """The highest high watermark that any replica ever had. Nobody sees that of a directory that fails."""
        if self._cluster.checker.ways["directory failure"]:
            return LONG_MAX
        for process in self._running():
            self.note_committed(process)
        return self._committed.get(name, 0)

    def look(self) -> None:
        for process in self._running():
            assert process.real is not None
            if defects := process.real.defects():
                self._cluster.checker.require("D17", f"unexpected exceptions in broker {process.id}: {defects}")
        for history in self.histories:
            self._look_at(history)
        self._look_at_a_disk()

    def _look_at_a_disk(self) -> None:
        """One log of one broker: it takes as long as the rest of a look."""
        process = self._random_of_power.choice(self._cluster.processes)
        history = self._random_of_power.choice(self.histories)
        assert isinstance(process, BrokerProcess)
        log = _log_of(process, history.name)
        if log is None or not process.disk.has_power or process.is_stopping:
            return
        wrong = survives(process.disk, log, self._cluster.clock, self._random_of_power)
        self._cluster.checker.require("durable", None if wrong is None else f"broker {process.id}: {wrong}")

    def _look_at(self, history: PartitionHistory) -> None:
        name, require = history.name, self._cluster.checker.require
        replicas = self._replicas_of(name)
        for replica in replicas:
            require("S13", is_sound(name, replica.log, replica.batches))
            require("S10", self._high_watermark_rises(replica))
            require("S10", self._start_rises(replica))
            require("S3", self._laggard(replica, replicas))
        require("S3", self._maximal_isr(history))
        if name not in self._cluster.checker.led_again:
            require("matching", match(replicas))
            for leader in replicas:
                if leader.is_leader and leader.partition.leader_epoch == history.leader_epoch:
                    require("KIP-320", self._is_known(history, leader, replicas))
        if not history.excused_at:
            require("S9", agree(replicas))
            require("S1", isr_has_it(replicas, history.isr))

    def _is_known(self, history: PartitionHistory, leader: Replica, replicas: Sequence[Replica]) -> Problem:
        leader_host = self._process(leader.broker).host

        def may_follow(broker: BrokerId, moment: float, event: float) -> bool:
            """Whether the event came after the follower sent the fetch that was counted at that moment. It may have
            waited behind another fetch of its connection, or on the way to a host that was stalled."""
            network, host = self._cluster.network, self._process(broker).host
            arrived = min(moment, network.last_delivery(host, leader_host))
            return event >= arrived or network.stalled_until(host, leader_host) >= event > NEVER

        def began_after(broker: BrokerId, moment: float) -> bool:
            return may_follow(broker, moment, self._process(broker).began_at)

        def forgot_after(broker: BrokerId, moment: float) -> bool:
            """With flush.messages=1 a follower tells only what it has flushed."""
            return not history.is_flushed and may_follow(broker, moment, self._process(broker).lost_power_at)

        return is_known(leader, replicas, began_after, forgot_after)

    def _replicas_of(self, name: TopicPartition, among: Collection[BrokerId] | None = None) -> list[Replica]:
        found = []
        for process in self._running():
            assert process.real is not None
            partition, log = process.real.partition(name), _log_of(process, name)
            if partition is not None and log is not None and (among is None or process.id in among):
                found.append(Replica(process.id, partition, log, process.real.fetching(partition)))
        return found

    def _high_watermark_rises(self, replica: Replica) -> Problem:
        """S10: within one leader epoch of one process."""
        if not replica.is_leader:
            return None
        name, broker, now = replica.name, replica.broker, replica.log.high_watermark
        key = (name, broker, self._process(broker).life, replica.partition.leader_epoch)
        before = self._high_watermarks.get(key, 0)
        self._high_watermarks[key] = now
        return f"the high watermark of {name} on broker {broker} went from {before} to {now}" if now < before else None

    def _start_rises(self, replica: Replica) -> Problem:
        """The log start of one process, unless the log was emptied."""
        key, now = (replica.name, replica.broker, self._process(replica.broker).life), replica.log.log_start_offset
        before = self._starts.get(key, 0)
        self._starts[key] = now
        if before <= now or replica.log.log_end_offset < before:
            return None
        return f"the log start of {replica.name} on broker {replica.broker} went from {before} to {now}"

    def _laggard(self, leader: Replica, replicas: Sequence[Replica]) -> Problem:
        """A member of the ISR has reached, within the lag limit, what was the leader's end. If not, the leader writes
        another ISR."""
        partition, now = leader.partition, self._cluster.clock.monotonic()
        if not leader.is_leader:
            return None
        key = (leader.name, leader.broker, self._process(leader.broker).life, partition.leader_epoch)
        ends = self._ends.setdefault(key, deque())
        ends.append((now, leader.log.log_end_offset))
        while len(ends) > 1 and now - ends[1][0] >= LAGGARD_SECONDS:
            ends.popleft()
        if now - ends[0][0] < LAGGARD_SECONDS or partition.pending_isr is not None or partition.superseded:
            return None
        for other in replicas:
            if other.broker in partition.isr and other.log.log_end_offset < ends[0][1]:
                return (
                    f"{leader.name}: broker {other.broker} ends at {other.log.log_end_offset} and is in the ISR of "
                    f"{leader.broker}, which ended at {ends[0][1]} {LAGGARD_SECONDS:.0f} s ago"
                )
        return None

    def _maximal_isr(self, history: PartitionHistory) -> Problem:
        for process in self._running():
            partition = None if process.real is None else process.real.partition(history.name)
            if partition is None or not partition.is_leader or _log_of(process, history.name) is None:
                continue
            if partition.leader_epoch == history.leader_epoch:
                wrong = maximal_isr(process.id, partition, history.isr)
                if wrong is not None:
                    return wrong
        return None

    def _replicas_are_equal(self, history: PartitionHistory) -> Problem:
        """E2: the replicas have the same end and the same high watermark, and followers the leader's start or more."""
        ends = {
            broker: (log.log_end_offset, log.high_watermark)
            for broker in history.isr
            if (log := _log_of(self._process(broker), history.name)) is not None
        }
        if len(set(ends.values())) > 1:
            return f"the replicas of {history.name} end at {ends} (log end, high watermark)"
        replicas = self._replicas_of(history.name, history.isr)
        start = max((replica.log.log_start_offset for replica in replicas if replica.is_leader), default=0)
        behind = [replica.broker for replica in replicas if replica.log.log_start_offset < start]
        if behind:
            return f"the leader of {history.name} starts at {start}, brokers {behind} before that"
        return agree(self._replicas_of(history.name, history.isr))

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
        followers cannot see where the two part. Only a state that cannot be written leads to this (ADR 0014)."""
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
            if offsets and offsets != list(range(offsets[0], offsets[-1] + 1)):
                require("S2", f"{history.name} has gaps: {offsets}")
            sent = [one for at in offsets if (one := sent_by(found[at])) is not None]
            require("S11", once_and_in_order(history.name, sent))


def _log_of(process: BrokerProcess, name: TopicPartition) -> Log | None:
    partition = None if process.real is None else process.real.partition(name)
    log = None if partition is None else partition.log
    return None if log is None or log.failed or process.disk.is_failing else log
