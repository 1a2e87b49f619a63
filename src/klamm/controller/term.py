"""One term of the active controller: from the fail-over after its election to its resignation.

A term owns the context, the committer with its fence, the channels, and the handling of every event that only an active
controller acts on: observe (reads), decide (a generator of steps), run them. When it ends it is dropped as a whole;
nothing of it can act under the next one.
"""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable
from typing import Final

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.controller.decisions import deletion, notifications, reassignment, topics
from klamm.controller.decisions.leadership import elect_leaderless, replicas_offline, replicas_online
from klamm.controller.decisions.steps import Assign, Decision, Move
from klamm.controller.events import (
    AlterReassignments,
    BalanceLeaders,
    BrokerChange,
    BrokerConnected,
    BrokerModifications,
    BrokerRefused,
    ConfigChange,
    ControlledShutdown,
    ControllerEvent,
    ElectLeaders,
    IsrChangeNotification,
    LeaderAndIsrResponse,
    ListReassignments,
    LogDirEventNotification,
    PartitionModifications,
    ReassignmentIsrChange,
    RetryDeletions,
    StopReplicaResponse,
    TopicChange,
    TopicDeletion,
    UpdateMetadataResponse,
    ZkPartitionReassignment,
    ZkPreferredElection,
)
from klamm.controller.execution.batch import RequestBatch
from klamm.controller.execution.channels import Channels
from klamm.controller.execution.commit import Committer
from klamm.controller.execution.entries import RequestEncoder
from klamm.controller.execution.loading import Reader, load
from klamm.controller.execution.quarantine import Quarantine
from klamm.controller.execution.runner import StepRunner
from klamm.controller.handlers.brokers import BrokerEvents
from klamm.controller.handlers.leader_elections import Elections
from klamm.controller.handlers.reassignments import Reassignments
from klamm.controller.recorder import Recorder
from klamm.controller.schedule import Schedule, entries_of
from klamm.model.config import BrokerConfig, broker_id_of, topic_defaults
from klamm.model.errors import ErrorCode, ZNodeError
from klamm.model.ids import BrokerId, ControllerEpoch, TopicPartition
from klamm.model.ports import Clock, Watcher, ZooKeeper
from klamm.telemetry.metrics import Meter
from klamm.zookeeper.znodes import config_change, delete_topics, isr_change, log_dir_event
from klamm.zookeeper.znodes import topic as topic_znode

GC_THRESHOLD_WHILE_LOADING: Final = 100_000


class Term:
    def __init__(
        self,
        *,
        config: BrokerConfig,
        clock: Clock,
        zk: ZooKeeper,
        committer: Committer,
        channels: Channels,
        recorder: Recorder,
        watch: Watcher,
        enqueue: Callable[[ControllerEvent], None],
        wait_until_heard: Callable[[], Awaitable[None]],
        unclean_elections: Meter,
        quarantine: Quarantine,
    ) -> None:
        self.context = ControllerContext()
        self.epoch: ControllerEpoch = committer.controller_epoch
        self.committer = committer
        self._config = config
        self._clock = clock
        self._zk = zk
        self._channels = channels
        self._recorder = recorder
        self._enqueue = enqueue
        listeners = frozenset({config.control_plane_listener, config.inter_broker_listener})
        self._reader = Reader(zk, watch, recorder, listeners, quarantine)
        self._encoder = RequestEncoder(config, self.context, self.epoch)
        self.runner = StepRunner(
            self.context,
            committer,
            self._tell,
            recorder,
            broker_id_of(config),
            topic_defaults(config),
            wait_until_heard,
            unclean_elections,
        )
        parts = (self.context, self.epoch, self._reader, self.runner, recorder)
        self.reassignments = Reassignments(*parts)
        self._elections = Elections(*parts)
        self._brokers = BrokerEvents(*parts, clock, zk, channels, self.reassignments)
        self.schedule = Schedule(entries_of(config, has_work=self._has_work), enqueue)

    # --- beginning and end ---

    async def fail_over(self, cause: str) -> None:
        """In Kafka's order, which matters: old notifications go before the load that makes them superfluous; brokers
        hear who is alive before any LeaderAndIsr, because a follower refuses a leader it does not know."""
        started = self._clock.monotonic()
        for parent in (log_dir_event.PARENT, isr_change.PARENT):
            names = await self._reader.names(parent)
            await self.committer.delete([f"{parent}/{name}" for name in names])
        thresholds = gc.get_threshold()
        gc.set_threshold(GC_THRESHOLD_WHILE_LOADING, thresholds[1], thresholds[2])
        try:
            await load(self.context, self._reader)
        finally:
            gc.set_threshold(*thresholds)
        gc.collect(1)  # else what is garbage by now would stay for ever
        gc.freeze()
        for live in self.context.brokers.values():
            self._channels.open(live)
        self._recorder.decision("controller-loaded", cause, started=started, counts=self.context.sizes())
        marked = await self._marked_topics()
        self.context.hold_deletions()
        await self._reader.names(config_change.PARENT)  # for its watch: what was changed before is read as it is now
        await self.runner.run(self._take_over(cause))
        await self.reassignments.take_over(cause)
        enabled = self._config.delete_topic_enable
        await self.runner.run(
            deletion.on_topic_deletion(self.context, self.epoch, marked, enabled=enabled, cause=cause, retry=True)
        )
        await self._elections.on_znode()
        self.schedule.start()
        self._recorder.decision("controller-failover", cause, started=started, counts=self.context.sizes())

    def _take_over(self, cause: str) -> Decision:
        view, epoch = self.context, self.epoch
        yield Move(cause=cause, metadata=())
        replicas = {broker: view.replicas.on(broker) for broker in view.replicas.brokers}
        yield from replicas_online(view, {b: ids for b, ids in replicas.items() if view.is_live(b)}, cause)
        yield from replicas_offline(view, epoch, {b: ids for b, ids in replicas.items() if not view.is_live(b)}, cause)
        yield from elect_leaderless(view, epoch, cause)

    async def close(self) -> None:
        """Requests that wait are dropped: the next controller tells everything again."""
        self.schedule.stop()
        await self._channels.close()
        self.context.clear()  # it is frozen; to unfreeze means a full collection, 50 ms in which nobody is served

    def _has_work(self) -> bool:
        return bool(self.context.deleting or self.context.reassigning or self.context.leaderless())

    async def _tell(self, batch: RequestBatch) -> None:
        async for broker, request in self._encoder.seal(batch):
            self._channels.send(broker, request)

    def deletions(self) -> tuple[tuple[str, str], ...]:
        """Topics being deleted and what each waits for, for people."""
        view = self.context
        return tuple((t, deletion.what_is_left(view, t, retry=False).waits_for) for t in sorted(view.deleting))

    # --- events ---

    async def handle(self, event: ControllerEvent) -> None:
        match event:
            case BrokerChange():
                await self._brokers.on_change()
            case BrokerModifications(broker):
                await self._brokers.on_modifications(broker)
            case BrokerRefused():
                await self._brokers.on_refused(event)
            case BrokerConnected():
                await self._brokers.on_connected(event)
            case TopicChange():
                await self._on_topic_change()
            case PartitionModifications(topic):
                await self._on_partition_modifications(topic)
            case TopicDeletion():
                await self._on_topic_deletion()
            case RetryDeletions():
                await self._on_retry()
            case IsrChangeNotification():
                await self._on_isr_change()
            case LogDirEventNotification():
                await self._on_log_dir_event()
            case LeaderAndIsrResponse():
                await self._on_leader_and_isr_response(event)
            case StopReplicaResponse():
                await self._on_stop_replica_response(event)
            case UpdateMetadataResponse():
                if event.error != ErrorCode.NONE:
                    self._recorder.request_refused("UpdateMetadata", event.broker, event.error)
            case ControlledShutdown():
                await self._brokers.on_controlled_shutdown(event)
            case AlterReassignments():
                await self.reassignments.on_call(event)
            case ListReassignments():
                self.reassignments.on_list(event)
            case ZkPartitionReassignment():
                await self.reassignments.on_znode("reassignment by znode")
            case ReassignmentIsrChange(partition):
                await self.reassignments.on_isr_change(partition)
            case ElectLeaders():
                await self._elections.on_call(event)
            case ZkPreferredElection():
                await self._elections.on_znode()
            case ConfigChange():
                await self._reader.names(config_change.PARENT)
                await self.runner.run(elect_leaderless(self.context, self.epoch, "configuration changed"))
            case BalanceLeaders():
                await self._elections.on_imbalance(self._config.leader_imbalance_per_broker_percentage)
            case _:
                raise AssertionError(f"{event} is no event of an active controller")

    async def _on_topic_change(self) -> None:
        started = self._clock.monotonic()
        context = self.context
        names = await self._reader.names(topic_znode.PARENT)
        new = [name for name in names if name not in context.topics]
        gone = sorted(context.topics.keys() - set(names))
        assignments = await self._reader.assignments(new)
        if gone:
            await self.runner.run(topics.forget_topics(gone, f"topics {gone[:5]} are gone from ZooKeeper"))
            self._enqueue(TopicDeletion())  # a marker may have outlived its topic,
            self._enqueue(ZkPartitionReassignment())  # and so may a request to move it
        created: list[PartitionIndex] = []
        for topic, assignment in assignments.items():
            context.add_topic(topic, assignment.topic_id)
            created += context.add_partitions(topic, assignment.partitions)
        if created:
            cause = f"topic creation {list(assignments)[:5]}"
            await self.runner.run(topics.create_partitions(context, self.epoch, created, cause))
            counts = {"topics": len(assignments), "partitions": len(created)}
            self._recorder.decision("topic-created", cause, started=started, counts=counts)

    async def _on_partition_modifications(self, topic: str) -> None:
        started = self._clock.monotonic()
        context = self.context
        found = (await self._reader.assignments([topic])).get(topic)
        if found is None:
            return
        context.add_topic(topic, found.topic_id)
        known = context.topics[topic]
        completed = reassignment.completed_unwritten(context, topic, found.partitions)
        if completed:
            await self.runner.run(iter([Assign(cause=f"znode of topic {topic} mended", assignments=completed)]))
        added = {number: a for number, a in found.partitions.items() if number not in known}
        if not added:
            return
        if topic in context.deleting and known:
            await self.runner.run(topics.restore_assignment(context, topic, f"topic {topic} is being deleted"))
            return
        cause = f"growth of topic {topic}"
        created = context.add_partitions(topic, added)
        await self.runner.run(topics.create_partitions(context, self.epoch, created, cause))
        if topic in context.deleting:  # which waited for its znode to be mended
            await self.runner.run(deletion.resume_deletions(context, self.epoch, cause))
        self._recorder.decision("topic-grown", cause, started=started, counts={"partitions": len(created)})

    async def _on_topic_deletion(self) -> None:
        marked = await self._marked_topics()
        await self.runner.run(
            deletion.on_topic_deletion(
                self.context,
                self.epoch,
                marked,
                enabled=self._config.delete_topic_enable,
                cause=f"deletion of topics {marked[:5]}",
            )
        )

    async def _marked_topics(self) -> list[str]:
        """Children of /admin/delete_topics; those that may be deleted are queued at once, which stops their
        elections."""
        marked = await self._reader.names(delete_topics.PARENT)
        for topic in deletion.topics_to_queue(self.context, marked, enabled=self._config.delete_topic_enable):
            self.context.start_deleting(topic)
        return marked

    async def _on_retry(self) -> None:
        cause = "retry"
        await self.runner.run(elect_leaderless(self.context, self.epoch, cause))
        await self.reassignments.resume(self.context.reassigning, cause)
        await self.runner.run(deletion.resume_deletions(self.context, self.epoch, cause, retry=True))

    async def _on_isr_change(self) -> None:
        paths = [isr_change.path(name) for name in await self._reader.names(isr_change.PARENT)]
        changed: list[TopicPartition] = []
        for path, node in zip(paths, await self._reader.nodes(paths), strict=True):
            try:
                changed += isr_change.decode(path, node.data) if node else ()
            except ZNodeError as error:
                self._recorder.znode_skipped(error)
        if paths:
            await self.runner.run(notifications.on_isr_change(self.context, changed, paths, "ISR change by the leader"))

    async def _on_log_dir_event(self) -> None:
        paths = [log_dir_event.path(name) for name in await self._reader.names(log_dir_event.PARENT)]
        failed: list[BrokerId] = []
        for path, node in zip(paths, await self._reader.nodes(paths), strict=True):
            try:
                failed += [log_dir_event.decode(path, node.data)] if node else ()
            except ZNodeError as error:
                self._recorder.znode_skipped(error)
        if paths:
            cause = f"log directory failure on {sorted(set(failed))}"
            await self.runner.run(notifications.on_log_dir_event(self.context, failed, paths, cause))

    async def _on_leader_and_isr_response(self, event: LeaderAndIsrResponse) -> None:
        context, broker = self.context, event.broker
        registered = context.brokers.get(broker)
        if registered is None or registered.epoch != event.broker_epoch:
            return  # of a former life
        if event.error != ErrorCode.NONE:
            self._recorder.request_refused("LeaderAndIsr", broker, event.error)
            return
        if context.offline_dirs.get(broker):
            online = {i for name in event.succeeded() if (i := context.partition(*name)) is not None}
            context.offline_dirs[broker] -= online
        lost = notifications.newly_offline(context, broker, event.errors)
        if lost:
            context.mark_offline_dirs(broker, lost)
            cause = f"replicas on a failed log directory of broker {broker}"
            await self.runner.run(notifications.on_log_dir_failure(context, self.epoch, broker, lost, cause))

    async def _on_stop_replica_response(self, event: StopReplicaResponse) -> None:
        failed = {name for name, code in event.errors if code != ErrorCode.NONE}
        if event.error != ErrorCode.NONE:
            # An answer that refuses all names none: without this they would stay DeletionStarted for ever.
            self._recorder.request_refused("StopReplica", event.broker, event.error)
            failed = set(event.asked)
        answered = {name: name not in failed for name in event.asked}
        cause = f"broker {event.broker} answered StopReplica"
        await self.runner.run(deletion.complete_deletion(self.context, self.epoch, event.broker, answered, cause))
