"""What must hold after every event, each a pure function: facts in, what is wrong with them out, None if nothing is.

Numbers are those of the reliability reference. S4 to S7 judge what ZooKeeper took, S8 what a broker obeyed, S15 what a
controller without office did, E1 what brokers have heard. Design section 6 adds three: a leader comes out of the ISR
unless an unclean election was allowed; no replica that is needed is deleted; brokers hear nothing that ZooKeeper does
not hold.

A topic that is created again begins at leader epoch 0, as Kafka's do, so epochs are compared within one life of a topic
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

Problem = str | None
"""What is wrong, in words; None: it holds."""


class Leadership(NamedTuple):
    """One leader epoch of one partition in one life of its topic."""

    topic_life: int
    name: TopicPartition
    leader_epoch: LeaderEpoch


class RequestEpochs(NamedTuple):
    """The epochs of a request, or those that its receiver knows."""

    broker_epoch: BrokerEpoch
    controller_epoch: ControllerEpoch


def one_leader(acting: Mapping[Leadership, BrokerId], leadership: Leadership, broker: BrokerId) -> Problem:
    """S4: at most one replica ever acts as leader in one leader epoch."""
    first = acting.get(leadership, broker)
    if first == broker:
        return None
    return f"brokers {first} and {broker} both lead {leadership.name} in leader epoch {leadership.leader_epoch}"


def controller_epoch_rises(before: ControllerEpoch, after: ControllerEpoch) -> Problem:
    """S5, of /controller_epoch."""
    return None if after > before else f"/controller_epoch went from {before} to {after}"


def broker_epoch_rises(broker: BrokerId, before: BrokerEpoch, after: BrokerEpoch) -> Problem:
    """S5, of a registration's czxid."""
    return None if after > before else f"the epoch of broker {broker} went from {before} to {after}"


def leader_epoch_rises(name: TopicPartition, before: LeaderAndIsr, after: LeaderAndIsr) -> Problem:
    """S5, of a state: another leader or controller needs another epoch; the leader itself writes only the ISR."""
    if after.leader_epoch < before.leader_epoch or after.controller_epoch < before.controller_epoch:
        return f"{name} went back from {before} to {after}"
    if after.leader_epoch == before.leader_epoch and after.leader != before.leader:
        return f"{name} changed its leader from {before.leader} to {after.leader} in one leader epoch: {after}"
    return None


def zk_version_rises(name: TopicPartition, before: int, after: int) -> Problem:
    """S5, of a state's znode."""
    return None if after > before else f"the version of {name} went from {before} to {after}"


def state_is_sound(name: TopicPartition, state: LeaderAndIsr, assigned: Assignment | None) -> Problem:
    """S6: a leader in the ISR or none, an ISR of assigned replicas that is not empty."""
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
    """Design 6.2, of what a controller writes: it never puts anybody into an ISR, except the leader of an unclean
    election that somebody allowed."""
    if set(after.isr) <= set(before.isr):
        return None
    if unclean_allowed and after.isr == (after.leader,):
        return None
    return f"{name} went from ISR {list(before.isr)} to {list(after.isr)} with leader {after.leader}"


CONTROLLERS_OWN: Final = ("/brokers/topics/", "/admin/", "/isr_change_notification/", "/log_dir_event_notification/")
"""What lies below is created by anybody, changed and deleted by the controller alone, leaders' ISR writes aside."""


def only_the_elected_writes(kind: str, path: str, session: int, elected: int) -> Problem:
    """S7, of a broker's session: nothing of a controller takes effect once another one is elected."""
    if session == elected or not path.startswith(CONTROLLERS_OWN):
        return None
    if kind == "create" and not path.startswith("/brokers/topics/"):
        return None
    return f"{kind} of {path} by session 0x{session:x}, but 0x{elected:x} is elected"


def state_of_the_elected(name: TopicPartition, state: LeaderAndIsr, current: ControllerEpoch) -> Problem:
    """S7, of a leader epoch that a controller began: the same session may hold the office again, under a new epoch."""
    if state.controller_epoch == current:
        return None
    return f"{name} was written under controller epoch {state.controller_epoch}, {current} is elected: {state}"


def request_is_current(broker: BrokerId, request: RequestEpochs, known: RequestEpochs) -> Problem:
    """S8, of a control request that was obeyed."""
    if request.controller_epoch < known.controller_epoch:
        return f"broker {broker} obeyed controller epoch {request.controller_epoch} after {known.controller_epoch}"
    if request.broker_epoch != UNKNOWN_BROKER_EPOCH and request.broker_epoch < known.broker_epoch:
        return f"broker {broker} of epoch {known.broker_epoch} obeyed a request to epoch {request.broker_epoch}"
    return None


def order_is_newer(broker: BrokerId, name: TopicPartition, ordered: int, known: int | None) -> Problem:
    """S8, of one partition of LeaderAndIsr that was obeyed."""
    if known is None or ordered > known:
        return None
    return f"broker {broker} obeyed leader epoch {ordered} of {name}, it knew {known}"


def stop_is_current(broker: BrokerId, name: TopicPartition, ordered: int, known: int | None) -> Problem:
    """S8, of one partition of StopReplica that was obeyed."""
    if known is None or ordered in (NO_EPOCH, EPOCH_DURING_DELETE) or ordered >= known:
        return None
    return f"broker {broker} stopped {name} for leader epoch {ordered}, it knew {known}"


def deleted_is_not_needed(
    broker: BrokerId, name: TopicPartition, isr: Collection[BrokerId], *, topic_leaves: bool
) -> Problem:
    """Design 6.1 and 6.3: a replica that ZooKeeper counts as in sync is deleted only with its topic."""
    if topic_leaves or broker not in isr:
        return None
    return f"broker {broker} deleted its replica of {name}, which is in the ISR {list(isr)}"


def told_is_written(
    broker: BrokerId,
    name: TopicPartition,
    told: tuple[LeaderAndIsr, int],
    written: Collection[tuple[LeaderAndIsr, int]],
) -> Problem:
    """Order is safety: ZooKeeper first, the wire last. Under whose epoch a state is told is the sender's, as in Kafka:
    `written` holds states as `without_controller_epoch` gives them."""
    if (without_controller_epoch(told[0]), told[1]) in written:
        return None
    return f"broker {broker} was told {told[0]} at version {told[1]} of {name}, which ZooKeeper never held"


def without_controller_epoch(state: LeaderAndIsr) -> LeaderAndIsr:
    """Without the controller epoch: a controller puts its own on what it finds."""
    return state._replace(controller_epoch=INITIAL_CONTROLLER_EPOCH)


def sender_is_active(sender: str, request_epoch: ControllerEpoch, own_epoch: ControllerEpoch | None) -> Problem:
    """S15: what leaves a host as a control request is the acting controller's, of this very term."""
    if own_epoch == request_epoch:
        return None
    office = "holds no office" if own_epoch is None else f"acts under epoch {own_epoch}"
    return f"{sender} sent a request of controller epoch {request_epoch}, but {office}"


def has_heard(
    broker: BrokerId,
    decided: Mapping[TopicPartition, LeaderAndIsr],
    told: Mapping[TopicPartition, LeaderAndIsr],
    leads: Mapping[TopicPartition, LeaderEpoch],
) -> Problem:
    """E1, and not only in the end: while no event and no request waits, every broker that is registered, shutting down
    or not, knows all leaders of its controller, and leads nothing any more that another one leads (KAFKA-7482). Where
    nobody leads it stays what it was, having nobody to follow, as in Kafka."""
    for name, state in decided.items():
        known = told.get(name)
        if known is None or (known.leader, known.leader_epoch) != (state.leader, state.leader_epoch):
            return f"broker {broker} was never told {state} of {name}, it knows {known}"
        if leads.get(name, state.leader_epoch) < state.leader_epoch and state.leader != NO_LEADER:
            return f"broker {broker} still leads {name} in epoch {leads[name]}, it was never told {state}"
    return None


def resigned_is_empty(broker: BrokerId, *, is_active: bool, gauges: Mapping[str, float]) -> Problem:
    """S15: a controller without office knows nothing."""
    kept = {name: value for name, value in sorted(gauges.items()) if value}
    return None if is_active or not kept else f"broker {broker} holds no office and still counts {kept}"
