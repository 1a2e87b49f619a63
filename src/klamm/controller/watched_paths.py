"""Which event a watch means: a table of paths, not a class for each.

All a watch does is enqueue; watches are one-shot, so whoever handles the event reads the node again and thereby sets
the next one. One and the same callable is given to every read, which lets the client keep one watch per path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from klamm.controller.events import (
    BrokerChange,
    BrokerModifications,
    ConfigChange,
    ControllerChange,
    ControllerEvent,
    IsrChangeNotification,
    LogDirEventNotification,
    PartitionModifications,
    ReassignmentIsrChange,
    Reconsider,
    Reelect,
    TopicChange,
    TopicDeletion,
    ZkPartitionReassignment,
    ZkPreferredElection,
)
from klamm.model.errors import ZNodeError
from klamm.model.ids import TopicPartition
from klamm.model.ports import WatchEvent, WatchKind
from klamm.zookeeper.znodes import (
    broker_id,
    candidates,
    config_change,
    controller,
    controller_epoch,
    controller_move,
    delete_topics,
    isr_change,
    log_dir_event,
    preferred_replica_election,
    reassign_partitions,
)
from klamm.zookeeper.znodes import topic as topic_znode

CHILDREN: Final[Mapping[str, Callable[[], ControllerEvent]]] = {
    broker_id.PARENT: BrokerChange,
    topic_znode.PARENT: TopicChange,
    delete_topics.PARENT: TopicDeletion,
    isr_change.PARENT: IsrChangeNotification,
    log_dir_event.PARENT: LogDirEventNotification,
    config_change.PARENT: ConfigChange,
}

DATA: Final[Mapping[str, Callable[[str], ControllerEvent]]] = {
    broker_id.PARENT: lambda name: BrokerModifications(broker_id.id_of(name)),
    topic_znode.PARENT: PartitionModifications,
}
"""By the parent of the path; the deletion of such a node is news of its parent's children, not of its data."""


NODES: Final[Mapping[str, Callable[[], ControllerEvent]]] = {
    reassign_partitions.PATH: ZkPartitionReassignment,
    preferred_replica_election.PATH: ZkPreferredElection,
    controller_epoch.PATH: Reconsider,
    controller_move.PATH: Reconsider,
    candidates.PARENT: Reconsider,
}
"""Whatever happens to them, their deletion included: whoever reads them again watches for the next one."""


def event_of(watched: WatchEvent) -> ControllerEvent | None:
    if watched.path == controller.PATH:
        return Reelect() if watched.kind is WatchKind.DELETED else ControllerChange()
    if watched.path in NODES:
        return NODES[watched.path]()
    if watched.kind is WatchKind.CHILDREN_CHANGED:
        event = CHILDREN.get(watched.path)
        return event() if event else None
    parent, _, name = watched.path.rpartition("/")
    if watched.kind is WatchKind.DELETED:
        return None
    if parent not in DATA:
        return _event_of_state(watched.path)
    try:
        return DATA[parent](name)
    except ZNodeError:
        return None  # a child whose name is no broker id; BrokerChange has reported it


def _event_of_state(path: str) -> ControllerEvent | None:
    """/brokers/topics/<topic>/partitions/<number>/state: watched while the partition is reassigned."""
    match path.removeprefix(f"{topic_znode.PARENT}/").split("/"):
        case [topic, "partitions", number, "state"]:
            return ReassignmentIsrChange(TopicPartition(topic, int(number)))
    return None
