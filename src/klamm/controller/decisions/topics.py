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
from klamm.controller.decisions.recovered_brokers import demote, recovered_brokers
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
        adopted = [i for i in chunk if view.partition_state_of(i) is PartitionState.OFFLINE]
        if adopted:
            yield from _take_over(view, adopted)


def _take_over(view: ControllerContext, partitions: Sequence[PartitionIndex]) -> Decision:
    """Their states already existed, for example because the topic was unreadable until now. As at the start of a term,
    the leader need not be alive, and brokers may have lost records while no controller looked (ADR 0014)."""
    recovered = recovered_brokers(view)
    states = {i: state for i in partitions if (state := view.state_of(i)) is not None}
    lost = {i: [broker for broker in state.isr if broker in recovered] for i, state in states.items()}
    yield from demote(view, {i: brokers for i, brokers in lost.items() if brokers})
    yield ChangeStates(partitions, offline_rule(view), to=PartitionState.ONLINE)


def restore_assignment(view: ControllerContext, topic: str) -> Decision:
    """Partitions were added to a topic that is being deleted. The deletion wins: write the znode back."""
    known: Mapping[int, Assignment] = {n: view.assignment_of(i) for n, i in view.topics[topic].items()}
    document = topic_znode.encode(known, view.topic_ids.get(topic))
    yield WriteNodes([Set(topic_znode.path(topic), document)])
