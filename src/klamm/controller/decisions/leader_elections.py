"""Leader elections on request: from ElectLeaders, from the old znode, from a timer.

*Preferred*: the head of the replica list leads if it is alive and in the ISR. *Unclean*, only by request: a partition
without a leader gets one from outside the ISR, whatever its topic's configuration says, and may lose records. The timer
requests preferred elections for brokers that lead fewer partitions than they should, by
`leader.imbalance.per.broker.percentage`. It skips partitions that are being reassigned or whose preferred replica is
outside the ISR. (Kafka skips all partitions while any is reassigned: KAFKA-10149; and it tries those outside the ISR in
vain: KAFKA-9866.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.controller.context.states import PartitionState
from klamm.controller.decisions.faults import for_all
from klamm.controller.decisions.leadership import first_rule, offline_rule, preferred_rule
from klamm.controller.decisions.steps import ChangeStates, CreateStates, Decision, chunked
from klamm.model.elections import UncleanElection
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import BrokerId, TopicPartition


def refusal(view: ControllerContext, name: TopicPartition, unclean: UncleanElection) -> KafkaError | None:
    """Why there is nothing to elect for this partition."""
    partition = view.partition(*name)
    if partition is None:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name} does not exist.")
    if name.topic in view.deleting:
        return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic {name.topic} is being deleted.")
    if is_well_led(view, partition, unclean):
        return KafkaError(ErrorCode.ELECTION_NOT_NEEDED, f"{name} needs no election.")
    return None


def is_well_led(view: ControllerContext, partition: PartitionIndex, unclean: UncleanElection) -> bool:
    """Led by any live broker if the request is for an unclean election, else by the preferred replica."""
    leader, assigned = view.leader_of(partition), view.assignment_of(partition).replicas
    if unclean is UncleanElection.ALLOWED:
        return view.is_live(leader)
    return bool(assigned) and leader == assigned[0]


def elect(view: ControllerContext, partitions: Sequence[PartitionIndex], unclean: UncleanElection) -> Decision:
    new: list[PartitionIndex] = []
    rule = preferred_rule(view)
    if unclean is UncleanElection.ALLOWED:
        new = [i for i in partitions if view.partition_state_of(i) is PartitionState.NEW]
        rule = offline_rule(view, requested=unclean)
    first = first_rule(view)
    for chunk in chunked(new):
        yield CreateStates(chunk, first)
    for chunk in chunked([i for i in partitions if view.state_of(i) is not None and i not in new]):
        yield ChangeStates(chunk, rule, to=PartitionState.ONLINE)


def result(view: ControllerContext, partition: PartitionIndex, unclean: UncleanElection) -> BrokerId | KafkaError:
    """After the election: the leader, or why it failed."""
    if is_well_led(view, partition, unclean):
        return view.leader_of(partition)
    name, assigned = view.name_of(partition), view.assignment_of(partition).replicas
    if unclean is UncleanElection.ALLOWED:
        return KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"No replica of {name} {list(assigned)} is alive.")
    return KafkaError(
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, f"The preferred replica of {name} {list(assigned)} cannot lead now."
    )


def all_names(view: ControllerContext) -> Iterable[TopicPartition]:
    """The partitions that a request without a list means."""
    return (view.name_of(i) for i in view.all_partitions() if view.topic_of(i) not in view.deleting)


def to_give_back(view: ControllerContext, broker: BrokerId, percentage: int) -> list[PartitionIndex]:
    """Leaderships that `broker` should get back, if it lacks more than this share of its preferred ones."""
    preferred = 0
    elsewhere: list[PartitionIndex] = []

    def look_at(partitions: Sequence[PartitionIndex]) -> None:
        nonlocal preferred
        for i in partitions:
            if view.assignment_of(i).replicas[0] != broker or view.topic_of(i) in view.deleting:
                continue
            preferred += 1
            if view.leader_of(i) != broker:
                elsewhere.append(i)

    for_all(view, view.replicas.on(broker), look_at)
    if not preferred or len(elsewhere) * 100 <= percentage * preferred or not view.is_live(broker):
        return []
    return [
        i
        for i in elsewhere
        if i not in view.reassigning
        and view.is_replica_online(broker, i)
        and (state := view.state_of(i)) is not None
        and broker in state.isr
    ]
