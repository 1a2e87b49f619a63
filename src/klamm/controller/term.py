"""One term of the active controller: from the fail-over after its election to its resignation.

A term owns the context, the committer with its fence, the channels, and the handlers of the events that only an active
controller acts on. When it ends it is dropped as a whole; no part of it can act under the next one.
"""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Final, assert_never

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.controller.decisions.leadership import elect_leaderless, replicas_offline, replicas_online
from klamm.controller.decisions.recovered_brokers import demote, in_sync_on, recovered_brokers
from klamm.controller.decisions.steps import Decision, SendMetadata, chunked
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
    RetryPending,
    StopReplicaResponse,
    TermEvent,
    TopicChange,
    TopicDeletion,
    UpdateMetadataResponse,
    ZkPartitionReassignment,
    ZkPreferredElection,
)
from klamm.controller.execution.channels import Channels
from klamm.controller.execution.commit import Committer, state_paths
from klamm.controller.execution.loading import ZNodeReader, load
from klamm.controller.execution.quarantine import Quarantine
from klamm.controller.execution.request_batch import RequestBatch
from klamm.controller.execution.request_encoder import RequestEncoder
from klamm.controller.execution.runner import StepRunner
from klamm.controller.handlers.brokers import BrokerEvents
from klamm.controller.handlers.deletions import DeletionEvents
from klamm.controller.handlers.leader_elections import LeaderElectionEvents
from klamm.controller.handlers.notifications import NotificationEvents
from klamm.controller.handlers.reassignments import ReassignmentEvents
from klamm.controller.handlers.responses import ResponseEvents
from klamm.controller.handlers.services import TermServices
from klamm.controller.handlers.topics import TopicEvents
from klamm.controller.recorder import Recorder
from klamm.controller.schedule import Schedule, entries_of
from klamm.model.config import BrokerConfig, broker_id_of, topic_defaults
from klamm.model.ids import BrokerId, ControllerEpoch
from klamm.model.ports import Clock, Watcher, ZooKeeper
from klamm.telemetry.metrics import Meter

GC_THRESHOLD_WHILE_LOADING: Final = 100_000


class Term:
    def __init__(
        self,
        *,
        controller_epoch: ControllerEpoch,
        config: BrokerConfig,
        clock: Clock,
        zk: ZooKeeper,
        committer: Committer,
        channels: Channels,
        recorder: Recorder,
        watch: Watcher,
        enqueue: Callable[[ControllerEvent], None],
        wait_until_may_act: Callable[[], Awaitable[None]],
        unclean_elections: Meter,
        quarantine: Quarantine,
    ) -> None:
        self.context = ControllerContext(controller_epoch)
        self.committer = committer
        self._clock = clock
        self._channels = channels
        self._recorder = recorder
        listeners = frozenset({config.control_plane_listener, config.inter_broker_listener})
        self._reader = ZNodeReader(zk, watch, recorder, listeners, quarantine)
        self._encoder = RequestEncoder(config, self.context)
        self.runner = StepRunner(
            context=self.context,
            committer=committer,
            send=partial(_send, self._encoder, channels),
            recorder=recorder,
            me=broker_id_of(config),
            topic_defaults=topic_defaults(config),
            wait_until_may_act=wait_until_may_act,
            unclean_elections=unclean_elections,
        )
        services = TermServices(
            config=config,
            clock=clock,
            context=self.context,
            reader=self._reader,
            runner=self.runner,
            recorder=recorder,
            enqueue=enqueue,
        )
        self.reassignments = ReassignmentEvents(services)
        self.deletions = DeletionEvents(services)
        self._brokers = BrokerEvents(services, zk=zk, channels=channels, reassignments=self.reassignments)
        self._topics = TopicEvents(services)
        self._elections = LeaderElectionEvents(services)
        self._notifications = NotificationEvents(services)
        self._responses = ResponseEvents(services)
        self.schedule = Schedule(
            entries_of(config, has_pending=partial(_has_pending, self.context, self.reassignments)), enqueue
        )

    # --- beginning and end ---

    async def fail_over(self, cause: str) -> None:
        """In Kafka's order, which matters: old notifications are deleted before the load that makes them superfluous;
        brokers learn who is alive before any LeaderAndIsr, because a follower refuses a leader that it does not know.
        """
        started = self._clock.monotonic()
        await self._notifications.discard(self.committer)
        await self._load()
        for live in self.context.brokers.values():
            self._channels.open(live)
        self._recorder.decision("controller-loaded", cause, started=started, counts=self.context.sizes())
        marked = await self.deletions.queue_marked()
        self.context.hold_deletions()
        await self._notifications.watch_configurations()
        await self.runner.run(self._take_over(await self._recovered()), cause)
        await self.reassignments.take_over(cause)
        await self.deletions.take_over(marked, cause)
        await self._elections.on_znode()
        self.schedule.start()
        self._recorder.decision("controller-failover", cause, started=started, counts=self.context.sizes())

    async def _load(self) -> None:
        thresholds = gc.get_threshold()
        gc.set_threshold(GC_THRESHOLD_WHILE_LOADING, thresholds[1], thresholds[2])
        try:
            await load(self.context, self._reader)
        finally:
            gc.set_threshold(*thresholds)
        gc.collect(1)  # else garbage that exists now would stay for ever
        gc.freeze()

    async def _recovered(self) -> dict[PartitionIndex, list[BrokerId]]:
        """By partition, members of the ISR that may have lost records since the state was written. Brokers rarely say
        so; then their states are read once more, for the time of the last write."""
        view, found = self.context, recovered_brokers(self.context)
        older: dict[PartitionIndex, list[BrokerId]] = {}
        for some in chunked(in_sync_on(view, found)):
            for partition, node in zip(some, await self._reader.nodes(state_paths(view, some)), strict=True):
                since = [b for b, epoch in found.items() if node is not None and node.stat.mzxid < epoch]
                if since:
                    older[partition] = since
        return older

    def _take_over(self, recovered: Mapping[PartitionIndex, Collection[BrokerId]]) -> Decision:
        view = self.context
        yield SendMetadata()
        yield from demote(view, recovered)
        replicas = {broker: view.replicas.on(broker) for broker in view.replicas.brokers}
        yield from replicas_online(view, {b: ids for b, ids in replicas.items() if view.is_live(b)})
        yield from replicas_offline(view, {b: ids for b, ids in replicas.items() if not view.is_live(b)})
        yield from elect_leaderless(view)

    async def close(self) -> None:
        """Requests that wait are dropped: the next controller sends everything again. No part of a term refers to the
        term itself. So it is freed here, without the garbage collector, which ignores what was frozen after the load.
        """
        self.schedule.stop()
        await self._channels.close()
        self.context.clear()
        self._encoder.clear()

    # --- events ---

    async def handle(self, event: TermEvent) -> None:
        match event:
            case BrokerChange():
                await self._brokers.on_change()
            case BrokerModifications(broker):
                await self._brokers.on_modifications(broker)
            case BrokerRefused():
                await self._brokers.on_refused(event)
            case BrokerConnected():
                await self._brokers.on_connected(event)
            case ControlledShutdown():
                await self._brokers.on_controlled_shutdown(event)
            case TopicChange():
                await self._topics.on_topic_change()
                await self.deletions.on_topics_added()
            case PartitionModifications(topic):
                await self._topics.on_partition_modifications(topic)
                await self.deletions.on_topics_added()
            case TopicDeletion():
                await self.deletions.on_topic_deletion()
            case IsrChangeNotification():
                await self._notifications.on_isr_change()
            case LogDirEventNotification():
                await self._notifications.on_log_dir_event()
            case ConfigChange():
                await self._notifications.on_config_change()
            case LeaderAndIsrResponse():
                await self._responses.on_leader_and_isr(event)
            case StopReplicaResponse():
                await self._responses.on_stop_replica(event)
            case UpdateMetadataResponse():
                await self._responses.on_update_metadata(event)
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
            case BalanceLeaders():
                await self._elections.on_imbalance()
            case RetryPending():
                await self._retry_pending("retry")
            case _:
                assert_never(event)

    async def _retry_pending(self, cause: str) -> None:
        await self.runner.run(elect_leaderless(self.context), cause)
        await self.reassignments.retry(cause)
        await self.deletions.retry(cause)


async def _send(encoder: RequestEncoder, channels: Channels, batch: RequestBatch) -> None:
    async for broker, request in encoder.encode(batch):
        channels.send(broker, request)


def _has_pending(context: ControllerContext, reassignments: ReassignmentEvents) -> bool:
    return bool(context.deleting or reassignments.has_pending or context.leaderless())
