"""Writes to ZooKeeper: in bulk, versioned, fenced by /controller_epoch, and with a known outcome.

Three things can happen to a write, and each ends in a known state:

- A conflict: the leader changed the ISR in between, and the multi failed as a whole. All of it is read again, once, and
  the rule is asked again (design D2: dropping conflicts one by one took 500 rounds for one batch).
- A lost connection: the write may have been applied. The state is read back; if it has our controller epoch, the leader
  epoch that we wrote and the next version, it can only be ours.
- The fence fails: another controller was elected. ControllerMoved is raised, and nothing of that multi was applied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias, cast

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.controller.decisions.faults import find_fault
from klamm.controller.decisions.shared_rule import decide
from klamm.controller.decisions.steps import KeepState, Refuse, Rule, WriteState
from klamm.model.errors import BadVersion, ConnectionLoss, ControllerMoved, NoNode, ZNodeError, ZooKeeperError
from klamm.model.partition import LeaderAndIsr
from klamm.model.ports import (
    Check,
    Contents,
    Create,
    Delete,
    Fence,
    Node,
    Op,
    OpResult,
    Sets,
    ZooKeeper,
)
from klamm.zookeeper.retries import until_connected
from klamm.zookeeper.znodes import controller_epoch as controller_epoch_znode
from klamm.zookeeper.znodes import partition_state

ROUNDS_MAX: Final = 20
"""A conflict means that a leader wrote between our read and our write, a window of milliseconds. After this many in a
row something writes in a loop, and the partition is left to the next trigger."""


class Committed:
    """The outcome of one slice, in columns: states written, with their new versions; states kept; changes refused."""

    __slots__ = ("kept", "kept_states", "kept_versions", "refused", "versions", "writes", "written")

    def __init__(self) -> None:
        self.written: list[PartitionIndex] = []
        self.writes: list[WriteState] = []
        self.versions: list[int] = []
        self.kept: list[PartitionIndex] = []
        self.kept_states: list[LeaderAndIsr] = []
        self.kept_versions: list[int] = []
        self.refused: list[tuple[PartitionIndex, str]] = []

    def keep(self, partition: PartitionIndex, state: LeaderAndIsr, version: int) -> None:
        self.kept.append(partition)
        self.kept_states.append(state)
        self.kept_versions.append(version)

    def write(self, partition: PartitionIndex, change: WriteState, version: int) -> None:
        self.written.append(partition)
        self.writes.append(change)
        self.versions.append(version)

    def by_partition(self) -> dict[PartitionIndex, Committed]:
        """The states written or kept, separately for each partition."""
        parts: dict[PartitionIndex, Committed] = {}
        for partition, change, version in zip(self.written, self.writes, self.versions, strict=True):
            parts[partition] = Committed()
            parts[partition].write(partition, change, version)
        for partition, state, version in zip(self.kept, self.kept_states, self.kept_versions, strict=True):
            parts[partition] = Committed()
            parts[partition].keep(partition, state, version)
        return parts


class Observed(NamedTuple):
    """Partitions with their states as read, in columns. The states are None where there is no znode."""

    partitions: Sequence[PartitionIndex]
    paths: Sequence[str]
    states: Sequence[LeaderAndIsr | ZNodeError | None]
    versions: Sequence[int]


class Pending(NamedTuple):
    """Writes in columns, each with the version that it expects."""

    partitions: Sequence[PartitionIndex]
    paths: Sequence[str]
    writes: Sequence[WriteState]
    versions: Sequence[int]


Unsure: TypeAlias = Mapping[PartitionIndex, tuple[WriteState, int]]
"""Writes whose answer was lost, with the version that each expected."""


class Committer:
    """Belongs to one term: made at the election, dropped at the resignation."""

    def __init__(self, zk: ZooKeeper, epoch_zk_version: int) -> None:
        self._zk = zk
        self.fence = Fence(controller_epoch_znode.PATH, epoch_zk_version)

    async def read_states(self, view: ControllerContext, partitions: Sequence[PartitionIndex]) -> Observed:
        paths = state_paths(view, partitions)
        contents = await until_connected(lambda: self._zk.read_many(paths)) if paths else Contents([], [])
        return Observed(partitions, paths, partition_state.decode_many(paths, contents), contents.versions)

    async def change_states(
        self,
        view: ControllerContext,
        partitions: Sequence[PartitionIndex],
        rule: Rule,
        fresh: Collection[PartitionIndex] = (),
    ) -> Committed:
        """`fresh`: partitions whose state the same event has written; they are not read again unless they conflict.
        Several calls may be under way at once. Each yields to the loop between reading, deciding and writing, so that
        their work does not add up to one long hold."""
        outcome = Committed()
        unsure: Unsure = {}
        pending: Sequence[PartitionIndex] = partitions
        for _ in range(ROUNDS_MAX):
            seen = await self._observe(view, pending, fresh)
            writes = _decide(view, seen, rule, unsure, outcome)
            if not writes.partitions:
                return outcome
            await asyncio.sleep(0)
            pending, unsure = await self._write_states(writes, outcome)
            if not pending:
                return outcome
            fresh = ()
        outcome.refused.extend(
            (i, f"the state changed during each of {ROUNDS_MAX} attempts to write it") for i in pending
        )
        return outcome

    async def _observe(
        self, view: ControllerContext, partitions: Sequence[PartitionIndex], fresh: Collection[PartitionIndex]
    ) -> Observed:
        unread = [i for i in partitions if i not in fresh] if fresh else partitions
        read = await self.read_states(view, unread) if unread else Observed((), (), (), ())
        if unread:
            await asyncio.sleep(0)
        if len(unread) == len(partitions):
            return read
        known = [i for i in partitions if i in fresh]
        states, versions = view.columns.state, view.columns.zk_version
        return Observed(
            [*read.partitions, *known],
            [*read.paths, *state_paths(view, known)],
            [*read.states, *(states[i] for i in known)],
            [*read.versions, *(versions[i] for i in known)],
        )

    async def create_states(
        self, view: ControllerContext, states: Mapping[PartitionIndex, LeaderAndIsr]
    ) -> tuple[dict[PartitionIndex, int], dict[PartitionIndex, tuple[LeaderAndIsr, int]]]:
        """Create the znodes of partitions that have never had a state. Returns the versions of ours, and states that
        already existed."""
        ours: dict[PartitionIndex, int] = {}
        foreign: dict[PartitionIndex, tuple[LeaderAndIsr, int]] = {}
        pending = dict(states)
        existing: set[str] = set()
        for _ in range(ROUNDS_MAX):
            ops, state_of = self._creations(view, pending, existing)
            results = await self._try_write(ops)
            if any(isinstance(result, NoNode) for result in results):
                break  # the topic itself is gone: its watch has fired, and TopicChange forgets it
            for op, result in zip(ops, results, strict=True):
                if not isinstance(result, ZooKeeperError):
                    existing.add(op.path)
                    if op.path in state_of:
                        ours[state_of[op.path]] = 0
                        del pending[state_of[op.path]]
            if not pending:
                break
            # Some node already existed: an earlier attempt, a lost answer, or another writer. Read before the next try.
            paths = [op.path for op in ops if op.path not in existing]
            for path, node in zip(paths, await self.read(paths), strict=True):
                if node is None:
                    continue
                existing.add(path)
                if path in state_of:
                    partition = state_of[path]
                    wanted = pending.pop(partition)
                    try:
                        found = partition_state.decode(path, node.data)
                    except ZNodeError:
                        continue
                    if found == wanted:
                        ours[partition] = node.stat.version
                    else:
                        foreign[partition] = found, node.stat.version
        return ours, foreign

    async def check_fence(self) -> None:
        """Write nothing, but raise ControllerMoved if another controller was elected: call it before sending a request
        that cannot be undone."""
        await self.write([])

    async def write(self, ops: Sequence[Op]) -> list[OpResult]:
        """Fenced, with one result per operation. Repeated after a lost connection, so `ops` must be idempotent."""
        return await until_connected(lambda: self._fenced(ops))

    async def delete(self, paths: Sequence[str]) -> list[str]:
        """In this order, which must be children first. A node that is already gone counts as deleted. Returns the nodes
        that could not be deleted."""
        pending = list(paths)
        for _ in range(ROUNDS_MAX):
            if not pending:
                break
            results = await self.write([Delete(path) for path in pending])
            failed = [path for path, r in zip(pending, results, strict=True) if isinstance(r, ZooKeeperError)]
            # One missing node fails the whole multi: find all missing nodes by one read, not one per round.
            nodes = await self.read(failed)
            remaining = [path for path, node in zip(failed, nodes, strict=True) if node is not None]
            if remaining == pending:
                break
            pending = remaining
        return pending

    async def delete_trees(self, roots: Sequence[str]) -> list[str]:
        """Each root with everything below it. Returns the nodes that could not be deleted."""
        layers: list[list[str]] = [list(roots)]
        while layers[-1]:
            above = layers[-1]
            below = await self._children(above)
            layers.append([f"{path}/{name}" for path, names in zip(above, below, strict=True) for name in names or ()])
        return await self.delete([path for layer in reversed(layers) for path in layer])

    # --- internals ---

    async def _write_states(self, pending: Pending, outcome: Committed) -> tuple[list[PartitionIndex], Unsure]:
        """Returns the partitions that must be decided again, and which of their writes may have been applied."""
        different = {id(write): write for write in pending.writes}
        encoded = {key: partition_state.encode(write.state) for key, write in different.items()}
        data = [encoded[id(write)] for write in pending.writes]
        results = await self._try_write(Sets(pending.paths, data, pending.versions))
        if results.count(None) == len(results):
            outcome.written += pending.partitions
            outcome.writes += pending.writes
            outcome.versions += [version + 1 for version in pending.versions]
            return [], {}
        again: list[PartitionIndex] = []
        unsure: dict[PartitionIndex, tuple[WriteState, int]] = {}
        for partition, _, write, version, result in zip(*pending, results, strict=True):
            if not isinstance(result, ZooKeeperError):
                outcome.write(partition, write, version + 1)
                continue
            again.append(partition)
            if isinstance(result, ConnectionLoss):
                unsure[partition] = (write, version)
        return again, unsure

    def _creations(
        self, view: ControllerContext, states: Mapping[PartitionIndex, LeaderAndIsr], existing: Collection[str]
    ) -> tuple[list[Create], dict[str, PartitionIndex]]:
        """Parents before children, in one list, so that a small topic is created in one transaction."""
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
        """Like `write`, but without repetition: if the connection is lost, the results are ConnectionLoss."""
        try:
            return await self._fenced(ops)
        except ConnectionLoss as lost:
            return [lost] * len(ops)

    async def _fenced(self, ops: Sequence[Op]) -> list[OpResult]:
        try:
            if not ops:
                # write_many without operations would check nothing.
                results = await self._zk.multi([Check(*self.fence)])
                if isinstance(results[0], ZooKeeperError):
                    raise results[0]
                return []
            return await self._zk.write_many(ops, self.fence)
        except (BadVersion, NoNode) as error:  # a deleted fence means the same as a moved one
            if error.path != self.fence.path:
                raise
            raise ControllerMoved(f"{error.path} is no longer at version {self.fence.version}") from error

    async def read(self, paths: Sequence[str]) -> list[Node | None]:
        return await until_connected(lambda: self._zk.get_many(paths)) if paths else []

    async def _children(self, paths: Sequence[str]) -> list[list[str] | None]:
        return await until_connected(lambda: self._zk.children_many(paths))


def state_paths(view: ControllerContext, partitions: Sequence[PartitionIndex]) -> list[str]:
    columns = view.columns
    return partition_state.paths(
        map(columns.topic.__getitem__, partitions), map(columns.number.__getitem__, partitions)
    )


def _decide(view: ControllerContext, seen: Observed, rule: Rule, unsure: Unsure, outcome: Committed) -> Pending:
    """Returns what to write. Partitions to keep or refuse go into the outcome."""
    if unsure or not {LeaderAndIsr}.issuperset(map(type, seen.states)):
        seen = _settled(seen, unsure, outcome)
    states = cast(Sequence[LeaderAndIsr], seen.states)
    try:
        changes = decide(rule, seen.partitions, states)
    except Exception:
        state_of = dict(zip(seen.partitions, states, strict=True))
        find_fault(view, seen.partitions, lambda partition: rule(partition, state_of[partition]))
        raise
    kinds = list(map(type, changes))
    if kinds.count(WriteState) == len(kinds):
        return Pending(seen.partitions, seen.paths, cast(Sequence[WriteState], changes), seen.versions)
    partitions, paths, versions = seen.partitions, seen.paths, seen.versions
    for n, kind in enumerate(kinds):
        if kind is KeepState:
            outcome.keep(partitions[n], cast(KeepState, changes[n]).state, versions[n])
        elif kind is Refuse:
            outcome.refused.append((partitions[n], cast(Refuse, changes[n]).reason))
    writes = [n for n, kind in enumerate(kinds) if kind is WriteState]
    return Pending(
        [partitions[n] for n in writes],
        [paths[n] for n in writes],
        [cast(WriteState, changes[n]) for n in writes],
        [versions[n] for n in writes],
    )


def _settled(seen: Observed, unsure: Unsure, outcome: Committed) -> Observed:
    """Leaves out partitions that have no state to decide on, and writes that turn out to be applied."""
    rest: list[tuple[PartitionIndex, str, LeaderAndIsr, int]] = []
    for partition, path, state, version in zip(*seen, strict=True):
        tried = unsure.get(partition)
        if state is None:
            outcome.refused.append((partition, "there is no state znode"))
        elif isinstance(state, ZNodeError):
            outcome.refused.append((partition, str(state)))
        elif tried is not None and state == tried[0].state and version == tried[1] + 1:
            outcome.write(partition, tried[0], version)
        else:
            rest.append((partition, path, state, version))
    return Observed([r[0] for r in rest], [r[1] for r in rest], [r[2] for r in rest], [r[3] for r in rest])
