"""What one step tells the brokers. Built by the step, sealed once, never shared or reused: nothing to clear, so a
failure cannot poison the next one (Kafka's batch objects outlive even a resignation: controller.md 12.3).

Order within a batch, per broker: LeaderAndIsr, UpdateMetadata, StopReplica. Whoever hears LeaderAndIsr about a
partition, everybody hears UpdateMetadata about it. Only registered brokers, shutting-down ones included, are told
anything: a dead broker is told all again when it registers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from klamm.controller.context import ControllerContext, PartitionIndex
from klamm.model.ids import EPOCH_DURING_DELETE, NO_EPOCH, BrokerId


class Stop(NamedTuple):
    delete: bool
    leader_epoch: int
    """As it was when the stop was decided, before any write of the same step raised it."""


class RequestBatch:
    def __init__(self) -> None:
        self.leader_and_isr: dict[BrokerId, dict[PartitionIndex, bool]] = {}
        """Per broker the partitions and whether the replica is new; once new, always new."""
        self.metadata: dict[PartitionIndex, None] = {}
        self.metadata_to: set[BrokerId] = set()
        self.stop_replica: dict[BrokerId, dict[PartitionIndex, Stop]] = {}

    def __bool__(self) -> bool:
        return bool(self.leader_and_isr or self.metadata_to or self.stop_replica)

    def add_leader_and_isr(
        self, view: ControllerContext, partition: PartitionIndex, recipients: Iterable[BrokerId], *, is_new: bool
    ) -> None:
        for broker in recipients:
            if broker in view.brokers:
                told = self.leader_and_isr.setdefault(broker, {})
                told[partition] = is_new or told.get(partition, False)
        self.metadata[partition] = None
        self.metadata_to.update(view.brokers)

    def add_leader_and_isr_on(
        self, view: ControllerContext, broker: BrokerId, partitions: Iterable[PartitionIndex]
    ) -> None:
        """Many partitions of one broker, known already: a start or a fail-over."""
        told = dict.fromkeys(partitions, False)
        if broker in view.brokers:
            self.leader_and_isr[broker] = told | self.leader_and_isr.get(broker, {})
        self.metadata.update(dict.fromkeys(told))
        self.metadata_to.update(view.brokers)

    def add_metadata(
        self, view: ControllerContext, brokers: Iterable[BrokerId] | None, partitions: Iterable[PartitionIndex]
    ) -> None:
        """No partitions still tells who is alive. Partitions without leadership info have nothing to tell yet."""
        self.metadata_to.update(view.brokers if brokers is None else [b for b in brokers if b in view.brokers])
        state_of = view.columns.state
        self.metadata.update([(i, None) for i in partitions if state_of[i] is not None])

    def add_stop_replica(
        self,
        view: ControllerContext,
        broker: BrokerId,
        partitions: Iterable[PartitionIndex],
        *,
        delete: bool,
        any_epoch: bool = False,
    ) -> None:
        if broker not in view.brokers:
            return
        stops = self.stop_replica.setdefault(broker, {})
        for partition in partitions:
            state = view.state_of(partition)
            epoch = NO_EPOCH if state is None or any_epoch else state.leader_epoch
            if view.topic_of(partition) in view.deleting:
                epoch = EPOCH_DURING_DELETE
            known = stops.get(partition)
            stops[partition] = Stop(delete or (known is not None and known.delete), epoch)
