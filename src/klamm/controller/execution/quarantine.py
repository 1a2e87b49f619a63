"""Sets aside znodes that made a controller fail, so that neither it nor its successor fails again (design D14).

An event that fails unexpectedly often concerns one znode: the one that a ZNodeFault or an error of ZooKeeper names, or
else the one that the event itself names. That znode is quarantined: the controller's reads treat it as absent until it
changes. The controller keeps /controller, drops its term and loads again without the znode.

The quarantine is bounded: if one znode after another fails, the znodes are not the cause. Then all are released, and
the controller backs off as after a failure that concerns no znode. The entries are also written to ZooKeeper, fenced
(see `znodes.quarantine`), for the successor and for `klamm controller show`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from klamm.controller.decisions.faults import ZNodeFault
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
from klamm.model.errors import ControllerMoved, ZNodeError, ZooKeeperError
from klamm.model.ids import BrokerId
from klamm.model.ports import Check, Clock, Create, Node, ZooKeeper
from klamm.zookeeper.retries import children_or_none, until_connected
from klamm.zookeeper.znodes import broker_id, preferred_replica_election, quarantine, reassign_partitions
from klamm.zookeeper.znodes import topic as topic_znode
from klamm.zookeeper.znodes.quarantine import Quarantined

log = logging.getLogger(__name__)

QUARANTINED_MAX: Final = 10
REASON_CHARACTERS_MAX: Final = 300


class Quarantine:
    """Belongs to one process; it outlives the terms."""

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
        """Read what earlier controllers set aside, and release znodes that have changed since."""
        names = await until_connected(lambda: children_or_none(self._zk, quarantine.PARENT))
        if names is None:
            return
        paths = [f"{quarantine.PARENT}/{name}" for name in names]
        found = dict(self._entries)  # includes entries that could not be written or cannot be read back
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
        """False if the znode was not set aside: it already is, it is gone, or there are too many."""
        try:
            (node,) = await committer.read([path])
            if node is None or path in self._entries:
                return False
            if len(self._entries) >= QUARANTINED_MAX:
                await self._release_all(committer)
                return False
            reason = describe(error)[:REASON_CHARACTERS_MAX]
            entry = Quarantined(path, node.stat.mzxid, reason, self._me, self._clock.wall_ms())
            self._entries[path] = entry
            self._recorder.decision("quarantined", path, detail=reason)
            await self._zk.ensure_path(quarantine.PARENT)
            await self._zk.multi([Check(*committer.fence), Create(quarantine.path(path), quarantine.encode(entry))])
        except (ZooKeeperError, ControllerMoved) as failure:
            # Then only this process knows; a klamm successor will fail once and set the znode aside itself.
            log.warning("cannot write the quarantine of %s: %s", path, failure)
        return path in self._entries

    def visible(self, paths: Sequence[str], nodes: list[Node | None]) -> list[Node | None]:
        """The nodes without those in quarantine. A znode that has changed is released; its entry in ZooKeeper no longer
        matters and is removed at the next load."""
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


def znode_concerned(event: ControllerEvent, error: BaseException) -> str | None:
    """The znode that a failure concerns, as far as is known."""
    if isinstance(error, ZNodeFault):
        return error.path
    if isinstance(error, ZooKeeperError) and (owner := _owner_of(error.path)) is not None:
        return owner
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


def _owner_of(path: str) -> str | None:
    """The registration or topic that a path belongs to: a partition's state belongs to its topic."""
    for parent in (topic_znode.PARENT, broker_id.PARENT):
        if path.startswith(f"{parent}/"):
            name = path.removeprefix(f"{parent}/").partition("/")[0]
            return f"{parent}/{name}"
    return None


def describe(error: BaseException) -> str:
    cause = error.__cause__ if isinstance(error, ZNodeFault) and error.__cause__ is not None else error
    return f"{type(cause).__name__}: {cause}"
