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
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias, cast

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.controller.decisions.shared_rule import decide
from klamm.controller.decisions.steps import Keep, Refuse, Rule, Write
from klamm.model.errors import BadVersion, ConnectionLoss, ControllerMoved, NoNode, ZNodeError, ZooKeeperError
from klamm.model.ids import ControllerEpoch
from klamm.model.partition import LeaderAndIsr
from klamm.model.ports import Check, Contents, Create, Delete, Fence, Node, Op, OpResult, Sets, ZooKeeper
from klamm.zookeeper.retries import until_connected
from klamm.zookeeper.znodes import controller_epoch as controller_epoch_znode
from klamm.zookeeper.znodes import partition_state

ROUNDS_MAX: Final = 20
"""A conflict means that a leader wrote between our read and our write, a window of milliseconds; after this many in a
row something writes in a loop, and the partition is left to the next trigger."""


class Outcome:
    """Of one slice, in columns: what was written with its new version, what was left as it is, what nobody may do."""

    __slots__ = ("kept", "kept_states", "kept_versions", "refused", "versions", "writes", "written")

    def __init__(self) -> None:
        self.written: list[PartitionIndex] = []
        self.writes: list[Write] = []
        self.versions: list[int] = []
        self.kept: list[PartitionIndex] = []
        self.kept_states: list[LeaderAndIsr] = []
        self.kept_versions: list[int] = []
        self.refused: list[tuple[PartitionIndex, str]] = []

    def keep(self, partition: PartitionIndex, state: LeaderAndIsr, version: int) -> None:
        self.kept.append(partition)
        self.kept_states.append(state)
        self.kept_versions.append(version)

    def write(self, partition: PartitionIndex, change: Write, version: int) -> None:
        self.written.append(partition)
        self.writes.append(change)
        self.versions.append(version)


class Observed(NamedTuple):
    """Partitions with their states as read, in columns."""

    partitions: Sequence[PartitionIndex]
    paths: Sequence[str]
    states: Sequence[LeaderAndIsr | ZNodeError | None]
    versions: Sequence[int]


class Pending(NamedTuple):
    """Writes, in columns, each with the version that it expects."""

    partitions: Sequence[PartitionIndex]
    paths: Sequence[str]
    writes: Sequence[Write]
    versions: Sequence[int]


Unsure: TypeAlias = Mapping[PartitionIndex, tuple[Write, int]]
"""Writes whose answer was lost, with the version that they expected."""


class Committer:
    """One term of one controller: made at the election, dropped at the resignation."""

    def __init__(self, zk: ZooKeeper, controller_epoch: ControllerEpoch, epoch_zk_version: int) -> None:
        self._zk = zk
        self.controller_epoch = controller_epoch
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
    ) -> Outcome:
        """`fresh`: partitions whose cached state this very event wrote; they are not read again unless they
        conflict. Several may be under way at once; between reading, deciding and writing the loop is given away, so
        that their work does not add up to one hold."""
        outcome = Outcome()
        unsure: Unsure = {}
        pending: Sequence[PartitionIndex] = partitions
        for _ in range(ROUNDS_MAX):
            seen = await self._observe(view, pending, fresh)
            writes = _decide(seen, rule, unsure, outcome)
            if not writes.partitions:
                return outcome
            await asyncio.sleep(0)
            pending, unsure = await self._write_states(writes, outcome)
            if not pending:
                return outcome
            fresh = ()
        outcome.refused.extend((i, f"the state changed {ROUNDS_MAX} times while we tried to write it") for i in pending)
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
            # One missing node fails its whole multi: look at all of them at once, not at one culprit a round.
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

    async def _write_states(self, pending: Pending, outcome: Outcome) -> tuple[list[PartitionIndex], Unsure]:
        """Returns what must be decided again, and of that what may have been applied."""
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
        unsure: dict[PartitionIndex, tuple[Write, int]] = {}
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


def state_paths(view: ControllerContext, partitions: Sequence[PartitionIndex]) -> list[str]:
    columns = view.columns
    return partition_state.paths(
        map(columns.topic.__getitem__, partitions), map(columns.number.__getitem__, partitions)
    )


def _decide(seen: Observed, rule: Rule, unsure: Unsure, outcome: Outcome) -> Pending:
    """What to write. What needs no write, or may have none, goes into the outcome."""
    if unsure or not {LeaderAndIsr}.issuperset(map(type, seen.states)):
        seen = _settled(seen, unsure, outcome)
    states = cast(Sequence[LeaderAndIsr], seen.states)
    changes = decide(rule, seen.partitions, states)
    kinds = list(map(type, changes))
    if kinds.count(Write) == len(kinds):
        return Pending(seen.partitions, seen.paths, cast(Sequence[Write], changes), seen.versions)
    partitions, paths, versions = seen.partitions, seen.paths, seen.versions
    for n, kind in enumerate(kinds):
        if kind is Keep:
            outcome.keep(partitions[n], cast(Keep, changes[n]).state, versions[n])
        elif kind is Refuse:
            outcome.refused.append((partitions[n], cast(Refuse, changes[n]).reason))
    writes = [n for n, kind in enumerate(kinds) if kind is Write]
    return Pending(
        [partitions[n] for n in writes],
        [paths[n] for n in writes],
        [cast(Write, changes[n]) for n in writes],
        [versions[n] for n in writes],
    )


def _settled(seen: Observed, unsure: Unsure, outcome: Outcome) -> Observed:
    """Without what has no state to decide on, and what turns out to be written already."""
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


def _decoded(path: str, node: Node | None) -> tuple[LeaderAndIsr, int] | ZNodeError | None:
    if node is None:
        return None
    try:
        return partition_state.decode(path, node.data), node.stat.version
    except ZNodeError as error:
        return error
