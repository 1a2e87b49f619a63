"""What can happen to a controller, as values: watches, broker responses and calls all become events of one queue.

An event without a payload only says that something changed: its handler reads again, so a burst of watches costs one
read, and an event that equals a waiting one is merged into it. An event that has a caller answers it even when it is
dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeAlias, TypeVar

from klamm.controller.controller_state import ControllerState
from klamm.model.elections import UncleanElection
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import BrokerEpoch, BrokerId, TopicPartition
from klamm.model.partition import Assignment

R = TypeVar("R")


class _Event:
    state: ClassVar[ControllerState]

    def preempt(self) -> None:
        """The event is dropped unhandled: answer its caller."""


class _Call(_Event, Generic[R]):
    """An event that has a caller. The caller may have gone away, so each answer checks."""

    reply: asyncio.Future[R]

    def answer(self, result: R) -> None:
        if not self.reply.done():
            self.reply.set_result(result)

    def fail(self, error: KafkaError) -> None:
        if not self.reply.done():
            self.reply.set_exception(error)

    def preempt(self) -> None:
        self.fail(KafkaError(ErrorCode.NOT_CONTROLLER, "This broker is not the controller."))


# --- events about who is controller ---


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
    """Something that matters for the election changed, or a wait is over: decide again who should be controller."""

    state = ControllerState.CONTROLLER_CHANGE


@dataclass(frozen=True, slots=True)
class TakeOver(_Event):
    """Replace the node at /controller if it is still the one created by this zxid. The active controller ignores it."""

    czxid: int
    cause: str
    state = ControllerState.CONTROLLER_CHANGE


@dataclass(frozen=True, slots=True)
class RegisterBrokerAndReelect(_Event):
    """A new session: the broker's registration ended with the old one, and perhaps /controller did too."""

    state = ControllerState.CONTROLLER_CHANGE


@dataclass(frozen=True, slots=True, eq=False)
class Expire(_Call[None]):
    """The session expired. The queue is emptied first, so that nothing queued under it acts under the next one."""

    reply: asyncio.Future[None] = field(repr=False)
    state = ControllerState.CONTROLLER_CHANGE

    def preempt(self) -> None:
        self.answer(None)


# --- events of a term ---


@dataclass(frozen=True, slots=True)
class BrokerChange(_Event):
    """/brokers/ids changed."""

    state = ControllerState.BROKER_CHANGE


@dataclass(frozen=True, slots=True)
class BrokerModifications(_Event):
    """The registration of a broker changed."""

    broker: BrokerId
    state = ControllerState.BROKER_CHANGE


@dataclass(frozen=True, slots=True)
class BrokerRefused(_Event):
    """Our connection to the broker broke and it refuses new ones: is it suspect? (see `suspicion`)"""

    broker: BrokerId
    epoch: BrokerEpoch
    state = ControllerState.BROKER_CHANGE


@dataclass(frozen=True, slots=True)
class BrokerConnected(_Event):
    """A broker that refused connections answers again, under the same broker epoch."""

    broker: BrokerId
    epoch: BrokerEpoch
    state = ControllerState.BROKER_CHANGE


@dataclass(frozen=True, slots=True)
class TopicChange(_Event):
    """/brokers/topics changed."""

    state = ControllerState.TOPIC_CHANGE


@dataclass(frozen=True, slots=True)
class PartitionModifications(_Event):
    """The znode of a topic changed."""

    topic: str
    state = ControllerState.TOPIC_CHANGE


@dataclass(frozen=True, slots=True)
class TopicDeletion(_Event):
    """/admin/delete_topics changed."""

    state = ControllerState.TOPIC_DELETION


@dataclass(frozen=True, slots=True)
class RetryPending(_Event):
    """The slow timer for whatever waits: elections, reassignments, deletions (design D15). Kafka retries a failed
    deletion only when a broker starts."""

    state = ControllerState.TOPIC_DELETION


@dataclass(frozen=True, slots=True)
class IsrChangeNotification(_Event):
    """/isr_change_notification changed."""

    state = ControllerState.ISR_CHANGE


@dataclass(frozen=True, slots=True)
class LogDirEventNotification(_Event):
    """/log_dir_event_notification changed."""

    state = ControllerState.LOG_DIR_CHANGE


@dataclass(frozen=True, slots=True, eq=False)
class LeaderAndIsrResponse(_Event):
    """One broker's answer. It may name 60,000 partitions, nearly all without error, so those are decoded on demand."""

    broker: BrokerId
    broker_epoch: BrokerEpoch
    error: int
    errors: tuple[tuple[TopicPartition, int], ...]
    succeeded: Callable[[], frozenset[TopicPartition]] = field(repr=False)
    state = ControllerState.LEADER_AND_ISR_RESPONSE


@dataclass(frozen=True, slots=True, eq=False)
class StopReplicaResponse(_Event):
    """The answer to a StopReplica that deletes; other answers do not become events."""

    broker: BrokerId
    error: int
    errors: tuple[tuple[TopicPartition, int], ...]
    asked: frozenset[TopicPartition] = field(repr=False)
    state = ControllerState.TOPIC_DELETION


@dataclass(frozen=True, slots=True, eq=False)
class UpdateMetadataResponse(_Event):
    broker: BrokerId
    error: int
    broker_epoch: BrokerEpoch
    dropped: frozenset[str]
    """Topics being deleted, which the broker dropped from its metadata unless there is an error."""
    state = ControllerState.UPDATE_METADATA_RESPONSE


BrokerResponse: TypeAlias = LeaderAndIsrResponse | StopReplicaResponse | UpdateMetadataResponse


@dataclass(frozen=True, slots=True, eq=False)
class ControlledShutdown(_Call[list[TopicPartition]]):
    broker: BrokerId
    broker_epoch: BrokerEpoch
    reply: asyncio.Future[list[TopicPartition]] = field(repr=False)
    """Partitions that the broker still leads, sorted."""
    state = ControllerState.CONTROLLED_SHUTDOWN

    def preempt(self) -> None:
        self.fail(KafkaError(ErrorCode.STALE_CONTROLLER_EPOCH, "the controller moved before it handled this request"))


@dataclass(frozen=True, slots=True)
class ZkPartitionReassignment(_Event):
    """/admin/reassign_partitions was created, changed or deleted."""

    state = ControllerState.PARTITION_REASSIGNMENT


@dataclass(frozen=True, slots=True)
class ReassignmentIsrChange(_Event):
    """The state of a partition that is or was being reassigned changed."""

    partition: TopicPartition
    state = ControllerState.PARTITION_REASSIGNMENT


@dataclass(frozen=True, slots=True, eq=False)
class AlterReassignments(_Call[dict[TopicPartition, KafkaError | None]]):
    targets: Mapping[TopicPartition, tuple[BrokerId, ...] | None]
    """None cancels."""
    reply: asyncio.Future[dict[TopicPartition, KafkaError | None]] = field(repr=False)
    state = ControllerState.PARTITION_REASSIGNMENT


@dataclass(frozen=True, slots=True, eq=False)
class ListReassignments(_Call[dict[TopicPartition, Assignment]]):
    partitions: frozenset[TopicPartition] | None
    """None means all."""
    reply: asyncio.Future[dict[TopicPartition, Assignment]] = field(repr=False)
    state = ControllerState.LIST_PARTITION_REASSIGNMENT


@dataclass(frozen=True, slots=True, eq=False)
class ElectLeaders(_Call[dict[TopicPartition, BrokerId | KafkaError]]):
    partitions: frozenset[TopicPartition] | None
    """None means all that need an election."""
    unclean: UncleanElection
    reply: asyncio.Future[dict[TopicPartition, BrokerId | KafkaError]] = field(repr=False)
    state = ControllerState.MANUAL_LEADER_BALANCE


@dataclass(frozen=True, slots=True)
class ZkPreferredElection(_Event):
    """/admin/preferred_replica_election was created, changed or deleted."""

    state = ControllerState.MANUAL_LEADER_BALANCE


@dataclass(frozen=True, slots=True)
class BalanceLeaders(_Event):
    """The timer of leader.imbalance.check.interval.seconds."""

    state = ControllerState.AUTO_LEADER_BALANCE


@dataclass(frozen=True, slots=True)
class ConfigChange(_Event):
    """/config/changes changed: a topic without a leader may allow an unclean election now."""

    state = ControllerState.TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE


ElectionEvent: TypeAlias = (
    Startup | ControllerChange | Reelect | Reconsider | TakeOver | RegisterBrokerAndReelect | Expire
)
TermEvent: TypeAlias = (
    BrokerChange
    | BrokerModifications
    | BrokerRefused
    | BrokerConnected
    | TopicChange
    | PartitionModifications
    | TopicDeletion
    | RetryPending
    | IsrChangeNotification
    | LogDirEventNotification
    | BrokerResponse
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
ControllerEvent: TypeAlias = ElectionEvent | TermEvent
