"""State changes as a product (design D10): the records that tests, CLI, dashboard, simulator and Spark all read.

Two kinds. A *decision* says that something was decided, why, how much it touched and how long it took. A *state change*
says what one partition became. Both are plain tuples: a decision about 60,000 partitions hands 60,000 of them to the
writer without formatting one. The JSON form (`telemetry.state_changes`) carries the schema version `v`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from klamm.model.ids import BrokerId, ControllerEpoch, LeaderEpoch

EVENT_SCHEMA_VERSION: Final = 1

Role = Literal["controller", "broker"]


class StateChange(NamedTuple):
    """One partition changed leader, ISR or epoch (controller), or one broker followed a change (broker)."""

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


class Decision(NamedTuple):
    """One decision with its cause: a load, a broker's death, an election round, a resignation, a hand-over ..."""

    time_ms: int
    broker: BrokerId
    role: Role
    controller_epoch: ControllerEpoch
    event: str
    """Name in kebab case, stable: `controller-elected`, `broker-failure`, `topic-created`, `znode-skipped` ..."""
    cause: str
    duration_ms: float
    counts: Mapping[str, int]
    detail: str = ""


EventRecord = StateChange | Decision
