"""Consumer groups: list, describe, committed offsets, change of commits, deletion.

Each broker lists the groups that it coordinates. Everything about one group goes to its coordinator. Commits are
changed as a client outside the group does it (no member, no generation), which a coordinator allows only while the
group has no members.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from klamm.client.admin import Outcome, check, names_by_topic, numbers_by_topic, outcome
from klamm.client.cluster import ClusterClient
from klamm.client.reader import EARLIEST, LATEST, offsets_at
from klamm.model.ids import TopicPartition
from klamm.wire.apis import ApiKey
from klamm.wire.cursor import Cursor
from klamm.wire.errors import ProtocolError
from klamm.wire.messages import request_class

OFFSET_FETCH_NEWEST: Final = 7
"""Later versions ask for several groups at once."""
NOT_COMMITTED: Final = -1
DESCRIBED_AT_ONCE: Final = 100
"""Groups in one request: the answer has the metadata of all their members."""
CONSUMER: Final = "consumer"
"""The protocol type of Kafka's consumers; groups of other programs have assignments that only they can read."""


class ListedGroup(NamedTuple):
    name: str
    protocol_type: str
    state: str
    coordinator: int


class GroupMember(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


class DescribedGroup(NamedTuple):
    name: str
    state: str
    """`Dead` if there is no such group."""
    protocol_type: str
    assignor: str
    members: tuple[GroupMember, ...]

    def member_of(self) -> dict[TopicPartition, str]:
        """The client id of the member that reads each partition."""
        return {name: member.client_id for member in self.members for name in member.partitions}


class LogRange(NamedTuple):
    """The offsets that can be read: from `start` up to, not including, `end`."""

    start: int
    end: int


class GroupAdmin:
    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster

    async def list_all(self) -> list[ListedGroup]:
        """ListGroups has states only since 2.6, so they come from DescribeGroups."""
        found = []
        await self._cluster.metadata([])
        for broker in sorted(self._cluster.brokers):
            answer = await self._cluster.ask_broker(broker, ApiKey.LIST_GROUPS, request_class(ApiKey.LIST_GROUPS)())
            check(answer)
            kinds = {entry.group_id: entry.protocol_type for entry in answer.groups}
            states = await self._states(broker, sorted(kinds))
            found += [ListedGroup(name, kind, states.get(name, ""), broker) for name, kind in kinds.items()]
        return sorted(found)

    async def _states(self, broker: int, names: Sequence[str]) -> dict[str, str]:
        """Without groups that moved to another coordinator meanwhile."""
        states: dict[str, str] = {}
        for at in range(0, len(names), DESCRIBED_AT_ONCE):
            request = request_class(ApiKey.DESCRIBE_GROUPS)(groups=names[at : at + DESCRIBED_AT_ONCE])
            answer = await self._cluster.ask_broker(broker, ApiKey.DESCRIBE_GROUPS, request)
            states |= {entry.group_id: entry.group_state for entry in answer.groups if not entry.error_code}
        return states

    async def describe(self, group: str) -> DescribedGroup:
        request = request_class(ApiKey.DESCRIBE_GROUPS)(groups=[group])
        answer = await self._cluster.ask_coordinator(group, ApiKey.DESCRIBE_GROUPS, request)
        (entry,) = answer.groups
        check(entry)
        members = (_member(member, entry.protocol_type) for member in entry.members)
        return DescribedGroup(group, entry.group_state, entry.protocol_type, entry.protocol_data, tuple(members))

    async def offsets(self, group: str) -> dict[TopicPartition, int]:
        """Every offset that the group has committed."""
        request = request_class(ApiKey.OFFSET_FETCH)(group_id=group, topics=None)
        answer = await self._cluster.ask_coordinator(group, ApiKey.OFFSET_FETCH, request, newest=OFFSET_FETCH_NEWEST)
        check(answer)
        return {
            TopicPartition(topic.name, entry.partition_index): entry.committed_offset
            for topic in answer.topics
            for entry in topic.partitions
            if entry.committed_offset != NOT_COMMITTED
        }

    async def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, Outcome]:
        """Set the offsets of a group that has no members. A coordinator refuses it with UNKNOWN_MEMBER_ID if it has."""
        cls = request_class(ApiKey.OFFSET_COMMIT)
        topic_class = cls.OffsetCommitRequestTopic
        entry_class = topic_class.OffsetCommitRequestPartition

        def entry(name: TopicPartition) -> Any:
            return entry_class(partition_index=name.partition, committed_offset=offsets[name], committed_metadata="")

        topics = [
            topic_class(name=topic, partitions=[entry(name) for name in names])
            for topic, names in names_by_topic(offsets).items()
        ]
        request = cls(group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=topics)
        answer = await self._cluster.ask_coordinator(group, ApiKey.OFFSET_COMMIT, request)
        return _outcomes(answer)

    async def delete(self, group: str) -> None:
        """The group with all its commits. Raises KafkaError: NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND."""
        request = request_class(ApiKey.DELETE_GROUPS)(groups_names=[group])
        answer = await self._cluster.ask_coordinator(group, ApiKey.DELETE_GROUPS, request)
        (entry,) = answer.results
        check(entry)

    async def delete_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Outcome]:
        """Only these commits, which must be of topics that no member subscribes to."""
        cls = request_class(ApiKey.OFFSET_DELETE)
        topic_class = cls.OffsetDeleteRequestTopic
        topics = [
            topic_class(
                name=topic,
                partitions=[topic_class.OffsetDeleteRequestPartition(partition_index=index) for index in indexes],
            )
            for topic, indexes in numbers_by_topic(partitions).items()
        ]
        answer = await self._cluster.ask_coordinator(group, ApiKey.OFFSET_DELETE, cls(group_id=group, topics=topics))
        check(answer)
        return _outcomes(answer)

    async def log_ranges(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogRange]:
        """Partitions of topics that do not exist any more are left out."""
        wanted = await self._existing(partitions)
        starts = await offsets_at(self._cluster, wanted, EARLIEST)
        ends = await offsets_at(self._cluster, wanted, LATEST)
        return {name: LogRange(starts[name], ends[name]) for name in wanted}

    async def _existing(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        wanted = sorted(set(partitions))
        if not wanted:
            return []
        answer = await self._cluster.metadata({name.topic for name in wanted})
        known = {
            TopicPartition(topic.name, entry.partition_index) for topic in answer.topics for entry in topic.partitions
        }
        return [name for name in wanted if name in known]


def _member(entry: Any, protocol_type: str) -> GroupMember:
    assigned = assigned_partitions(entry.member_assignment) if protocol_type == CONSUMER else ()
    return GroupMember(entry.member_id, entry.group_instance_id, entry.client_id, entry.client_host, assigned)


def assigned_partitions(assignment: bytes) -> tuple[TopicPartition, ...]:
    """What a consumer was assigned. Later versions only append fields. Empty if it cannot be read, or not there yet."""
    found: list[TopicPartition] = []
    cursor = Cursor(memoryview(assignment))
    try:
        cursor.int16()
        for _ in range(cursor.count(6)):
            topic = cursor.string()
            found += [TopicPartition(topic, cursor.int32()) for _ in range(cursor.count(4))]
    except ProtocolError:
        return ()
    return tuple(sorted(found))


def _outcomes(answer: Any) -> dict[TopicPartition, Outcome]:
    return {
        TopicPartition(topic.name, entry.partition_index): outcome(entry)
        for topic in answer.topics
        for entry in topic.partitions
    }
