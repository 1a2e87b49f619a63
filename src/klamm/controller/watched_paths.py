"""Which event a watch becomes, as a table of paths.

A watch only enqueues an event. Watches are one-shot, so the handler of the event reads the node again and so sets the
next one. All reads use the same callable, so that the client keeps one watch per path.
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
"""By the parent of the path. The deletion of such a node is an event of its parent's children, not of its data."""


NODES: Final[Mapping[str, Callable[[], ControllerEvent]]] = {
    reassign_partitions.PATH: ZkPartitionReassignment,
    preferred_replica_election.PATH: ZkPreferredElection,
    controller_epoch.PATH: Reconsider,
    controller_move.PATH: Reconsider,
    candidates.PARENT: Reconsider,
}
"""For every kind of change, including their deletion: the read that follows sets the next watch."""


def event_of(watched: WatchEvent) -> ControllerEvent | None:
    if watched.path == controller.PATH:
        return Reelect() if watched.kind is WatchKind.DELETED else ControllerChange()
    if watched.path in NODES:
        return NODES[watched.path]()
    if watched.kind is WatchKind.CHILDREN_CHANGED or watched.path in CHILDREN:
        # The parent itself may be deleted and made again: the read that follows watches it again.
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
        return None  # the name is not a broker id; BrokerChange has reported it


def _event_of_state(path: str) -> ControllerEvent | None:
    """/brokers/topics/<topic>/partitions/<number>/state: watched while the partition is reassigned."""
    match path.removeprefix(f"{topic_znode.PARENT}/").split("/"):
        case [topic, "partitions", number, "state"]:
            return ReassignmentIsrChange(TopicPartition(topic, int(number)))
    return None
