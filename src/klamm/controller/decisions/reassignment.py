"""Reassignment (KIP-455) without a coroutine (design D15): the topic znode says where a partition goes, its state says
how far the move has come, and every trigger asks the same function what is left to do.

RS is the full replica list, AR the replicas being added, RR those being removed; TRS = RS - RR is the target. Phases:

U. *Accept.* Drop the replicas of an overridden or cancelled target, once the leader knows the lists without them; then
   write the new lists to the topic znode.
A. *Add.* Raise the leader epoch and send the new lists to all of RS, to those in AR as new replicas. Wait for the ISR.
B. *Complete*, once TRS is within the ISR: send TRS as the assignment, led by one of its members; remove RR from the
   ISR, stop and delete them. The topic znode forgets RR last, because it is the only copy of where they were.

A controller that is killed between two writes leaves a topic znode from which the next one goes on: at A, or again at
B. Three things differ from Kafka, for safety. Replicas of an overridden target are dropped before the znode forgets
them, not after, so that no crash leaves an unknown replica; and a write of the state fences the leader first, else it
could add such a replica to the ISR just before the deletion (ADR 0011). No replica is dropped, and no reassignment
completed, unless a replica that stays is in the ISR and leads. A1 and A2 are one batch, so that the first request that
a new replica receives says that it is new (KAFKA-10314).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.controller.context.states import PartitionState, ReplicaState
from klamm.controller.decisions.deletion import resume_deletions
from klamm.controller.decisions.faults import concerning_topic
from klamm.controller.decisions.leadership import (
    elect_leaderless,
    epoch_rule,
    fence_rule,
    reassigned_rule,
    removal_rule,
    unless_last_in_sync,
)
from klamm.controller.decisions.overlay import Inner, overlay
from klamm.controller.decisions.steps import (
    AddReplicas,
    ChangeStates,
    Decision,
    DeleteReplicas,
    MovePartitions,
    MoveReplicas,
    Send,
    SendMetadata,
    TakeReplicasOffline,
    WriteAssignments,
    chunked,
)
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import NO_LEADER, BrokerId, TopicPartition
from klamm.model.partition import Assignment


class ReassignmentStage(Enum):
    ADD = "add"
    WAIT = "wait"
    COMPLETE = "complete"


class ReassignmentProgress(NamedTuple):
    stage: ReassignmentStage
    waits_for: str = ""
    """Human-readable: what has to happen before the reassignment can go on."""


# --- what is asked ---


def wanted(
    view: ControllerContext, name: TopicPartition, target: Sequence[BrokerId] | None
) -> tuple[PartitionIndex, Assignment] | KafkaError:
    """Check a request for one partition, in Kafka's order; no target means cancel."""
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
    dead = _not_alive(view, current, target)
    return f"brokers {dead} are not alive" if dead else ""


def _not_alive(view: ControllerContext, current: Assignment, target: Sequence[BrokerId]) -> list[BrokerId]:
    return [b for b in target if b not in current.original_replicas and not view.is_live(b)]


def what_to_wait_for(view: ControllerContext, name: TopicPartition, target: Sequence[BrokerId]) -> str:
    """What keeps an entry of /admin/reassign_partitions from starting, although it may be right: after a restart of the
    whole cluster its target brokers register one after the other. Empty if it can start, or must be refused."""
    partition = view.partition(*name)
    if partition is None:
        unreadable = name.topic in view.topics and not view.partitions_of(name.topic)
        return f"the znode of topic {name.topic} to be readable" if unreadable else ""
    if not target or len(set(target)) < len(target) or any(broker < 0 for broker in target):
        return ""
    dead = _not_alive(view, view.assignment_of(partition), target)
    return f"brokers {dead} to start" if dead and name.topic not in view.deleting else ""


def is_accepted(view: ControllerContext, partition: PartitionIndex, assignment: Assignment) -> bool:
    """After `start`: the reassignment goes on, or is already complete."""
    return view.assignment_of(partition) in (assignment, Assignment(assignment.target_replicas))


def still_asked(
    view: ControllerContext, entries: Mapping[TopicPartition, tuple[BrokerId, ...]]
) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    """Entries of /admin/reassign_partitions that go on or wait; the others are done, refused or overridden."""
    return {
        name: target
        for name, target in entries.items()
        if is_in_progress(view, name, target) or what_to_wait_for(view, name, target)
    }


def is_in_progress(view: ControllerContext, name: TopicPartition, target: Sequence[BrokerId]) -> bool:
    i = view.partition(*name)
    return i is not None and i in view.reassigning and view.assignment_of(i).target_replicas == target


# --- what is left ---


def what_is_left(view: ControllerContext, partition: PartitionIndex) -> ReassignmentProgress:
    """For a partition that is being reassigned; the context holds its state as ZooKeeper does now."""
    assignment, state = view.assignment_of(partition), view.state_of(partition)
    if state is None:
        return _waits_for("a first leader")
    missing = [b for b in assignment.target_replicas if b not in state.isr]
    if not missing:
        target = list(assignment.target_replicas)
        return ReassignmentProgress(ReassignmentStage.COMPLETE, f"a leader among {target}")
    unknown = [b for b in assignment.adding if view.replicas.state_of(partition, b) is ReplicaState.NON_EXISTENT]
    if unknown:
        return ReassignmentProgress(ReassignmentStage.ADD, f"brokers {unknown} to receive LeaderAndIsr")
    dead = [b for b in missing if not view.is_replica_online(b, partition)]
    if dead:
        return _waits_for(f"brokers {dead}, which are dead or have a failed log directory")
    return _waits_for(f"brokers {missing} to join the ISR {list(state.isr)} of leader {state.leader}")


def _waits_for(what: str) -> ReassignmentProgress:
    return ReassignmentProgress(ReassignmentStage.WAIT, what)


def _stage_of(view: ControllerContext, partition: PartitionIndex) -> ReassignmentStage:
    with concerning_topic(view.topic_of(partition)):
        return what_is_left(view, partition).stage


def start(view: ControllerContext, assignments: Mapping[PartitionIndex, Assignment]) -> Decision:
    """New requests, including cancellations. The context holds the states as ZooKeeper does now."""
    for chunk in chunked(list(assignments)):
        yield from _start(view, {i: assignments[i] for i in chunk})
    yield from resume_deletions(view)


def _start(view: ControllerContext, accepted: Mapping[PartitionIndex, Assignment]) -> Decision:
    given_up = {
        i: [b for b in view.assignment_of(i).replicas if b not in assignment.replicas]
        for i, assignment in accepted.items()
    }
    before = {i: view.assignment_of(i).replicas for i in accepted if given_up[i]}
    if before:
        staying = {i: tuple(b for b in accepted[i].replicas if b in before[i]) for i in before}
        yield from overlay(
            view,
            {i: Assignment(replicas) for i, replicas in staying.items()},
            _override(view, {i: given_up[i] for i in before}, staying, before),
        )
    ready = {i: a for i, a in accepted.items() if _are_gone(view, i, given_up[i])}
    final = {i: assignment for i, assignment in ready.items() if not assignment.is_being_reassigned}
    yield from _send_final(view, {i: assignment for i, assignment in final.items() if i not in before})
    yield WriteAssignments(ready)
    begun = [i for i, assignment in ready.items() if view.assignment_of(i) == assignment]
    if final:
        yield SendMetadata([i for i in begun if i in final])
    if before:
        yield from elect_leaderless(view)
    moving = [i for i in begun if i not in final]
    complete = [i for i in moving if _stage_of(view, i) is ReassignmentStage.COMPLETE]
    yield from _add(view, [i for i in moving if i not in complete])
    yield from _complete(view, complete)


def resume(view: ControllerContext, partitions: Iterable[PartitionIndex], *, again: bool = False) -> Decision:
    """`again`: repeat phase A, because what the brokers have received is not known: after a fail-over, or when a target
    broker starts."""
    moving = [i for i in partitions if i in view.reassigning]
    for chunk in chunked(moving):
        stages = {i: _stage_of(view, i) for i in chunk}
        repeated = ReassignmentStage.WAIT if again else ReassignmentStage.ADD
        yield from _add(view, [i for i, stage in stages.items() if stage in (ReassignmentStage.ADD, repeated)])
        yield from _complete(view, [i for i, stage in stages.items() if stage is ReassignmentStage.COMPLETE])
    if moving:
        yield from resume_deletions(view)


# --- phases ---


def _override(
    view: ControllerContext,
    given_up: Mapping[PartitionIndex, Sequence[BrokerId]],
    staying: Mapping[PartitionIndex, Sequence[BrokerId]],
    before: Mapping[PartitionIndex, Sequence[BrokerId]],
) -> Inner:
    """U. Brokers receive the lists without the given up replicas first, under the next epoch, even if the ISR stays:
    a leader that has not heard of it can no longer write the ISR. A leader that is given up is fenced by its own
    removal. The znode is written when the replicas are gone."""
    rule = unless_last_in_sync(fence_rule(view, before, staying), staying)
    led = [i for i in given_up if view.leader_of(i) in staying[i]]
    outcome = yield ChangeStates(led, rule)
    fenced = {*outcome.written, *given_up.keys() - set(led)}
    yield from _give_up(view, {i: brokers for i, brokers in given_up.items() if i in fenced}, staying, any_epoch=True)
    # A replica that was being added may have been leader. Its partition now has no leader, as after a failure.
    online = [i for i in given_up if view.partition_state_of(i) is PartitionState.ONLINE]
    yield MovePartitions([i for i in online if view.leader_of(i) == NO_LEADER], PartitionState.OFFLINE)
    return ()


def _send_final(view: ControllerContext, assignments: Mapping[PartitionIndex, Assignment]) -> Decision:
    """U. Lists that are final at once: a cancellation, another order. Brokers receive them under the next epoch before
    the topic znode holds them, because afterwards nothing there tells the next controller which brokers have not
    received them: a leader that still knows a dropped replica would add it to the ISR."""
    if assignments:
        yield from overlay(view, assignments, _send_assignments(view, assignments))


def _send_assignments(view: ControllerContext, assignments: Mapping[PartitionIndex, Assignment]) -> Inner:
    rule = reassigned_rule(view, {i: a.replicas for i, a in assignments.items()})
    yield ChangeStates(list(assignments), rule, to=PartitionState.ONLINE)
    return ()


def _add(view: ControllerContext, partitions: Sequence[PartitionIndex]) -> Decision:
    """Phase A."""
    if not partitions:
        return
    outcome = yield ChangeStates(partitions, epoch_rule(view), send=Send.WITH_NEXT)
    written = set(outcome.written)
    new: dict[BrokerId, list[PartitionIndex]] = {}
    for i in partitions:
        for broker in view.assignment_of(i).adding if i in written else ():
            if view.replicas.state_of(i, broker) is ReplicaState.NON_EXISTENT:
                new.setdefault(broker, []).append(i)
    yield AddReplicas(dict(sorted(new.items())))


def _complete(view: ControllerContext, partitions: Sequence[PartitionIndex]) -> Decision:
    """Phase B."""
    if not partitions:
        return
    before = {i: view.assignment_of(i) for i in partitions}
    after = {i: Assignment(assignment.target_replicas) for i, assignment in before.items()}
    added = _by_broker({i: assignment.adding for i, assignment in before.items()})
    yield MoveReplicas(added, ReplicaState.ONLINE)
    done = yield from overlay(view, after, _hand_over(view, before, after))
    if done:
        yield WriteAssignments({i: after[i] for i in done})
        yield SendMetadata(done)


def _hand_over(
    view: ControllerContext,
    before: Mapping[PartitionIndex, Assignment],
    after: Mapping[PartitionIndex, Assignment],
) -> Inner:
    """Hand over to a leader among the targets, away from RR. Where no target can lead, or a write conflicted, the
    partition stays as it was and the next trigger tries again."""
    rule = reassigned_rule(view, {i: assignment.replicas for i, assignment in before.items()})
    outcome = yield ChangeStates(list(before), rule, to=PartitionState.ONLINE)
    written = set(outcome.written)
    led = [i for i in before if i in written or not before[i].removing]
    removed = {i: before[i].removing for i in led}
    yield from _give_up(view, removed, {i: after[i].replicas for i in led})
    return [i for i in led if _are_gone(view, i, removed[i])]


def completed_unwritten(
    view: ControllerContext, topic: str, found: Mapping[int, Assignment]
) -> dict[PartitionIndex, Assignment]:
    """Reassignments that completed while the topic's znode could not be read, and so could not be written. The znode
    has been repaired since and still has the old lists."""
    return {
        i: view.assignment_of(i)
        for number, i in view.topics[topic].items()
        if number in found and found[number].is_being_reassigned and not view.assignment_of(i).is_being_reassigned
    }


def _give_up(
    view: ControllerContext,
    replicas: Mapping[PartitionIndex, Sequence[BrokerId]],
    staying: Mapping[PartitionIndex, Sequence[BrokerId]],
    *,
    any_epoch: bool = False,
) -> Decision:
    """Remove replicas from the ISR, stop, delete and forget them without waiting for answers. A broker that is down
    keeps its files. If the state cannot be read, no replica is dropped: it may be the one that has the records."""
    by_broker = _by_broker({i: brokers for i, brokers in replicas.items() if i not in view.unreadable})
    for broker, partitions in by_broker.items():
        known = [i for i in partitions if view.replicas.state_of(i, broker) is not ReplicaState.NON_EXISTENT]
        yield TakeReplicasOffline(broker, known, unless_last_in_sync(removal_rule(view, broker), staying))
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
    yield DeleteReplicas(stopped, any_epoch=any_epoch)
    yield MoveReplicas(stopped, ReplicaState.DELETION_SUCCESSFUL)
    yield MoveReplicas(stopped, ReplicaState.NON_EXISTENT)


def _outlives(view: ControllerContext, partition: PartitionIndex, staying: Iterable[BrokerId]) -> bool:
    """A replica that stays is in sync. Checked again after the write, because a replica that was Offline before is
    still Offline after a write that was refused."""
    state = view.state_of(partition)
    return state is None or any(broker in state.isr for broker in staying)


def _are_gone(view: ControllerContext, partition: PartitionIndex, brokers: Collection[BrokerId]) -> bool:
    with concerning_topic(view.topic_of(partition)):
        return all(view.replicas.state_of(partition, b) is ReplicaState.NON_EXISTENT for b in brokers)


def _by_broker(replicas: Mapping[PartitionIndex, Iterable[BrokerId]]) -> dict[BrokerId, list[PartitionIndex]]:
    found: dict[BrokerId, list[PartitionIndex]] = {}
    for partition, brokers in replicas.items():
        for broker in brokers:
            found.setdefault(broker, []).append(partition)
    return dict(sorted(found.items()))
