"""The requests of one step, or of several that are sent together. A batch is built once, encoded once and never reused:
there is nothing to clear, so a failure cannot poison the next batch, as it can in Kafka's ControllerBrokerRequestBatch.

The order within a batch is, per broker: LeaderAndIsr, UpdateMetadata, StopReplica. Every partition sent in LeaderAndIsr
also goes to all brokers in UpdateMetadata. Only registered brokers are sent anything, including those that are shutting
down: a dead broker receives everything again when it registers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.model.ids import EPOCH_DURING_DELETE, NO_EPOCH, BrokerId


class Stop(NamedTuple):
    delete: bool
    leader_epoch: int
    """The leader epoch when the stop was decided, before a write of the same step raised it."""


class RequestBatch:
    def __init__(self) -> None:
        self.leader_and_isr: dict[BrokerId, set[PartitionIndex]] = {}
        self.new: dict[BrokerId, set[PartitionIndex]] = {}
        """Replicas in `leader_and_isr` that are new to their broker. A new replica stays new for the whole batch."""
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
        """Written states, each with the recipients of its LeaderAndIsr. A partition of a topic being deleted that has
        no recipients is not sent in UpdateMetadata either."""
        alike: dict[tuple[BrokerId, ...], list[PartitionIndex]] = {}
        for partition, brokers in zip(partitions, recipients, strict=True):
            alike.setdefault(brokers, []).append(partition)
        for brokers, group in alike.items():
            sent = group if brokers else [i for i in group if not view.is_leaving(i)]
            for broker in brokers:
                if broker in view.brokers:
                    self.leader_and_isr.setdefault(broker, set()).update(sent)
            if sent:
                self.metadata.update(sent)
                self.metadata_to.update(view.brokers)

    def add_leader_and_isr_on(
        self, view: ControllerContext, broker: BrokerId, partitions: Sequence[PartitionIndex]
    ) -> None:
        """Many partitions that one broker already has: after its start, or a fail-over."""
        if broker in view.brokers:
            self.leader_and_isr.setdefault(broker, set()).update(partitions)
        self.metadata.update(partitions)
        self.metadata_to.update(view.brokers)

    def add_metadata(
        self, view: ControllerContext, brokers: Iterable[BrokerId] | None, partitions: Iterable[PartitionIndex]
    ) -> None:
        """Without partitions the request still says who is alive. Partitions without a state are left out, unless their
        topic is being deleted: this controller may merely have failed to read the state, and brokers must drop the
        partition."""
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
