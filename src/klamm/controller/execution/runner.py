"""Steps carried out: commit to ZooKeeper, apply to the context, tell the brokers, record; one step after the other.

Order is safety: what is in the context is in ZooKeeper, what brokers hear is in the context. A half-finished decision
is well defined: committed steps are applied and told; what comes after an error is the next controller's, who tells
everything again. Between steps the loop is given away, and with it the chance to learn that we are no longer meant.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple, assert_never

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.controller.context.states import PartitionState, ReplicaState
from klamm.controller.decisions import unclean_election
from klamm.controller.decisions.leadership import first_state
from klamm.controller.decisions.steps import (
    Assign,
    ChangeStates,
    CreateStates,
    Decision,
    ForgetTopics,
    Move,
    ObserveTopicConfigs,
    RefreshStates,
    Refuse,
    RemoveTopics,
    Step,
    WriteNodes,
    chunked,
)
from klamm.controller.execution.assignments import write_assignments
from klamm.controller.execution.batch import RequestBatch
from klamm.controller.execution.commit import Committer, Outcome
from klamm.controller.recorder import Recorder
from klamm.model.config import TopicConfig
from klamm.model.errors import ZNodeError
from klamm.model.ids import BrokerId
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.model.ports import Delete, Set
from klamm.telemetry.metrics import Meter
from klamm.zookeeper.znodes import config as config_znode
from klamm.zookeeper.znodes import delete_topics
from klamm.zookeeper.znodes import partition_state as partition_state_znode
from klamm.zookeeper.znodes import topic as topic_znode

log = logging.getLogger(__name__)

Tell = Callable[[RequestBatch], Awaitable[None]]


SLICE_PARTITIONS: Final = 2_000
SLICES_IN_FLIGHT: Final = 4
"""Of a step: one is read, one is written, one waits for ZooKeeper, one is applied and told. What they do in one turn of
the loop adds up, hence the small slices."""
METADATA_SLICE: Final = 10_000


class _Slice(NamedTuple):
    partitions: Sequence[PartitionIndex]
    """Those whose transition is legal."""
    outcome: Outcome


class StepRunner:
    """One term's hands."""

    def __init__(
        self,
        context: ControllerContext,
        committer: Committer,
        tell: Tell,
        recorder: Recorder,
        me: BrokerId,
        topic_defaults: TopicConfig,
        wait_until_heard: Callable[[], Awaitable[None]],
        unclean_elections: Meter,
    ) -> None:
        self._context = context
        self._committer = committer
        self._tell = tell
        self._recorder = recorder
        self._me = me
        self._topic_defaults = topic_defaults
        self._wait_until_heard = wait_until_heard
        self._written: set[PartitionIndex] = set()
        self._unclean_elections = unclean_elections

    async def run(self, decision: Decision) -> None:
        self._written.clear()
        batch = RequestBatch()
        for step in decision:
            await self._wait_until_heard()
            if isinstance(step, ChangeStates):
                batch = await self._change_states(step, batch)
            else:
                await self._run(step, batch)
                batch = await self._told(batch, send=getattr(step, "send", True))
            await asyncio.sleep(0)
        await self._told(batch, send=True)

    async def _told(self, batch: RequestBatch, *, send: bool) -> RequestBatch:
        """What the next step adds to."""
        if not (batch and send):
            return batch
        await self._tell(batch)
        return RequestBatch()

    async def _run(self, step: Step, batch: RequestBatch) -> None:
        match step:
            case ChangeStates():
                raise AssertionError("runs in slices, each with its own batch")
            case CreateStates():
                await self._create_states(step, batch)
            case Move():
                await self._move(step, batch)
            case Assign():
                await self._assign(step)
            case RefreshStates():
                await self._refresh_states(step, batch)
            case ObserveTopicConfigs():
                await self._observe_topic_configs(step)
            case WriteNodes():
                await self._write_nodes(step)
            case RemoveTopics():
                await self._remove_topics(step)
            case ForgetTopics():
                await self._forget_topics(step)
            case _:
                assert_never(step)

    async def _change_states(self, step: ChangeStates, batch: RequestBatch) -> RequestBatch:
        """In slices, a few of them on their way to ZooKeeper while the one before is applied and told. Slices share no
        partition and a rule looks only at its own, so what is in flight cannot depend on what is not yet applied; they
        are applied in order, and after an error none is."""
        in_flight: deque[asyncio.Task[_Slice]] = deque()
        try:
            for partitions in chunked(step.partitions, SLICE_PARTITIONS):
                await self._wait_until_heard()
                in_flight.append(asyncio.create_task(self._commit_slice(step, partitions)))
                if len(in_flight) >= SLICES_IN_FLIGHT:
                    batch = await self._finish_slice(step, await in_flight.popleft(), batch)
            while in_flight:
                batch = await self._finish_slice(step, await in_flight.popleft(), batch)
        finally:
            for task in in_flight:
                task.cancel()
            await asyncio.gather(*in_flight, return_exceptions=True)
        return batch

    async def _commit_slice(self, step: ChangeStates, partitions: Sequence[PartitionIndex]) -> _Slice:
        """The context is only read here: other slices are in flight."""
        context = self._context
        if step.partition_to is not None:
            partitions, refused = context.may_move_partitions(partitions, step.partition_to)
            self._recorder.refused_partitions(context, refused, step.partition_to)
        if step.offline_on is not None:
            partitions, refused = context.replicas.may_move(step.offline_on, partitions, ReplicaState.OFFLINE)
            self._recorder.refused_replicas(context, step.offline_on, refused, ReplicaState.OFFLINE)
        states = context.columns.state
        with_state = [i for i in partitions if states[i] is not None]
        return _Slice(partitions, await self._committer.change_states(context, with_state, step.rule, self._written))

    async def _finish_slice(self, step: ChangeStates, done: _Slice, batch: RequestBatch) -> RequestBatch:
        context = self._context
        if step.offline_on is not None:
            batch.add_stop_replica(context, step.offline_on, done.partitions, delete=False)
            states = context.columns.state
            without_state = [i for i in done.partitions if states[i] is None]
            context.replicas.move(step.offline_on, without_state, ReplicaState.OFFLINE)
            if without_state:
                batch.add_metadata(context, None, without_state)
        self._recorder.not_elected(context, done.outcome.refused, step.cause)
        self._apply_states(step, done.outcome, batch)
        await asyncio.sleep(0)
        return await self._told(batch, send=step.send)

    def _apply_states(self, step: ChangeStates, outcome: Outcome, batch: RequestBatch) -> None:
        context, written = self._context, outcome.written
        states = [write.state for write in outcome.writes]
        self._recorder.state_changes(context, written, states, outcome.versions, step.partition_to, step.cause)
        context.put_states(written, states, outcome.versions)
        self._unclean_elections.mark([write.unclean for write in outcome.writes].count(True))
        batch.add_written(context, written, [write.recipients for write in outcome.writes])
        self._written.update(written)
        if outcome.kept:
            self._apply_kept(outcome, batch)
        done = written + outcome.kept if outcome.kept else written
        if step.partition_to is not None:
            context.move_partitions(done, step.partition_to)
        if step.offline_on is not None:
            context.replicas.move(step.offline_on, done, ReplicaState.OFFLINE)

    def _apply_kept(self, outcome: Outcome, batch: RequestBatch) -> None:
        """Told nobody yet in this event: who is offline may have changed, and the ISR that its leader wrote."""
        context, rows = self._context, zip(outcome.kept, outcome.kept_states, outcome.kept_versions, strict=True)
        untold = [row for row in rows if row[0] not in self._written]
        partitions = [row[0] for row in untold]
        context.put_states(partitions, [row[1] for row in untold], [row[2] for row in untold])
        topics, deleting = context.columns.topic, context.deleting
        told = [i for i in partitions if topics[i] not in deleting]
        if told:
            batch.add_metadata(context, None, told)

    async def _create_states(self, step: CreateStates, batch: RequestBatch) -> None:
        context = self._context
        legal, refused = context.may_move_partitions(step.partitions, PartitionState.ONLINE)
        self._recorder.refused_partitions(context, refused, PartitionState.ONLINE)
        live, epoch = context.live, self._committer.controller_epoch
        states: dict[PartitionIndex, LeaderAndIsr] = {}
        hopeless: list[tuple[PartitionIndex, str]] = []
        for partition in legal:
            first = first_state(context, partition, live, epoch)
            if isinstance(first, Refuse):
                hopeless.append((partition, first.reason))
            else:
                states[partition] = first
        ours, foreign = await self._committer.create_states(context, states) if states else ({}, {})
        hopeless += [(i, "its znodes could not be created") for i in states if i not in ours and i not in foreign]
        self._recorder.not_elected(context, hopeless, step.cause)
        created, versions = list(ours), list(ours.values())
        first_states = [states[i] for i in created]
        self._recorder.state_changes(context, created, first_states, versions, PartitionState.ONLINE, step.cause)
        context.put_states(created, first_states, versions)
        for partition, state in zip(created, first_states, strict=True):
            batch.add_leader_and_isr(context, partition, state.isr, is_new=True)
        self._written.update(created)
        context.move_partitions(created, PartitionState.ONLINE)
        for partition, (state, version) in foreign.items():
            context.put_state(partition, state, version)
        context.move_partitions(list(foreign), PartitionState.OFFLINE)
        if foreign:
            batch.add_metadata(context, None, foreign)  # nobody may be able to lead them now; they exist all the same

    async def _move(self, step: Move, batch: RequestBatch) -> None:
        context = self._context
        if step.fenced:
            await self._committer.check_fence()
        for partitions, to in step.partitions:
            self._recorder.refused_partitions(context, context.move_partitions(partitions, to), to)
        for broker, partitions in step.replicas.items():
            assert step.replica_to is not None
            refused = context.replicas.move(broker, partitions, step.replica_to)
            self._recorder.refused_replicas(context, broker, refused, step.replica_to)
            await asyncio.sleep(0)
        for broker, partitions in step.leader_and_isr.items():
            if step.is_new:
                for partition in partitions:
                    batch.add_leader_and_isr(context, partition, (broker,), is_new=True)
            else:
                batch.add_leader_and_isr_on(context, broker, partitions)
            await asyncio.sleep(0)
        for broker, partitions in step.stop_replica.items():
            batch.add_stop_replica(context, broker, partitions, delete=step.delete, any_epoch=step.any_epoch)
        if step.metadata is not None:
            batch.add_metadata(context, step.metadata_to, ())
            told = iter(step.metadata)
            while some := list(islice(told, METADATA_SLICE)):
                batch.add_metadata(context, step.metadata_to, some)
                await asyncio.sleep(0)

    async def _assign(self, step: Assign) -> None:
        context = self._context
        failed: Mapping[str, str] = {}
        if step.durable:
            wanted: dict[str, dict[int, Assignment]] = {}
            for i, assignment in step.assignments.items():
                wanted.setdefault(context.topic_of(i), {})[context.number_of(i)] = assignment
            failed = await write_assignments(self._committer, wanted)
            for topic, reason in failed.items():
                self._recorder.decision("assignment-not-written", step.cause, detail=f"{topic}: {reason}")
        for i, assignment in step.assignments.items():
            if context.topic_of(i) not in failed:
                context.replace_assignment(i, assignment)

    async def _refresh_states(self, step: RefreshStates, batch: RequestBatch) -> None:
        context = self._context
        seen = await self._committer.read_states(context, step.partitions)
        refreshed = []
        for partition, _, state, version in zip(*seen, strict=True):
            if isinstance(state, ZNodeError):
                self._recorder.znode_skipped(state)
            elif state is not None:
                context.put_state(partition, state, version)
                refreshed.append(partition)
        batch.add_metadata(context, None, refreshed)

    async def _observe_topic_configs(self, step: ObserveTopicConfigs) -> None:
        paths = unclean_election.config_paths(self._me, step.topics)
        allowed, problems = unclean_election.allowed(self._topic_defaults, paths, await self._committer.read(paths))
        for problem in problems:
            self._recorder.znode_skipped(problem)
        for topic in step.topics:
            self._context.unclean_allowed[topic] = allowed[config_znode.topic_path(topic)]

    async def _write_nodes(self, step: WriteNodes) -> None:
        deleted = [op.path for op in step.ops if isinstance(op, Delete)]
        written = [op for op in step.ops if isinstance(op, Set)]
        assert len(deleted) + len(written) == len(step.ops)
        for result in await self._committer.write(written) if written else ():
            if isinstance(result, Exception):
                log.warning("%s: %s", step.cause, result)
        for path in await self._committer.delete(deleted):
            log.warning("%s: %s could not be deleted", step.cause, path)

    async def _remove_topics(self, step: RemoveTopics) -> None:
        context = self._context
        for topic in step.topics:
            partitions = len(context.partitions_of(topic))
            stuck = await self._delete_topic_znodes(topic)
            if stuck:
                self._recorder.decision("deletion-blocked", step.cause, detail=f"{topic}: {stuck[:3]} resist")
                continue  # it stays queued, and the slow timer tries again
            for broker, replicas in context.replicas_in(topic, ReplicaState.DELETION_SUCCESSFUL).items():
                context.replicas.move(broker, replicas, ReplicaState.NON_EXISTENT)
            context.remove_topic(topic)
            self._recorder.topic_deleted(topic, partitions, step.cause)

    async def _delete_topic_znodes(self, topic: str) -> list[str]:
        """By what we know first: one transaction for a small topic. By listing only if something else is there. The
        configuration goes before the topic: whoever follows a controller that was killed in between finds a topic that
        is marked, not a configuration that nobody deletes and the next topic of that name would inherit."""
        names = [self._context.name_of(i) for i in self._context.partitions_of(topic)]
        configuration, marker = config_znode.topic_path(topic), delete_topics.path(topic)
        paths = [
            *(partition_state_znode.path(name) for name in names),
            *(partition_state_znode.partition_path(name) for name in names),
            partition_state_znode.partitions_path(topic),
            configuration,
            topic_znode.path(topic),
            marker,
        ]
        if not await self._committer.delete(paths):
            return []
        stuck = await self._committer.delete_trees([configuration, topic_znode.path(topic)])
        return stuck or await self._committer.delete([marker])

    async def _forget_topics(self, step: ForgetTopics) -> None:
        context = self._context
        for topic in step.topics:
            # Queued for deletion while the batch is sealed: brokers then hear leader -2 and drop the partitions.
            context.start_deleting(topic)
        batch = RequestBatch()
        batch.add_metadata(context, None, (i for topic in step.topics for i in context.partitions_of(topic)))
        await self._tell(batch)
        for topic in step.topics:
            self._recorder.topic_gone(topic, len(context.partitions_of(topic)), step.cause)
            context.remove_topic(topic)
