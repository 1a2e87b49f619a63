"""The invariants that must hold after every event, as pure functions from facts to a problem, or None.

- S4: at most one replica ever acts as leader in one leader epoch.
- S5: controller epochs, broker epochs, leader epochs and versions only rise.
- S6: a partition state is sound, and a leader comes from the ISR unless an unclean election was allowed.
- S7: only the elected controller writes what belongs to the controller.
- S8: brokers obey only current requests, and delete no replica that is needed.
- S15: a resigned controller sends nothing and keeps nothing.
- lease: no controller sends anything while ZooKeeper is silent.
- E1: every broker knows the decisions of its controller.
- order: brokers are sent nothing that was not in ZooKeeper first.

A topic that is created again starts with leader epoch 0, as in Kafka, so epochs are compared within one life of a topic
(the czxid of its znode), not across lives.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from klamm.model.ids import (
    EPOCH_DURING_DELETE,
    INITIAL_CONTROLLER_EPOCH,
    NO_EPOCH,
    NO_LEADER,
    UNKNOWN_BROKER_EPOCH,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    TopicPartition,
)
from klamm.model.partition import Assignment, LeaderAndIsr

SESSION_TIMEOUT_MS: Final = 6_000
LEASE_SECONDS: Final = SESSION_TIMEOUT_MS / 1000 * 2 / 3
Problem = str | None
"""What is wrong, in words. None means that the invariant holds."""


class Leadership(NamedTuple):
    """One leader epoch of one partition in one life of its topic."""

    topic_life: int
    name: TopicPartition
    leader_epoch: LeaderEpoch


class RequestEpochs(NamedTuple):
    """The epochs in a request, or those that its receiver knows."""

    broker_epoch: BrokerEpoch
    controller_epoch: ControllerEpoch


def one_leader(acting: Mapping[Leadership, BrokerId], leadership: Leadership, broker: BrokerId) -> Problem:
    """S4: at most one replica ever acts as leader in one leader epoch."""
    first = acting.get(leadership, broker)
    if first == broker:
        return None
    return f"brokers {first} and {broker} both lead {leadership.name} in leader epoch {leadership.leader_epoch}"


def controller_epoch_rises(before: ControllerEpoch, after: ControllerEpoch) -> Problem:
    """S5 for /controller_epoch."""
    return None if after > before else f"/controller_epoch went from {before} to {after}"


def broker_epoch_rises(broker: BrokerId, before: BrokerEpoch, after: BrokerEpoch) -> Problem:
    """S5 for the czxid of a registration."""
    return None if after > before else f"the epoch of broker {broker} went from {before} to {after}"


def leader_epoch_rises(name: TopicPartition, before: LeaderAndIsr, after: LeaderAndIsr) -> Problem:
    """S5 for a state: a new leader or controller needs a new epoch; the leader itself writes only the ISR."""
    if after.leader_epoch < before.leader_epoch or after.controller_epoch < before.controller_epoch:
        return f"{name} went back from {before} to {after}"
    if after.leader_epoch == before.leader_epoch and after.leader != before.leader:
        return f"{name} changed its leader from {before.leader} to {after.leader} in one leader epoch: {after}"
    return None


def zk_version_rises(name: TopicPartition, before: int, after: int) -> Problem:
    """S5 for the version of a state's znode."""
    return None if after > before else f"the version of {name} went from {before} to {after}"


def state_is_sound(name: TopicPartition, state: LeaderAndIsr, assigned: Assignment | None) -> Problem:
    """S6: the leader is in the ISR or there is none; the ISR is not empty and has only assigned replicas."""
    if state.leader != NO_LEADER and state.leader not in state.isr:
        return f"leader {state.leader} of {name} is not in its ISR {list(state.isr)}"
    if not state.isr:
        return f"the ISR of {name} is empty"
    if assigned is not None and not set(state.isr) <= set(assigned.replicas):
        return f"ISR {list(state.isr)} of {name} is not within its replicas {list(assigned.replicas)}"
    return None


def leader_comes_from_isr(
    name: TopicPartition, before: LeaderAndIsr, after: LeaderAndIsr, *, unclean_allowed: bool
) -> Problem:
    """S6 for what a controller writes: it never adds a replica to an ISR, except the leader of an unclean election that
    was allowed."""
    if set(after.isr) <= set(before.isr):
        return None
    if unclean_allowed and after.isr == (after.leader,):
        return None
    return f"{name} went from ISR {list(before.isr)} to {list(after.isr)} with leader {after.leader}"


CONTROLLERS_OWN: Final = ("/brokers/topics/", "/admin/", "/isr_change_notification/", "/log_dir_event_notification/")
"""Any session may create znodes below these paths, but only the controller changes and deletes them, except for the ISR
writes of leaders."""


def only_the_elected_writes(kind: str, path: str, session: int, elected: int) -> Problem:
    """S7 for a session: no write of a controller takes effect after another one is elected."""
    if session == elected or not path.startswith(CONTROLLERS_OWN):
        return None
    if kind == "create" and not path.startswith("/brokers/topics/"):
        return None
    return f"{kind} of {path} by session 0x{session:x}, but 0x{elected:x} is elected"


def state_of_the_elected(name: TopicPartition, state: LeaderAndIsr, current: ControllerEpoch) -> Problem:
    """S7 for a new leader epoch: the same session may be elected again, with a new controller epoch."""
    if state.controller_epoch == current:
        return None
    return f"{name} was written under controller epoch {state.controller_epoch}, {current} is elected: {state}"


def request_is_current(broker: BrokerId, request: RequestEpochs, known: RequestEpochs) -> Problem:
    """S8 for a control request that a broker obeyed."""
    if request.controller_epoch < known.controller_epoch:
        return f"broker {broker} obeyed controller epoch {request.controller_epoch} after {known.controller_epoch}"
    if request.broker_epoch != UNKNOWN_BROKER_EPOCH and request.broker_epoch < known.broker_epoch:
        return f"broker {broker} of epoch {known.broker_epoch} obeyed a request to epoch {request.broker_epoch}"
    return None


def order_is_newer(broker: BrokerId, name: TopicPartition, ordered: int, known: int | None) -> Problem:
    """S8 for a partition of LeaderAndIsr that a broker obeyed."""
    if known is None or ordered > known:
        return None
    return f"broker {broker} obeyed leader epoch {ordered} of {name}, it knew {known}"


def stop_is_current(broker: BrokerId, name: TopicPartition, ordered: int, known: int | None) -> Problem:
    """S8 for a partition of StopReplica that a broker obeyed."""
    if known is None or ordered in (NO_EPOCH, EPOCH_DURING_DELETE) or ordered >= known:
        return None
    return f"broker {broker} stopped {name} for leader epoch {ordered}, it knew {known}"


def deleted_is_not_needed(
    broker: BrokerId, name: TopicPartition, isr: Collection[BrokerId], *, topic_leaves: bool
) -> Problem:
    """S8 for deletions: a replica that is in the ISR in ZooKeeper is deleted only with its topic."""
    if topic_leaves or broker not in isr:
        return None
    return f"broker {broker} deleted its replica of {name}, which is in the ISR {list(isr)}"


def sent_state_was_written(
    broker: BrokerId,
    name: TopicPartition,
    told: tuple[LeaderAndIsr, int],
    written: Collection[tuple[LeaderAndIsr, int]],
) -> Problem:
    """ZooKeeper first, the wire last. As in Kafka, the sender puts its own controller epoch on a state, so `written`
    holds states without it."""
    if (without_controller_epoch(told[0]), told[1]) in written:
        return None
    return f"broker {broker} was sent {told[0]} at version {told[1]} of {name}, which was never in ZooKeeper"


def without_controller_epoch(state: LeaderAndIsr) -> LeaderAndIsr:
    """For comparisons, because a controller sends every state with its own epoch."""
    return state._replace(controller_epoch=INITIAL_CONTROLLER_EPOCH)


def sender_is_active(sender: str, request_epoch: ControllerEpoch, own_epoch: ControllerEpoch | None) -> Problem:
    """S15: only the acting controller sends control requests, with the epoch of its current term."""
    if own_epoch == request_epoch:
        return None
    role = "is not the controller" if own_epoch is None else f"acts with epoch {own_epoch}"
    return f"{sender} sent a request of controller epoch {request_epoch}, but {role}"


def sender_was_heard(sender: str, unheard: float) -> Problem:
    """lease: a controller that ZooKeeper has not heard for two thirds of the session timeout may have a successor."""
    if unheard <= LEASE_SECONDS:
        return None
    return f"{sender} sent a control request, but ZooKeeper has heard nothing from it for {unheard:.3f} s"


def knows_decisions(
    broker: BrokerId,
    decided: Mapping[TopicPartition, LeaderAndIsr],
    told: Mapping[TopicPartition, LeaderAndIsr],
    leads: Mapping[TopicPartition, LeaderEpoch],
    alive: Collection[BrokerId],
) -> Problem:
    """E1 during the run: while no event and no request is pending, every registered broker, even one that is shutting
    down, knows all leaders that the controller decided on, and has stopped leading what another broker leads
    (KAFKA-7482). As in Kafka, it keeps its role in a partition without a live leader, because there is none to follow.
    """
    for name, state in decided.items():
        known = told.get(name)
        if known is None or (known.leader, known.leader_epoch) != (state.leader, state.leader_epoch):
            return f"broker {broker} was not sent {state} of {name}, it knows {known}"
        if leads.get(name, state.leader_epoch) < state.leader_epoch and state.leader in alive:
            return f"broker {broker} still leads {name} in epoch {leads[name]}, it was not sent {state}"
    return None


def resigned_is_empty(broker: BrokerId, *, is_active: bool, gauges: Mapping[str, float]) -> Problem:
    """S15: a resigned controller keeps nothing."""
    kept = {name: value for name, value in sorted(gauges.items()) if value}
    return None if is_active or not kept else f"broker {broker} is not the controller but still counts {kept}"
