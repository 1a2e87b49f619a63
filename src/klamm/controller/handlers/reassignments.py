"""Events about reassignments.

Every read of a state sets its watch, so that the ISR change that completes a reassignment becomes an event. A request
comes as a call or through the old znode /admin/reassign_partitions; the latest request wins. An entry leaves the znode
as soon as it is done, refused or overridden; with the last entry the znode is deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from klamm.controller.context.controller_context import PartitionIndex
from klamm.controller.decisions import reassignment
from klamm.controller.decisions.faults import concerning_topic
from klamm.controller.decisions.steps import WriteNodes, only
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

    def waiting(self) -> tuple[tuple[str, str], ...]:
        """Partitions being reassigned and what each waits for, as text."""
        view = self._context
        moving = sorted((view.name_of(i), i) for i in view.reassigning)
        return tuple((str(name), reassignment.what_is_left(view, i).waits_for) for name, i in moving)

    async def take_over(self, cause: str) -> None:
        """After a fail-over: first requests that came through ZooKeeper, then everything else that is in progress."""
        fresh = await self.on_znode(cause)
        await self.resume(self._context.reassigning - fresh, cause, again=True)

    async def on_broker_startup(self, started: Collection[BrokerId], cause: str) -> None:
        view = self._context
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

    async def on_znode(self, cause: str) -> frozenset[PartitionIndex]:
        """Returns the partitions whose reassignment was requested."""
        entries = await self._entries()
        if entries is None:
            return frozenset()
        asked = {name: target for name, target in entries.items() if not self._is_in_progress(name, target)}
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
        await self._clean_up(cause)
        event.answer(results)

    def on_list(self, event: ListReassignments) -> None:
        view = self._context
        moving = {view.name_of(i): view.assignment_of(i) for i in view.reassigning}
        wanted = event.partitions
        event.answer({n: a for n, a in sorted(moving.items()) if wanted is None or n in wanted})

    # --- internals ---

    def _is_in_progress(self, name: TopicPartition, target: tuple[BrokerId, ...]) -> bool:
        """The znode stays until the last of its entries is done, so an entry is read more than once."""
        return bool(reassignment.still_asked(self._context, {name: target}))

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
                results[name] = KafkaError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"{name} was not changed: no replica that would stay is in sync, or its znode was not written.",
                )
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

    async def _clean_up(self, cause: str) -> None:
        entries = await self._entries()
        if entries is None:
            return
        left = reassignment.still_asked(self._context, entries)
        if left != entries or not entries:
            path = reassign_partitions.PATH
            op = Set(path, reassign_partitions.encode(left)) if left else Delete(path)
            await self._runner.run(only(WriteNodes([op])), cause)
