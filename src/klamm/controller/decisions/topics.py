"""Topics that appear, grow, or are gone. Creation itself is nobody's request to us: whoever creates a topic writes its
znode, and the watch tells us.

*Creating partitions*, in Kafka's order: partitions New; replicas New; partitions Online, which creates their state
znodes and tells the replicas that they are new; replicas Online, in memory only. Replicas on dead brokers end Online
too, and hear LeaderAndIsr when their broker starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.controller.context.states import PartitionState, ReplicaState
from klamm.controller.decisions.leadership import offline_rule
from klamm.controller.decisions.steps import (
    ChangeStates,
    CreateStates,
    Decision,
    ForgetTopics,
    Move,
    WriteNodes,
    chunked,
)
from klamm.model.ids import BrokerId, ControllerEpoch
from klamm.model.partition import Assignment
from klamm.model.ports import Set
from klamm.zookeeper.znodes import topic as topic_znode


def create_partitions(
    view: ControllerContext,
    controller_epoch: ControllerEpoch,
    partitions: Sequence[PartitionIndex],
    cause: str,
) -> Decision:
    """The partitions are in the context already, NonExistent."""
    for chunk in chunked(partitions):
        replicas: dict[BrokerId, list[PartitionIndex]] = {}
        for i in chunk:
            for broker in view.assignment_of(i).replicas:
                replicas.setdefault(broker, []).append(i)
        yield Move(
            cause=cause, partitions=[(chunk, PartitionState.NEW)], replicas=replicas, replica_to=ReplicaState.NEW
        )
        yield CreateStates(cause=cause, partitions=chunk)
        yield Move(cause=cause, replicas=replicas, replica_to=ReplicaState.ONLINE)
        # A state that somebody else had written was adopted; it names a leader that need not live.
        adopted = [i for i in chunk if view.partition_state_of(i) is PartitionState.OFFLINE]
        if adopted:
            rule = offline_rule(view, controller_epoch)
            yield ChangeStates(cause=cause, partitions=adopted, rule=rule, partition_to=PartitionState.ONLINE)


def forget_topics(gone: Sequence[str], cause: str) -> Decision:
    """Removed behind our back: the topic is gone. Brokers hear that its partitions are, then we forget it too."""
    yield ForgetTopics(cause=cause, topics=gone)


def restore_assignment(view: ControllerContext, topic: str, cause: str) -> Decision:
    """Somebody added partitions to a topic that is being deleted: the deletion wins, the znode is put back."""
    known: Mapping[int, Assignment] = {n: view.assignment_of(i) for n, i in view.topics[topic].items()}
    document = topic_znode.encode(known, view.topic_ids.get(topic))
    yield WriteNodes(cause=cause, ops=[Set(topic_znode.path(topic), document)])
