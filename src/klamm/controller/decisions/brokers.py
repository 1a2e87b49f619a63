"""Membership: brokers that started, died or bounced (the same id with a larger epoch), and endpoints that changed.

Within one change the order is Kafka's: new brokers, bounced ones (failure, then start), dead ones. The registrations
are read before the decision. A suspect (see `suspicion`) is treated as half dead: it loses at once the leaderships that
other members of the ISR can take over; the rest of the failure procedure follows when its session ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.controller.context.states import PartitionState, ReplicaState
from klamm.controller.decisions.deletion import fail_deletion, resume_deletions
from klamm.controller.decisions.leadership import (
    elect_leaderless,
    offline_rule,
    replicas_offline,
    replicas_online,
    suspicion_rule,
)
from klamm.controller.decisions.steps import (
    ChangeStates,
    Decision,
    MovePartitions,
    MoveReplicas,
    ReplicasByBroker,
    Send,
    SendMetadata,
)
from klamm.model.brokers import LiveBroker
from klamm.model.ids import BrokerId


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


def on_broker_startup(view: ControllerContext, started: Sequence[BrokerId]) -> Decision:
    """The brokers are already in the context.

    1. The other brokers learn who is alive; 2. the started ones receive all metadata; 3. their replicas go online
    (after 1 and 2, because a follower refuses LeaderAndIsr from a leader that it does not know as alive); 4. partitions
    without a leader get an election; 5. deletions that waited for one of the brokers resume.

    Before 3, offline partitions whose state still names a started broker as leader get their election. They exist only
    if the topic was unreadable when the broker died. It must not lead on in its old epoch: it may have lost records.
    """
    others = sorted(view.brokers.keys() - set(started))
    yield SendMetadata(to=others)
    # Include topics being deleted: a broker that was unreachable without restarting may still have them in its cache.
    yield SendMetadata(view.all_partitions(), to=started)
    replicas = {broker: view.replicas.on(broker) for broker in started}
    led = [i for broker, ids in replicas.items() for i in ids if view.leader_of(i) == broker]
    stale = [i for i in led if view.partition_state_of(i) is PartitionState.OFFLINE and not view.is_leaving(i)]
    if stale:
        yield ChangeStates(stale, offline_rule(view), to=PartitionState.ONLINE, send=Send.WITH_NEXT)
    yield from replicas_online(view, replicas)
    yield from elect_leaderless(view)
    yield from resume_deletions(view, retry=True)


def on_broker_failure(view: ControllerContext, dead: Sequence[BrokerId]) -> Decision:
    """The brokers have already left the context."""
    yield from on_replicas_offline(view, {broker: view.replicas.on(broker) for broker in dead})


def on_replicas_offline(view: ControllerContext, replicas: ReplicasByBroker) -> Decision:
    """1. Partitions that lost their leader go offline; 2. elections; 3. the replicas leave the ISRs; 4. deletions of
    these replicas fail; 5. all brokers learn who is alive, even if no partition changed (KAFKA-13225)."""
    without_leader = [
        i
        for broker, partitions in sorted(replicas.items())
        for i in partitions
        if view.leader_of(i) == broker and not view.is_leaving(i)
    ]
    if without_leader:
        yield MovePartitions(without_leader, PartitionState.OFFLINE)
    yield from elect_leaderless(view)
    yield from replicas_offline(view, _staying(view, replicas))
    yield from fail_deletion(view, _leaving(view, replicas))
    yield SendMetadata()


def on_broker_suspected(view: ControllerContext, suspect: BrokerId) -> Decision:
    """The context already counts it as a suspect. 1. Partitions that it leads get another leader, then those that it
    follows drop it from the ISR; 2. its replicas go offline. It receives nothing about this: if it is alive, the
    start-up sequence sends it everything."""
    held = [i for i in view.replicas.on(suspect) if not view.is_leaving(i)]
    online = [i for i in held if view.partition_state_of(i) is PartitionState.ONLINE]
    led = [i for i in online if view.leader_of(i) == suspect]
    followed = [i for i in online if view.leader_of(i) != suspect]
    rule = suspicion_rule(view, suspect)
    for partitions in (led, followed):
        if partitions:
            yield ChangeStates(partitions, rule)
    offline, _ = view.replicas.may_move(suspect, held, ReplicaState.OFFLINE)
    yield MoveReplicas({suspect: offline}, ReplicaState.OFFLINE)
    yield SendMetadata()


def _staying(view: ControllerContext, replicas: ReplicasByBroker) -> dict[BrokerId, list[PartitionIndex]]:
    return {b: [i for i in ids if not view.is_leaving(i)] for b, ids in replicas.items()}


def _leaving(view: ControllerContext, replicas: ReplicasByBroker) -> dict[BrokerId, list[PartitionIndex]]:
    if not view.deleting:
        return {}
    return {b: [i for i in ids if view.is_leaving(i)] for b, ids in replicas.items()}
