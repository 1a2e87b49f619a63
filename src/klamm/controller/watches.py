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
    ControllerChange,
    ControllerEvent,
    IsrChangeNotification,
    LogDirEventNotification,
    PartitionModifications,
    Reelect,
    TopicChange,
    TopicDeletion,
)
from klamm.model.errors import ZNodeError
from klamm.model.ports import WatchEvent, WatchKind
from klamm.zookeeper.znodes import broker_id, controller, delete_topics, isr_change, log_dir_event
from klamm.zookeeper.znodes import topic as topic_znode

CHILDREN: Final[Mapping[str, Callable[[], ControllerEvent]]] = {
    broker_id.PARENT: BrokerChange,
    topic_znode.PARENT: TopicChange,
    delete_topics.PARENT: TopicDeletion,
    isr_change.PARENT: IsrChangeNotification,
    log_dir_event.PARENT: LogDirEventNotification,
}

DATA: Final[Mapping[str, Callable[[str], ControllerEvent]]] = {
    broker_id.PARENT: lambda name: BrokerModifications(broker_id.id_of(name)),
    topic_znode.PARENT: PartitionModifications,
}
"""By the parent of the path; the deletion of such a node is news of its parent's children, not of its data."""


def event_of(watched: WatchEvent) -> ControllerEvent | None:
    if watched.path == controller.PATH:
        return Reelect() if watched.kind is WatchKind.DELETED else ControllerChange()
    if watched.kind is WatchKind.CHILDREN_CHANGED:
        event = CHILDREN.get(watched.path)
        return event() if event else None
    parent, _, name = watched.path.rpartition("/")
    if watched.kind is WatchKind.DELETED or parent not in DATA:
        return None
    try:
        return DATA[parent](name)
    except ZNodeError:
        return None  # a child whose name is no broker id; BrokerChange has reported it
