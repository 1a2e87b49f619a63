"""Topics that appear, grow or disappear. The controller does not create topics: the broker that handles CreateTopics
writes the znode, and a watch announces it.

*Creating partitions*, in Kafka's order: partitions New; replicas New; partitions Online, which creates their state
znodes and sends LeaderAndIsr with is_new; replicas Online, in memory only. Replicas on dead brokers become Online too;
they receive LeaderAndIsr when their broker starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.controller.context.states import PartitionState, ReplicaState
from klamm.controller.decisions.leadership import first_rule, offline_rule
from klamm.controller.decisions.steps import (
    ChangeStates,
    CreateStates,
    Decision,
    MovePartitions,
    MoveReplicas,
    WriteNodes,
    chunked,
)
from klamm.model.ids import BrokerId
from klamm.model.partition import Assignment
from klamm.model.ports import Set
from klamm.zookeeper.znodes import topic as topic_znode


def create_partitions(view: ControllerContext, partitions: Sequence[PartitionIndex]) -> Decision:
    """The partitions are already in the context, NonExistent."""
    for chunk in chunked(partitions):
        replicas: dict[BrokerId, list[PartitionIndex]] = {}
        for i in chunk:
            for broker in view.assignment_of(i).replicas:
                replicas.setdefault(broker, []).append(i)
        yield MovePartitions(chunk, PartitionState.NEW)
        yield MoveReplicas(replicas, ReplicaState.NEW)
        yield CreateStates(chunk, first_rule(view))
        yield MoveReplicas(replicas, ReplicaState.ONLINE)
        # A state that already existed was adopted; the leader that it names need not be alive.
        adopted = [i for i in chunk if view.partition_state_of(i) is PartitionState.OFFLINE]
        if adopted:
            yield ChangeStates(adopted, offline_rule(view), to=PartitionState.ONLINE)


def restore_assignment(view: ControllerContext, topic: str) -> Decision:
    """Partitions were added to a topic that is being deleted. The deletion wins: write the znode back."""
    known: Mapping[int, Assignment] = {n: view.assignment_of(i) for n, i in view.topics[topic].items()}
    document = topic_znode.encode(known, view.topic_ids.get(topic))
    yield WriteNodes([Set(topic_znode.path(topic), document)])
