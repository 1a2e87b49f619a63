"""What a decision yields: one Step at a time, each committed, applied and told before the decision goes on.

A decision is a generator over the controller's context. It is pure: no await, no clock, no IO. When it resumes, the
context already holds what the step before it brought, so a later step is decided on what really happened. A step is
small (`PARTITIONS_MAX`), carries its cause, and is the unit in which the loop is shared with everybody else.

A change of partition state is not a value but a *rule*, because the truth may have moved: the rule is given the state
as ZooKeeper holds it now, and is asked again when the write met a conflict.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias, TypeVar

from klamm.controller.context.controller_context import PartitionIndex
from klamm.controller.context.states import PartitionState, ReplicaState
from klamm.model.ids import BrokerId
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.model.ports import Op

T = TypeVar("T")

PARTITIONS_MAX: Final = 2_000
"""Writes of one step: two multis of 1,000 in flight together, some 15 ms of our own work, far below the 50 ms for which
the loop may be held."""


class Write(NamedTuple):
    """Write this state, then tell these replicas."""

    state: LeaderAndIsr
    recipients: tuple[BrokerId, ...]
    unclean: bool = False


class Keep(NamedTuple):
    """Nothing to write: the state is as it should be. The cache takes what was read."""

    state: LeaderAndIsr


class Refuse(NamedTuple):
    reason: str


Change: TypeAlias = Write | Keep | Refuse
Rule: TypeAlias = Callable[[PartitionIndex, LeaderAndIsr], Change]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeStates:
    """Read the states again, decide by `rule`, write with version and fence, then move what succeeded."""

    cause: str
    partitions: Sequence[PartitionIndex]
    rule: Rule
    partition_to: PartitionState | None = None
    offline_on: BrokerId | None = None
    """The replicas on this broker become OfflineReplica, and hear StopReplica first."""
    send: bool = True
    """False: the next step's batch takes along what this one has to tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateStates:
    """First leader and ISR of New partitions: creates their znodes."""

    cause: str
    partitions: Sequence[PartitionIndex]


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Memory and wire only. `fenced`: an empty fenced multi goes first, because what is told cannot be undone (D15)."""

    cause: str
    partitions: Sequence[tuple[Sequence[PartitionIndex], PartitionState]] = ()
    replicas: Mapping[BrokerId, Sequence[PartitionIndex]] = field(default_factory=dict)
    replica_to: ReplicaState | None = None
    leader_and_isr: Mapping[BrokerId, Sequence[PartitionIndex]] = field(default_factory=dict)
    is_new: bool = False
    """Those who hear LeaderAndIsr never had the replica: they may put it on any directory (KAFKA-10314)."""
    stop_replica: Mapping[BrokerId, Sequence[PartitionIndex]] = field(default_factory=dict)
    delete: bool = False
    any_epoch: bool = False
    """StopReplica without a leader epoch: the replica may have heard the current one, and an equal epoch is ignored by
    brokers that compare (KAFKA-13972)."""
    metadata: Iterable[PartitionIndex] | None = None
    """UpdateMetadata for these; empty still sends the live brokers; None sends none."""
    metadata_to: Sequence[BrokerId] | None = None
    """None: every registered broker."""
    fenced: bool = False
    send: bool = True
    """As in ChangeStates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """Replica lists of partitions: the topic znode first, then the context; where the write fails, neither."""

    cause: str
    assignments: Mapping[PartitionIndex, Assignment]
    durable: bool = True
    """False: the context only, for brokers that must hear a list before ZooKeeper may forget the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshStates:
    """Take over what leaders wrote, and tell everybody (never LeaderAndIsr: the leader epoch did not move)."""

    cause: str
    partitions: Sequence[PartitionIndex]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveTopicConfigs:
    """Read which of these topics allow an unclean election: asked only for topics that cannot elect cleanly."""

    cause: str
    topics: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteNodes:
    """Fenced writes that no column follows from. What is gone already counts as deleted."""

    cause: str
    ops: Sequence[Op]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTopics:
    """The end of a deletion: znodes children first, configuration, marker; then the context forgets the topics."""

    cause: str
    topics: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetTopics:
    """Topics that are gone from ZooKeeper already."""

    cause: str
    topics: Sequence[str]


Step: TypeAlias = (
    ChangeStates
    | CreateStates
    | Move
    | Assign
    | RefreshStates
    | ObserveTopicConfigs
    | WriteNodes
    | RemoveTopics
    | ForgetTopics
)
Decision: TypeAlias = Iterator[Step] | Generator[Step, None, None]


def chunked(items: Sequence[T], size: int = PARTITIONS_MAX) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
