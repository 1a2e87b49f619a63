"""Decisions about leaders that many kinds of event share: election rounds, replicas that go online or offline.

The rules are those of Kafka's PartitionStateMachine and ReplicaStateMachine: each success raises the leader epoch by
exactly one and is written with the version that was read. A state that was written under a newer controller epoch is
left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.controller.context.states import PartitionState, ReplicaState
from klamm.controller.decisions.election_algorithms import (
    Elected,
    NoLeader,
    elect_for_controlled_shutdown,
    elect_for_reassignment,
    elect_offline,
    elect_preferred,
)
from klamm.controller.decisions.shared_rule import SharedRule
from klamm.controller.decisions.steps import (
    Change,
    ChangeStates,
    CreateStates,
    Decision,
    FirstRule,
    IfUnclean,
    KeepState,
    MoveReplicas,
    Refuse,
    ReplicasByBroker,
    Rule,
    Send,
    SendLeaderAndIsr,
    TakeReplicasOffline,
    WriteState,
    chunked,
)
from klamm.model.elections import UncleanElection
from klamm.model.ids import NO_LEADER, BrokerId, LeaderEpoch
from klamm.model.partition import LeaderAndIsr

ALLOWED = UncleanElection.ALLOWED

# --- decisions ---


def elect_leaderless(view: ControllerContext) -> Decision:
    """Try every New or Offline partition again, whatever made it so; Kafka's triggers do the same."""
    new, offline = view.split_by_state(view.leaderless(), PartitionState.NEW)
    first = first_rule(view)
    for chunk in chunked(new):
        yield CreateStates(chunk, first)
    if new:  # some may turn out to have a state already: they are Offline now
        _, offline = view.split_by_state(view.leaderless(), PartitionState.NEW)
    if offline:
        yield ChangeStates(offline, offline_rule(view), to=PartitionState.ONLINE)


def replicas_online(view: ControllerContext, replicas: ReplicasByBroker) -> Decision:
    """All steps go out in one batch. A broker that has just started must receive its partitions in a single
    LeaderAndIsr: after the first one it begins to checkpoint high watermarks, of exactly the partitions that this
    request named."""
    brokers = sorted(replicas)
    for broker in brokers:
        known = view.known_to(broker, replicas[broker])
        yield MoveReplicas({broker: replicas[broker]}, ReplicaState.ONLINE)
        yield SendLeaderAndIsr({broker: known}, send=Send.NOW if broker == brokers[-1] else Send.WITH_NEXT)


def replicas_offline(view: ControllerContext, replicas: ReplicasByBroker) -> Decision:
    """Remove them from the ISR, each in its own leader epoch: a partition that lost two replicas is written twice, as
    in Kafka. The batch waits for the last broker, so that each partition is sent once, in its final state."""
    brokers = sorted(broker for broker, partitions in replicas.items() if partitions)
    for broker in brokers:
        send = Send.NOW if broker == brokers[-1] else Send.WITH_NEXT
        yield TakeReplicasOffline(broker, replicas[broker], removal_rule(view, broker), send=send)


# --- rules ---


def first_rule(view: ControllerContext) -> FirstRule:
    """The first live replica of a New partition leads. All live ones are in sync, because all are empty."""
    live = view.live

    def rule(partition: PartitionIndex) -> WriteState | Refuse:
        assigned = view.assignment_of(partition).replicas
        isr = tuple(b for b in assigned if b in live)
        if not isr:
            return Refuse(f"no replica of AR {list(assigned)} is live")
        return WriteState(LeaderAndIsr(isr[0], LeaderEpoch(0), isr, view.controller_epoch), isr)

    return rule


def offline_rule(view: ControllerContext, requested: UncleanElection = UncleanElection.FORBIDDEN) -> Rule:
    """`requested`: an operator asked for an unclean election by name. Otherwise, if no member of the ISR is alive, the
    topic's configuration decides."""
    live = view.live

    def rule(partition: PartitionIndex, state: LeaderAndIsr) -> Change:
        assigned = view.assignment_of(partition).replicas
        online = view.live_for(partition, live)
        result = elect_offline(assigned, state.isr, online, requested)
        suspects = [broker for broker in state.isr if broker in view.suspects]
        if suspects and (isinstance(result, NoLeader) or result.unclean):
            reason = f"no live replica in ISR {list(state.isr)}"
            return Refuse(f"{reason}; brokers {suspects} are only suspect, so an unclean election must wait")
        # If the former leader is shutting down, it is sent this too, or it would go on leading (KAFKA-7482).
        last = state.leader if state.leader in view.shutting_down else None
        recipients = tuple(b for b in assigned if b in online or b == last)
        change = _led_by(result, view, state, recipients)
        if isinstance(change, Refuse):
            uncleanly = _led_by(elect_offline(assigned, state.isr, online, ALLOWED), view, state, recipients)
            return IfUnclean(uncleanly, change) if isinstance(uncleanly, WriteState) else change
        return change

    return SharedRule(view, unless_newer(view, rule), view.peculiar())


def controlled_shutdown_rule(view: ControllerContext) -> Rule:
    registered = frozenset(view.brokers.keys() - view.suspects)
    shutting_down = frozenset(view.shutting_down)

    def rule(partition: PartitionIndex, state: LeaderAndIsr) -> Change:
        assigned = view.assignment_of(partition).replicas
        online = view.live_for(partition, registered)
        result = elect_for_controlled_shutdown(assigned, state.isr, online, shutting_down)
        return _led_by(result, view, state, tuple(b for b in assigned if b in online))

    return SharedRule(view, unless_newer(view, rule), view.peculiar())


def preferred_rule(view: ControllerContext) -> Rule:
    live = view.live

    def rule(partition: PartitionIndex, state: LeaderAndIsr) -> Change:
        assigned = view.assignment_of(partition).replicas
        result = elect_preferred(assigned, state.isr, view.live_for(partition, live))
        return _led_by(result, view, state, assigned)

    return SharedRule(view, unless_newer(view, rule), view.peculiar())


def epoch_rule(view: ControllerContext) -> Rule:
    """Raise the leader epoch and nothing else, so that brokers accept an assignment that changed."""

    def rule(partition: PartitionIndex, state: LeaderAndIsr) -> Change:
        assigned = view.assignment_of(partition).replicas
        return WriteState(next_state(view, state, state.leader, _isr_within(state, assigned)), assigned)

    return unless_newer(view, rule)


def fence_rule(
    view: ControllerContext,
    replicas: Mapping[PartitionIndex, Sequence[BrokerId]],
    staying: Mapping[PartitionIndex, Sequence[BrokerId]],
) -> Rule:
    """Raise the epoch of a leader that stays, before replicas of `replicas` that do not stay are deleted: it hears of
    them no more, and its writes under the old epoch fail. Any other leader loses its epoch with its own removal."""

    def rule(partition: PartitionIndex, state: LeaderAndIsr) -> Change:
        if state.leader not in staying[partition]:
            return KeepState(state._replace(controller_epoch=view.controller_epoch))
        isr = _isr_within(state, replicas[partition])
        return WriteState(next_state(view, state, state.leader, isr), tuple(staying[partition]))

    return unless_newer(view, rule)


def reassigned_rule(view: ControllerContext, replicas: Mapping[PartitionIndex, Sequence[BrokerId]]) -> Rule:
    """The assignment is already the target: a live leader that is in it stays, else one of its members is elected.
    `replicas` are the full lists, including replicas that are about to leave the ISR."""
    live = view.live

    def rule(partition: PartitionIndex, state: LeaderAndIsr) -> Change:
        target = view.assignment_of(partition).replicas
        online = view.live_for(partition, live)
        if state.leader in target and state.leader in online:
            return WriteState(next_state(view, state, state.leader, _isr_within(state, replicas[partition])), target)
        return _led_by(elect_for_reassignment(target, state.isr, online), view, state, target)

    return unless_newer(view, rule)


def unless_last_in_sync(rule: Rule, staying: Mapping[PartitionIndex, Sequence[BrokerId]]) -> Rule:
    """Drop a replica only while one that stays is in the ISR, else acknowledged records would be lost with it."""

    def guarded(partition: PartitionIndex, state: LeaderAndIsr) -> Change:
        if not any(broker in state.isr for broker in staying[partition]):
            return Refuse(f"none of {list(staying[partition])} is in ISR {list(state.isr)}")
        return rule(partition, state)

    return guarded


def removal_rule(view: ControllerContext, broker: BrokerId) -> Rule:
    """Remove `broker` from the ISR. The last member stays: without it no clean election would ever be possible."""

    def rule(partition: PartitionIndex, state: LeaderAndIsr) -> Change:
        if broker not in state.isr:
            # Brokers receive this state under our epoch from now on.
            return KeepState(state._replace(controller_epoch=view.controller_epoch))
        leader = NO_LEADER if state.leader == broker else state.leader
        isr = tuple(b for b in state.isr if b != broker) or state.isr
        recipients: tuple[BrokerId, ...] = ()
        if not view.is_leaving(partition):
            recipients = tuple(b for b in view.assignment_of(partition).replicas if b != broker)
        return WriteState(next_state(view, state, leader, isr), recipients)

    return SharedRule(view, unless_newer(view, rule), view.peculiar())


def suspicion_rule(view: ControllerContext, suspect: BrokerId) -> Rule:
    """Partitions that `suspect` leads go to another live member of the ISR. Where it only follows, it leaves the ISR,
    else acks=all would wait for it. A partition that no other member of the ISR can lead stays with the suspect: it may
    be alive, and if it is not, its session will end."""
    live = view.live

    def rule(partition: PartitionIndex, state: LeaderAndIsr) -> Change:
        assigned = view.assignment_of(partition).replicas
        online = view.live_for(partition, live)
        others = tuple(b for b in assigned if b != suspect)
        if state.leader == suspect:
            result = elect_offline(assigned, state.isr, online, UncleanElection.FORBIDDEN)
            return KeepState(state) if isinstance(result, NoLeader) else _led_by(result, view, state, others)
        if suspect not in state.isr or state.leader not in online:
            return KeepState(state)
        isr = tuple(b for b in state.isr if b != suspect)
        return WriteState(next_state(view, state, state.leader, isr), others)

    return SharedRule(view, unless_newer(view, rule), view.peculiar())


# --- parts of rules ---


def _led_by(
    result: Elected | NoLeader, view: ControllerContext, state: LeaderAndIsr, recipients: tuple[BrokerId, ...]
) -> WriteState | Refuse:
    if isinstance(result, NoLeader):
        return Refuse(result.reason)
    return WriteState(next_state(view, state, result.leader, result.isr), recipients, result.unclean)


def next_state(
    view: ControllerContext, state: LeaderAndIsr, leader: BrokerId, isr: tuple[BrokerId, ...]
) -> LeaderAndIsr:
    isr = tuple(dict.fromkeys(isr))  # a stranger may have written a broker twice: it counts once
    return LeaderAndIsr(leader, LeaderEpoch(state.leader_epoch + 1), isr, view.controller_epoch)


def _isr_within(state: LeaderAndIsr, replicas: Sequence[BrokerId]) -> tuple[BrokerId, ...]:
    """A leader that has not heard of a cancellation yet may have added a broker that is no longer a replica."""
    return tuple(b for b in state.isr if b in replicas) or state.isr


def unless_newer(view: ControllerContext, rule: Rule) -> Rule:
    def guarded(partition: PartitionIndex, state: LeaderAndIsr) -> Change:
        if state.controller_epoch > view.controller_epoch:
            return Refuse(
                f"state was written under controller epoch {state.controller_epoch}, ours is {view.controller_epoch}"
            )
        return rule(partition, state)

    return guarded
