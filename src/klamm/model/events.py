"""Event records (design D10), which tests, the command line, the simulation and Spark read.

There are two kinds. A *decision* says what was decided, why, how much it affected and how long it took. A *state
change* is the new state of one partition. Both are plain tuples, so a decision about 60,000 partitions can hand 60,000
of them to the writer without formatting any. The JSON form (`telemetry.state_changes`) carries the schema version `v`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from klamm.model.ids import BrokerId, ControllerEpoch, LeaderEpoch
from klamm.model.partition import LeaderAndIsr

EVENT_SCHEMA_VERSION: Final = 1

Role = Literal["controller", "broker"]


class StateChange(NamedTuple):
    """The controller changed leader, ISR or epoch of a partition, or a broker applied such a change."""

    time_ms: int
    broker: BrokerId
    role: Role
    controller_epoch: ControllerEpoch
    topic: str
    partition: int
    from_state: str
    to_state: str
    leader: BrokerId
    leader_epoch: LeaderEpoch
    isr: tuple[BrokerId, ...]
    zk_version: int
    cause: str


class StateChanges(Iterable[StateChange]):
    """Many changes of one decision, in columns. A sink may use the columns; to other sinks it is an iterable of
    StateChange."""

    __slots__ = (
        "broker",
        "cause",
        "controller_epoch",
        "from_states",
        "partitions",
        "role",
        "states",
        "time_ms",
        "to_states",
        "topics",
        "zk_versions",
    )

    def __init__(
        self,
        time_ms: int,
        broker: BrokerId,
        role: Role,
        controller_epoch: ControllerEpoch,
        cause: str,
        *,
        topics: Sequence[str],
        partitions: Sequence[int],
        from_states: Sequence[str],
        to_states: Sequence[str],
        states: Sequence[LeaderAndIsr],
        zk_versions: Sequence[int],
    ) -> None:
        self.time_ms = time_ms
        self.broker = broker
        self.role = role
        self.controller_epoch = controller_epoch
        self.cause = cause
        self.topics = topics
        self.partitions = partitions
        self.from_states = from_states
        self.to_states = to_states
        self.states = states
        self.zk_versions = zk_versions

    def __len__(self) -> int:
        return len(self.topics)

    def __iter__(self) -> Iterator[StateChange]:
        return map(self.row, range(len(self)))

    def row(self, n: int) -> StateChange:
        leader, leader_epoch, isr, _ = self.states[n]
        return StateChange(
            self.time_ms,
            self.broker,
            self.role,
            self.controller_epoch,
            self.topics[n],
            self.partitions[n],
            self.from_states[n],
            self.to_states[n],
            leader,
            leader_epoch,
            isr,
            self.zk_versions[n],
            self.cause,
        )


class Decision(NamedTuple):
    """One decision with its cause, such as a load, a broker's death, an election round or a resignation."""

    time_ms: int
    broker: BrokerId
    role: Role
    controller_epoch: ControllerEpoch
    event: str
    """A stable name in kebab case, such as `controller-elected`, `broker-failure` or `znode-skipped`."""
    cause: str
    duration_ms: float
    counts: Mapping[str, int]
    detail: str = ""


EventRecord = StateChange | Decision
