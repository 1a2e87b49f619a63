"""What a new controller does about brokers that lost the ends of their logs while no controller looked (ADR 0014).

A controller that notices the end of a broker takes it out of the ISR and elects another leader. If there is no
controller at that moment, the state in ZooKeeper still has the broker in the ISR, perhaps as leader, when it registers
again. After a stop that was not clean its logs may be shorter than they were. It says so in its registration.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.controller.decisions.leadership import next_state, unless_newer
from klamm.controller.decisions.steps import Change, ChangeStates, Decision, KeepState, Rule, Send, WriteState
from klamm.model.ids import BrokerEpoch, BrokerId
from klamm.model.partition import LeaderAndIsr


def recovered_brokers(view: ControllerContext) -> dict[BrokerId, BrokerEpoch]:
    """With the epoch of the first registration after the stop that was not clean."""
    return {
        broker: live.epoch if live.broker.recovered is True else BrokerEpoch(live.broker.recovered)
        for broker, live in view.brokers.items()
        if live.broker.recovered
    }


def in_sync_on(view: ControllerContext, brokers: Collection[BrokerId]) -> list[PartitionIndex]:
    """Partitions with one of these brokers in the ISR."""
    held = {partition for broker in brokers for partition in view.replicas.on(broker)}
    states = view.columns.state
    return sorted(i for i in held if (state := states[i]) is not None and not set(brokers).isdisjoint(state.isr))


def demote(view: ControllerContext, recovered: Mapping[PartitionIndex, Collection[BrokerId]]) -> Decision:
    """`recovered`: for each partition the brokers that registered after its state was written. What follows is sent
    with the first orders."""
    if recovered:
        yield ChangeStates(sorted(recovered), recovered_rule(view, recovered), send=Send.WITH_NEXT)


def recovered_rule(view: ControllerContext, recovered: Mapping[PartitionIndex, Collection[BrokerId]]) -> Rule:
    """They leave the ISR, and come back when they have fetched what they lost. If no other member of it is alive, the
    leader goes on, in a new epoch: its followers must find where their logs depart from what is left of its own."""
    live = view.live

    def rule(partition: PartitionIndex, state: LeaderAndIsr) -> Change:
        assigned = view.assignment_of(partition).replicas
        online = view.live_for(partition, live)
        lost = [broker for broker in state.isr if broker in recovered[partition]]
        whole = [broker for broker in assigned if broker in state.isr and broker in online and broker not in lost]
        recipients = tuple(broker for broker in assigned if broker in online)
        if lost and whole:
            leader = state.leader if state.leader in whole else whole[0]
            isr = tuple(broker for broker in state.isr if broker not in lost)
            return WriteState(next_state(view, state, leader, isr), recipients)
        if state.leader in lost:
            return WriteState(next_state(view, state, state.leader, state.isr), recipients)
        return KeepState(state._replace(controller_epoch=view.controller_epoch))

    return unless_newer(view, rule)
