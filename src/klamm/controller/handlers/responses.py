"""Answers of brokers to control requests."""

from __future__ import annotations

from klamm.controller.decisions import notifications
from klamm.controller.decisions.brokers import on_replicas_offline
from klamm.controller.decisions.deletion import complete_deletion, complete_heard
from klamm.controller.events import LeaderAndIsrResponse, StopReplicaResponse, UpdateMetadataResponse
from klamm.controller.handlers.services import TermServices
from klamm.model.errors import ErrorCode
from klamm.wire.errors import ProtocolError


class ResponseEvents:
    """Belongs to one term."""

    def __init__(self, services: TermServices) -> None:
        self._context = services.context
        self._recorder = services.recorder
        self._runner = services.runner

    async def on_leader_and_isr(self, event: LeaderAndIsrResponse) -> None:
        context, broker = self._context, event.broker
        registered = context.brokers.get(broker)
        if registered is None or registered.epoch != event.broker_epoch:
            return  # the broker has restarted since
        if event.error != ErrorCode.NONE:
            self._recorder.request_refused("LeaderAndIsr", broker, event.error)
            return
        if context.offline_dirs.get(broker):
            try:
                succeeded = event.succeeded()
            except ProtocolError as error:
                self._recorder.answer_invalid("LeaderAndIsr", broker, str(error))
                return
            online = {i for name in succeeded if (i := context.partition(*name)) is not None}
            context.offline_dirs[broker] -= online
        lost = notifications.newly_offline(context, broker, event.errors)
        if lost:
            context.mark_offline_dirs(broker, lost)
            cause = f"replicas on a failed log directory of broker {broker}"
            await self._runner.run(on_replicas_offline(context, {broker: lost}), cause)

    async def on_stop_replica(self, event: StopReplicaResponse) -> None:
        failed = {name for name, code in event.errors if code != ErrorCode.NONE}
        if event.error != ErrorCode.NONE:
            # An answer that refuses the whole request names no partition: without this all would stay DeletionStarted.
            self._recorder.request_refused("StopReplica", event.broker, event.error)
            failed = set(event.asked)
        answered = {name: name not in failed for name in event.asked}
        cause = f"broker {event.broker} answered StopReplica"
        await self._runner.run(complete_deletion(self._context, event.broker, answered), cause)

    async def on_update_metadata(self, event: UpdateMetadataResponse) -> None:
        if event.error != ErrorCode.NONE:
            self._recorder.request_refused("UpdateMetadata", event.broker, event.error)
            return
        registered = self._context.brokers.get(event.broker)
        if event.dropped and registered is not None and registered.epoch == event.broker_epoch:
            self._context.heard(event.broker, event.dropped)
            heard_by_all = [topic for topic in event.dropped if self._context.unheard.get(topic) == set()]
            if heard_by_all:
                cause = f"broker {event.broker} dropped topics {sorted(heard_by_all)[:5]}"
                await self._runner.run(complete_heard(self._context, heard_by_all), cause)
