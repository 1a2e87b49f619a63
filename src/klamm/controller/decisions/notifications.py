"""What brokers announce through ZooKeeper: an ISR that a leader changed, a log directory that failed.

Neither changes a leader epoch by itself. After an ISR change all brokers receive new metadata. After a log directory
event the broker receives LeaderAndIsr for all its replicas at their current epoch: it answers KAFKA_STORAGE_ERROR for
those it lost, and only those answers make them offline.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.controller.decisions.leadership import replicas_online
from klamm.controller.decisions.steps import Decision, RefreshStates, WriteNodes, chunked
from klamm.model.errors import ErrorCode
from klamm.model.ids import BrokerId, TopicPartition
from klamm.model.ports import Delete


def on_isr_change(view: ControllerContext, partitions: Iterable[TopicPartition], nodes: Sequence[str]) -> Decision:
    known = sorted({i for name in partitions if (i := view.partition(*name)) is not None})
    for chunk in chunked(known):
        yield RefreshStates(chunk)
    yield WriteNodes([Delete(path) for path in nodes])


def on_log_dir_event(view: ControllerContext, brokers: Iterable[BrokerId], nodes: Sequence[str]) -> Decision:
    replicas = {broker: view.replicas.on(broker) for broker in sorted(set(brokers)) if broker in view.brokers}
    if replicas:
        yield from replicas_online(view, replicas)
    yield WriteNodes([Delete(path) for path in nodes])


def newly_offline(
    view: ControllerContext, broker: BrokerId, errors: Iterable[tuple[TopicPartition, int]]
) -> list[PartitionIndex]:
    known = view.offline_dirs.get(broker, set())
    named = (view.partition(*name) for name, code in errors if code == ErrorCode.KAFKA_STORAGE_ERROR)
    return [i for i in named if i is not None and i not in known]
