"""What made a controller fail is set aside, so that neither it nor its successor fails of it again (design D14).

An event that fails unexpectedly is *about* a znode: the topic or registration that the failing code had in its hands,
or else the one that the event itself names. That znode is quarantined: for the reads of the controller it does not
exist, until it changes. The controller keeps the office, drops its term and loads anew without it.

Bounded: a fault that meets one znode after the other is not theirs. Then all are released and the controller backs off
like after any fault that is about nothing. The entries are in ZooKeeper too (`znodes.quarantine`), fenced, for the
successor and for `klamm controller show`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, Final

from klamm.controller.context.controller_context import ControllerContext
from klamm.controller.events import (
    BrokerModifications,
    ControllerEvent,
    PartitionModifications,
    ReassignmentIsrChange,
    ZkPartitionReassignment,
    ZkPreferredElection,
)
from klamm.controller.execution.commit import Committer
from klamm.controller.recorder import Recorder
from klamm.model.errors import ControllerMoved, NoNode, ZNodeError, ZooKeeperError
from klamm.model.ids import BrokerId, TopicPartition
from klamm.model.ports import Check, Clock, Create, Node, ZooKeeper
from klamm.zookeeper.retries import until_connected
from klamm.zookeeper.znodes import broker_id, preferred_replica_election, quarantine, reassign_partitions
from klamm.zookeeper.znodes import topic as topic_znode
from klamm.zookeeper.znodes.quarantine import Quarantined

log = logging.getLogger(__name__)

QUARANTINED_MAX: Final = 10
REASON_CHARACTERS_MAX: Final = 300
OURS: Final = "klamm."
CONTROLLER: Final = "klamm.controller."


class Quarantine:
    """Of one process; it outlives the terms."""

    def __init__(self, zk: ZooKeeper, clock: Clock, recorder: Recorder, me: BrokerId) -> None:
        self._zk = zk
        self._clock = clock
        self._recorder = recorder
        self._me = me
        self._entries: dict[str, Quarantined] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def entries(self) -> tuple[Quarantined, ...]:
        return tuple(entry for _, entry in sorted(self._entries.items()))

    async def load(self, committer: Committer) -> None:
        """What earlier controllers set aside; what has changed since is forgotten."""
        try:
            names = sorted(await until_connected(lambda: self._zk.children(quarantine.PARENT)))
        except NoNode:
            return
        paths = [f"{quarantine.PARENT}/{name}" for name in names]
        found = dict(self._entries)  # what could not be written, or not be read back, we still know
        ended: list[str] = []
        changed: set[str] = set()
        for path, node in zip(paths, await committer.read(paths), strict=True):
            try:
                entry = quarantine.decode(path, node.data if node else None)
                found[entry.path] = entry
            except ZNodeError as error:
                self._recorder.znode_skipped(error)
                ended.append(path)
        for path, node in zip(found, await committer.read(list(found)), strict=True):
            if node is None or node.stat.mzxid != found[path].mzxid:
                ended.append(quarantine.path(path))
                changed.add(path)
        self._entries = {path: entry for path, entry in found.items() if path not in changed}
        await committer.delete(ended)
        for entry in self._entries.values():
            self._recorder.decision("quarantine-kept", entry.path, detail=entry.reason)

    async def add(self, path: str, error: BaseException, committer: Committer) -> bool:
        """False: not set aside, since it is already, or is gone, or it is one too many."""
        try:
            (node,) = await committer.read([path])
            if node is None or path in self._entries:
                return False
            if len(self._entries) >= QUARANTINED_MAX:
                await self._release_all(committer)
                return False
            reason = f"{type(error).__name__}: {error}"[:REASON_CHARACTERS_MAX]
            entry = Quarantined(path, node.stat.mzxid, reason, self._me, self._clock.wall_ms())
            self._entries[path] = entry
            self._recorder.decision("quarantined", path, detail=reason)
            await self._zk.ensure_path(quarantine.PARENT)
            await self._zk.multi([Check(*committer.fence), Create(quarantine.path(path), quarantine.encode(entry))])
        except (ZooKeeperError, ControllerMoved) as failure:
            # Then only we know of it; a successor that is klamm finds out by itself, once.
            log.warning("the quarantine of %s could not be written: %s", path, failure)
        return path in self._entries

    def visible(self, paths: Sequence[str], nodes: list[Node | None]) -> list[Node | None]:
        """What the controller may see of what it read. A znode that changed is let go; its entry in ZooKeeper, which
        says nothing any more, is removed at the next load."""
        if not self._entries:
            return nodes
        seen = list(nodes)
        for index, path in enumerate(paths):
            entry, node = self._entries.get(path), nodes[index]
            if entry is None or node is None:
                continue
            if node.stat.mzxid == entry.mzxid:
                seen[index] = None
            else:
                del self._entries[path]
                self._recorder.decision("quarantine-ended", path, detail="it has changed")
        return seen

    async def _release_all(self, committer: Committer) -> None:
        self._recorder.decision("quarantine-ended", f"{len(self._entries)} znodes are not the cause")
        paths = [quarantine.path(path) for path in self._entries]
        self._entries.clear()
        await committer.delete(paths)


def offender(event: ControllerEvent, error: BaseException, context: ControllerContext) -> str | None:
    """The znode that a failure is about: what the innermost code of ours had in its hands, else what the event names.

    Looked up after the fact, in the frames of the traceback: marking every partition beforehand would cost more than
    the elections do.
    """
    for frame in reversed(list(_frames(error))):
        module = frame.f_globals.get("__name__", "")
        if module.startswith(OURS):
            # Only in the controller is `i` or `partition` the index of a partition in its columns.
            indexes = ("partition", "i") if module.startswith(CONTROLLER) else ()
            for name in (*indexes, "topic", "name", "path"):
                found = _znode_of(name, frame.f_locals.get(name), context)
                if found is not None:
                    return found
    match event:
        case PartitionModifications(topic) | ReassignmentIsrChange((topic, _)):
            return topic_znode.path(topic)
        case BrokerModifications(broker):
            return broker_id.path(broker)
        case ZkPartitionReassignment():
            return reassign_partitions.PATH
        case ZkPreferredElection():
            return preferred_replica_election.PATH
    return None


def _znode_of(name: str, value: Any, context: ControllerContext) -> str | None:
    match name, value:
        case _, TopicPartition(topic, _) if topic in context.topics:
            return topic_znode.path(topic)
        case "topic", str() if value in context.topics:
            return topic_znode.path(value)
        case (("partition" | "i"), int()):
            there = _topic_at(value, context)
            return None if there is None else topic_znode.path(there)
        case "path", str() if value.startswith(f"{topic_znode.PARENT}/"):
            return topic_znode.path(value.split("/")[3])
        case "path", str() if value.startswith(f"{broker_id.PARENT}/"):
            return value
    return None


def _topic_at(index: int, context: ControllerContext) -> str | None:
    try:
        topic = context.topic_of(index) if index >= 0 else None
    except IndexError:
        return None
    return topic if topic in context.topics else None


def _frames(error: BaseException) -> Iterator[FrameType]:
    """Outermost first; of a group, of its first member."""
    step = error.__traceback__
    while step is not None:
        yield step.tb_frame
        step = step.tb_next
    if isinstance(error, BaseExceptionGroup):
        yield from _frames(error.exceptions[0])
