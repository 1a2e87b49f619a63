"""Decisions about leaders that every kind of event shares: election rounds, replicas that come and go.

Rules are those of Kafka's PartitionStateMachine and ReplicaStateMachine: each success raises the leader epoch by
exactly one and writes with the version that was read; a state written under a newer controller epoch is nobody's
business here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.controller.context.states import PartitionState, ReplicaState
from klamm.controller.decisions.election_algorithms import (
    Elected,
    NoLeader,
    UncleanElection,
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
    Keep,
    Move,
    ObserveTopicConfigs,
    Refuse,
    Rule,
    Write,
    chunked,
)
from klamm.model.ids import NO_LEADER, BrokerId, ControllerEpoch, LeaderEpoch
from klamm.model.partition import LeaderAndIsr


def elect_leaderless(view: ControllerContext, controller_epoch: ControllerEpoch, cause: str) -> Decision:
    """The trigger of Kafka: every New or Offline partition, whatever made it so, gets another try."""
    new, offline = view.split_by_state(view.leaderless(), PartitionState.NEW)
    for chunk in chunked(new):
        yield CreateStates(cause=cause, partitions=chunk)
    if new:  # of which some may turn out to have a state already: they are Offline now
        _, offline = view.split_by_state(view.leaderless(), PartitionState.NEW)
    yield from _observe_unclean(view, offline, cause)
    rule = offline_rule(view, controller_epoch)
    if offline:
        yield ChangeStates(cause=cause, partitions=offline, rule=rule, partition_to=PartitionState.ONLINE)


def _observe_unclean(view: ControllerContext, offline: Sequence[PartitionIndex], cause: str) -> Decision:
    live, topics, states = view.live, view.columns.topic, view.columns.state
    hopeless = {topics[i] for i in offline if (state := states[i]) is not None and live.isdisjoint(state.isr)}
    if hopeless:
        yield ObserveTopicConfigs(cause=cause, topics=sorted(hopeless))


def replicas_online(
    view: ControllerContext, replicas: Mapping[BrokerId, Sequence[PartitionIndex]], cause: str
) -> Decision:
    """A broker that just started must get its partitions in one LeaderAndIsr, because with the first one it begins to
    checkpoint high watermarks, of exactly the partitions it has heard of: so all steps make one batch."""
    brokers = sorted(replicas)
    for broker in brokers:
        yield Move(
            cause=cause,
            replicas={broker: replicas[broker]},
            replica_to=ReplicaState.ONLINE,
            leader_and_isr={broker: view.told_when_online(broker, replicas[broker])},
            send=broker == brokers[-1],
        )


def replicas_offline(
    view: ControllerContext,
    controller_epoch: ControllerEpoch,
    replicas: Mapping[BrokerId, Sequence[PartitionIndex]],
    cause: str,
) -> Decision:
    """Out of the ISR, one epoch for each: a partition that lost two replicas is written twice, as Kafka would."""
    brokers = sorted(broker for broker, partitions in replicas.items() if partitions)
    for broker in brokers:
        rule = removal_rule(view, controller_epoch, broker)
        # With several brokers the batch waits for the last: each partition is told its final state, once.
        yield ChangeStates(
            cause=cause, partitions=replicas[broker], rule=rule, offline_on=broker, send=broker == brokers[-1]
        )


def offline_rule(view: ControllerContext, controller_epoch: ControllerEpoch, *, by_request: bool = False) -> Rule:
    """`by_request`: somebody asked for this unclean election by name, whatever the topic says."""
    live = view.live

    def rule(partition: PartitionIndex, state: LeaderAndIsr) -> Change:
        assigned = view.assignment_of(partition).replicas
        online = view.live_for(partition, live)
        result = elect_offline(assigned, state.isr, online, UncleanElection.FORBIDDEN)
        suspects = [broker for broker in state.isr if broker in view.suspects]
        if isinstance(result, NoLeader) and suspects:
            return Refuse(f"{result.reason}; brokers {suspects} of it are suspect, and no reason to lose records")
        if isinstance(result, NoLeader) and not any(broker in online for broker in state.isr):
            # Only now does the topic's configuration matter. Not looked at means no: the next trigger looks.
            unclean = UncleanElection(by_request or view.unclean_allowed.get(view.topic_of(partition), False))
            result = elect_offline(assigned, state.isr, online, unclean)
        # One that is shutting down and led until now hears it too, else it would lead on until it is gone (KAFKA-7482).
        last = state.leader if state.leader in view.shutting_down else None
        return _led_by(result, state, controller_epoch, tuple(b for b in assigned if b in online or b == last))

    apart = {i for topic, allowed in view.unclean_allowed.items() if allowed for i in view.partitions_of(topic)}
    return SharedRule(view, _unless_newer(controller_epoch, rule), view.peculiar() | apart)


def controlled_shutdown_rule(view: ControllerContext, controller_epoch: ControllerEpoch) -> Rule:
    registered = frozenset(view.brokers.keys() - view.suspects)
    shutting_down = frozenset(view.shutting_down)

    def rule(partition: PartitionIndex, state: LeaderAndIsr) -> Change:
        assigned = view.assignment_of(partition).replicas
        online = view.live_for(partition, registered)
        result = elect_for_controlled_shutdown(assigned, state.isr, online, shutting_down)
        return _led_by(result, state, controller_epoch, tuple(b for b in assigned if b in online))

    return SharedRule(view, _unless_newer(controller_epoch, rule), view.peculiar())


def preferred_rule(view: ControllerContext, controller_epoch: ControllerEpoch) -> Rule:
    live = view.live

    def rule(partition: PartitionIndex, state: LeaderAndIsr) -> Change:
        assigned = view.assignment_of(partition).replicas
        result = elect_preferred(assigned, state.isr, view.live_for(partition, live))
        return _led_by(result, state, controller_epoch, assigned)

    return SharedRule(view, _unless_newer(controller_epoch, rule), view.peculiar())


def epoch_rule(view: ControllerContext, controller_epoch: ControllerEpoch) -> Rule:
    """The next epoch and nothing else, so that brokers listen to an assignment that changed."""

    def rule(partition: PartitionIndex, state: LeaderAndIsr) -> Change:
        assigned = view.assignment_of(partition).replicas
        return Write(_next(state, controller_epoch, assigned), assigned)

    return _unless_newer(controller_epoch, rule)


def reassigned_rule(
    view: ControllerContext, controller_epoch: ControllerEpoch, replicas: Mapping[PartitionIndex, Sequence[BrokerId]]
) -> Rule:
    """The assignment is the target by now: a leader that is in it and lives stays, else one of it is elected.
    `replicas`: the full lists, with those that leave the ISR next."""
    live = view.live

    def rule(partition: PartitionIndex, state: LeaderAndIsr) -> Change:
        target = view.assignment_of(partition).replicas
        online = view.live_for(partition, live)
        if state.leader in target and state.leader in online:
            return Write(_next(state, controller_epoch, replicas[partition]), target)
        return _led_by(elect_for_reassignment(target, state.isr, online), state, controller_epoch, target)

    return _unless_newer(controller_epoch, rule)


def unless_last_in_sync(rule: Rule, staying: Mapping[PartitionIndex, Sequence[BrokerId]]) -> Rule:
    """A replica is given up only while one that stays is in the ISR: else acknowledged records would go with it."""

    def guarded(partition: PartitionIndex, state: LeaderAndIsr) -> Change:
        if not any(broker in state.isr for broker in staying[partition]):
            return Refuse(f"none of {list(staying[partition])} is in ISR {list(state.isr)}")
        return rule(partition, state)

    return guarded


def removal_rule(view: ControllerContext, controller_epoch: ControllerEpoch, broker: BrokerId) -> Rule:
    """Take `broker` out of the ISR; the last member stays, else nobody could ever lead cleanly again."""

    def rule(partition: PartitionIndex, state: LeaderAndIsr) -> Change:
        if broker not in state.isr:
            return Keep(state._replace(controller_epoch=controller_epoch))  # seen by us: what brokers hear from now on
        leader = NO_LEADER if state.leader == broker else state.leader
        isr = state.isr if len(state.isr) == 1 else tuple(b for b in state.isr if b != broker)
        recipients: tuple[BrokerId, ...] = ()
        if not view.is_leaving(partition):
            recipients = tuple(b for b in view.assignment_of(partition).replicas if b != broker)
        return Write(LeaderAndIsr(leader, LeaderEpoch(state.leader_epoch + 1), isr, controller_epoch), recipients)

    return SharedRule(view, _unless_newer(controller_epoch, rule), view.peculiar())


def suspicion_rule(view: ControllerContext, controller_epoch: ControllerEpoch, suspect: BrokerId) -> Rule:
    """What `suspect` leads goes to another live member of the ISR, and where it only follows it leaves the ISR, else
    acks=all would wait for it. What it alone holds stays with it: it may live, and if not, its session will end.
    """
    live = view.live

    def rule(partition: PartitionIndex, state: LeaderAndIsr) -> Change:
        assigned = view.assignment_of(partition).replicas
        online = view.live_for(partition, live)
        others = tuple(b for b in assigned if b != suspect)
        if state.leader == suspect:
            result = elect_offline(assigned, state.isr, online, UncleanElection.FORBIDDEN)
            return Keep(state) if isinstance(result, NoLeader) else _led_by(result, state, controller_epoch, others)
        if suspect not in state.isr or state.leader not in online:
            return Keep(state)
        isr = tuple(b for b in state.isr if b != suspect)
        shrunk = LeaderAndIsr(state.leader, LeaderEpoch(state.leader_epoch + 1), isr, controller_epoch)
        return Write(shrunk, others)

    return SharedRule(view, _unless_newer(controller_epoch, rule), view.peculiar())


def first_state(
    view: ControllerContext, partition: PartitionIndex, live: frozenset[BrokerId], controller_epoch: ControllerEpoch
) -> LeaderAndIsr | Refuse:
    """Of a New partition: the first live replica leads, all live ones are in sync, because all are empty."""
    assigned = view.assignment_of(partition).replicas
    isr = tuple(b for b in assigned if b in live)
    if not isr:
        return Refuse(f"no replica of AR {list(assigned)} is live")
    return LeaderAndIsr(isr[0], LeaderEpoch(0), isr, controller_epoch)


def _led_by(
    result: Elected | NoLeader, state: LeaderAndIsr, controller_epoch: ControllerEpoch, recipients: tuple[BrokerId, ...]
) -> Change:
    if isinstance(result, NoLeader):
        return Refuse(result.reason)
    elected = LeaderAndIsr(result.leader, LeaderEpoch(state.leader_epoch + 1), result.isr, controller_epoch)
    return Write(elected, recipients, result.unclean)


def _next(state: LeaderAndIsr, controller_epoch: ControllerEpoch, replicas: Sequence[BrokerId]) -> LeaderAndIsr:
    """Without those that are no replicas any more: a leader that has not heard of a cancellation may still have taken
    one into the ISR."""
    isr = tuple(b for b in state.isr if b in replicas) or state.isr
    return LeaderAndIsr(state.leader, LeaderEpoch(state.leader_epoch + 1), isr, controller_epoch)


def _unless_newer(controller_epoch: ControllerEpoch, rule: Rule) -> Rule:
    def guarded(partition: PartitionIndex, state: LeaderAndIsr) -> Change:
        if state.controller_epoch > controller_epoch:
            return Refuse(
                f"state was written under controller epoch {state.controller_epoch}, ours is {controller_epoch}"
            )
        return rule(partition, state)

    return guarded
