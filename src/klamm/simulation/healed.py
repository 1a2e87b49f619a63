"""The invariants that must hold after recovery (E1, E3, E4), as pure functions over snapshots of the cluster.

- E1: there is exactly one controller, and ZooKeeper, its context and the metadata of every broker agree.
- E3: all requests made through ZooKeeper are done, and no partition is being moved.
- E4: every call got an answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from klamm.controller.context.controller_context import ControllerContext
from klamm.model.errors import ZNodeError
from klamm.model.ids import BrokerEpoch, BrokerId, TopicPartition
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.simulation.invariants import Problem, without_controller_epoch
from klamm.zookeeper.server.tree import TreeNode
from klamm.zookeeper.znodes import (
    broker_id,
    delete_topics,
    isr_change,
    log_dir_event,
    partition_state,
    preferred_replica_election,
    reassign_partitions,
)
from klamm.zookeeper.znodes import topic as topic_znode

K = TypeVar("K", BrokerId, TopicPartition)

ASKED: Final = (reassign_partitions.PATH, preferred_replica_election.PATH)
ASKED_BELOW: Final = tuple(f"{p}/" for p in (delete_topics.PARENT, isr_change.PARENT, log_dir_event.PARENT))


class ClusterSnapshot(NamedTuple):
    """The facts on which ZooKeeper, a controller's context and the brokers' metadata must agree."""

    brokers: Mapping[BrokerId, BrokerEpoch]
    assignments: Mapping[TopicPartition, Assignment]
    states: Mapping[TopicPartition, tuple[LeaderAndIsr, int]]
    """Without the controller epoch, and with the version of the znode."""


class Metadata(NamedTuple):
    """The metadata cache of a broker, as UpdateMetadata filled it."""

    brokers: Collection[BrokerId]
    partitions: Mapping[TopicPartition, tuple[LeaderAndIsr, int, tuple[BrokerId, ...]]]
    """State without the controller epoch, version of the znode, replicas."""


# --- snapshots ---


def of_zookeeper(nodes: Mapping[str, TreeNode]) -> ClusterSnapshot:
    brokers: dict[BrokerId, BrokerEpoch] = {}
    assignments: dict[TopicPartition, Assignment] = {}
    states: dict[TopicPartition, tuple[LeaderAndIsr, int]] = {}
    for path, node in nodes.items():
        try:
            if path.startswith(f"{broker_id.PARENT}/"):
                brokers[broker_id.id_of(path)] = BrokerEpoch(node.czxid)
            elif path.startswith(f"{topic_znode.PARENT}/") and path.count("/") == 3:
                topic = path.rpartition("/")[2]
                for number, assignment in topic_znode.decode(path, node.data).partitions.items():
                    assignments[TopicPartition(topic, number)] = assignment
            elif (name := name_of_state(path)) is not None:
                states[name] = (without_controller_epoch(partition_state.decode(path, node.data)), node.version)
        except ZNodeError:
            continue  # unreadable, so controller and brokers cannot know it either
    return ClusterSnapshot(brokers, assignments, states)


def of_context(context: ControllerContext) -> ClusterSnapshot:
    partitions = [(context.name_of(i), i) for i in context.all_partitions()]
    return ClusterSnapshot(
        {broker: live.epoch for broker, live in context.brokers.items()},
        {name: context.assignment_of(i) for name, i in partitions},
        {
            name: (without_controller_epoch(state), context.zk_version_of(i))
            for name, i in partitions
            if (state := context.state_of(i)) is not None
        },
    )


def decided_by(context: ControllerContext, edited: Collection[TopicPartition]) -> dict[TopicPartition, LeaderAndIsr]:
    """The states that every broker must know.

    Excludes topics being deleted, because brokers receive leader -2 for them, and states that an operator edited,
    because the controller reads those at some later time.
    """
    return {
        name: state
        for i in context.all_partitions()
        if (state := context.state_of(i)) is not None
        and context.topic_of(i) not in context.deleting
        and (name := context.name_of(i)) not in edited
    }


def name_of_state(path: str) -> TopicPartition | None:
    match path.split("/"):
        case ["", "brokers", "topics", topic, "partitions", number, "state"]:
            return TopicPartition(topic, int(number))
    return None


# --- E1 ---


def one_controller(active: Sequence[BrokerId], named: BrokerId | None) -> Problem:
    if list(active) == [named]:
        return None
    return f"brokers {list(active)} act as controller, /controller names {named}"


def every_broker_is_registered(running: Collection[BrokerId], snapshot: ClusterSnapshot) -> Problem:
    missing = sorted(set(running) - snapshot.brokers.keys())
    return f"brokers {missing} run but are not registered" if missing else None


def every_partition_is_led(snapshot: ClusterSnapshot) -> Problem:
    for name in sorted(snapshot.assignments):
        state = snapshot.states.get(name)
        if state is None or state[0].leader not in snapshot.brokers:
            return f"{name} {snapshot.assignments[name]} has no leader: {state}"
    return None


def context_is_zookeeper(context: ClusterSnapshot, zookeeper: ClusterSnapshot) -> Problem:
    return next(_differences("the context", context, zookeeper), None)


def metadata_is_zookeeper(
    broker: BrokerId, cache: Metadata, zookeeper: ClusterSnapshot, missed: Collection[str] = ()
) -> Problem:
    """`missed` are topics that were deleted while a broker was not registered, or without a word to the controller. As
    in Kafka, no request tells a broker to forget all other topics, so they may stay in its cache until it restarts."""
    if set(cache.brokers) != zookeeper.brokers.keys():
        return f"broker {broker} believes that {sorted(cache.brokers)} are alive, not {sorted(zookeeper.brokers)}"
    expected = {
        name: (*zookeeper.states[name], assignment.replicas)
        for name, assignment in zookeeper.assignments.items()
        if name in zookeeper.states
    }
    found = {name: known for name, known in cache.partitions.items() if name in expected or name.topic not in missed}
    return next(_different(f"the metadata of broker {broker}", "partition", found, expected), None)


def _differences(who: str, found: ClusterSnapshot, expected: ClusterSnapshot) -> Iterator[str]:
    yield from _different(who, "broker", found.brokers, expected.brokers)
    yield from _different(who, "assignment of", found.assignments, expected.assignments)
    yield from _different(who, "state of", found.states, expected.states)


def _different(who: str, what: str, found: Mapping[K, object], expected: Mapping[K, object]) -> Iterator[str]:
    for key in sorted(found.keys() | expected.keys(), key=str):
        if found.get(key) != expected.get(key):
            yield f"{who} has {what} {key} {found.get(key)}, ZooKeeper has {expected.get(key)}"


# --- E3, E4 ---


def nothing_is_left(paths: Iterable[str], snapshot: ClusterSnapshot) -> Problem:
    """E3: all requests in ZooKeeper are done and deleted, and no partition is being moved."""
    left = sorted(path for path in paths if path in ASKED or path.startswith(ASKED_BELOW))
    if left:
        return f"{', '.join(left[:3])} is still there"
    moving = sorted(name for name, assignment in snapshot.assignments.items() if assignment.is_being_reassigned)
    return f"{moving[0]} is still being moved: {snapshot.assignments[moving[0]]}" if moving else None


def every_call_is_answered(waiting: Collection[str]) -> Problem:
    """E4: every call returns a result or an error, even if the queue was cleared (KAFKA-10193)."""
    return f"no answer to {', '.join(sorted(waiting)[:3])}" if waiting else None
