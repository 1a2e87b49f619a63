"""What a decision yields: one Step at a time, each committed, applied and sent before the decision goes on.

A decision is a generator over the controller's context. It is pure: no await, no clock, no IO. When it resumes, the
context already holds the result of the last step, and the yield returns the step's outcome, so the next step is based
on what really happened. Between two steps the event loop serves other tasks.

A change of partition state is not a value but a *rule*, because the state may have changed since it was read: the rule
gets the state that ZooKeeper holds now, and is asked again when the write met a conflict.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, TypeAlias, TypeVar

from klamm.controller.context.controller_context import PartitionIndex
from klamm.controller.context.states import PartitionState, ReplicaState
from klamm.model.ids import BrokerId
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.model.ports import Delete, Set

T = TypeVar("T")

PARTITIONS_MAX: Final = 2_000
"""Partitions of one step: two multis of 1,000 writes in flight together and about 15 ms of our own work, far below the
50 ms for which the loop may be held."""

ReplicasByBroker: TypeAlias = Mapping[BrokerId, Sequence[PartitionIndex]]


class WriteState(NamedTuple):
    """Write this state, then send it to these replicas."""

    state: LeaderAndIsr
    recipients: tuple[BrokerId, ...]
    unclean: bool = False


class KeepState(NamedTuple):
    """Write nothing: the state is as it should be. The context takes the state that was read."""

    state: LeaderAndIsr


class Refuse(NamedTuple):
    reason: str


class IfUnclean(NamedTuple):
    """The topic's configuration decides, and is read only now: it rarely matters, and must not be out of date."""

    allowed: WriteState
    forbidden: Refuse


Change: TypeAlias = WriteState | KeepState | Refuse | IfUnclean
Rule: TypeAlias = Callable[[PartitionIndex, LeaderAndIsr], Change]
FirstRule: TypeAlias = Callable[[PartitionIndex], WriteState | Refuse]
"""For a partition that has no state yet."""


class Send(Enum):
    """When the requests of a step leave."""

    NOW = "now"
    WITH_NEXT = "with next"
    """Together with the requests of the next step that sends, in one batch."""


# --- steps that write to ZooKeeper ---


@dataclass(frozen=True, slots=True)
class ChangeStates:
    """Read the states again, ask `rule`, write with version and fence, and send what was written."""

    partitions: Sequence[PartitionIndex]
    rule: Rule
    to: PartitionState | None = None
    """Partitions that the rule does not refuse enter this state; None leaves them in theirs."""
    send: Send = Send.NOW


@dataclass(frozen=True, slots=True)
class TakeReplicasOffline:
    """Change the states of partitions on one broker, as ChangeStates does; send it StopReplica first. Its replicas
    become OfflineReplica unless the rule refuses."""

    broker: BrokerId
    partitions: Sequence[PartitionIndex]
    rule: Rule
    send: Send = Send.NOW


@dataclass(frozen=True, slots=True)
class CreateStates:
    """Create the state znodes of New partitions and send their first leader and ISR to replicas that are new."""

    partitions: Sequence[PartitionIndex]
    rule: FirstRule


@dataclass(frozen=True, slots=True)
class WriteAssignments:
    """Write replica lists to the topic znode, then to the context. Where the write fails, neither changes."""

    assignments: Mapping[PartitionIndex, Assignment]


@dataclass(frozen=True, slots=True)
class WriteNodes:
    """Fenced writes that change nothing in the context. A node that is already gone counts as deleted."""

    ops: Sequence[Set | Delete]


@dataclass(frozen=True, slots=True)
class RemoveTopics:
    """End a deletion: delete the znodes children first, then configuration and marker, then forget the topics."""

    topics: Sequence[str]


# --- steps that read from ZooKeeper ---


@dataclass(frozen=True, slots=True)
class RefreshStates:
    """Read what leaders wrote into the context and send it in UpdateMetadata. LeaderAndIsr is not needed: the leader
    epoch did not change."""

    partitions: Sequence[PartitionIndex]


# --- steps in memory ---


@dataclass(frozen=True, slots=True)
class MovePartitions:
    partitions: Sequence[PartitionIndex]
    to: PartitionState


@dataclass(frozen=True, slots=True)
class MoveReplicas:
    replicas: ReplicasByBroker
    to: ReplicaState


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing: a decision that looks at many things lets other tasks have their turn."""


@dataclass(frozen=True, slots=True)
class SwapAssignments:
    """Replica lists in the context alone. Only `overlay` yields this: it also swaps them back."""

    assignments: Mapping[PartitionIndex, Assignment]


# --- steps that send ---


@dataclass(frozen=True, slots=True)
class SendLeaderAndIsr:
    """LeaderAndIsr about replicas that their brokers already have."""

    replicas: ReplicasByBroker
    send: Send = Send.NOW


@dataclass(frozen=True, slots=True)
class AddReplicas:
    """Replicas that their brokers have never had become NewReplica. Their brokers receive LeaderAndIsr with is_new, and
    may put them into any log directory (KAFKA-10314)."""

    replicas: ReplicasByBroker


@dataclass(frozen=True, slots=True)
class SendMetadata:
    """UpdateMetadata. Without partitions it still says which brokers are alive."""

    partitions: Iterable[PartitionIndex] = ()
    to: Sequence[BrokerId] | None = None
    """None means every registered broker."""


@dataclass(frozen=True, slots=True)
class StopReplicas:
    """StopReplica that deletes nothing."""

    replicas: ReplicasByBroker


@dataclass(frozen=True, slots=True)
class DeleteReplicas:
    """Check the fence, move the replicas to ReplicaDeletionStarted, then send StopReplica with delete. A deletion
    cannot be undone and needs no write of its own, so the fence is checked in the same step (design D15)."""

    replicas: ReplicasByBroker
    any_epoch: bool = False
    """Send no leader epoch: the broker may already have received the current one, and brokers that compare ignore a
    StopReplica with an equal epoch (KAFKA-13972)."""


@dataclass(frozen=True, slots=True)
class ForgetTopics:
    """Topics that are already gone from ZooKeeper: brokers drop their partitions, then the context does."""

    topics: Sequence[str]


Step: TypeAlias = (
    ChangeStates
    | TakeReplicasOffline
    | CreateStates
    | WriteAssignments
    | WriteNodes
    | RemoveTopics
    | RefreshStates
    | MovePartitions
    | MoveReplicas
    | SwapAssignments
    | Pause
    | SendLeaderAndIsr
    | AddReplicas
    | SendMetadata
    | StopReplicas
    | DeleteReplicas
    | ForgetTopics
)


class StepOutcome(NamedTuple):
    written: Sequence[PartitionIndex] = ()
    """Partitions whose state was written."""


Decision: TypeAlias = Generator[Step, StepOutcome, None]


def only(step: Step) -> Decision:
    """A decision of one step."""
    yield step


def chunked(items: Sequence[T], size: int = PARTITIONS_MAX) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
