"""Steps reach ZooKeeper here: bulk, versioned, fenced by /controller_epoch, and sure of their outcome.

Three things can happen to a write, and each ends in a known state:

- a conflict: the leader changed the ISR meanwhile. The multi failed as a whole; all of it is read again, once, and the
  rule is asked again (design D2: dropping the conflicting ones one by one took 500 rounds for one batch).
- a lost connection: it may have been applied. The state is read back; with our controller epoch, the leader epoch that
  we wrote and the next version it can only be ours.
- the fence fails: somebody else was elected. ControllerMoved, and nothing of that multi was applied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias, TypeVar

from klamm.controller.context import ControllerContext, PartitionIndex
from klamm.controller.steps import Keep, Refuse, Rule, Write
from klamm.model.errors import BadVersion, ConnectionLoss, ControllerMoved, NoNode, ZNodeError, ZooKeeperError
from klamm.model.ids import ControllerEpoch
from klamm.model.partition import LeaderAndIsr
from klamm.model.ports import Check, Create, Delete, Fence, Node, Op, OpResult, Set, Stat, ZooKeeper
from klamm.zookeeper.znodes import controller_epoch as controller_epoch_znode
from klamm.zookeeper.znodes import partition_state

T = TypeVar("T")

ROUNDS_MAX: Final = 20
"""A conflict means that a leader wrote between our read and our write, a window of milliseconds; after this many in a
row something writes in a loop, and the partition is left to the next trigger."""
RECONNECT_PAUSE_S: Final = 0.1


class Committed(NamedTuple):
    partition: PartitionIndex
    change: Write | Keep
    zk_version: int


class Outcome(NamedTuple):
    committed: list[Committed]
    refused: list[tuple[PartitionIndex, str]]


Seen: TypeAlias = dict[PartitionIndex, tuple[LeaderAndIsr, int] | ZNodeError | None]


class Committer:
    """One term of one controller: made at the election, dropped at the resignation."""

    def __init__(self, zk: ZooKeeper, controller_epoch: ControllerEpoch, epoch_zk_version: int) -> None:
        self._zk = zk
        self.controller_epoch = controller_epoch
        self.fence = Fence(controller_epoch_znode.PATH, epoch_zk_version)

    async def read_states(
        self, view: ControllerContext, partitions: Sequence[PartitionIndex]
    ) -> list[tuple[LeaderAndIsr, int] | ZNodeError | None]:
        """State and version of each; None without a znode, an error where its content is no state."""
        return await self._read_states([partition_state.path(view.name_of(i)) for i in partitions])

    async def _read_states(self, paths: Sequence[str]) -> list[tuple[LeaderAndIsr, int] | ZNodeError | None]:
        nodes = await self.read(paths)
        return [_decoded(path, node) for path, node in zip(paths, nodes, strict=True)]

    async def change_states(
        self,
        view: ControllerContext,
        partitions: Sequence[PartitionIndex],
        rule: Rule,
        fresh: Collection[PartitionIndex] = (),
    ) -> Outcome:
        """`fresh`: partitions whose cached state this very event wrote; they are not read again unless they
        conflict. Several may be under way at once; between reading, deciding and writing the loop is given away, so
        that their work does not add up to one hold."""
        outcome = Outcome([], [])
        paths = {i: partition_state.path(view.name_of(i)) for i in partitions}
        known: Seen = {
            i: (state, view.zk_version_of(i)) for i in partitions if i in fresh and (state := view.state_of(i))
        }
        unsure: Mapping[PartitionIndex, tuple[Write, int]] = {}
        pending: Sequence[PartitionIndex] = partitions
        for _ in range(ROUNDS_MAX):
            unread = [i for i in pending if i not in known]
            if unread:
                known.update(zip(unread, await self._read_states([paths[i] for i in unread]), strict=True))
                await asyncio.sleep(0)
            writes = self._decide(pending, known, rule, unsure, outcome)
            known = {}
            if not writes:
                return outcome
            await asyncio.sleep(0)
            pending, unsure = await self._write_states(paths, writes, outcome)
            if not pending:
                return outcome
        outcome.refused.extend((i, f"the state changed {ROUNDS_MAX} times while we tried to write it") for i in pending)
        return outcome

    async def create_states(
        self, view: ControllerContext, states: Mapping[PartitionIndex, LeaderAndIsr]
    ) -> tuple[dict[PartitionIndex, int], dict[PartitionIndex, tuple[LeaderAndIsr, int]]]:
        """Znodes of partitions that never had a state. Returns versions of ours, and states that somebody else
        wrote."""
        ours: dict[PartitionIndex, int] = {}
        foreign: dict[PartitionIndex, tuple[LeaderAndIsr, int]] = {}
        pending = dict(states)
        existing: set[str] = set()
        for _ in range(ROUNDS_MAX):
            ops, state_of = self._creations(view, pending, existing)
            results = await self._try_write(ops)
            if any(isinstance(result, NoNode) for result in results):
                break  # the topic itself is gone: its watch has fired, and TopicChange will forget it
            for op, result in zip(ops, results, strict=True):
                if not isinstance(result, ZooKeeperError):
                    existing.add(op.path)
                    if op.path in state_of:
                        ours[state_of[op.path]] = 0
                        del pending[state_of[op.path]]
            if not pending:
                break
            # Some node was there already: an earlier attempt, a lost answer, or a stranger. Look before the next try.
            paths = [op.path for op in ops if op.path not in existing]
            for path, node in zip(paths, await self.read(paths), strict=True):
                if node is None:
                    continue
                existing.add(path)
                if path in state_of:
                    partition = state_of[path]
                    found = _decoded(path, node)
                    assert found is not None
                    wanted = pending.pop(partition)
                    if isinstance(found, ZNodeError):
                        continue
                    if found[0] == wanted:
                        ours[partition] = found[1]
                    else:
                        foreign[partition] = found
        return ours, foreign

    async def check_fence(self) -> None:
        """Nothing to write, but what follows must not be told by a controller that is none any more."""
        await self.write([])

    async def write(self, ops: Sequence[Op]) -> list[OpResult]:
        """Fenced; outcome per operation. Sure: after a lost connection it is tried again, so make `ops` idempotent."""
        return await until_connected(lambda: self._fenced(ops))

    async def delete(self, paths: Sequence[str]) -> list[str]:
        """In this order, which must be children first. What is gone already is deleted. Returns what resists."""
        pending = list(paths)
        for _ in range(ROUNDS_MAX):
            if not pending:
                break
            results = await self.write([Delete(path) for path in pending])
            failed = [path for path, r in zip(pending, results, strict=True) if isinstance(r, ZooKeeperError)]
            # One missing node fails its multi of 500: look at all of them at once, not at one culprit a round.
            nodes = await self.read(failed)
            remaining = [path for path, node in zip(failed, nodes, strict=True) if node is not None]
            if remaining == pending:
                break
            pending = remaining
        return pending

    async def delete_trees(self, roots: Sequence[str]) -> list[str]:
        """Each root with everything below it, whoever put it there. Returns what resists."""
        layers: list[list[str]] = [list(roots)]
        while layers[-1]:
            above = layers[-1]
            below = await self._children(above)
            layers.append([f"{path}/{name}" for path, names in zip(above, below, strict=True) for name in names or ()])
        return await self.delete([path for layer in reversed(layers) for path in layer])

    # --- inside ---

    def _decide(
        self,
        partitions: Sequence[PartitionIndex],
        seen: Seen,
        rule: Rule,
        unsure: Mapping[PartitionIndex, tuple[Write, int]],
        outcome: Outcome,
    ) -> list[tuple[PartitionIndex, Write, int]]:
        writes = []
        for partition in partitions:
            found = seen[partition]
            if found is None:
                outcome.refused.append((partition, "there is no state znode"))
                continue
            if isinstance(found, ZNodeError):
                outcome.refused.append((partition, str(found)))
                continue
            state, version = found
            tried = unsure.get(partition)
            if tried is not None and state == tried[0].state and version == tried[1] + 1:
                outcome.committed.append(Committed(partition, tried[0], version))
                continue
            change = rule(partition, state)
            match change:
                case Write():
                    writes.append((partition, change, version))
                case Keep():
                    outcome.committed.append(Committed(partition, change, version))
                case Refuse(reason):
                    outcome.refused.append((partition, reason))
        return writes

    async def _write_states(
        self,
        paths: Mapping[PartitionIndex, str],
        writes: Sequence[tuple[PartitionIndex, Write, int]],
        outcome: Outcome,
    ) -> tuple[list[PartitionIndex], dict[PartitionIndex, tuple[Write, int]]]:
        """Returns what must be decided again, and of that what may have been applied."""
        encode = partition_state.encode
        ops = [Set(paths[i], encode(change.state), version) for i, change, version in writes]
        again: list[PartitionIndex] = []
        unsure: dict[PartitionIndex, tuple[Write, int]] = {}
        for (partition, change, version), result in zip(writes, await self._try_write(ops), strict=True):
            if isinstance(result, Stat):
                outcome.committed.append(Committed(partition, change, result.version))
                continue
            again.append(partition)
            if isinstance(result, ConnectionLoss):
                unsure[partition] = (change, version)
        return again, unsure

    def _creations(
        self, view: ControllerContext, states: Mapping[PartitionIndex, LeaderAndIsr], existing: Collection[str]
    ) -> tuple[list[Create], dict[str, PartitionIndex]]:
        """Parents in front of children; one list, so that a small topic comes to life in one transaction."""
        ops: dict[str, Create] = {}
        state_of: dict[str, PartitionIndex] = {}
        looked_at: set[str] = set()
        for partition, state in states.items():
            name = view.name_of(partition)
            if name.topic not in looked_at:
                looked_at.add(name.topic)
                if all(view.state_of(i) is None for i in view.topics[name.topic].values()):
                    path = partition_state.partitions_path(name.topic)
                    ops[path] = Create(path)
            path = partition_state.partition_path(name)
            ops[path] = Create(path)
            path = partition_state.path(name)
            ops[path] = Create(path, partition_state.encode(state))
            state_of[path] = partition
        return [op for path, op in ops.items() if path not in existing], state_of

    async def _try_write(self, ops: Sequence[Op]) -> list[OpResult]:
        """As `write`, but tried once: where the connection broke, the result is ConnectionLoss."""
        try:
            return await self._fenced(ops)
        except ConnectionLoss as lost:
            return [lost] * len(ops)

    async def _fenced(self, ops: Sequence[Op]) -> list[OpResult]:
        try:
            if not ops:
                # write_many of nothing would check nothing.
                results = await self._zk.multi([Check(*self.fence)])
                if isinstance(results[0], ZooKeeperError):
                    raise results[0]
                return []
            return await self._zk.write_many(ops, self.fence)
        except (BadVersion, NoNode) as error:  # deleted is as good as moved: behind this fence nothing is written
            if error.path != self.fence.path:
                raise
            raise ControllerMoved(f"{error.path} is no longer at version {self.fence.version}") from error

    async def read(self, paths: Sequence[str]) -> list[Node | None]:
        return await until_connected(lambda: self._zk.get_many(paths)) if paths else []

    async def _children(self, paths: Sequence[str]) -> list[list[str] | None]:
        return await until_connected(lambda: self._zk.children_many(paths))


async def until_connected(call: Callable[[], Awaitable[T]]) -> T:
    """Again and again while the connection is down: for reads and what may be done twice. An expired session ends
    it."""
    while True:
        try:
            return await call()
        except ConnectionLoss:
            await asyncio.sleep(RECONNECT_PAUSE_S)


def _decoded(path: str, node: Node | None) -> tuple[LeaderAndIsr, int] | ZNodeError | None:
    if node is None:
        return None
    try:
        return partition_state.decode(path, node.data), node.stat.version
    except ZNodeError as error:
        return error
