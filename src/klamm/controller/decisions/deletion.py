"""Topic deletion without a coroutine (design D15): what is left to do follows from the context, whoever asks.

A topic queued for deletion goes through three stages, told by the states of its partitions and replicas alone:

A. *Begin.* Its partitions go Offline, then NonExistent; brokers forget them (UpdateMetadata with leader -2).
B. *Delete.* Replicas on live brokers go Offline, leaving the ISR, then DeletionStarted: StopReplica with delete. Those
   on dead brokers are DeletionIneligible and wait. An answer makes a replica DeletionSuccessful, or ineligible again.
C. *Complete.* All replicas successful: znodes children first, configuration, marker; the context forgets the topic.

`what_is_left` is the one function that says which stage comes next, or what the topic waits for. It is asked by every
trigger: a marker, an answer, a broker's start, fail-over, and a slow timer, which Kafka lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.controller.context.states import PartitionState, ReplicaState
from klamm.controller.decisions.leadership import replicas_offline
from klamm.controller.decisions.steps import Decision, Move, RemoveTopics, WriteNodes
from klamm.model.ids import BrokerId, ControllerEpoch, TopicPartition
from klamm.model.ports import Delete
from klamm.zookeeper.znodes import delete_topics

_UNTOUCHED = (ReplicaState.NEW, ReplicaState.ONLINE, ReplicaState.OFFLINE)


class Stage(Enum):
    WAIT = "wait"
    DELETE = "delete"
    COMPLETE = "complete"


class Left(NamedTuple):
    stage: Stage
    waits_for: str = ""
    """In words for people: what has to happen before the deletion can go on."""


def what_is_left(view: ControllerContext, topic: str, *, retry: bool) -> Left:
    """`retry`: replicas that failed before are tried again, if their broker lives."""
    if not view.partitions_of(topic):
        # Its replicas are somewhere all the same, and would outlive it; a new topic of that name would find them.
        return Left(Stage.WAIT, "its znode to name partitions: it cannot be read")
    moving = [i for i in view.partitions_of(topic) if view.assignment_of(i).is_being_reassigned]
    if moving:
        return Left(Stage.WAIT, f"reassignment of {', '.join(str(view.name_of(i)) for i in moving[:5])}")
    if topic in view.held:
        return Left(Stage.WAIT, f"replicas on brokers {view.dead_in(topic)}, which were dead when we were elected")
    started = view.replicas_in(topic, ReplicaState.DELETION_STARTED)
    if started:
        return Left(Stage.WAIT, f"answers to StopReplica from brokers {list(started)}")
    failed = view.replicas_in(topic, ReplicaState.DELETION_INELIGIBLE)
    untouched = view.replicas_in(topic, *_UNTOUCHED)
    if not failed and not untouched:
        return Left(Stage.COMPLETE)
    if any(view.partition_state_of(i) is not PartitionState.NON_EXISTENT for i in view.partitions_of(topic)):
        return Left(Stage.DELETE)
    candidates = [*untouched.items(), *(failed.items() if retry else ())]
    if any(view.is_replica_online(broker, i) for broker, partitions in candidates for i in partitions):
        return Left(Stage.DELETE)
    waiting = view.replicas_in(topic, *_UNTOUCHED, ReplicaState.DELETION_INELIGIBLE)
    dead = sorted(b for b, ids in waiting.items() if not all(view.is_replica_online(b, i) for i in ids))
    if dead:
        return Left(Stage.WAIT, f"replicas on brokers {dead}, which are dead or have a failed log directory")
    return Left(Stage.WAIT, f"another try: brokers {sorted(waiting)} failed to delete")


def on_topic_deletion(
    view: ControllerContext,
    controller_epoch: ControllerEpoch,
    marked: Iterable[str],
    *,
    enabled: bool,
    cause: str,
    retry: bool = False,
) -> Decision:
    """/admin/delete_topics as it is now. The topics to queue are in `view.deleting` already; see `topics_to_queue`."""
    erased = [t for t in sorted(marked) if not enabled or t not in view.topics]
    if erased:
        yield WriteNodes(cause=cause, ops=[Delete(delete_topics.path(topic)) for topic in erased])
    yield from resume_deletions(view, controller_epoch, cause, retry=retry)


def topics_to_queue(view: ControllerContext, marked: Iterable[str], *, enabled: bool) -> list[str]:
    return [topic for topic in sorted(marked) if enabled and topic in view.topics and topic not in view.deleting]


def resume_deletions(
    view: ControllerContext, controller_epoch: ControllerEpoch, cause: str, *, retry: bool = False
) -> Decision:
    stages: dict[Stage, list[str]] = {stage: [] for stage in Stage}
    for topic in sorted(view.deleting):
        stages[what_is_left(view, topic, retry=retry).stage].append(topic)
    if stages[Stage.COMPLETE]:
        yield RemoveTopics(cause=cause, topics=stages[Stage.COMPLETE])
    if stages[Stage.DELETE]:
        yield from _delete(view, controller_epoch, stages[Stage.DELETE], cause, retry=retry)


def complete_deletion(
    view: ControllerContext,
    controller_epoch: ControllerEpoch,
    broker: BrokerId,
    answered: Mapping[TopicPartition, bool],
    cause: str,
) -> Decision:
    """One broker's answer to StopReplica with delete: True for each partition that is gone from it."""
    known = [(view.partition(*name), ok) for name, ok in sorted(answered.items())]
    started = [
        (i, ok)
        for i, ok in known
        if i is not None
        and view.topic_of(i) in view.deleting
        and view.replicas.state_of(i, broker) is ReplicaState.DELETION_STARTED
    ]
    for wanted, to in ((False, ReplicaState.DELETION_INELIGIBLE), (True, ReplicaState.DELETION_SUCCESSFUL)):
        partitions = [i for i, ok in started if ok is wanted]
        if partitions:
            yield Move(cause=cause, replicas={broker: partitions}, replica_to=to)
    yield from resume_deletions(view, controller_epoch, cause)


def fail_deletion(
    view: ControllerContext,
    controller_epoch: ControllerEpoch,
    replicas: Mapping[BrokerId, Sequence[PartitionIndex]],
    cause: str,
) -> Decision:
    """Replicas of queued topics that went offline: those asked to delete will not answer."""
    failed = {
        broker: [i for i in partitions if view.replicas.state_of(i, broker) is ReplicaState.DELETION_STARTED]
        for broker, partitions in sorted(replicas.items())
    }
    if any(failed.values()):
        yield Move(cause=cause, replicas=failed, replica_to=ReplicaState.DELETION_INELIGIBLE)
    if replicas:
        yield from resume_deletions(view, controller_epoch, cause)


def _delete(
    view: ControllerContext, controller_epoch: ControllerEpoch, topics: Sequence[str], cause: str, *, retry: bool
) -> Decision:
    # A. Begin, once per topic; but brokers are told each time, because one that was away has not heard.
    partitions = [i for topic in topics for i in view.partitions_of(topic)]
    begun = [i for i in partitions if view.partition_state_of(i) is not PartitionState.NON_EXISTENT]
    yield Move(
        cause=cause,
        partitions=[(begun, PartitionState.OFFLINE), (begun, PartitionState.NON_EXISTENT)],
        metadata=partitions,
    )
    # B. Offline first, out of the ISR, so that a crash in between leaves nobody who leads half a topic.
    wanted = (*_UNTOUCHED, ReplicaState.DELETION_INELIGIBLE) if retry else _UNTOUCHED
    replicas: dict[BrokerId, list[PartitionIndex]] = {}
    for topic in topics:
        for broker, ids in view.replicas_in(topic, *wanted).items():
            replicas.setdefault(broker, []).extend(ids)
    yield from replicas_offline(view, controller_epoch, _to_stop(view, replicas), cause)
    live: dict[BrokerId, list[PartitionIndex]] = {}
    dead: dict[BrokerId, list[PartitionIndex]] = {}
    for broker, ids in sorted(replicas.items()):
        for i in ids:
            if view.replicas.state_of(i, broker) is ReplicaState.OFFLINE:
                (live if view.is_replica_online(broker, i) else dead).setdefault(broker, []).append(i)
    if dead:
        yield Move(cause=cause, replicas=dead, replica_to=ReplicaState.DELETION_INELIGIBLE)
    if live:
        yield Move(
            cause=cause,
            replicas=live,
            replica_to=ReplicaState.DELETION_STARTED,
            stop_replica=live,
            delete=True,
            fenced=True,
        )


def _to_stop(
    view: ControllerContext, replicas: Mapping[BrokerId, Sequence[PartitionIndex]]
) -> dict[BrokerId, list[PartitionIndex]]:
    """All but those that are dead and Offline already: writing them again would raise their epoch for nothing."""
    return {
        broker: [
            i
            for i in ids
            if view.is_replica_online(broker, i) or view.replicas.state_of(i, broker) is not ReplicaState.OFFLINE
        ]
        for broker, ids in replicas.items()
    }
