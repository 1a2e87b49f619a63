"""All partitions of this broker: obeys the controller's orders, maintains ISRs, and wakes requests that wait.

Control requests are applied whole and one at a time (`_orders` is Kafka's replicaStateChangeLock), but in slices, so
that data requests go on between two slices. Requests are fenced by broker epoch, then by controller epoch (one value
for all three APIs), then by leader epoch per partition.

The data paths are in `appends` and `reads`; both call this module when a partition's end or high watermark has moved.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol, TypeVar

from klamm.broker.fetcher import Fetcher, LeaderEndpoint, ReplicatedBytes
from klamm.broker.fetchers import Fetchers
from klamm.broker.isr_notifications import IsrNotifications
from klamm.broker.isr_writer import IsrWriter
from klamm.broker.metadata_cache import MetadataCache
from klamm.broker.partition import Partition
from klamm.broker.partition_gauges import PartitionGauges
from klamm.broker.purgatory import Purgatory
from klamm.broker.replica_logs import ReplicaLogs
from klamm.broker.replication_quota import ReplicationQuota
from klamm.broker.topic_configs import TopicConfigs
from klamm.log.log import Log
from klamm.log.log_manager import LogManager
from klamm.model.config import BrokerConfig
from klamm.model.control import ControlAnswer, MetadataUpdate, PartitionOrder, Sender, StopOrder
from klamm.model.errors import ErrorCode, KafkaError, ZooKeeperError
from klamm.model.events import StateChange
from klamm.model.guard import Guard, pause_after
from klamm.model.ids import (
    EPOCH_DURING_DELETE,
    INITIAL_CONTROLLER_EPOCH,
    NO_EPOCH,
    NO_LEADER,
    UNKNOWN_BROKER_EPOCH,
    BrokerId,
    LeaderEpoch,
    TopicPartition,
)
from klamm.model.ports import Clock, CreateMode, EventSink, ZooKeeper
from klamm.zookeeper.znodes import log_dir_event

PARTITIONS_PER_SLICE: Final = 200
SILENCE_SHARE: Final = 2 / 3
"""Share of the session timeout. After this long without an answer from ZooKeeper, another may soon lead (design D1)."""

log = logging.getLogger(__name__)

_Order = TypeVar("_Order")


class LeadershipListener(Protocol):
    """A coordinator. It is told of its topic's partitions while the order is applied, so it must not block."""

    def became_leader(self, partition: TopicPartition, leader_epoch: LeaderEpoch) -> None:
        """Not called for a leader that gets a new epoch: its log and what was read from it stay as they are."""

    def resigned(self, partition: TopicPartition, leader_epoch: LeaderEpoch | None) -> None:
        """This broker follows, or, without an epoch, its replica is deleted or offline."""


class ReplicaManager:
    def __init__(
        self,
        me: BrokerId,
        config: BrokerConfig,
        *,
        clock: Clock,
        zk: ZooKeeper,
        logs: LogManager,
        metadata: MetadataCache,
        configs: TopicConfigs,
        events: EventSink,
        endpoint: Callable[[BrokerId], LeaderEndpoint],
    ) -> None:
        self.me = me
        self.config = config
        self.clock = clock
        self._zk = zk
        self.logs = logs
        self.metadata = metadata
        self._replica_logs = ReplicaLogs(logs, configs)
        self._events = events
        self.broker_epoch = UNKNOWN_BROKER_EPOCH
        """Set at every registration of this broker."""
        self.controller_epoch = INITIAL_CONTROLLER_EPOCH
        self.is_shutting_down = False
        self.partitions: dict[TopicPartition, Partition] = {}
        self._aside: set[TopicPartition] = set()
        self.gauges = PartitionGauges()
        self.waiting_produces = Purgatory()
        self.waiting_fetches = Purgatory()
        self.waiting_deletions = Purgatory()
        self.leader_quota = ReplicationQuota(clock)
        self.follower_quota = ReplicationQuota(clock)
        self.fetched_bytes = ReplicatedBytes()
        self._max_lag = config.replica_lag_time_max_ms / 1000
        self._orders = asyncio.Lock()
        self.guard = Guard()
        self._notifications = IsrNotifications(zk, clock)
        self.isr_writer = IsrWriter(zk, self._notifications, self._isr_settled)
        self._endpoint = endpoint
        self.fetchers = Fetchers(self._fetcher_for, self.guard)
        self._has_orders = asyncio.Event()
        self.leadership_listeners: dict[str, LeadershipListener] = {}
        """By topic: the coordinators of the internal topics."""
        self.on_deleted: Callable[[Sequence[TopicPartition]], None] = lambda gone: None
        """Called with partitions that no longer exist in the cluster."""

    def _fetcher_for(self, leader: BrokerId) -> Fetcher:
        return Fetcher(
            leader,
            self._endpoint(leader),
            clock=self.clock,
            max_bytes=self.config.replica_fetch_max_bytes,
            backoff=self.config.replica_fetch_backoff_ms / 1000,
            quota=self.follower_quota,
            traffic=self.fetched_bytes,
            on_append=self.moved,
            guard=self.guard,
        )

    # --- start and stop ---

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ReplicaManager]:
        self.logs.on_offline = self._directory_failed
        self.logs.on_flushed = self._flushed
        self.logs.on_reopened = self._log_reopened
        self.logs.dir_moves.on_moved = self._log_moved
        async with self.guard.running():
            timers = {
                "isr-shrink": self._shrink_isrs,
                "isr-notifications": self._notifications.run,
                "high-watermark-checkpoint": self._checkpoint_high_watermarks,
                "zookeeper-silence": self._answer_when_silent,
                "log-dir-moves": self.logs.dir_moves.run,
            }
            for name, timer in timers.items():
                self.guard.start("timer", name, timer)
            yield self
        if self._has_orders.is_set():
            self.logs.checkpoint_high_watermarks()

    async def _shrink_isrs(self) -> None:
        """Drop followers that lag from the ISRs. Also raises a high watermark that waits for a follower outside the ISR
        which has not fetched within the lag limit: no other event would do that."""
        while True:
            await asyncio.sleep(self._max_lag / 2)
            for chunk in _slices(list(self.partitions.values())):
                for partition in chunk:
                    self._shrink_isr(partition)
                await asyncio.sleep(0)

    def _shrink_isr(self, partition: Partition) -> None:
        try:
            self._write_isr(partition, partition.proposed_shrink())
            if partition.maybe_increment_high_watermark():
                self.moved(partition.topic_partition)
        except Exception as error:
            self.guard.record("isr-shrink", partition.topic_partition, error)

    async def _checkpoint_high_watermarks(self) -> None:
        """Starts with the first LeaderAndIsr: a file written before that would lack most partitions."""
        await self._has_orders.wait()
        while True:
            await asyncio.sleep(self.config.replica_high_watermark_checkpoint_interval_ms / 1000)
            self.logs.checkpoint_high_watermarks()

    # --- lookup ---

    def partition(self, name: TopicPartition) -> Partition:
        """Raises the error for the client if the partition is not here: NOT_LEADER_OR_FOLLOWER while the cluster knows
        it (the leader may not have received its order yet), UNKNOWN_TOPIC_OR_PARTITION if not, KAFKA_STORAGE_ERROR if
        the partition or its directory has failed."""
        partition = self.partitions.get(name)
        if self.logs.is_offline(name):
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{name} is offline: {self.logs.offline[name]}")
        if partition is None:
            known = name in self.metadata
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if partition.failure is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{name} is offline: {partition.failure}")
        return partition

    @property
    def set_aside_count(self) -> int:
        """Partitions that are offline although their directory works."""
        return len(self._aside)

    def may_acknowledge(self) -> bool:
        """After 2/3 of the session timeout without an answer, a leader may no longer lead (design D1)."""
        return self._zk.silence() <= self._silence_max

    @property
    def _silence_max(self) -> float:
        return SILENCE_SHARE * self._zk.session_timeout_ms / 1000

    async def _answer_when_silent(self) -> None:
        """Tell waiting producers at once that no acknowledgement will come, so that they look for the new leader. The
        timeouts of their requests would take half a minute, one request of a connection after the other."""
        while True:
            await asyncio.sleep(max(self._silence_max - self._zk.silence(), self._silence_max / 10))
            if self.may_acknowledge():
                continue
            for chunk in _slices(list(self.waiting_produces.by_partition)):
                for name in chunk:
                    self.waiting_produces.check(name)
                await asyncio.sleep(0)

    # --- partitions that moved ---

    def moved(self, name: TopicPartition) -> None:
        """A partition's end or high watermark moved, or its role changed: complete the requests that wait for it."""
        self.waiting_produces.check(name)
        self.waiting_fetches.check(name)
        self.waiting_deletions.check(name)

    def after_append(self, partition: Partition) -> None:
        """A leader that is alone in its ISR commits by its own append; fetches wait for the bytes in any case."""
        if partition.maybe_increment_high_watermark():
            self.waiting_produces.check(partition.topic_partition)
        self.waiting_fetches.check(partition.topic_partition)

    def follower_fetched(self, name: TopicPartition, broker: BrokerId, offset: int, log_start_offset: int) -> None:
        """A follower told where its log ends: its ISR and the high watermark may follow from that."""
        partition = self.partitions[name]
        try:
            partition.record_fetch(broker, offset, log_start_offset)
            self.waiting_deletions.check(name)
            self._write_isr(partition, partition.proposed_expansion(broker, self.metadata.is_alive))
            if partition.maybe_increment_high_watermark():
                self.moved(name)
        except Exception as error:
            self.guard.record("follower-fetch", name, error)

    def _write_isr(self, partition: Partition, proposed: tuple[BrokerId, ...] | None) -> None:
        if proposed is not None:
            partition.pending_isr = proposed
            self.guard.start("isr-write", partition.topic_partition, lambda: self.isr_writer.write(partition, proposed))

    def _isr_settled(self, partition: Partition, before: tuple[BrokerId, ...]) -> None:
        cause = "isr-shrink" if len(partition.isr) < len(before) else "isr-expand"
        self._events.emit([self._change(partition, "leader", cause)])
        self.gauges.update(partition)
        partition.maybe_increment_high_watermark()
        self.moved(partition.topic_partition)

    def _change(self, partition: Partition, before: str, cause: str) -> StateChange:
        return StateChange(
            self.clock.wall_ms(),
            self.me,
            "broker",
            partition.controller_epoch,
            partition.topic_partition.topic,
            partition.topic_partition.partition,
            before,
            role_of(partition),
            partition.leader,
            partition.leader_epoch,
            partition.isr,
            partition.zk_version,
            cause,
        )

    def _log_moved(self, name: TopicPartition) -> None:
        """The log moved to another directory: the partition and its fetcher switch to the new log."""
        partition = self.partitions.get(name)
        if partition is None or partition.log is None:
            return
        partition.log = self.logs.get(name)
        if not partition.is_leader:
            self.fetchers.remove([name])
            if self.metadata.is_alive(partition.leader) and not self.is_shutting_down:
                self.fetchers.add([partition])
        self.moved(name)

    def _flushed(self, name: TopicPartition) -> None:
        partition = self.partitions.get(name)
        if partition is not None and partition.maybe_increment_high_watermark():
            self.moved(name)
        else:
            self.waiting_produces.check(name)
        self.fetchers.wake(name)

    def _directory_failed(self, directory: str, names: list[TopicPartition]) -> None:
        self.fetchers.remove(names)
        for name in names:
            partition = self.partitions.pop(name, None)
            if partition is not None:
                partition.log = None
                self.gauges.update(partition)
            self._aside.discard(name)
            self._tell_resigned(name, None)
            self.moved(name)
        self.guard.start("log-dir-event", directory, self._announce_failed_directory)

    def _log_reopened(self, name: TopicPartition) -> None:
        """The controller sends its orders again after this event, and finds the replica usable."""
        self.guard.start("log-dir-event", name, self._announce_failed_directory)

    async def _announce_failed_directory(self) -> None:
        while True:
            try:
                await self._zk.create(
                    log_dir_event.PREFIX, log_dir_event.encode(self.me), CreateMode.PERSISTENT_SEQUENTIAL
                )
                return
            except ZooKeeperError as error:
                log.warning("cannot announce the failed log directory yet: %s", error)
                await asyncio.sleep(1)

    # --- fencing ---

    def _fence(self, sender: Sender) -> ErrorCode:
        if sender.broker_epoch != UNKNOWN_BROKER_EPOCH and sender.broker_epoch < self.broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        if sender.controller_epoch < self.controller_epoch:
            log.info(
                "refused a request of controller %d: its epoch is %d, the latest is %d",
                sender.controller_id,
                sender.controller_epoch,
                self.controller_epoch,
            )
            return ErrorCode.STALE_CONTROLLER_EPOCH
        self.controller_epoch = sender.controller_epoch
        return ErrorCode.NONE

    # --- UpdateMetadata ---

    async def update_metadata(self, update: MetadataUpdate) -> ErrorCode:
        async with self._orders:
            error = self._fence(update.sender)
            if error is ErrorCode.NONE:
                gone = await self.metadata.update(update)
                if gone:
                    self.on_deleted(gone)
            return error

    # --- LeaderAndIsr ---

    async def leader_and_isr(self, sender: Sender, orders: Sequence[PartitionOrder]) -> ControlAnswer:
        async with self._orders:
            error = self._fence(sender)
            if error is not ErrorCode.NONE:
                return ControlAnswer(error, {order.partition: error for order in orders})
            answers: dict[TopicPartition, ErrorCode] = {}
            accepted: list[PartitionOrder] = []
            for chunk in _slices(orders):
                for order in chunk:
                    answers[order.partition] = self._judge(order)
                    if answers[order.partition] is ErrorCode.NONE:
                        accepted.append(order)
                await asyncio.sleep(0)
            logs = await self._replica_logs.open(accepted, self.partitions)
            followers: list[Partition] = []
            for chunk in _slices(accepted):
                followers += self._obey(chunk, logs, answers, sender)
                await asyncio.sleep(0)
            if not self.is_shutting_down:
                self.fetchers.add(followers)
            self.fetchers.stop_idle()
            self._has_orders.set()
            return ControlAnswer(ErrorCode.NONE, answers)

    def _judge(self, order: PartitionOrder) -> ErrorCode:
        if self.logs.is_offline(order.partition):
            return ErrorCode.KAFKA_STORAGE_ERROR
        known = self.partitions.get(order.partition)
        if known is not None and order.state.leader_epoch <= known.leader_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH  # normal after a fail-over, which sends everything again
        if self.me not in order.assignment.replicas:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NONE

    def _obey(
        self,
        orders: Sequence[PartitionOrder],
        logs: dict[TopicPartition, Log | Exception],
        answers: dict[TopicPartition, ErrorCode],
        sender: Sender,
    ) -> list[Partition]:
        """Returns the partitions that now follow; their fetchers are not started yet."""
        self.fetchers.remove(order.partition for order in orders)
        changes: list[StateChange] = []
        followers: list[Partition] = []
        cause = f"leader-and-isr from controller {sender.controller_id}"
        for order in orders:
            # Look it up again: while the other logs were opened, this one may have moved to another directory.
            opened = self.logs.get(order.partition) or logs[order.partition]
            if isinstance(opened, Exception):
                log.error("%s: cannot apply LeaderAndIsr: %s", order.partition, opened)
                answers[order.partition] = _storage_code(opened)
                continue
            partition = self._partition_for(order.partition)
            before = role_of(partition)
            try:
                plays = self._play(partition, order, opened)
            except Exception as error:
                answers[order.partition] = self._set_aside(partition, order, sender, error)
                continue
            partition.failure = None
            self._aside.discard(order.partition)
            if plays:
                changes.append(self._change(partition, before, cause))
                followers += [] if partition.is_leader else [partition]
        self._events.emit(changes)
        for order in orders:
            self.moved(order.partition)
        return followers

    def _tell_elected(self, name: TopicPartition, leader_epoch: LeaderEpoch) -> None:
        listener = self.leadership_listeners.get(name.topic)
        if listener is not None:
            try:
                listener.became_leader(name, leader_epoch)
            except Exception as error:
                self.guard.record("leadership-listener", name, error)

    def _tell_resigned(self, name: TopicPartition, leader_epoch: LeaderEpoch | None) -> None:
        listener = self.leadership_listeners.get(name.topic)
        if listener is not None:
            try:
                listener.resigned(name, leader_epoch)
            except Exception as error:
                self.guard.record("leadership-listener", name, error)

    def _play(self, partition: Partition, order: PartitionOrder, opened: Log) -> bool:
        """Take the role of the order. False if there is no live leader to follow."""
        plays = True
        if order.state.leader == self.me:
            is_new = partition.make_leader(order, opened)
            partition.maybe_increment_high_watermark()
            if is_new:
                self._tell_elected(order.partition, order.state.leader_epoch)
        elif self.metadata.is_alive(order.state.leader):
            partition.make_follower(order, opened)
            self._tell_resigned(order.partition, order.state.leader_epoch)
        else:
            # The log stays open, so that its high watermark stays in the checkpoint; nothing else changes.
            # Leader -1 is normal between the death of a leader and the election.
            level = logging.INFO if order.state.leader == NO_LEADER else logging.ERROR
            log.log(level, "%s: leader %d is not alive, not following it", order.partition, order.state.leader)
            partition.log = opened
            plays = False
        self.gauges.update(partition)
        return plays

    def _set_aside(self, partition: Partition, order: PartitionOrder, sender: Sender, error: Exception) -> ErrorCode:
        """The partition is offline until an order succeeds: this one, which is repeated, or a later one."""
        name = partition.topic_partition
        self.guard.record("leader-and-isr", name, error)
        partition.failure = f"{type(error).__name__}: {error}"
        partition.attempts += 1
        self._aside.add(name)
        self.guard.start("retry", name, lambda: self._try_again(partition, order, sender))
        return ErrorCode.KAFKA_STORAGE_ERROR

    async def _try_again(self, partition: Partition, order: PartitionOrder, sender: Sender) -> None:
        attempts = partition.attempts
        await asyncio.sleep(pause_after(attempts))
        async with self._orders:
            is_latest = self.partitions.get(order.partition) is partition and partition.attempts == attempts
            opened = self.logs.get(order.partition)
            if is_latest and partition.failure is not None and opened is not None:
                followers = self._obey([order], {order.partition: opened}, {}, sender)
                if not self.is_shutting_down:
                    self.fetchers.add(followers)

    def _partition_for(self, name: TopicPartition) -> Partition:
        partition = self.partitions.get(name)
        if partition is None:
            partition = self.partitions[name] = Partition(name, self.me, self.clock, self._max_lag)
        return partition

    # --- StopReplica ---

    async def stop_replica(self, sender: Sender, orders: Sequence[StopOrder]) -> ControlAnswer:
        async with self._orders:
            error = self._fence(sender)
            if error is not ErrorCode.NONE:
                return ControlAnswer(error, {})
            answers = {order.partition: self._judge_stop(order) for order in orders}
            accepted = [order for order in orders if answers[order.partition] is ErrorCode.NONE]
            self.fetchers.remove(order.partition for order in accepted)  # before any deletion (KAFKA-10371)
            for chunk in _slices(accepted):
                for order in chunk:
                    if order.delete:
                        answers[order.partition] = self._delete(order.partition, sender)
                    self.moved(order.partition)
                await asyncio.sleep(0)
            for name in await self.logs.settle_deletions():
                if name in answers:  # a power cut may bring it back
                    answers[name] = ErrorCode.KAFKA_STORAGE_ERROR
            if any(order.delete for order in accepted) and self._has_orders.is_set():
                self.logs.checkpoint_high_watermarks()  # once per request (KAFKA-10002)
            self.fetchers.stop_idle()
            return ControlAnswer(ErrorCode.NONE, answers)

    def _judge_stop(self, order: StopOrder) -> ErrorCode:
        if self.logs.is_offline(order.partition):
            return ErrorCode.KAFKA_STORAGE_ERROR
        known = self.partitions.get(order.partition)
        if known is None or order.leader_epoch in (NO_EPOCH, EPOCH_DURING_DELETE):
            return ErrorCode.NONE
        # An equal epoch is accepted, or a replica would survive a cancelled reassignment (KAFKA-13972).
        return ErrorCode.FENCED_LEADER_EPOCH if order.leader_epoch < known.leader_epoch else ErrorCode.NONE

    def _delete(self, name: TopicPartition, sender: Sender) -> ErrorCode:
        self.logs.dir_moves.cancel(name)
        partition = self.partitions.pop(name, None)
        self._aside.discard(name)
        if partition is not None:
            before = role_of(partition)
            partition.log = None
            self.gauges.update(partition)
            change = self._change(partition, before, f"stop-replica from controller {sender.controller_id}")
            self._events.emit([change])
            self._tell_resigned(name, None)
        if self.logs.get(name) is None:
            return ErrorCode.NONE
        try:
            self.logs.delete(name)
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE


def role_of(partition: Partition) -> str:
    if partition.log is None or partition.leader_epoch == NO_EPOCH:
        return "none"
    return "leader" if partition.is_leader else "follower"


def _storage_code(error: Exception) -> ErrorCode:
    if isinstance(error, KafkaError):
        return error.code
    return ErrorCode.UNKNOWN_SERVER_ERROR if isinstance(error, ZooKeeperError) else ErrorCode.KAFKA_STORAGE_ERROR


def _slices(orders: Sequence[_Order]) -> Iterable[Sequence[_Order]]:
    return (orders[start : start + PARTITIONS_PER_SLICE] for start in range(0, len(orders), PARTITIONS_PER_SLICE))
