"""One partition on this broker: its role, its leader epoch, and for a leader what it knows of the followers.

Every method is synchronous, so a change of role is one step of the loop and is never seen half done. The leader epoch
is recorded last (KAFKA-9769): a transition that raises leaves the old epoch, and the controller's retry is not refused
as stale. Only the ISR write to ZooKeeper waits (`isr_writer`); while its outcome is unknown the proposed ISR is
`pending_isr`, and the high watermark waits for the members of both.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from klamm.broker import isr as rules
from klamm.broker.isr import Follower
from klamm.log.leader_epochs import EpochEndOffset
from klamm.log.log import Log
from klamm.log.log_results import AppendInfo, ReadResult
from klamm.log.validation import AppendOrigin, PreparedAppend
from klamm.model.control import PartitionOrder
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import NO_EPOCH, NO_LEADER, BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from klamm.model.partition import Assignment
from klamm.model.ports import Buffer, Clock


class Bound(Enum):
    """How far a reader may read."""

    LOG_END = "log end"
    """For followers."""
    HIGH_WATERMARK = "high watermark"
    LAST_STABLE = "last stable offset"
    """For read_committed consumers."""


class Partition:
    __slots__ = (
        "_clock",
        "_max_lag",
        "assignment",
        "attempts",
        "controller_epoch",
        "epoch_start_offset",
        "failure",
        "followers",
        "isr",
        "leader",
        "leader_epoch",
        "log",
        "me",
        "pending_isr",
        "superseded",
        "topic_partition",
        "zk_version",
    )

    def __init__(self, partition: TopicPartition, me: BrokerId, clock: Clock, max_lag: float) -> None:
        self.topic_partition = partition
        self.me = me
        self._clock = clock
        self._max_lag = max_lag
        self.log: Log | None = None
        self.leader = NO_LEADER
        self.leader_epoch = LeaderEpoch(NO_EPOCH)
        self.controller_epoch = ControllerEpoch(NO_EPOCH)
        """Epoch of the controller that sent the last order. ISR writes carry it, even under a newer controller."""
        self.zk_version = -1
        self.assignment = Assignment(())
        self.isr: tuple[BrokerId, ...] = ()
        self.pending_isr: tuple[BrokerId, ...] | None = None
        self.superseded = False
        """The state znode has a later leader epoch: write no ISR until the LeaderAndIsr of that epoch arrives."""
        self.epoch_start_offset = rules.UNKNOWN_OFFSET
        self.followers: dict[BrokerId, Follower] = {}
        self.failure: str | None = None
        """Why the partition is offline: an order could not be obeyed, for a reason that is a defect of ours."""
        self.attempts = 0
        """How often that happened."""

    # --- role ---

    @property
    def is_leader(self) -> bool:
        return self.leader == self.me and self.log is not None

    def make_leader(self, order: PartitionOrder, log: Log) -> bool:
        """True if this broker was not the leader before. The epoch cache has the new epoch before any append."""
        was_leader = self.is_leader
        now, end = self._clock.monotonic(), log.log_end_offset
        log.epochs.assign(order.state.leader_epoch, end)
        followers = {b: self.followers.get(b, Follower()) for b in order.assignment.replicas if b != self.me}
        for broker, follower in followers.items():
            known_end, known_start = follower.log_end_offset, follower.log_start_offset
            follower.reset(in_isr=broker in order.state.isr, now=now, leader_end=end)
            if was_leader:  # the leader is the same, so its followers have not truncated
                follower.log_end_offset, follower.log_start_offset = known_end, known_start
        self.log = log
        self.followers = followers
        self.epoch_start_offset = end
        self.isr = order.state.isr
        self._follow(order)
        return not was_leader

    def make_follower(self, order: PartitionOrder, log: Log) -> None:
        self.log = log
        self.followers = {}
        self.epoch_start_offset = rules.UNKNOWN_OFFSET
        self.isr = ()
        self._follow(order)

    def _follow(self, order: PartitionOrder) -> None:
        self.pending_isr = None
        self.superseded = False
        self.controller_epoch = order.state.controller_epoch
        self.zk_version = order.zk_version
        self.assignment = order.assignment
        self.leader = order.state.leader
        self.leader_epoch = order.state.leader_epoch

    # --- access ---

    def check_epoch(self, current_leader_epoch: int) -> None:
        """A request with another leader epoch is refused before anything else (KIP-320)."""
        if current_leader_epoch == NO_EPOCH or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def local_log(self, current_leader_epoch: int = NO_EPOCH, *, leader_only: bool = True) -> Log:
        self.check_epoch(current_leader_epoch)
        if self.log is None or (leader_only and self.leader != self.me):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.log

    def bound(self, log: Log, bound: Bound) -> int:
        match bound:
            case Bound.LOG_END:
                return log.log_end_offset
            case Bound.HIGH_WATERMARK:
                return log.high_watermark
            case Bound.LAST_STABLE:
                return log.last_stable_offset

    def read(self, log: Log, offset: int, max_bytes: int, bound: Bound, *, at_least_one: bool) -> ReadResult:
        return log.read(offset, max_bytes, upper_bound=self.bound(log, bound), at_least_one=at_least_one)

    def epoch_end(self, current_leader_epoch: int, asked: int) -> EpochEndOffset:
        return self.local_log(current_leader_epoch).epochs.end_offset_for(asked)

    def append_as_leader(
        self, records: Buffer | PreparedAppend, *, acks: int, origin: AppendOrigin = AppendOrigin.CLIENT
    ) -> AppendInfo:
        log = self.local_log()
        if acks == -1 and len(self.isr) < log.config.min_insync_replicas:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.topic_partition} has {len(self.isr)} replicas in sync, "
                f"min.insync.replicas is {log.config.min_insync_replicas}",
            )
        return log.append_as_leader(records, self.leader_epoch, origin=origin)

    def flushed(self, required_offset: int) -> ErrorCode | None:
        """The outcome of an acks=1 produce: written, and flushed if flush.messages says so. None while it must wait."""
        if self.log is None or not self.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self.log.failed:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE if self.log.may_acknowledge(required_offset) else None

    def acknowledged(self, required_offset: int) -> ErrorCode | None:
        """The outcome of an acks=all produce that needs everything below `required_offset`; None while it must wait."""
        outcome = self.flushed(required_offset)
        if outcome is not ErrorCode.NONE or self.log is None:
            return outcome
        if self.log.high_watermark < required_offset:
            return None
        if len(self.isr) < self.log.config.min_insync_replicas:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE

    # --- followers, high watermark, ISR ---

    def record_fetch(self, broker: BrokerId, fetch_offset: int, log_start_offset: int) -> None:
        assert self.log is not None
        self.followers[broker].record_fetch(
            fetch_offset, log_start_offset, now=self._clock.monotonic(), leader_end=self.log.log_end_offset
        )

    def low_watermark(self, is_alive: Callable[[BrokerId], bool]) -> int:
        """The lowest log start of all live replicas: what is below it is deleted everywhere."""
        starts = [follower.log_start_offset for broker, follower in self.followers.items() if is_alive(broker)]
        return min([self.local_log().log_start_offset, *starts])

    def maybe_increment_high_watermark(self) -> bool:
        if self.log is None or not self.is_leader:
            return False
        end = rules.committed_end(
            self.log.committable_end,
            self.followers,
            leader=self.me,
            must_have=(*self.isr, *(self.pending_isr or ())),
            now=self._clock.monotonic(),
            max_lag=self._max_lag,
        )
        return end > self.log.high_watermark and self.log.maybe_increment_high_watermark(end)

    def proposed_shrink(self) -> tuple[BrokerId, ...] | None:
        if self.log is None or not self._may_propose():
            return None
        gone = rules.out_of_sync(
            self.isr,
            self.followers,
            leader=self.me,
            leader_end=self.log.log_end_offset,
            now=self._clock.monotonic(),
            max_lag=self._max_lag,
        )
        return tuple(b for b in self.isr if b not in gone) if gone else None

    def proposed_expansion(self, broker: BrokerId, is_alive: Callable[[BrokerId], bool]) -> tuple[BrokerId, ...] | None:
        """Only a live broker may join, or leader and controller would add and remove it in turn (KAFKA-14140)."""
        if self.log is None or broker in self.isr or broker not in self.followers or not self._may_propose():
            return None
        fits = rules.may_join(
            self.followers[broker], high_watermark=self.log.high_watermark, epoch_start=self.epoch_start_offset
        )
        return (*self.isr, broker) if fits and is_alive(broker) else None

    def _may_propose(self) -> bool:
        return self.is_leader and self.pending_isr is None and not self.superseded

    def settle_isr(self, isr: tuple[BrokerId, ...], zk_version: int) -> None:
        """ZooKeeper holds this ISR under this leader's epoch."""
        self.isr = isr
        self.zk_version = zk_version
        self.pending_isr = None

    def lose_isr_write(self) -> None:
        """The znode has a later epoch. The write may have been in force before that, so the proposed ISR still counts
        for the high watermark until the controller sends the current state."""
        self.superseded = True

    # --- for the gauges ---

    @property
    def is_under_replicated(self) -> bool:
        """Replicas that a reassignment is still adding do not count as missing."""
        wanted = len(self.assignment.replicas) - len(self.assignment.adding)
        return self.is_leader and len(self.isr) < wanted

    @property
    def is_under_min_isr(self) -> bool:
        return self.is_leader and self.log is not None and len(self.isr) < self.log.config.min_insync_replicas

    @property
    def is_at_min_isr(self) -> bool:
        return self.is_leader and self.log is not None and len(self.isr) == self.log.config.min_insync_replicas
