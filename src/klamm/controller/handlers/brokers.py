"""Events about brokers that start, stop, change or become suspect."""

from __future__ import annotations

from klamm.controller.decisions import brokers, controlled_shutdown
from klamm.controller.decisions.steps import SendMetadata, only
from klamm.controller.events import BrokerConnected, BrokerRefused, ControlledShutdown
from klamm.controller.execution.channels import Channels
from klamm.controller.handlers.reassignments import ReassignmentEvents
from klamm.controller.handlers.services import TermServices
from klamm.controller.liveness import suspicion
from klamm.model.brokers import LiveBroker
from klamm.model.errors import ConnectionLoss
from klamm.model.ids import BrokerEpoch, BrokerId
from klamm.model.ports import ZooKeeper
from klamm.zookeeper.znodes import broker_id


class BrokerEvents:
    """Belongs to one term."""

    def __init__(
        self, services: TermServices, *, zk: ZooKeeper, channels: Channels, reassignments: ReassignmentEvents
    ) -> None:
        self._clock = services.clock
        self._context = services.context
        self._reader = services.reader
        self._recorder = services.recorder
        self._runner = services.runner
        self._zk = zk
        self._channels = channels
        self._reassignments = reassignments

    async def on_change(self) -> None:
        started = self._clock.monotonic()
        context, run = self._context, self._runner.run
        registered = await self._reader.brokers(context.brokers)
        change = brokers.compare(context.brokers, registered)
        if not change:
            return
        for broker in (*change.bounced, *change.dead):
            self._channels.close_one(broker)
        for broker in (*change.new, *change.bounced):
            self._channels.open(registered[broker])
        if change.new:
            cause = f"broker start {list(change.new)}"
            self._admit(change.new, registered)
            await run(brokers.on_broker_startup(context, change.new), cause)
            await self._reassignments.on_broker_startup(change.new, cause)
        if change.bounced:
            cause = f"broker bounce {list(change.bounced)}"
            self._dismiss(change.bounced)
            await run(brokers.on_broker_failure(context, change.bounced), cause)
            self._admit(change.bounced, registered)
            await run(brokers.on_broker_startup(context, change.bounced), cause)
            await self._reassignments.on_broker_startup(change.bounced, cause)
        if change.dead:
            cause = f"broker failure {list(change.dead)}"
            self._dismiss(change.dead)
            await run(brokers.on_broker_failure(context, change.dead), cause)
        self._recorder.decision("broker-change", str(change), started=started, counts=self._context.sizes())

    def _admit(self, ids: tuple[BrokerId, ...], registered: dict[BrokerId, LiveBroker]) -> None:
        for broker in ids:
            self._context.brokers[broker] = registered[broker]
            self._context.offline_dirs.pop(broker, None)
        self._context.release_deletions(ids)

    def _dismiss(self, ids: tuple[BrokerId, ...]) -> None:
        for broker in ids:
            self._end_suspicion(broker, "its registration ended")
            del self._context.brokers[broker]
            self._context.shutting_down.discard(broker)
            self._context.offline_dirs.pop(broker, None)
            self._context.heard(broker, list(self._context.unheard))

    async def on_modifications(self, broker: BrokerId) -> None:
        context = self._context
        registered = (await self._reader.brokers(context.brokers)).get(broker)
        known = context.brokers.get(broker)
        if registered is None or registered == known:
            return
        if known is None or registered.epoch != known.epoch:
            await self.on_change()  # its registration could not be read before, and was repaired
            return
        context.brokers[broker] = registered
        await self._runner.run(only(SendMetadata()), f"endpoints of broker {broker} changed")

    async def on_refused(self, event: BrokerRefused) -> None:
        """Is the broker suspect? Reading its registration also shows whether ZooKeeper still answers us."""
        started = self._clock.monotonic()
        broker, context = event.broker, self._context
        if broker in context.suspects:
            return
        (node,) = await self._reader.nodes([broker_id.path(broker)])
        seen = suspicion.Observation(
            evidence=self._channels.evidence(broker),
            now=self._clock.monotonic(),
            epoch=event.epoch,
            registered_epoch=None if node is None else BrokerEpoch(node.stat.czxid),
            zookeeper_silence=self._zk.silence(),
            refusing=len(self._channels.refusing() | context.suspects | {broker}),
            brokers=len(context.brokers),
        )
        objection = suspicion.objection(seen)
        known = context.brokers.get(broker)
        if objection or known is None or known.epoch != event.epoch:
            self._recorder.not_suspected(broker, objection or "it has restarted since")
            return
        cause = f"broker {broker} suspected"
        context.suspects.add(broker)
        self._recorder.decision("broker-suspected", cause, started=started, detail=str(seen))
        try:
            await self._runner.run(brokers.on_broker_suspected(context, broker), cause)
        except ConnectionLoss:
            context.suspects.discard(broker)  # the event is handled again from its beginning
            raise
        self._recorder.decision("suspect-relieved", cause, started=started, counts=self._context.sizes())

    async def on_connected(self, event: BrokerConnected) -> None:
        """The broker is alive, and may have missed anything: treat it as if it had just started."""
        known = self._context.brokers.get(event.broker)
        if event.broker not in self._context.suspects or known is None or known.epoch != event.epoch:
            return
        started = self._clock.monotonic()
        cause = f"broker {event.broker} is back from suspicion"
        self._end_suspicion(event.broker, "it answers again under the same broker epoch")
        try:
            await self._runner.run(brokers.on_broker_startup(self._context, (event.broker,)), cause)
        except ConnectionLoss:
            self._context.suspects.add(event.broker)
            raise
        await self._reassignments.on_broker_startup((event.broker,), cause)
        self._recorder.decision("broker-change", cause, started=started, counts=self._context.sizes())

    def _end_suspicion(self, broker: BrokerId, why: str) -> None:
        if broker in self._context.suspects:
            self._context.suspects.discard(broker)
            self._recorder.decision("suspicion-ended", f"broker {broker}", detail=why)

    async def on_controlled_shutdown(self, event: ControlledShutdown) -> None:
        started = self._clock.monotonic()
        refused = controlled_shutdown.refusal(self._context, event.broker, event.broker_epoch)
        if refused is not None:
            event.fail(refused)
            return
        self._context.shutting_down.add(event.broker)
        cause = f"controlled shutdown of broker {event.broker}"
        await self._runner.run(controlled_shutdown.on_controlled_shutdown(self._context, event.broker), cause)
        remaining = controlled_shutdown.still_led(self._context, event.broker)
        self._recorder.decision("controlled-shutdown", cause, started=started, counts={"remaining": len(remaining)})
        event.answer(remaining)
