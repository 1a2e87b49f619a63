"""What one step tells the brokers. Built by the step, sealed once, never shared or reused: nothing to clear, so a
failure cannot poison the next one (Kafka's batch objects outlive even a resignation: controller.md 12.3).

Order within a batch, per broker: LeaderAndIsr, UpdateMetadata, StopReplica. Whoever hears LeaderAndIsr about a
partition, everybody hears UpdateMetadata about it. Only registered brokers, shutting-down ones included, are told
anything: a dead broker is told all again when it registers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.model.ids import EPOCH_DURING_DELETE, NO_EPOCH, BrokerId


class Stop(NamedTuple):
    delete: bool
    leader_epoch: int
    """As it was when the stop was decided, before any write of the same step raised it."""


class RequestBatch:
    def __init__(self) -> None:
        self.leader_and_isr: dict[BrokerId, set[PartitionIndex]] = {}
        self.new: dict[BrokerId, set[PartitionIndex]] = {}
        """Of those, the replicas that are new to their broker; once new, always new."""
        self.metadata: set[PartitionIndex] = set()
        self.metadata_to: set[BrokerId] = set()
        self.stop_replica: dict[BrokerId, dict[PartitionIndex, Stop]] = {}

    def __bool__(self) -> bool:
        return bool(self.leader_and_isr or self.metadata_to or self.stop_replica)

    def add_leader_and_isr(
        self, view: ControllerContext, partition: PartitionIndex, recipients: Iterable[BrokerId], *, is_new: bool
    ) -> None:
        for broker in recipients:
            if broker in view.brokers:
                self.leader_and_isr.setdefault(broker, set()).add(partition)
                if is_new:
                    self.new.setdefault(broker, set()).add(partition)
        self.metadata.add(partition)
        self.metadata_to.update(view.brokers)

    def add_written(
        self,
        view: ControllerContext,
        partitions: Sequence[PartitionIndex],
        recipients: Sequence[tuple[BrokerId, ...]],
    ) -> None:
        """Changed states, each with who hears LeaderAndIsr about it. Of a topic that leaves, nobody hears metadata
        where no replica is told anything."""
        alike: dict[tuple[BrokerId, ...], list[PartitionIndex]] = {}
        for partition, brokers in zip(partitions, recipients, strict=True):
            alike.setdefault(brokers, []).append(partition)
        for brokers, group in alike.items():
            told = group if brokers else [i for i in group if not view.is_leaving(i)]
            for broker in brokers:
                if broker in view.brokers:
                    self.leader_and_isr.setdefault(broker, set()).update(told)
            if told:
                self.metadata.update(told)
                self.metadata_to.update(view.brokers)

    def add_leader_and_isr_on(
        self, view: ControllerContext, broker: BrokerId, partitions: Sequence[PartitionIndex]
    ) -> None:
        """Many partitions of one broker, known already: a start or a fail-over."""
        if broker in view.brokers:
            self.leader_and_isr.setdefault(broker, set()).update(partitions)
        self.metadata.update(partitions)
        self.metadata_to.update(view.brokers)

    def add_metadata(
        self, view: ControllerContext, brokers: Iterable[BrokerId] | None, partitions: Iterable[PartitionIndex]
    ) -> None:
        """No partitions still tells who is alive. Partitions without leadership info have nothing to tell yet, unless
        their topic is being deleted: brokers forget them all the same, it may only be we who could not read it."""
        self.metadata_to.update(view.brokers if brokers is None else [b for b in brokers if b in view.brokers])
        state_of, deleting = view.columns.state, view.deleting
        self.metadata.update(
            [i for i in partitions if state_of[i] is not None or (deleting and view.topic_of(i) in deleting)]
        )

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
        states, topics, deleting = view.columns.state, view.columns.topic, view.deleting
        made: dict[tuple[bool, int], Stop] = {}
        for partition in partitions:
            state = states[partition]
            epoch = NO_EPOCH if state is None or any_epoch else state.leader_epoch
            if deleting and topics[partition] in deleting:
                epoch = EPOCH_DURING_DELETE
            known = stops.get(partition)
            key = (delete or (known is not None and known.delete), epoch)
            stops[partition] = made.get(key) or made.setdefault(key, Stop(*key))
