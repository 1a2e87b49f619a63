"""What can happen to a controller, as values: watches, broker responses and calls all become events of one queue.

An event without a payload says only that something changed: handling it reads again, so a burst of watches costs one
read, and a second one that waits is merged into the first. An event with a caller answers it even when it is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar, TypeAlias

from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import BrokerEpoch, BrokerId, TopicPartition
from klamm.model.partition import Assignment


class ControllerState(IntEnum):
    """What the controller is busy with: the gauge ControllerState, and the timer of its name."""

    IDLE = 0
    CONTROLLER_CHANGE = 1
    BROKER_CHANGE = 2
    TOPIC_CHANGE = 3
    TOPIC_DELETION = 4
    PARTITION_REASSIGNMENT = 5
    AUTO_LEADER_BALANCE = 6
    MANUAL_LEADER_BALANCE = 7
    CONTROLLED_SHUTDOWN = 8
    ISR_CHANGE = 9
    LEADER_AND_ISR_RESPONSE = 10
    LOG_DIR_CHANGE = 11
    CONTROLLER_SHUTDOWN = 12
    UNCLEAN_LEADER_ELECTION_ENABLE = 13
    TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE = 14
    LIST_PARTITION_REASSIGNMENT = 15
    UPDATE_METADATA_RESPONSE = 16


TIMER_NAMES = {
    ControllerState.CONTROLLER_CHANGE: "ControllerChangeRateAndTimeMs",
    ControllerState.BROKER_CHANGE: "LeaderElectionRateAndTimeMs",
    ControllerState.TOPIC_CHANGE: "TopicChangeRateAndTimeMs",
    ControllerState.TOPIC_DELETION: "TopicDeletionRateAndTimeMs",
    ControllerState.PARTITION_REASSIGNMENT: "PartitionReassignmentRateAndTimeMs",
    ControllerState.AUTO_LEADER_BALANCE: "AutoLeaderBalanceRateAndTimeMs",
    ControllerState.MANUAL_LEADER_BALANCE: "ManualLeaderBalanceRateAndTimeMs",
    ControllerState.CONTROLLED_SHUTDOWN: "ControlledShutdownRateAndTimeMs",
    ControllerState.ISR_CHANGE: "IsrChangeRateAndTimeMs",
    ControllerState.LEADER_AND_ISR_RESPONSE: "LeaderAndIsrResponseReceivedRateAndTimeMs",
    ControllerState.LOG_DIR_CHANGE: "LogDirChangeRateAndTimeMs",
    ControllerState.CONTROLLER_SHUTDOWN: "ControllerShutdownRateAndTimeMs",
    ControllerState.UNCLEAN_LEADER_ELECTION_ENABLE: "UncleanLeaderElectionEnableRateAndTimeMs",
    ControllerState.TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE: "TopicUncleanLeaderElectionEnableRateAndTimeMs",
    ControllerState.LIST_PARTITION_REASSIGNMENT: "ListPartitionReassignmentRateAndTimeMs",
}
"""Kafka's names; none for Idle and for answers to UpdateMetadata. Dashboards ask for the ones that no event of ours
has, too: they stay at zero."""


class _Event:
    state: ClassVar[ControllerState]

    def preempt(self) -> None:
        """Dropped from the queue unhandled: answer whoever waits."""


@dataclass(frozen=True, slots=True)
class Startup(_Event):
    state = ControllerState.CONTROLLER_CHANGE


@dataclass(frozen=True, slots=True)
class ControllerChange(_Event):
    """/controller was created or its data changed."""

    state = ControllerState.CONTROLLER_CHANGE


@dataclass(frozen=True, slots=True)
class Reelect(_Event):
    """/controller is gone."""

    state = ControllerState.CONTROLLER_CHANGE


@dataclass(frozen=True, slots=True)
class Reconsider(_Event):
    """Something about the office changed, or what we waited for is over: judge again who shall hold it."""

    state = ControllerState.CONTROLLER_CHANGE


@dataclass(frozen=True, slots=True)
class TakeOver(_Event):
    """Replace the node at /controller, if it is still the one created by this zxid; nothing if we lead already."""

    czxid: int
    cause: str
    state = ControllerState.CONTROLLER_CHANGE


@dataclass(frozen=True, slots=True)
class RegisterBrokerAndReelect(_Event):
    """A new session: the broker's ephemeral node is gone, and so may be ours."""

    state = ControllerState.CONTROLLER_CHANGE


@dataclass(frozen=True, slots=True, eq=False)
class Crashed(_Event):
    """A task of the term ended with an exception that nobody expected."""

    error: BaseException
    state = ControllerState.CONTROLLER_CHANGE


@dataclass(frozen=True, slots=True, eq=False)
class Expire(_Event):
    """The session expired. Whatever was queued under it is dropped first, so that nothing of it acts under the next."""

    done: asyncio.Future[None] = field(repr=False)
    state = ControllerState.CONTROLLER_CHANGE

    def preempt(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


@dataclass(frozen=True, slots=True)
class BrokerChange(_Event):
    """/brokers/ids changed."""

    state = ControllerState.BROKER_CHANGE


@dataclass(frozen=True, slots=True)
class BrokerModifications(_Event):
    broker: BrokerId
    state = ControllerState.BROKER_CHANGE


@dataclass(frozen=True, slots=True)
class BrokerRefused(_Event):
    """Our connection to it broke and it refuses new ones: is it suspect? (`suspicion`)"""

    broker: BrokerId
    epoch: BrokerEpoch
    state = ControllerState.BROKER_CHANGE


@dataclass(frozen=True, slots=True)
class BrokerConnected(_Event):
    """One that refused answers again, in the same life."""

    broker: BrokerId
    epoch: BrokerEpoch
    state = ControllerState.BROKER_CHANGE


@dataclass(frozen=True, slots=True)
class TopicChange(_Event):
    """/brokers/topics changed."""

    state = ControllerState.TOPIC_CHANGE


@dataclass(frozen=True, slots=True)
class PartitionModifications(_Event):
    topic: str
    state = ControllerState.TOPIC_CHANGE


@dataclass(frozen=True, slots=True)
class TopicDeletion(_Event):
    """/admin/delete_topics changed."""

    state = ControllerState.TOPIC_DELETION


@dataclass(frozen=True, slots=True)
class RetryDeletions(_Event):
    """The slow timer (design D15): Kafka retries a failed deletion only when a broker starts."""

    state = ControllerState.TOPIC_DELETION


@dataclass(frozen=True, slots=True)
class IsrChangeNotification(_Event):
    state = ControllerState.ISR_CHANGE


@dataclass(frozen=True, slots=True)
class LogDirEventNotification(_Event):
    state = ControllerState.LOG_DIR_CHANGE


@dataclass(frozen=True, slots=True, eq=False)
class LeaderAndIsrResponse(_Event):
    """One broker's answer: 60,000 partitions of which nearly all say 0, so those are named only on demand."""

    broker: BrokerId
    broker_epoch: BrokerEpoch
    error: int
    errors: tuple[tuple[TopicPartition, int], ...]
    succeeded: Callable[[], frozenset[TopicPartition]] = field(repr=False)
    state = ControllerState.LEADER_AND_ISR_RESPONSE


@dataclass(frozen=True, slots=True, eq=False)
class StopReplicaResponse(_Event):
    """Answer to a StopReplica that deletes; the answers to others are nobody's business."""

    broker: BrokerId
    error: int
    errors: tuple[tuple[TopicPartition, int], ...]
    asked: frozenset[TopicPartition] = field(repr=False)
    state = ControllerState.TOPIC_DELETION


@dataclass(frozen=True, slots=True, eq=False)
class UpdateMetadataResponse(_Event):
    broker: BrokerId
    error: int
    state = ControllerState.UPDATE_METADATA_RESPONSE


@dataclass(frozen=True, slots=True, eq=False)
class ControlledShutdown(_Event):
    broker: BrokerId
    broker_epoch: BrokerEpoch
    reply: asyncio.Future[frozenset[TopicPartition]] = field(repr=False)
    """Partitions that the broker still leads."""
    state = ControllerState.CONTROLLED_SHUTDOWN

    def preempt(self) -> None:
        self.fail(KafkaError(ErrorCode.STALE_CONTROLLER_EPOCH, "the controller moved before it came to this request"))

    def fail(self, error: KafkaError) -> None:
        if not self.reply.done():
            self.reply.set_exception(error)


@dataclass(frozen=True, slots=True)
class ZkPartitionReassignment(_Event):
    """/admin/reassign_partitions appeared, changed or went."""

    state = ControllerState.PARTITION_REASSIGNMENT


@dataclass(frozen=True, slots=True)
class ReassignmentIsrChange(_Event):
    """The state of a partition changed that is, or was, being reassigned."""

    partition: TopicPartition
    state = ControllerState.PARTITION_REASSIGNMENT


@dataclass(frozen=True, slots=True, eq=False)
class AlterReassignments(_Event):
    targets: Mapping[TopicPartition, tuple[BrokerId, ...] | None]
    """None: cancel."""
    reply: asyncio.Future[dict[TopicPartition, KafkaError | None]] = field(repr=False)
    state = ControllerState.PARTITION_REASSIGNMENT

    def preempt(self) -> None:
        _not_controller(self.reply)


@dataclass(frozen=True, slots=True, eq=False)
class ListReassignments(_Event):
    partitions: frozenset[TopicPartition] | None
    """None: all."""
    reply: asyncio.Future[dict[TopicPartition, Assignment]] = field(repr=False)
    state = ControllerState.LIST_PARTITION_REASSIGNMENT

    def preempt(self) -> None:
        _not_controller(self.reply)


@dataclass(frozen=True, slots=True, eq=False)
class ElectLeaders(_Event):
    partitions: frozenset[TopicPartition] | None
    """None: all that need it."""
    unclean: bool
    reply: asyncio.Future[dict[TopicPartition, BrokerId | KafkaError]] = field(repr=False)
    state = ControllerState.MANUAL_LEADER_BALANCE

    def preempt(self) -> None:
        _not_controller(self.reply)


@dataclass(frozen=True, slots=True)
class ZkPreferredElection(_Event):
    """/admin/preferred_replica_election appeared, changed or went."""

    state = ControllerState.MANUAL_LEADER_BALANCE


@dataclass(frozen=True, slots=True)
class BalanceLeaders(_Event):
    """The clock of leader.imbalance.check.interval.seconds."""

    state = ControllerState.AUTO_LEADER_BALANCE


@dataclass(frozen=True, slots=True)
class ConfigChange(_Event):
    """/config/changes changed: a topic that has no leader may allow an unclean election now."""

    state = ControllerState.TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE


def _not_controller(reply: asyncio.Future[Any]) -> None:
    if not reply.done():
        reply.set_exception(KafkaError(ErrorCode.NOT_CONTROLLER, "This broker is not the controller."))


ControllerEvent: TypeAlias = (
    Startup
    | ControllerChange
    | Reelect
    | Reconsider
    | TakeOver
    | RegisterBrokerAndReelect
    | Expire
    | Crashed
    | BrokerChange
    | BrokerModifications
    | BrokerRefused
    | BrokerConnected
    | TopicChange
    | PartitionModifications
    | TopicDeletion
    | RetryDeletions
    | IsrChangeNotification
    | LogDirEventNotification
    | LeaderAndIsrResponse
    | StopReplicaResponse
    | UpdateMetadataResponse
    | ControlledShutdown
    | ZkPartitionReassignment
    | ReassignmentIsrChange
    | AlterReassignments
    | ListReassignments
    | ElectLeaders
    | ZkPreferredElection
    | BalanceLeaders
    | ConfigChange
)
