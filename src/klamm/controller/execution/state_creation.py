"""Creates the state znodes of partitions that have none, with their parents.

A node that already exists is no error: an earlier attempt, a lost answer, or another writer made it, and it is read. A
partition whose znodes cannot be created is refused by name, and the others go on (see `fenced_writes`).

A partition whose znode has had a child, but has none, has lost its state. (A controller that was killed between two
transactions leaves one that never had a child.) It gets a state like a new one, because nothing tells which replica had
what. But its replicas are not called new, and its leader epoch is far above any that its brokers may know: they would
not obey a lower one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.controller.decisions.steps import chunked
from klamm.controller.execution.fenced_writes import ROUNDS_MAX, FencedWrites, at_once, resists
from klamm.model.errors import NoNode, ZNodeError, ZooKeeperError
from klamm.model.ids import LeaderEpoch
from klamm.model.partition import LeaderAndIsr
from klamm.model.ports import Create, Node
from klamm.zookeeper.znodes import partition_state
from klamm.zookeeper.znodes import topic as topic_znode

EPOCHS_PER_TERM: Final = 1_000
"""More leader epochs than a partition has in one term of a controller, on average."""
EPOCH_MAX: Final = 2**30


class Created(NamedTuple):
    ours: dict[PartitionIndex, tuple[LeaderAndIsr, int]]
    """States that we created, and the versions of their znodes."""
    foreign: dict[PartitionIndex, tuple[LeaderAndIsr, int]]
    """States that already existed."""
    refused: dict[PartitionIndex, str]
    lost: set[PartitionIndex]
    """Partitions of `ours` that have had a state before."""
    resisted: list[ZooKeeperError]


async def create_states(
    writes: FencedWrites, view: ControllerContext, states: Mapping[PartitionIndex, LeaderAndIsr]
) -> Created:
    creation = _Creation(writes, view, states)
    for attempt in range(ROUNDS_MAX):
        for some in chunked(list(creation.pending), at_once(attempt, len(creation.pending))):
            await creation.attempt([i for i in some if i in creation.pending])
        if not creation.pending:
            break
    outcome = creation.outcome
    outcome.refused.update(dict.fromkeys(creation.pending, "its znodes could not be created"))
    outcome.lost.intersection_update(outcome.ours)
    return outcome


class _Creation:
    def __init__(
        self, writes: FencedWrites, view: ControllerContext, states: Mapping[PartitionIndex, LeaderAndIsr]
    ) -> None:
        self._writes = writes
        self._view = view
        self.pending = dict(states)
        self.outcome = Created({}, {}, {}, set(), [])
        self._existing: set[str] = set()
        self._rootless: set[str] = set()
        """Topics that have partitions with a state, and yet no znode above them."""

    async def attempt(self, partitions: Collection[PartitionIndex]) -> None:
        ops, state_of = self._operations(partitions)
        results = await self._writes.try_write(ops)
        orphaned: set[str] = set()
        for op, result in zip(ops, results, strict=True):
            if not isinstance(result, ZooKeeperError):
                self._existing.add(op.path)
                if op.path in state_of:
                    partition = state_of[op.path]
                    self.outcome.ours[partition] = self.pending.pop(partition), 0
            elif isinstance(result, NoNode):
                orphaned.add(_topic_of(op.path))
            elif resists(result):
                self._refuse_below(op.path, result)
        if orphaned:
            await self._look_for_parents(sorted(orphaned))
        unknown = [op.path for op in ops if op.path not in self._existing]
        found = dict(zip(unknown, await self._writes.read(unknown), strict=True))
        self._existing.update(path for path, node in found.items() if node is not None)
        for path, partition in state_of.items():
            node = found.get(path)
            if partition in self.pending and node is not None:
                self._adopt(partition, path, node.data, node.stat.version)
            elif partition in self.pending and _had_children(found.get(path.removesuffix("/state"))):
                self._restart(partition)

    def _operations(self, partitions: Collection[PartitionIndex]) -> tuple[list[Create], dict[str, PartitionIndex]]:
        """Parents before children, in one list, so that a small topic is created in one transaction."""
        view = self._view
        ops: dict[str, Create] = {}
        state_of: dict[str, PartitionIndex] = {}
        looked_at: set[str] = set()
        for partition in partitions:
            name = view.name_of(partition)
            if name.topic not in looked_at:
                looked_at.add(name.topic)
                known = view.topics[name.topic].values()
                if name.topic in self._rootless or all(view.state_of(i) is None for i in known):
                    path = partition_state.partitions_path(name.topic)
                    ops[path] = Create(path)
            path = partition_state.partition_path(name)
            ops[path] = Create(path)
            path = partition_state.path(name)
            ops[path] = Create(path, partition_state.encode(self.pending[partition]))
            state_of[path] = partition
        return [op for path, op in ops.items() if path not in self._existing], state_of

    async def _look_for_parents(self, topics: list[str]) -> None:
        """If the topic itself is gone, its watch has fired, and TopicChange forgets it. Otherwise the node above the
        partitions is missing, or the transaction that creates it failed."""
        for topic, node in zip(topics, await self._writes.read([topic_znode.path(t) for t in topics]), strict=True):
            if node is None:
                self._refuse(topic, f"{topic_znode.path(topic)} is gone")
            else:
                self._rootless.add(topic)

    def _adopt(self, partition: PartitionIndex, path: str, data: bytes | None, version: int) -> None:
        wanted = self.pending.pop(partition)
        try:
            found = partition_state.decode(path, data)
        except ZNodeError as error:
            self.outcome.refused[partition] = str(error)
            return
        if found == wanted:
            self.outcome.ours[partition] = found, version
        else:
            self.outcome.foreign[partition] = found, version

    def _restart(self, partition: PartitionIndex) -> None:
        self.outcome.lost.add(partition)
        state = self.pending[partition]
        epoch = LeaderEpoch(min(EPOCHS_PER_TERM * state.controller_epoch, EPOCH_MAX))
        self.pending[partition] = state._replace(leader_epoch=epoch)

    def _refuse_below(self, path: str, error: ZooKeeperError) -> None:
        self.outcome.resisted.append(error)
        for partition in list(self.pending):
            if f"{partition_state.path(self._view.name_of(partition))}/".startswith(f"{path}/"):
                self.outcome.refused[partition] = str(error)
                del self.pending[partition]

    def _refuse(self, topic: str, reason: str) -> None:
        for partition in [i for i in self.pending if self._view.topic_of(i) == topic]:
            self.outcome.refused[partition] = reason
            del self.pending[partition]


def _had_children(node: Node | None) -> bool:
    return node is not None and node.stat.cversion > 0


def _topic_of(path: str) -> str:
    return path.removeprefix(f"{topic_znode.PARENT}/").partition("/")[0]
