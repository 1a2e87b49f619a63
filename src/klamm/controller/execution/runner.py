"""Carries out steps, one after the other: commit to ZooKeeper, apply to the context, send to the brokers, record.

Order is safety: what is in the context is in ZooKeeper, and what brokers receive is in the context. A half-finished
decision is well defined: committed steps are applied and sent; what comes after an error is left to the next
controller, which sends everything again. Between steps the loop serves other tasks, and this term may end.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, assert_never

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.controller.context.states import PartitionState, ReplicaState
from klamm.controller.decisions import unclean_election
from klamm.controller.decisions.faults import concerning_topic, find_fault, for_all
from klamm.controller.decisions.steps import (
    AddReplicas,
    ChangeStates,
    CreateStates,
    Decision,
    DeleteReplicas,
    ForgetTopics,
    MovePartitions,
    MoveReplicas,
    Pause,
    RefreshStates,
    Refuse,
    RemoveTopics,
    ReplicasByBroker,
    Send,
    SendLeaderAndIsr,
    SendMetadata,
    Step,
    StepOutcome,
    StopReplicas,
    SwapAssignments,
    TakeReplicasOffline,
    WriteAssignments,
    WriteNodes,
    WriteState,
    chunked,
)
from klamm.controller.execution.assignments import write_assignments
from klamm.controller.execution.commit import Committed, Committer
from klamm.controller.execution.request_batch import RequestBatch
from klamm.controller.execution.state_creation import create_states
from klamm.controller.execution.topic_removal import delete_topic_znodes
from klamm.controller.recorder import Recorder
from klamm.model.config import TopicConfig
from klamm.model.elections import UncleanElection
from klamm.model.errors import ZNodeError, ZooKeeperError
from klamm.model.ids import BrokerId
from klamm.model.partition import Assignment
from klamm.model.ports import Delete, Set
from klamm.telemetry.metrics import Meter
from klamm.zookeeper.znodes import config as config_znode

log = logging.getLogger(__name__)

SLICE_PARTITIONS: Final = 2_000
SLICES_IN_FLIGHT: Final = 4
"""Slices of one step: one is read, one is written, one waits for ZooKeeper, one is applied and sent. Their work in one
turn of the loop adds up, hence the small slices."""
METADATA_SLICE: Final = 10_000

StateStep = ChangeStates | TakeReplicasOffline


class _Slice(NamedTuple):
    partitions: Sequence[PartitionIndex]
    """Only those whose transition is legal."""
    committed: Committed


class StepRunner:
    """Belongs to one term."""

    def __init__(
        self,
        *,
        context: ControllerContext,
        committer: Committer,
        send: Callable[[RequestBatch], Awaitable[None]],
        recorder: Recorder,
        me: BrokerId,
        topic_defaults: TopicConfig,
        wait_until_may_act: Callable[[], Awaitable[None]],
        unclean_elections: Meter,
    ) -> None:
        self._context = context
        self._committer = committer
        self._send = send
        self._recorder = recorder
        self._me = me
        self._topic_defaults = topic_defaults
        self._wait_until_may_act = wait_until_may_act
        self._unclean_elections = unclean_elections
        self._cause = ""
        self._batch = RequestBatch()
        self._written: set[PartitionIndex] = set()
        """Partitions whose state the current decision wrote."""
        self.refusals: dict[PartitionIndex, str] = {}
        """Partitions that the last decision could not change, and why."""

    async def run(self, decision: Decision, cause: str) -> None:
        """`cause` is recorded with every change that the decision makes."""
        self._cause = cause
        self._batch = RequestBatch()
        self._written.clear()
        self.refusals.clear()
        step = next(decision, None)
        while step is not None:
            await self._wait_until_may_act()
            outcome = await self._carry_out(step)
            await asyncio.sleep(0)
            step = _next_step(decision, outcome)
        await self._send_batch(Send.NOW)

    async def _carry_out(self, step: Step) -> StepOutcome:
        match step:
            case ChangeStates() | TakeReplicasOffline():
                return await self._change_states(step)
            case CreateStates():
                return await self._create_states(step)
            case WriteAssignments():
                await self._write_assignments(step)
            case WriteNodes():
                await self._write_nodes(step)
            case RemoveTopics():
                await self._remove_topics(step)
            case RefreshStates():
                await self._refresh_states(step)
            case MovePartitions(partitions, to):
                self._move_partitions(partitions, to)
            case MoveReplicas(replicas, to):
                await self._move_replicas(replicas, to)
            case SwapAssignments(assignments):
                for i, assignment in assignments.items():
                    self._replace_assignment(i, assignment)
            case Pause():
                pass  # the loop has its turn after every step
            case SendLeaderAndIsr():
                await self._send_leader_and_isr(step)
            case AddReplicas():
                await self._add_replicas(step)
            case SendMetadata():
                await self._send_metadata(step)
            case StopReplicas():
                await self._stop_replicas(step)
            case DeleteReplicas():
                await self._delete_replicas(step)
            case ForgetTopics():
                await self._forget_topics(step)
            case _:
                assert_never(step)
        return StepOutcome()

    async def _send_batch(self, when: Send) -> None:
        if self._batch and when is Send.NOW:
            batch, self._batch = self._batch, RequestBatch()
            await self._send(batch)

    # --- states, in slices ---

    async def _change_states(self, step: StateStep) -> StepOutcome:
        """In slices: a few are on their way to ZooKeeper while the one before them is applied and sent. Slices share no
        partition and a rule looks only at its own, so a slice in flight cannot depend on one that is not applied yet.
        They are applied in order; after an error no further one is."""
        written: list[PartitionIndex] = []
        in_flight: deque[asyncio.Task[_Slice]] = deque()
        try:
            for partitions in chunked(step.partitions, SLICE_PARTITIONS):
                await self._wait_until_may_act()
                in_flight.append(asyncio.create_task(self._commit_slice(step, partitions)))
                if len(in_flight) >= SLICES_IN_FLIGHT:
                    written += await self._finish_slice(step, await in_flight.popleft())
            while in_flight:
                written += await self._finish_slice(step, await in_flight.popleft())
        finally:
            for task in in_flight:
                task.cancel()
            await asyncio.gather(*in_flight, return_exceptions=True)
        return StepOutcome(written)

    async def _commit_slice(self, step: StateStep, partitions: Sequence[PartitionIndex]) -> _Slice:
        """Only reads the context: other slices are in flight."""
        context = self._context
        match step:
            case ChangeStates(to=PartitionState() as to):
                partitions, refused = context.may_move_partitions(partitions, to)
                self._recorder.refused_partitions(context, refused, to)
            case TakeReplicasOffline(broker):
                partitions, refused = context.replicas.may_move(broker, partitions, ReplicaState.OFFLINE)
                self._recorder.refused_replicas(context, broker, refused, ReplicaState.OFFLINE)
        states = context.columns.state
        with_state = [i for i in partitions if states[i] is not None]
        committed = await self._committer.change_states(
            context, with_state, step.rule, self._allowing_unclean, self._written
        )
        return _Slice(partitions, committed)

    async def _finish_slice(self, step: StateStep, done: _Slice) -> Sequence[PartitionIndex]:
        committed = done.committed
        if isinstance(step, TakeReplicasOffline):
            self._stop_offline(step.broker, done)
        if committed.refused:
            self.refusals.update(committed.refused)
            self._recorder.not_elected(self._context, committed.refused, self._cause)
            self._recorder.writes_refused(committed.resisted.values())
        self._tell_standing(committed.resisted)
        self._apply_states(step, committed)
        await asyncio.sleep(0)
        await self._send_batch(step.send)
        return committed.written

    def _stop_offline(self, broker: BrokerId, done: _Slice) -> None:
        """A replica that stays in the ISR because its removal was refused goes on fetching. A topic that is being
        deleted needs no state: if it has lost one, that is no reason to keep its replicas."""
        context, stopped = self._context, done.partitions
        states = context.columns.state
        lost = [i for i in done.committed.stateless if context.is_leaving(i)]
        if done.committed.refused:
            refused = {i for i, _ in done.committed.refused} - set(lost)
            stopped = [i for i in stopped if i not in refused]
        for_all(context, stopped, partial(self._stop, broker))
        without_state = [i for i in stopped if states[i] is None]
        context.replicas.move(broker, without_state + lost, ReplicaState.OFFLINE)
        if without_state:
            self._batch.add_metadata(context, None, without_state)

    def _tell_standing(self, resisted: Collection[PartitionIndex]) -> None:
        """What could not be written still stands, and a broker that has just started may not know it: a fail-over tells
        of a partition by writing its state."""
        staying = [i for i in resisted if not self._context.is_leaving(i)]
        if staying:
            self._batch.add_metadata(self._context, None, staying)

    def _apply_states(self, step: StateStep, done: Committed) -> None:
        context, written = self._context, done.written
        to = step.to if isinstance(step, ChangeStates) else None
        states = [write.state for write in done.writes]
        self._recorder.state_changes(context, written, states, done.versions, to, self._cause)
        self._unclean_elections.mark([write.unclean for write in done.writes].count(True))
        try:
            self._enter_states(step, done)
        except Exception:
            parts = done.by_partition()
            find_fault(context, parts, lambda partition: self._enter_states(step, parts[partition]))
            raise

    def _enter_states(self, step: StateStep, done: Committed) -> None:
        """Put the new states into the context and the batch."""
        context, written = self._context, done.written
        to = step.to if isinstance(step, ChangeStates) else None
        context.put_states(written, [write.state for write in done.writes], done.versions)
        self._batch.add_written(context, written, [write.recipients for write in done.writes])
        self._written.update(written)
        if done.kept:
            self._apply_kept(done)
        moved = written + done.kept if done.kept else written
        if to is not None:
            context.move_partitions(moved, to)
        if isinstance(step, TakeReplicasOffline):
            context.replicas.move(step.broker, moved, ReplicaState.OFFLINE)

    def _apply_kept(self, done: Committed) -> None:
        """Send those that this decision has not sent yet: their offline replicas may have changed, or the ISR that the
        leader wrote."""
        context, rows = self._context, zip(done.kept, done.kept_states, done.kept_versions, strict=True)
        unsent = [row for row in rows if row[0] not in self._written]
        partitions = [row[0] for row in unsent]
        context.put_states(partitions, [row[1] for row in unsent], [row[2] for row in unsent])
        topics, deleting = context.columns.topic, context.deleting
        staying = [i for i in partitions if topics[i] not in deleting]
        if staying:
            self._batch.add_metadata(context, None, staying)

    async def _create_states(self, step: CreateStates) -> StepOutcome:
        context = self._context
        legal, refused = context.may_move_partitions(step.partitions, PartitionState.ONLINE)
        self._recorder.refused_partitions(context, refused, PartitionState.ONLINE)
        changes = self._ask_first(step, legal)
        writes = {i: change for i, change in changes.items() if isinstance(change, WriteState)}
        hopeless = [(i, change.reason) for i, change in changes.items() if isinstance(change, Refuse)]
        states = {i: write.state for i, write in writes.items()}
        ours, foreign, not_created, lost, resisted = await create_states(self._committer, context, states)
        hopeless += not_created.items()
        self.refusals.update(hopeless)
        self._recorder.not_elected(context, hopeless, self._cause)
        self._recorder.writes_refused(resisted)
        self._recorder.states_lost(context, sorted(lost), self._cause)
        created, first, versions = list(ours), [s for s, _ in ours.values()], [v for _, v in ours.values()]
        self._recorder.state_changes(context, created, first, versions, PartitionState.ONLINE, self._cause)

        def enter(partitions: Sequence[PartitionIndex]) -> None:
            context.put_states(partitions, [ours[i][0] for i in partitions], [ours[i][1] for i in partitions])
            for partition in partitions:
                recipients, is_new = writes[partition].recipients, partition not in lost
                self._batch.add_leader_and_isr(context, partition, recipients, is_new=is_new)
            self._written.update(partitions)
            context.move_partitions(partitions, PartitionState.ONLINE)

        for_all(context, created, enter)
        for partition, (state, version) in foreign.items():
            context.put_state(partition, state, version)
        context.move_partitions(list(foreign), PartitionState.OFFLINE)
        if foreign:
            self._batch.add_metadata(context, None, foreign)  # they exist, even if no broker can lead them now
        await self._send_batch(Send.NOW)
        return StepOutcome(created)

    def _ask_first(
        self, step: CreateStates, partitions: Sequence[PartitionIndex]
    ) -> dict[PartitionIndex, WriteState | Refuse]:
        try:
            return {partition: step.rule(partition) for partition in partitions}
        except Exception:
            find_fault(self._context, partitions, step.rule)
            raise

    async def _refresh_states(self, step: RefreshStates) -> None:
        context = self._context
        seen = await self._committer.read_states(context, step.partitions)
        refreshed = []
        for partition, _, state, version in zip(*seen, strict=True):
            if isinstance(state, ZNodeError):
                self._recorder.znode_skipped(state)
            elif state is not None:
                with concerning_topic(context.topic_of(partition)):
                    context.put_state(partition, state, version)
                refreshed.append(partition)
        self._batch.add_metadata(context, None, refreshed)
        await self._send_batch(Send.NOW)

    # --- replicas and requests ---

    def _move_partitions(self, partitions: Sequence[PartitionIndex], to: PartitionState) -> None:
        refused = for_all(self._context, partitions, lambda some: self._context.move_partitions(some, to))
        self._recorder.refused_partitions(self._context, refused, to)

    async def _move_replicas(self, replicas: ReplicasByBroker, to: ReplicaState) -> None:
        for broker, partitions in replicas.items():
            refused = for_all(self._context, partitions, partial(self._context.replicas.move, broker, to=to))
            self._recorder.refused_replicas(self._context, broker, refused, to)
            await asyncio.sleep(0)

    async def _send_leader_and_isr(self, step: SendLeaderAndIsr) -> None:
        for broker, partitions in step.replicas.items():
            self._batch.add_leader_and_isr_on(self._context, broker, partitions)
            await asyncio.sleep(0)
        await self._send_batch(step.send)

    async def _add_replicas(self, step: AddReplicas) -> None:
        await self._move_replicas(step.replicas, ReplicaState.NEW)
        for broker, partitions in step.replicas.items():
            for partition in partitions:
                with concerning_topic(self._context.topic_of(partition)):
                    self._batch.add_leader_and_isr(self._context, partition, (broker,), is_new=True)
            await asyncio.sleep(0)
        await self._send_batch(Send.NOW)

    async def _send_metadata(self, step: SendMetadata) -> None:
        context = self._context
        self._batch.add_metadata(context, step.to, ())
        partitions = iter(step.partitions)
        while some := list(islice(partitions, METADATA_SLICE)):
            self._batch.add_metadata(context, step.to, some)
            if context.deleting:
                leaving = context.deleting.intersection(map(context.topic_of, some))
                context.expect_heard(leaving, context.brokers if step.to is None else step.to)
            await asyncio.sleep(0)
        await self._send_batch(Send.NOW)

    async def _stop_replicas(self, step: StopReplicas) -> None:
        for broker, partitions in step.replicas.items():
            for_all(self._context, partitions, partial(self._stop, broker))
        await self._send_batch(Send.NOW)

    async def _delete_replicas(self, step: DeleteReplicas) -> None:
        await self._committer.check_fence()
        await self._move_replicas(step.replicas, ReplicaState.DELETION_STARTED)
        for broker, partitions in step.replicas.items():
            for_all(self._context, partitions, partial(self._stop, broker, delete=True, any_epoch=step.any_epoch))
        await self._send_batch(Send.NOW)

    def _stop(
        self,
        broker: BrokerId,
        partitions: Sequence[PartitionIndex],
        *,
        delete: bool = False,
        any_epoch: bool = False,
    ) -> None:
        if partitions:
            self._batch.add_stop_replica(self._context, broker, partitions, delete=delete, any_epoch=any_epoch)

    # --- assignments, configurations, other znodes, topics ---

    async def _write_assignments(self, step: WriteAssignments) -> None:
        context = self._context
        wanted: dict[str, dict[int, Assignment]] = {}
        for i, assignment in step.assignments.items():
            wanted.setdefault(context.topic_of(i), {})[context.number_of(i)] = assignment
        failed = await write_assignments(self._committer, wanted)
        for topic, reason in failed.items():
            self._recorder.decision("assignment-not-written", self._cause, detail=f"{topic}: {reason}")
        for i, assignment in step.assignments.items():
            if (topic := context.topic_of(i)) in failed:
                self.refusals[i] = failed[topic]
                if context.assignment_of(i) == assignment:
                    context.unwritten.add(i)
            else:
                context.unwritten.discard(i)
                self._replace_assignment(i, assignment)

    def _replace_assignment(self, partition: PartitionIndex, assignment: Assignment) -> None:
        with concerning_topic(self._context.topic_of(partition)):
            self._context.replace_assignment(partition, assignment)

    async def _allowing_unclean(self, topics: Collection[str]) -> Collection[str]:
        paths = unclean_election.config_paths(self._me, sorted(topics))
        allowed, problems = unclean_election.allowed(self._topic_defaults, paths, await self._committer.read(paths))
        for problem in problems:
            self._recorder.znode_skipped(problem)
        return {t for t in topics if allowed[config_znode.topic_path(t)] is UncleanElection.ALLOWED}

    async def _write_nodes(self, step: WriteNodes) -> None:
        deleted = [op.path for op in step.ops if isinstance(op, Delete)]
        written = [op for op in step.ops if isinstance(op, Set)]
        results = await self._committer.write(written) if written else []
        self._recorder.writes_refused([result for result in results if isinstance(result, ZooKeeperError)])
        self._recorder.writes_refused((await self._committer.delete(deleted)).values())

    async def _remove_topics(self, step: RemoveTopics) -> None:
        context = self._context
        for topic in step.topics:
            names = [context.name_of(i) for i in context.partitions_of(topic)]
            stuck = await delete_topic_znodes(self._committer, topic, names)
            if stuck:
                detail = f"{topic} could not be deleted: {', '.join(map(str, list(stuck.values())[:3]))}"
                self._recorder.writes_refused(stuck.values())
                self._recorder.decision("deletion-blocked", self._cause, detail=detail)
                continue  # it stays queued, and the slow timer tries again
            with concerning_topic(topic):
                for broker, replicas in context.replicas_in(topic, ReplicaState.DELETION_SUCCESSFUL).items():
                    context.replicas.move(broker, replicas, ReplicaState.NON_EXISTENT)
                context.remove_topic(topic)
            self._recorder.topic_deleted(topic, len(names), self._cause)

    async def _forget_topics(self, step: ForgetTopics) -> None:
        context = self._context
        for topic in step.topics:
            # Queued for deletion while the batch is encoded: so brokers receive leader -2 and drop the partitions.
            context.start_deleting(topic)
        self._batch.add_metadata(context, None, (i for topic in step.topics for i in context.partitions_of(topic)))
        await self._send_batch(Send.NOW)
        for topic in step.topics:
            self._recorder.topic_gone(topic, len(context.partitions_of(topic)), self._cause)
            with concerning_topic(topic):
                context.remove_topic(topic)


def _next_step(decision: Decision, outcome: StepOutcome) -> Step | None:
    try:
        return decision.send(outcome)
    except StopIteration:
        return None
