"""Controlled shutdown: a broker that announces its shutdown hands its leaderships over before it stops.

Partitions with a single replica go offline with their broker, without being reported as remaining.
"""

from __future__ import annotations

from klamm.controller.context.controller_context import ControllerContext
from klamm.controller.context.states import PartitionState
from klamm.controller.decisions.leadership import controlled_shutdown_rule, replicas_offline
from klamm.controller.decisions.steps import ChangeStates, Decision, StopReplicas
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import UNKNOWN_BROKER_EPOCH, BrokerEpoch, BrokerId, TopicPartition


def refusal(view: ControllerContext, broker: BrokerId, broker_epoch: BrokerEpoch) -> KafkaError | None:
    registered = view.brokers.get(broker)
    if registered is None:
        return KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker} is not registered")
    if broker_epoch != UNKNOWN_BROKER_EPOCH and broker_epoch < registered.epoch:
        return KafkaError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"broker {broker} asked with epoch {broker_epoch}, but is registered with {registered.epoch}",
        )
    return None


def on_controlled_shutdown(view: ControllerContext, broker: BrokerId) -> Decision:
    """The context already counts the broker as shutting down."""
    led, followed = view.shared_by(broker)
    if led:
        yield ChangeStates(led, controlled_shutdown_rule(view), to=PartitionState.ONLINE)
    # All fetchers stop at once, before any ISR shrinks; the same StopReplica follows with each shrink.
    if followed:
        yield StopReplicas({broker: followed})
    yield from replicas_offline(view, {broker: followed})


def still_led(view: ControllerContext, broker: BrokerId) -> list[TopicPartition]:
    led, _ = view.shared_by(broker)
    return sorted(view.name_of(i) for i in led)
