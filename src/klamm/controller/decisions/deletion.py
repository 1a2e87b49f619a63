"""Topic deletion without a coroutine (design D15): what is left to do follows from the context alone.

A topic queued for deletion goes through three stages, recognised by the states of its partitions and replicas:

A. *Begin.* Its partitions become Offline, then NonExistent; brokers drop them (UpdateMetadata with leader -2).
B. *Delete.* Replicas on live brokers go Offline, which removes them from the ISR, then DeletionStarted, which sends
   StopReplica with delete. Those on dead brokers are DeletionIneligible and wait. An answer makes a replica
   DeletionSuccessful, or ineligible again.
C. *Complete.* All replicas are successful, and every broker has dropped the topic from its metadata: delete the znodes
   children first, then configuration and marker; the context forgets the topic.

`what_is_left` alone says which stage comes next, or what the topic waits for. Every trigger asks it: a marker, an
answer, a broker's start, fail-over, and a slow timer, which Kafka lacks.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.controller.context.states import PartitionState, ReplicaState
from klamm.controller.decisions.faults import concerning_topic
from klamm.controller.decisions.leadership import replicas_offline
from klamm.controller.decisions.steps import (
    Decision,
    DeleteReplicas,
    MovePartitions,
    MoveReplicas,
    Pause,
    RemoveTopics,
    ReplicasByBroker,
    SendMetadata,
    WriteNodes,
)
from klamm.model.ids import BrokerId, TopicPartition
from klamm.model.ports import Delete
from klamm.zookeeper.znodes import delete_topics

_UNTOUCHED = (ReplicaState.NEW, ReplicaState.ONLINE, ReplicaState.OFFLINE)
_GONE = bytes((PartitionState.NON_EXISTENT,))
TOPICS_AT_ONCE: Final = 500
"""Looked at before other tasks get their turn: about 15 ms for topics of 100 partitions."""


class DeletionStage(Enum):
    WAIT = "wait"
    DELETE = "delete"
    COMPLETE = "complete"


class DeletionProgress(NamedTuple):
    stage: DeletionStage
    waits_for: str = ""
    """Human-readable: what has to happen before the deletion can go on."""


def what_is_left(view: ControllerContext, topic: str, *, retry: bool) -> DeletionProgress:
    """`retry`: replicas that failed before are tried again if their broker is alive."""
    if not view.topics.get(topic):
        # Its replicas still exist somewhere: they would outlive it, and a new topic of that name would find them.
        return _waits_for("its znode to name partitions: it cannot be read")
    if not view.reassigning.isdisjoint(view.topics[topic].values()):
        moving = [i for i in view.partitions_of(topic) if i in view.reassigning]
        return _waits_for(f"reassignment of {', '.join(str(view.name_of(i)) for i in moving[:5])}")
    if topic in view.held and (dead := view.dead_in(topic)):
        return _waits_for(f"replicas on brokers {dead}, which were dead when we were elected")
    columns = view.replica_columns(topic)
    started = _with(columns, (ReplicaState.DELETION_STARTED,))
    if started:
        return _waits_for(f"answers to StopReplica from brokers {started}")
    failed, untouched = _with(columns, (ReplicaState.DELETION_INELIGIBLE,)), _with(columns, _UNTOUCHED)
    if not failed and not untouched:
        unheard = view.unheard.get(topic)
        if unheard:
            return _waits_for(f"brokers {sorted(unheard)} to drop it from their metadata")
        return DeletionProgress(DeletionStage.COMPLETE, "its znodes to be deleted")
    if view.partition_column(topic).strip(_GONE):
        return DeletionProgress(DeletionStage.DELETE, "its partitions to be stopped")
    candidates = sorted({*untouched, *(failed if retry else ())})
    states = (*_UNTOUCHED, ReplicaState.DELETION_INELIGIBLE) if retry else _UNTOUCHED
    if any(_has_online(view, topic, broker, columns[broker], states) for broker in candidates):
        return DeletionProgress(DeletionStage.DELETE, f"replicas on brokers {candidates} to be stopped and deleted")
    waiting = sorted({*failed, *untouched})
    dead = [b for b in waiting if not view.is_live(b) or view.offline_dirs.get(b)]
    if dead:
        return _waits_for(f"replicas on brokers {dead}, which are dead or have a failed log directory")
    return _waits_for(f"another try: brokers {waiting} failed to delete")


def _with(columns: Mapping[BrokerId, bytes], states: Sequence[ReplicaState]) -> list[BrokerId]:
    """Brokers that have a replica in one of these states."""
    return [broker for broker, column in columns.items() if any(state in column for state in states)]


def _has_online(
    view: ControllerContext, topic: str, broker: BrokerId, column: bytes, states: Sequence[ReplicaState]
) -> bool:
    if not view.offline_dirs.get(broker):
        return view.is_live(broker)
    replicas = zip(view.partitions_of(topic), column, strict=True)
    return any(state in states and view.is_replica_online(broker, i) for i, state in replicas)


def _waits_for(what: str) -> DeletionProgress:
    return DeletionProgress(DeletionStage.WAIT, what)


def on_topic_deletion(
    view: ControllerContext, marked: Iterable[str], unknown: Container[str], *, enabled: bool, retry: bool = False
) -> Decision:
    """`marked` are the children of /admin/delete_topics; `unknown` those of them that ZooKeeper has no topic for. The
    context has already queued `topics_to_queue`."""
    erased = [t for t in sorted(marked) if not enabled or (t not in view.topics and t in unknown)]
    if erased:
        yield WriteNodes([Delete(delete_topics.path(topic)) for topic in erased])
    yield from resume_deletions(view, retry=retry)


def topics_to_queue(view: ControllerContext, marked: Iterable[str], *, enabled: bool) -> list[str]:
    return [topic for topic in sorted(marked) if enabled and topic in view.topics and topic not in view.deleting]


def resume_deletions(view: ControllerContext, *, retry: bool = False) -> Decision:
    stages: dict[DeletionStage, list[str]] = {stage: [] for stage in DeletionStage}
    for number, topic in enumerate(sorted(view.deleting), 1):
        with concerning_topic(topic):
            stages[what_is_left(view, topic, retry=retry).stage].append(topic)
        if number % TOPICS_AT_ONCE == 0:
            yield Pause()
    if stages[DeletionStage.COMPLETE]:
        yield RemoveTopics(stages[DeletionStage.COMPLETE])
    if retry:
        yield from _tell_again(view, stages[DeletionStage.WAIT])
    if stages[DeletionStage.DELETE]:
        yield from _delete(view, stages[DeletionStage.DELETE], retry=retry)


def _tell_again(view: ControllerContext, topics: Iterable[str]) -> Decision:
    """A broker may have refused the request that would have made it drop a topic."""
    unheard = [topic for topic in topics if view.unheard.get(topic)]
    brokers = sorted({broker for topic in unheard for broker in view.unheard[topic]})
    if brokers:
        yield SendMetadata([i for topic in unheard for i in view.partitions_of(topic)], to=brokers)


def complete_deletion(view: ControllerContext, broker: BrokerId, answered: Mapping[TopicPartition, bool]) -> Decision:
    """One broker's answer to StopReplica with delete: True for each partition that it has deleted."""
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
            yield MoveReplicas({broker: partitions}, to)
    yield from resume_deletions(view)


def complete_heard(view: ControllerContext, topics: Iterable[str]) -> Decision:
    """A broker has dropped these topics from its metadata. Only what waited for that goes on."""
    done = [t for t in sorted(topics) if what_is_left(view, t, retry=False).stage is DeletionStage.COMPLETE]
    if done:
        yield RemoveTopics(done)


def fail_deletion(view: ControllerContext, replicas: ReplicasByBroker) -> Decision:
    """Replicas of queued topics went offline: those that were asked to delete will not answer."""
    failed = {
        broker: [i for i in partitions if view.replicas.state_of(i, broker) is ReplicaState.DELETION_STARTED]
        for broker, partitions in sorted(replicas.items())
    }
    if any(failed.values()):
        yield MoveReplicas(failed, ReplicaState.DELETION_INELIGIBLE)
    if replicas:
        yield from resume_deletions(view)


def _delete(view: ControllerContext, topics: Sequence[str], *, retry: bool) -> Decision:
    # A. Begin once per topic. The metadata is sent each time, because a broker that was unreachable does not have it.
    partitions = [i for topic in topics for i in view.partitions_of(topic)]
    begun = [i for i in partitions if view.partition_state_of(i) is not PartitionState.NON_EXISTENT]
    yield MovePartitions(begun, PartitionState.OFFLINE)
    yield MovePartitions(begun, PartitionState.NON_EXISTENT)
    yield SendMetadata(partitions)
    # B. First offline and out of the ISR, so that a crash in between leaves no leader of a half-deleted topic.
    wanted = (*_UNTOUCHED, ReplicaState.DELETION_INELIGIBLE) if retry else _UNTOUCHED
    replicas: dict[BrokerId, list[PartitionIndex]] = {}
    for topic in topics:
        for broker, ids in view.replicas_in(topic, *wanted).items():
            replicas.setdefault(broker, []).extend(ids)
    yield from replicas_offline(view, _to_stop(view, replicas))
    live: dict[BrokerId, list[PartitionIndex]] = {}
    dead: dict[BrokerId, list[PartitionIndex]] = {}
    for broker, ids in sorted(replicas.items()):
        for i in ids:
            if view.replicas.state_of(i, broker) is ReplicaState.OFFLINE:
                (live if view.is_replica_online(broker, i) else dead).setdefault(broker, []).append(i)
    if dead:
        yield MoveReplicas(dead, ReplicaState.DELETION_INELIGIBLE)
    if live:
        yield DeleteReplicas(live)


def _to_stop(view: ControllerContext, replicas: ReplicasByBroker) -> dict[BrokerId, list[PartitionIndex]]:
    """All replicas except dead ones that are already Offline: another write would raise their epoch for nothing."""
    return {
        broker: [
            i
            for i in ids
            if view.is_replica_online(broker, i) or view.replicas.state_of(i, broker) is not ReplicaState.OFFLINE
        ]
        for broker, ids in replicas.items()
    }
