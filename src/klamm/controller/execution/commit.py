"""Changes of partition states: in bulk, versioned, fenced by /controller_epoch, and with a known outcome.

Four things can happen to a write, and each ends in a known state:

- A conflict: the leader changed the ISR in between, and the multi failed as a whole. All of it is read again, once, and
  the rule is asked again (design D2: dropping conflicts one by one took 500 rounds for one batch).
- ZooKeeper refuses one operation, however often it is tried, and with it the multi. The partition is refused by name,
  and the others are tried again (see `fenced_writes`).
- A lost connection: the write may have been applied. The state is read back; if it has our controller epoch, the leader
  epoch that we wrote and the next version, it can only be ours.
- The fence fails: another controller was elected. ControllerMoved is raised, and nothing of that multi was applied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import NamedTuple, TypeAlias, cast

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.controller.decisions.faults import find_fault
from klamm.controller.decisions.shared_rule import decide
from klamm.controller.decisions.steps import IfUnclean, KeepState, Refuse, Rule, WriteState
from klamm.controller.execution.fenced_writes import ROUNDS_MAX, FencedWrites, at_once, resists
from klamm.model.errors import ConnectionLoss, ZNodeError, ZooKeeperError
from klamm.model.partition import LeaderAndIsr
from klamm.model.ports import Sets
from klamm.zookeeper.isolated_reads import read_states
from klamm.zookeeper.retries import until_connected
from klamm.zookeeper.znodes import partition_state


class Committed:
    """The outcome of one slice, in columns: states written, with their new versions; states kept; changes refused."""

    __slots__ = (
        "kept",
        "kept_states",
        "kept_versions",
        "refused",
        "resisted",
        "stateless",
        "versions",
        "writes",
        "written",
    )

    def __init__(self) -> None:
        self.written: list[PartitionIndex] = []
        self.writes: list[WriteState] = []
        self.versions: list[int] = []
        self.kept: list[PartitionIndex] = []
        self.kept_states: list[LeaderAndIsr] = []
        self.kept_versions: list[int] = []
        self.refused: list[tuple[PartitionIndex, str]] = []
        self.stateless: list[PartitionIndex] = []
        """Those of the refused that have no state znode, or one that cannot be read."""
        self.resisted: dict[PartitionIndex, ZooKeeperError] = {}
        """Those of the refused whose write ZooKeeper refused, and not because of a conflict."""

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


class Decided(NamedTuple):
    writes: Pending
    conditional: Sequence[tuple[PartitionIndex, str, IfUnclean, int]]
    """Writes that need the topic's permission, with path and expected version."""


Unsure: TypeAlias = Mapping[PartitionIndex, tuple[WriteState, int]]
"""Writes whose answer was lost, with the version that each expected."""
Permit: TypeAlias = Callable[[Collection[str]], Awaitable[Collection[str]]]
"""Reads which of these topics allow unclean elections."""


class Committer(FencedWrites):
    async def read_states(self, view: ControllerContext, partitions: Sequence[PartitionIndex]) -> Observed:
        paths = state_paths(view, partitions)
        if not paths:
            return Observed((), (), (), ())
        return Observed(partitions, paths, *await until_connected(lambda: read_states(self._zk, paths)))

    async def change_states(
        self,
        view: ControllerContext,
        partitions: Sequence[PartitionIndex],
        rule: Rule,
        permit: Permit,
        fresh: Collection[PartitionIndex] = (),
    ) -> Committed:
        """`fresh`: partitions whose state the same event has written; they are not read again unless they conflict.
        Several calls may be under way at once. Each yields to the loop between reading, deciding and writing, so that
        their work does not add up to one long hold."""
        outcome = Committed()
        unsure: Unsure = {}
        pending: Sequence[PartitionIndex] = partitions
        for attempt in range(ROUNDS_MAX):
            seen = await self._observe(view, pending, fresh)
            writes = await self._permitted(view, _decide(view, seen, rule, unsure, outcome), permit, outcome)
            if not writes.partitions:
                return outcome
            await asyncio.sleep(0)
            pending, unsure = await self._write_states(writes, outcome, at_once(attempt, len(writes.partitions)))
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

    # --- internals ---

    async def _permitted(
        self, view: ControllerContext, decided: Decided, permit: Permit, outcome: Committed
    ) -> Pending:
        """Asks for permission of unclean elections only now, after the states were read, and each time anew: an answer
        that is remembered may be wrong by now, and would cost records."""
        writes, conditional = decided
        if not conditional:
            return writes
        topics = view.columns.topic
        allowing = await permit({topics[partition] for partition, _, _, _ in conditional})
        outcome.refused += [(row[0], row[2].forbidden.reason) for row in conditional if topics[row[0]] not in allowing]
        granted = [row for row in conditional if topics[row[0]] in allowing]
        return Pending(
            [*writes.partitions, *(row[0] for row in granted)],
            [*writes.paths, *(row[1] for row in granted)],
            [*writes.writes, *(row[2].allowed for row in granted)],
            [*writes.versions, *(row[3] for row in granted)],
        )

    async def _write_states(
        self, pending: Pending, outcome: Committed, size: int
    ) -> tuple[list[PartitionIndex], Unsure]:
        """Returns the partitions that must be decided again, and which of their writes may have been applied."""
        different = {id(write): write for write in pending.writes}
        encoded = {key: partition_state.encode(write.state) for key, write in different.items()}
        data = [encoded[id(write)] for write in pending.writes]
        results = await self.try_write(Sets(pending.paths, data, pending.versions), size)
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
            if resists(result):
                outcome.refused.append((partition, str(result)))
                outcome.resisted[partition] = result
                continue
            again.append(partition)
            if isinstance(result, ConnectionLoss):
                unsure[partition] = (write, version)
        return again, unsure


def state_paths(view: ControllerContext, partitions: Sequence[PartitionIndex]) -> list[str]:
    columns = view.columns
    return partition_state.paths(
        map(columns.topic.__getitem__, partitions), map(columns.number.__getitem__, partitions)
    )


def _decide(view: ControllerContext, seen: Observed, rule: Rule, unsure: Unsure, outcome: Committed) -> Decided:
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
        return Decided(Pending(seen.partitions, seen.paths, cast(Sequence[WriteState], changes), seen.versions), [])
    partitions, paths, versions = seen.partitions, seen.paths, seen.versions
    conditional: list[tuple[PartitionIndex, str, IfUnclean, int]] = []
    for n, kind in enumerate(kinds):
        if kind is KeepState:
            outcome.keep(partitions[n], cast(KeepState, changes[n]).state, versions[n])
        elif kind is Refuse:
            outcome.refused.append((partitions[n], cast(Refuse, changes[n]).reason))
        elif kind is IfUnclean:
            conditional.append((partitions[n], paths[n], cast(IfUnclean, changes[n]), versions[n]))
    writes = [n for n, kind in enumerate(kinds) if kind is WriteState]
    pending = Pending(
        [partitions[n] for n in writes],
        [paths[n] for n in writes],
        [cast(WriteState, changes[n]) for n in writes],
        [versions[n] for n in writes],
    )
    return Decided(pending, conditional)


def _settled(seen: Observed, unsure: Unsure, outcome: Committed) -> Observed:
    """Leaves out partitions that have no state to decide on, and writes that turn out to be applied."""
    rest: list[tuple[PartitionIndex, str, LeaderAndIsr, int]] = []
    for partition, path, state, version in zip(*seen, strict=True):
        tried = unsure.get(partition)
        if state is None:
            outcome.stateless.append(partition)
            outcome.refused.append((partition, f"{path} does not exist"))
        elif isinstance(state, ZNodeError):
            outcome.stateless.append(partition)
            outcome.refused.append((partition, str(state)))
        elif tried is not None and state == tried[0].state and version == tried[1] + 1:
            outcome.write(partition, tried[0], version)
        else:
            rest.append((partition, path, state, version))
    return Observed([r[0] for r in rest], [r[1] for r in rest], [r[2] for r in rest], [r[3] for r in rest])
