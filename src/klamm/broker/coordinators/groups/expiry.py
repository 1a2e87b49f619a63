"""Which offsets of a group have expired (KIP-211). Pure."""

from __future__ import annotations

from klamm.broker.coordinators.groups.group import Group, State
from klamm.broker.coordinators.groups.records import Offset
from klamm.broker.coordinators.groups.subscription import CONSUMER
from klamm.model.ids import TopicPartition

MINUTE_MS = 60_000


def expired_offsets(group: Group, now_ms: int, retention_ms: int) -> list[TopicPartition]:
    """A commit that is not decided yet keeps its partition's offset."""
    return [
        partition
        for partition, committed in group.offsets.committed.items()
        if _is_expired(group, partition, committed.value, now_ms, retention_ms)
        and not group.offsets.is_unstable(partition)
    ]


def _is_expired(group: Group, partition: TopicPartition, value: Offset, now_ms: int, retention_ms: int) -> bool:
    since = value.commit_timestamp
    if group.protocol_type is None:
        pass  # a group without members: each offset has its own age
    elif group.is_in(State.EMPTY):
        # Consumers without membership may go on committing after the last member has left.
        since = max(value.commit_timestamp, group.state_timestamp or 0)
    elif not (
        group.protocol_type == CONSUMER
        and group.is_in(State.STABLE)
        and group.topics is not None
        and partition.topic not in group.topics
    ):
        return False
    if value.expire_timestamp is not None:
        return now_ms >= value.expire_timestamp
    return now_ms - since >= retention_ms


def is_over(group: Group) -> bool:
    """Nothing is left of the group that anybody could ask for."""
    return group.is_in(State.EMPTY) and group.offsets.is_empty and not group.pending_members
