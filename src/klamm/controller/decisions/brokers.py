"""Membership: brokers that came, died, or bounced (the same id with a larger epoch), and endpoints that changed.

Order within one change, as Kafka's: the new ones, the bounced ones (failure, then start), the dead ones. Reads happen
before; what was read comes in as `registered`. A suspect (`suspicion`) is half a dead one: it loses what others of the
ISR can take over, at once; the rest of the failure procedure follows when its session ends, and finds that done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.controller.context.states import PartitionState, ReplicaState
from klamm.controller.decisions.deletion import fail_deletion, resume_deletions
from klamm.controller.decisions.leadership import elect_leaderless, replicas_offline, replicas_online, suspicion_rule
from klamm.controller.decisions.steps import ChangeStates, Decision, Move
from klamm.model.brokers import LiveBroker
from klamm.model.ids import BrokerId, ControllerEpoch


class Membership(NamedTuple):
    """What changed between the context and the registrations just read."""

    new: tuple[BrokerId, ...]
    bounced: tuple[BrokerId, ...]
    dead: tuple[BrokerId, ...]

    def __bool__(self) -> bool:
        return bool(self.new or self.bounced or self.dead)

    def __str__(self) -> str:
        parts = (f"{name} {list(ids)}" for name, ids in zip(self._fields, self, strict=True) if ids)
        return ", ".join(parts) or "nothing changed"


def compare(known: Mapping[BrokerId, LiveBroker], registered: Mapping[BrokerId, LiveBroker]) -> Membership:
    return Membership(
        new=tuple(sorted(registered.keys() - known.keys())),
        bounced=tuple(sorted(b for b in registered.keys() & known.keys() if registered[b].epoch > known[b].epoch)),
        dead=tuple(sorted(known.keys() - registered.keys())),
    )


def on_broker_startup(
    view: ControllerContext,
    controller_epoch: ControllerEpoch,
    started: Sequence[BrokerId],
    cause: str,
) -> Decision:
    """The brokers are in the context already.

    1. Tell the others who is alive; 2. tell the new ones everything; 3. their replicas go online (LeaderAndIsr, which a
    follower refuses from a leader it does not know as alive: hence 1 and 2 first); 4. elect what had no leader;
    5. deletions that waited for one of them go on.
    """
    others = sorted(view.brokers.keys() - set(started))
    yield Move(cause=cause, metadata=(), metadata_to=others)
    # Topics being deleted too: one that was away, but not restarted, may have them in its cache, and hears to forget.
    yield Move(cause=cause, metadata=view.all_partitions(), metadata_to=started)
    yield from replicas_online(view, {broker: view.replicas.on(broker) for broker in started}, cause)
    yield from elect_leaderless(view, controller_epoch, cause)
    yield from resume_deletions(view, controller_epoch, cause, retry=True)


def on_broker_failure(
    view: ControllerContext,
    controller_epoch: ControllerEpoch,
    dead: Sequence[BrokerId],
    cause: str,
) -> Decision:
    """The brokers have left the context already."""
    yield from on_replicas_offline(view, controller_epoch, {broker: view.replicas.on(broker) for broker in dead}, cause)


def on_replicas_offline(
    view: ControllerContext,
    controller_epoch: ControllerEpoch,
    replicas: Mapping[BrokerId, Sequence[PartitionIndex]],
    cause: str,
) -> Decision:
    """1. Partitions that lost their leader go offline; 2. elect; 3. the replicas leave the ISRs; 4. deletions of these
    replicas fail; 5. everybody hears who is alive, even if no partition changed (KAFKA-13225)."""
    without_leader = [
        i
        for broker, partitions in sorted(replicas.items())
        for i in partitions
        if view.leader_of(i) == broker and not view.is_leaving(i)
    ]
    if without_leader:
        yield Move(cause=cause, partitions=[(without_leader, PartitionState.OFFLINE)])
    yield from elect_leaderless(view, controller_epoch, cause)
    yield from replicas_offline(view, controller_epoch, _outside(view, replicas), cause)
    yield from fail_deletion(view, controller_epoch, _inside(view, replicas), cause)
    yield Move(cause=cause, metadata=())


def on_broker_suspected(
    view: ControllerContext, controller_epoch: ControllerEpoch, suspect: BrokerId, cause: str
) -> Decision:
    """It is among the suspects already. 1. What it leads, then what it follows, goes on without it; 2. its replicas are
    offline. It hears nothing of this: should it live, the start-up sequence tells it all."""
    held = [i for i in view.replicas.on(suspect) if not view.is_leaving(i)]
    online = [i for i in held if view.partition_state_of(i) is PartitionState.ONLINE]
    led = [i for i in online if view.leader_of(i) == suspect]
    followed = [i for i in online if view.leader_of(i) != suspect]
    rule = suspicion_rule(view, controller_epoch, suspect)
    for partitions in (led, followed):
        if partitions:
            yield ChangeStates(cause=cause, partitions=partitions, rule=rule)
    offline, _ = view.replicas.may_move(suspect, held, ReplicaState.OFFLINE)
    yield Move(cause=cause, replicas={suspect: offline}, replica_to=ReplicaState.OFFLINE, metadata=())


def on_endpoints_changed(cause: str) -> Decision:
    yield Move(cause=cause, metadata=())


def _outside(
    view: ControllerContext, replicas: Mapping[BrokerId, Iterable[PartitionIndex]]
) -> dict[BrokerId, list[PartitionIndex]]:
    return {b: [i for i in ids if not view.is_leaving(i)] for b, ids in replicas.items()}


def _inside(
    view: ControllerContext, replicas: Mapping[BrokerId, Iterable[PartitionIndex]]
) -> dict[BrokerId, list[PartitionIndex]]:
    if not view.deleting:
        return {}
    return {b: [i for i in ids if view.is_leaving(i)] for b, ids in replicas.items()}
