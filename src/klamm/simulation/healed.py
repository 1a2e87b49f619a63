"""What must hold once the world is whole again (E1, E3, E4), each a pure function over pictures of it.

A `ClusterSnapshot` is what ZooKeeper, a controller's context and each broker's metadata must agree on.
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
    brokers: Mapping[BrokerId, BrokerEpoch]
    assignments: Mapping[TopicPartition, Assignment]
    states: Mapping[TopicPartition, tuple[LeaderAndIsr, int]]
    """As `without_controller_epoch` gives it, with the znode's version."""


class Metadata(NamedTuple):
    """A broker's cache: what UpdateMetadata told it."""

    brokers: Collection[BrokerId]
    partitions: Mapping[TopicPartition, tuple[LeaderAndIsr, int, tuple[BrokerId, ...]]]
    """State as `without_controller_epoch` gives it, version, replicas."""


# --- pictures ---


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
            continue  # nobody knows it, neither should the others
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
    """What every broker is told. Of a topic that is being deleted they hear something else; and of an edited state what
    it says when the controller comes to look at it."""
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
    return f"controllers {list(active)} act, /controller names {named}"


def everybody_is_registered(running: Collection[BrokerId], picture: ClusterSnapshot) -> Problem:
    missing = sorted(set(running) - picture.brokers.keys())
    return f"brokers {missing} run and are not registered" if missing else None


def every_partition_is_led(picture: ClusterSnapshot) -> Problem:
    for name in sorted(picture.assignments):
        state = picture.states.get(name)
        if state is None or state[0].leader not in picture.brokers:
            return f"{name} {picture.assignments[name]} has no leader: {state}"
    return None


def context_is_zookeeper(context: ClusterSnapshot, zookeeper: ClusterSnapshot) -> Problem:
    return next(_differences("the context", context, zookeeper), None)


def metadata_is_zookeeper(
    broker: BrokerId, cache: Metadata, zookeeper: ClusterSnapshot, unheard: Collection[str] = ()
) -> Problem:
    """`unheard`: topics that went while nobody led, or while this broker ran without a registration. No request says
    "forget whatever I do not name", in Kafka neither, so they may stay in a cache until the broker starts again."""
    if set(cache.brokers) != zookeeper.brokers.keys():
        return f"broker {broker} takes {sorted(cache.brokers)} for alive, not {sorted(zookeeper.brokers)}"
    expected = {
        name: (*zookeeper.states[name], assignment.replicas)
        for name, assignment in zookeeper.assignments.items()
        if name in zookeeper.states
    }
    found = {name: known for name, known in cache.partitions.items() if name in expected or name.topic not in unheard}
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


def nothing_is_left(paths: Iterable[str], picture: ClusterSnapshot) -> Problem:
    """E3: whatever was asked for through ZooKeeper is done and gone; nothing is on the move."""
    left = sorted(path for path in paths if path in ASKED or path.startswith(ASKED_BELOW))
    if left:
        return f"{', '.join(left[:3])} is still there"
    moving = sorted(name for name, assignment in picture.assignments.items() if assignment.is_being_reassigned)
    return f"{moving[0]} is still on the move: {picture.assignments[moving[0]]}" if moving else None


def every_call_is_answered(waiting: Collection[str]) -> Problem:
    """E4: a result or an error, also when the queue was cleared (KAFKA-10193)."""
    return f"nobody answered {', '.join(sorted(waiting)[:3])}" if waiting else None
