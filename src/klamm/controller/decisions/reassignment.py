"""Reassignment (KIP-455) without a coroutine (design D15): the topic znode says where a partition is to go, its state
how far it has come, and every trigger asks the same function what is left.

RS is the full replica list, AR those being added, RR those being removed; TRS = RS - RR is the target. Phases:

U. *Accept.* Replicas of an overridden or cancelled target are given up; then the topic znode takes the new lists.
A. *Add.* The leader epoch grows, all of RS hear the new lists, AR hear that they are new. Then wait for the ISR.
B. *Complete*, once TRS is within the ISR: brokers hear TRS as the assignment, led by one of it; RR leave the ISR, are
   stopped and deleted; the topic znode forgets them last, because it is the only copy of where they were.

Whoever is killed between two writes leaves a topic znode from which the next controller goes on: at A, or again at B.
Three things differ from Kafka, for safety. Replicas of an overridden target are given up before the znode forgets them,
not after, so that no crash leaves a replica that nobody knows. No replica is given up, and no reassignment completed,
unless one that stays is in the ISR and leads. A1 and A2 are one batch, so that a new replica hears first that it is new
(KAFKA-10314).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.controller.context.states import PartitionState, ReplicaState
from klamm.controller.decisions.deletion import resume_deletions
from klamm.controller.decisions.leadership import (
    elect_leaderless,
    epoch_rule,
    reassigned_rule,
    removal_rule,
    unless_last_in_sync,
)
from klamm.controller.decisions.steps import Assign, ChangeStates, Decision, Move, chunked
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import NO_LEADER, BrokerId, ControllerEpoch, TopicPartition
from klamm.model.partition import Assignment


class Stage(Enum):
    ADD = "add"
    WAIT = "wait"
    COMPLETE = "complete"


class Left(NamedTuple):
    stage: Stage
    waits_for: str = ""
    """In words for people: what has to happen before the reassignment can go on."""


# --- what is asked ---


def wanted(
    view: ControllerContext, name: TopicPartition, target: Sequence[BrokerId] | None
) -> tuple[PartitionIndex, Assignment] | KafkaError:
    """A request for one partition, checked; no target means cancel. Order of the checks is Kafka's."""
    partition = view.partition(*name)
    current = Assignment(()) if partition is None else view.assignment_of(partition)
    if target is not None:
        reason = _refusal(view, current, target)
        if reason:
            return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Replicas of {name}: {reason}.")
    elif not current.is_being_reassigned:
        return KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{name} is not being reassigned.")
    if partition is None or name.topic in view.deleting:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name} does not exist.")
    return partition, current.cancelled() if target is None else current.reassign_to(target)


def _refusal(view: ControllerContext, current: Assignment, target: Sequence[BrokerId]) -> str:
    if not target:
        return "the list is empty"
    if len(set(target)) < len(target):
        return f"{list(target)} names a broker twice"
    if any(broker < 0 for broker in target):
        return f"{list(target)} has a negative broker id"
    dead = [b for b in target if b not in current.original_replicas and not view.is_live(b)]
    return f"brokers {dead} are not alive" if dead else ""


def is_accepted(view: ControllerContext, partition: PartitionIndex, assignment: Assignment) -> bool:
    """After `start`: it goes on, or it is done already."""
    return view.assignment_of(partition) in (assignment, Assignment(assignment.target_replicas))


def still_asked(
    view: ControllerContext, entries: Mapping[TopicPartition, tuple[BrokerId, ...]]
) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    """Of /admin/reassign_partitions, what is still on its way: the rest is done, refused, or overridden by a call."""
    return {
        name: target
        for name, target in entries.items()
        if (i := view.partition(*name)) is not None
        and i in view.reassigning
        and view.assignment_of(i).target_replicas == target
    }


# --- what is left ---


def what_is_left(view: ControllerContext, partition: PartitionIndex) -> Left:
    """Of a partition that is being reassigned; its state is as ZooKeeper holds it now."""
    assignment, state = view.assignment_of(partition), view.state_of(partition)
    if state is None:
        return Left(Stage.WAIT, "a first leader")
    missing = [b for b in assignment.target_replicas if b not in state.isr]
    if not missing:
        return Left(Stage.COMPLETE, f"a leader among {list(assignment.target_replicas)}")
    untold = [b for b in assignment.adding if view.replicas.state_of(partition, b) is ReplicaState.NON_EXISTENT]
    if untold:
        return Left(Stage.ADD, f"brokers {untold} to be told")
    dead = [b for b in missing if not view.is_replica_online(b, partition)]
    if dead:
        return Left(Stage.WAIT, f"brokers {dead}, which are dead or have a failed log directory")
    return Left(Stage.WAIT, f"brokers {missing} to join the ISR {list(state.isr)} of leader {state.leader}")


def start(
    view: ControllerContext,
    controller_epoch: ControllerEpoch,
    assignments: Mapping[PartitionIndex, Assignment],
    cause: str,
) -> Decision:
    """New requests, cancellations among them. The states are in the context as ZooKeeper holds them now."""
    for chunk in chunked(list(assignments)):
        accepted = {i: assignments[i] for i in chunk}
        given_up = {
            i: [b for b in view.assignment_of(i).replicas if b not in assignment.replicas]
            for i, assignment in accepted.items()
        }
        staying = {i: assignment.replicas for i, assignment in accepted.items()}
        before = {i: view.assignment_of(i) for i in accepted if given_up[i]}
        if before:
            # The lists that brokers hear meanwhile are the new ones; the znode's turn comes when the replicas are gone.
            yield Assign(cause=cause, assignments={i: accepted[i] for i in before}, durable=False)
            yield from _give_up(view, controller_epoch, given_up, staying, cause, any_epoch=True)
            # One that was added may lead by now: then nobody does any more, and it is elected like after any loss.
            online = [i for i in before if view.partition_state_of(i) is PartitionState.ONLINE]
            without_leader = [i for i in online if view.leader_of(i) == NO_LEADER]
            yield Move(cause=cause, partitions=[(without_leader, PartitionState.OFFLINE)])
            yield Assign(cause=cause, assignments=before, durable=False)
        ready = {i: a for i, a in accepted.items() if _are_gone(view, i, given_up[i])}
        still = {i: assignment for i, assignment in ready.items() if not assignment.is_being_reassigned}
        yield from _tell(view, controller_epoch, still, cause)
        yield Assign(cause=cause, assignments=ready)
        begun = [i for i, assignment in ready.items() if view.assignment_of(i) == assignment]
        if still:
            yield Move(cause=cause, metadata=[i for i in begun if i in still])
        if before:
            yield from elect_leaderless(view, controller_epoch, cause)
        moving = [i for i in begun if i not in still]
        complete = [i for i in moving if what_is_left(view, i).stage is Stage.COMPLETE]
        yield from _add(view, controller_epoch, [i for i in moving if i not in complete], cause)
        yield from _complete(view, controller_epoch, complete, cause)
    yield from resume_deletions(view, controller_epoch, cause)


def resume(
    view: ControllerContext,
    controller_epoch: ControllerEpoch,
    partitions: Iterable[PartitionIndex],
    cause: str,
    *,
    again: bool = False,
) -> Decision:
    """`again`: tell the brokers once more, because nobody knows what they heard: a new controller, a new target."""
    moving = [i for i in partitions if i in view.reassigning]
    for chunk in chunked(moving):
        stages = {i: what_is_left(view, i).stage for i in chunk}
        add = [i for i, stage in stages.items() if stage is Stage.ADD or (again and stage is Stage.WAIT)]
        yield from _add(view, controller_epoch, add, cause)
        complete = [i for i, stage in stages.items() if stage is Stage.COMPLETE]
        yield from _complete(view, controller_epoch, complete, cause)
    if moving:
        yield from resume_deletions(view, controller_epoch, cause)


# --- phases ---


def _add(
    view: ControllerContext, controller_epoch: ControllerEpoch, partitions: Sequence[PartitionIndex], cause: str
) -> Decision:
    if not partitions:
        return
    epochs = _epochs(view, partitions)
    rule = epoch_rule(view, controller_epoch)
    yield ChangeStates(cause=cause, partitions=partitions, rule=rule, send=False)
    told = [i for i in partitions if _epochs(view, [i])[i] != epochs[i]]
    new: dict[BrokerId, list[PartitionIndex]] = {}
    for i in told:
        for broker in view.assignment_of(i).adding:
            if view.replicas.state_of(i, broker) is ReplicaState.NON_EXISTENT:
                new.setdefault(broker, []).append(i)
    yield Move(
        cause=cause,
        replicas=dict(sorted(new.items())),
        replica_to=ReplicaState.NEW,
        leader_and_isr=dict(sorted(new.items())),
        is_new=True,
    )


def _tell(
    view: ControllerContext,
    controller_epoch: ControllerEpoch,
    assignments: Mapping[PartitionIndex, Assignment],
    cause: str,
) -> Decision:
    """Lists that are final at once: a cancellation, another order. Brokers hear them under the next epoch before the
    topic znode says so, because afterwards nothing there tells a next controller that somebody has not heard: a leader
    that still counts a replica which was given up would take it into the ISR."""
    if not assignments:
        return
    before = {i: view.assignment_of(i) for i in assignments}
    yield Assign(cause=cause, assignments=assignments, durable=False)
    rule = reassigned_rule(view, controller_epoch, {i: a.replicas for i, a in assignments.items()})
    yield ChangeStates(cause=cause, partitions=list(assignments), rule=rule, partition_to=PartitionState.ONLINE)
    yield Assign(cause=cause, assignments=before, durable=False)


def _complete(
    view: ControllerContext, controller_epoch: ControllerEpoch, partitions: Sequence[PartitionIndex], cause: str
) -> Decision:
    if not partitions:
        return
    before = {i: view.assignment_of(i) for i in partitions}
    after = {i: Assignment(assignment.target_replicas) for i, assignment in before.items()}
    # B1, B2
    added = _by_broker({i: assignment.adding for i, assignment in before.items()})
    yield Move(cause=cause, replicas=added, replica_to=ReplicaState.ONLINE)
    yield Assign(cause=cause, assignments=after, durable=False)
    # B3
    epochs = _epochs(view, partitions)
    rule = reassigned_rule(view, controller_epoch, {i: assignment.replicas for i, assignment in before.items()})
    yield ChangeStates(cause=cause, partitions=partitions, rule=rule, partition_to=PartitionState.ONLINE)
    led = [i for i in partitions if _epochs(view, [i])[i] != epochs[i] or not before[i].removing]
    # B4, B5
    removed = {i: before[i].removing for i in led}
    staying = {i: after[i].replicas for i in led}
    yield from _give_up(view, controller_epoch, removed, staying, cause)
    done = [i for i in led if _are_gone(view, i, removed[i])]
    stuck = {i: before[i] for i in partitions if i not in done}
    if stuck:
        # No target leads, or a write met with conflicts: it is as before, and the next trigger comes here again.
        yield Assign(cause=cause, assignments=stuck, durable=False)
    # B6, B8
    if done:
        yield Assign(cause=cause, assignments={i: after[i] for i in done})
        yield Move(cause=cause, metadata=done)


def completed_unwritten(
    view: ControllerContext, topic: str, found: Mapping[int, Assignment]
) -> dict[PartitionIndex, Assignment]:
    """Reassignments that ended while the topic's znode could not be read, and so could not be written: it has been
    mended since, and says what it said before."""
    return {
        i: view.assignment_of(i)
        for number, i in view.topics[topic].items()
        if number in found and found[number].is_being_reassigned and not view.assignment_of(i).is_being_reassigned
    }


def _give_up(
    view: ControllerContext,
    controller_epoch: ControllerEpoch,
    replicas: Mapping[PartitionIndex, Sequence[BrokerId]],
    staying: Mapping[PartitionIndex, Sequence[BrokerId]],
    cause: str,
    *,
    any_epoch: bool = False,
) -> Decision:
    """Out of the ISR, stopped, deleted, forgotten; nobody waits for answers. A broker that is away keeps its files.
    Where the state cannot be read nobody is given up: it may be the one that has the records."""
    by_broker = _by_broker({i: brokers for i, brokers in replicas.items() if i not in view.unreadable})
    for broker, partitions in by_broker.items():
        known = [i for i in partitions if view.replicas.state_of(i, broker) is not ReplicaState.NON_EXISTENT]
        rule = unless_last_in_sync(removal_rule(view, controller_epoch, broker), staying)
        yield ChangeStates(cause=cause, partitions=known, rule=rule, offline_on=broker)
    stopped = {
        broker: [
            i
            for i in partitions
            if view.replicas.state_of(i, broker) is ReplicaState.OFFLINE and _outlives(view, i, staying[i])
        ]
        for broker, partitions in by_broker.items()
    }
    if not any(stopped.values()):
        return
    yield Move(
        cause=cause,
        replicas=stopped,
        replica_to=ReplicaState.DELETION_STARTED,
        stop_replica=stopped,
        delete=True,
        any_epoch=any_epoch,
        fenced=True,
    )
    yield Move(cause=cause, replicas=stopped, replica_to=ReplicaState.DELETION_SUCCESSFUL)
    yield Move(cause=cause, replicas=stopped, replica_to=ReplicaState.NON_EXISTENT)


def _outlives(view: ControllerContext, partition: PartitionIndex, staying: Iterable[BrokerId]) -> bool:
    """Somebody who stays is in sync. Asked again after the write: a replica that was Offline before is so after a write
    that was refused, too."""
    state = view.state_of(partition)
    return state is None or any(broker in state.isr for broker in staying)


def _are_gone(view: ControllerContext, partition: PartitionIndex, brokers: Iterable[BrokerId]) -> bool:
    return all(view.replicas.state_of(partition, b) is ReplicaState.NON_EXISTENT for b in brokers)


def _by_broker(replicas: Mapping[PartitionIndex, Iterable[BrokerId]]) -> dict[BrokerId, list[PartitionIndex]]:
    found: dict[BrokerId, list[PartitionIndex]] = {}
    for partition, brokers in replicas.items():
        for broker in brokers:
            found.setdefault(broker, []).append(partition)
    return dict(sorted(found.items()))


def _epochs(view: ControllerContext, partitions: Iterable[PartitionIndex]) -> dict[PartitionIndex, int | None]:
    return {i: None if (state := view.state_of(i)) is None else state.leader_epoch for i in partitions}
