"""Controlled shutdown: a broker that says goodbye hands over what it leads before it goes.

Partitions with one replica are nobody's concern: they go offline with their broker and are not reported.
"""

from __future__ import annotations

from klamm.controller.context.controller_context import ControllerContext
from klamm.controller.context.states import PartitionState
from klamm.controller.decisions.leadership import controlled_shutdown_rule, replicas_offline
from klamm.controller.decisions.steps import ChangeStates, Decision, Move
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import UNKNOWN_BROKER_EPOCH, BrokerEpoch, BrokerId, ControllerEpoch, TopicPartition


def refusal(view: ControllerContext, broker: BrokerId, broker_epoch: BrokerEpoch) -> KafkaError | None:
    registered = view.brokers.get(broker)
    if registered is None:
        return KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker} is not registered")
    if broker_epoch != UNKNOWN_BROKER_EPOCH and broker_epoch < registered.epoch:
        return KafkaError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"broker {broker} asked with epoch {broker_epoch}, it is registered with {registered.epoch}",
        )
    return None


def on_controlled_shutdown(
    view: ControllerContext, controller_epoch: ControllerEpoch, broker: BrokerId, cause: str
) -> Decision:
    """The broker is among the shutting-down already."""
    led, followed = view.shared_by(broker)
    rule = controlled_shutdown_rule(view, controller_epoch)
    if led:
        yield ChangeStates(cause=cause, partitions=led, rule=rule, partition_to=PartitionState.ONLINE)
    # All fetchers stop at once, before any ISR shrinks; the same StopReplica follows with each shrink.
    if followed:
        yield Move(cause=cause, stop_replica={broker: followed})
    yield from replicas_offline(view, controller_epoch, {broker: followed}, cause)


def still_led(view: ControllerContext, broker: BrokerId) -> frozenset[TopicPartition]:
    led, _ = view.shared_by(broker)
    return frozenset(view.name_of(i) for i in led)
