"""Events about reassignments.

Every read of a state sets its watch, so that the ISR change that completes a reassignment becomes an event. A request
comes as a call or through the old znode /admin/reassign_partitions; the latest request wins. An entry leaves the znode
as soon as it is done, refused or overridden; with the last entry the znode is deleted. An entry whose target brokers
are not up yet waits.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence

from klamm.controller.context.controller_context import PartitionIndex
from klamm.controller.decisions import reassignment
from klamm.controller.decisions.faults import concerning_topic
from klamm.controller.decisions.steps import WriteAssignments, WriteNodes, only
from klamm.controller.events import AlterReassignments, ListReassignments
from klamm.controller.handlers.services import TermServices
from klamm.model.errors import ErrorCode, KafkaError, ZNodeError
from klamm.model.ids import BrokerId, TopicPartition
from klamm.model.partition import Assignment
from klamm.model.ports import Delete, Set
from klamm.zookeeper.znodes import partition_state, reassign_partitions


class ReassignmentEvents:
    """Belongs to one term."""

    def __init__(self, services: TermServices) -> None:
        self._context = services.context
        self._reader = services.reader
        self._recorder = services.recorder
        self._runner = services.runner
        self._pending: dict[TopicPartition, tuple[BrokerId, ...]] = {}
        """Entries of the znode that cannot start yet."""

    @property
    def has_pending(self) -> bool:
        return bool(self._pending or self._context.unwritten or self._context.reassigning)

    def waiting(self) -> tuple[tuple[str, str], ...]:
        """Partitions being reassigned and what each waits for, as text."""
        view = self._context
        waits = {view.name_of(i): reassignment.what_is_left(view, i).waits_for for i in view.reassigning}
        waits |= dict.fromkeys(map(view.name_of, view.unwritten), "its topic znode to be written")
        for name, target in self._pending.items():
            waits.setdefault(name, reassignment.what_to_wait_for(view, name, target))
        return tuple((str(name), what) for name, what in sorted(waits.items()))

    async def take_over(self, cause: str) -> None:
        """After a fail-over: first requests that came through ZooKeeper, then everything else that is in progress."""
        fresh = await self.on_znode(cause)
        await self.resume(self._context.reassigning - fresh, cause, again=True)

    async def on_broker_startup(self, started: Collection[BrokerId], cause: str) -> None:
        view = self._context
        if self._pending:
            await self.on_znode(cause)
        targets = (i for i in view.reassigning if not set(started).isdisjoint(view.assignment_of(i).target_replicas))
        await self.resume(targets, cause, again=True)

    async def on_isr_change(self, name: TopicPartition) -> None:
        partition = self._context.partition(*name)
        if partition is not None and partition in self._context.reassigning:
            await self.resume([partition], f"ISR of {name} changed")

    async def resume(self, partitions: Iterable[PartitionIndex], cause: str, *, again: bool = False) -> None:
        moving = sorted(partitions)
        if not moving:
            return
        before = len(self._context.reassigning)
        await self._observe(moving)
        await self._runner.run(reassignment.resume(self._context, moving, again=again), cause)
        done = before - len(self._context.reassigning)
        if done:
            self._recorder.decision("reassignment-completed", cause, counts={"partitions": done})
            await self._clean_up(cause)

    async def retry(self, cause: str) -> None:
        """What waits for something that no watch announces."""
        view = self._context
        if self._pending:
            await self.on_znode(cause)
        if view.unwritten:
            done = {i: view.assignment_of(i) for i in sorted(view.unwritten)}
            await self._runner.run(only(WriteAssignments(done)), cause)
        await self.resume(view.reassigning, cause)

    async def on_znode(self, cause: str) -> frozenset[PartitionIndex]:
        """Returns the partitions whose reassignment was requested."""
        entries = await self._entries()
        if entries is None:
            self._pending = {}
            return frozenset()
        view = self._context
        waiting = {n: t for n, t in entries.items() if reassignment.what_to_wait_for(view, n, t)}
        for name, target in waiting.items():
            if self._pending.get(name) != target:
                what = reassignment.what_to_wait_for(view, name, target)
                self._recorder.decision("reassignment-waits", cause, detail=f"{name} waits for {what}")
        self._pending = waiting
        # The znode stays until the last of its entries is done, so an entry is read more than once.
        asked = {
            name: target
            for name, target in entries.items()
            if name not in waiting and not reassignment.is_in_progress(view, name, target)
        }
        results = await self._start(asked, cause)
        for name, error in results.items():
            if error is not None:
                self._recorder.decision("reassignment-refused", cause, detail=f"{name}: {error}")
        await self._clean_up(cause)
        indices = (self._context.partition(*name) for name in asked)
        return frozenset(i for i in indices if i is not None)

    async def on_call(self, event: AlterReassignments) -> None:
        cause = "reassignment by request"
        results = await self._start(event.targets, cause)
        await self._clean_up(cause, overridden=event.targets)
        event.answer(results)

    def on_list(self, event: ListReassignments) -> None:
        view = self._context
        moving = {view.name_of(i): view.assignment_of(i) for i in view.reassigning}
        wanted = event.partitions
        event.answer({n: a for n, a in sorted(moving.items()) if wanted is None or n in wanted})

    # --- internals ---

    async def _start(
        self, targets: Mapping[TopicPartition, tuple[BrokerId, ...] | None], cause: str
    ) -> dict[TopicPartition, KafkaError | None]:
        view = self._context
        results: dict[TopicPartition, KafkaError | None] = {}
        assignments: dict[PartitionIndex, Assignment] = {}
        for name, target in sorted(targets.items()):
            checked = reassignment.wanted(view, name, target)
            if isinstance(checked, KafkaError):
                results[name] = checked
            else:
                results[name] = None
                assignments[checked[0]] = checked[1]
        if not assignments:
            return results
        await self._observe(list(assignments))
        await self._runner.run(reassignment.start(view, assignments), cause)
        for i, assignment in assignments.items():
            # A topic whose deletion waited for this may be gone by now.
            name = view.name_of(i)
            if view.partition(*name) == i and not reassignment.is_accepted(view, i, assignment):
                reason = self._runner.refusals.get(i, "no replica that would stay is in sync")
                results[name] = KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{name} was not changed: {reason}.")
        counts = {"partitions": len(assignments), "under way": sum(i in view.reassigning for i in assignments)}
        self._recorder.decision("reassignment-started", cause, counts=counts)
        return results

    async def _observe(self, partitions: Sequence[PartitionIndex]) -> None:
        view = self._context
        paths = [partition_state.path(view.name_of(i)) for i in partitions]
        for partition, path, node in zip(partitions, paths, await self._reader.watched(paths), strict=True):
            if node is None:
                continue
            try:
                state = partition_state.decode(path, node.data)
            except ZNodeError as error:
                self._recorder.znode_skipped(error)
                continue
            with concerning_topic(view.topic_of(partition)):
                view.put_state(partition, state, node.stat.version)

    async def _entries(self) -> dict[TopicPartition, tuple[BrokerId, ...]] | None:
        """None if there is no znode, or if it cannot be read: then it stays until an operator repairs it."""
        path = reassign_partitions.PATH
        (node,) = await self._reader.watched([path])
        if node is None:
            return None
        try:
            return reassign_partitions.decode(path, node.data)
        except ZNodeError as error:
            self._recorder.znode_skipped(error)
            return None

    async def _clean_up(self, cause: str, overridden: Container[TopicPartition] = ()) -> None:
        """`overridden`: a later request names these partitions, so entries that still wait will never start."""
        entries = await self._entries()
        if entries is None:
            return
        asked = {n: t for n, t in entries.items() if n not in overridden or n not in self._pending}
        left = reassignment.still_asked(self._context, asked)
        self._pending = {n: t for n, t in self._pending.items() if n in left}
        if left != entries or not entries:
            path = reassign_partitions.PATH
            op = Set(path, reassign_partitions.encode(left)) if left else Delete(path)
            await self._runner.run(only(WriteNodes([op])), cause)
