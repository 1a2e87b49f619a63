"""Leader elections that somebody asks for: by ElectLeaders, by the old znode, by the clock.

*Preferred*: the head of the replica list leads, if it lives and is in the ISR. *Unclean*, only by request: a partition
without a leader gets one from outside the ISR, whatever its topic says, at the price of records. The clock asks for
preferred elections on brokers that lead less than they should, by `leader.imbalance.per.broker.percentage`; partitions
on the move and preferred replicas outside the ISR are left out one by one (Kafka stops for all while any moves:
KAFKA-10149, and tries those outside the ISR in vain: KAFKA-9866).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.controller.context.states import PartitionState
from klamm.controller.decisions.leadership import offline_rule, preferred_rule
from klamm.controller.decisions.steps import ChangeStates, CreateStates, Decision, chunked
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import BrokerId, ControllerEpoch, TopicPartition


def refusal(view: ControllerContext, name: TopicPartition, *, unclean: bool) -> KafkaError | None:
    """Why there is nothing to elect for this partition."""
    partition = view.partition(*name)
    if partition is None:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name} does not exist.")
    if name.topic in view.deleting:
        return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic {name.topic} is being deleted.")
    if is_fine(view, partition, unclean=unclean):
        return KafkaError(ErrorCode.ELECTION_NOT_NEEDED, f"{name} needs no election.")
    return None


def is_fine(view: ControllerContext, partition: PartitionIndex, *, unclean: bool) -> bool:
    leader, assigned = view.leader_of(partition), view.assignment_of(partition).replicas
    if unclean:
        return view.is_live(leader)
    return bool(assigned) and leader == assigned[0]


def elect(
    view: ControllerContext,
    controller_epoch: ControllerEpoch,
    partitions: Sequence[PartitionIndex],
    cause: str,
    *,
    unclean: bool,
) -> Decision:
    rule = offline_rule(view, controller_epoch, by_request=True) if unclean else preferred_rule(view, controller_epoch)
    new = [i for i in partitions if unclean and view.partition_state_of(i) is PartitionState.NEW]
    for chunk in chunked(new):
        yield CreateStates(cause=cause, partitions=chunk)
    for chunk in chunked([i for i in partitions if view.state_of(i) is not None and i not in new]):
        yield ChangeStates(cause=cause, partitions=chunk, rule=rule, partition_to=PartitionState.ONLINE)


def outcome(view: ControllerContext, partition: PartitionIndex, *, unclean: bool) -> BrokerId | KafkaError:
    """After the election: who leads, or why it failed."""
    if is_fine(view, partition, unclean=unclean):
        return view.leader_of(partition)
    name, assigned = view.name_of(partition), view.assignment_of(partition).replicas
    if unclean:
        return KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"No replica of {name} {list(assigned)} is alive.")
    return KafkaError(
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, f"The preferred replica of {name} {list(assigned)} cannot lead now."
    )


def asked(view: ControllerContext) -> Iterable[TopicPartition]:
    """Everything: what a request without a list means."""
    return (view.name_of(i) for i in view.all_partitions() if view.topic_of(i) not in view.deleting)


def to_give_back(view: ControllerContext, broker: BrokerId, percentage: int) -> list[PartitionIndex]:
    """Leaderships that `broker` should get back, if it lacks more than this share of what it is preferred for."""
    preferred, elsewhere = 0, []
    for i in view.replicas.on(broker):
        if view.assignment_of(i).replicas[0] != broker or view.topic_of(i) in view.deleting:
            continue
        preferred += 1
        if view.leader_of(i) != broker:
            elsewhere.append(i)
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
