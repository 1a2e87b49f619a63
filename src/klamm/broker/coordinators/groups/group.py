"""What a group is: its state, members, protocol and offsets. The rules of rebalancing are in `rebalance` and `join`.

Members are kept in the order in which they joined. The first one leads; when the leader leaves, the oldest of the
others does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

from klamm.broker.coordinators.groups.events import Join
from klamm.broker.coordinators.groups.members import Member
from klamm.broker.coordinators.groups.offsets import GroupOffsets
from klamm.broker.coordinators.groups.records import StoredGroup
from klamm.broker.coordinators.groups.subscription import CONSUMER, topics_of
from klamm.model.errors import ErrorCode, KlammError

GROUP_BYTES: Final = 2_048
PENDING_BYTES: Final = 512
OFFSET_BYTES: Final = 512
"""What an empty group, an id that was handed out and a committed offset take in memory, roughly."""


class State(Enum):
    """The values are the names that DescribeGroups and ListGroups show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


LEGAL_BEFORE: Final[Mapping[State, frozenset[State]]] = {
    State.PREPARING_REBALANCE: frozenset({State.EMPTY, State.STABLE, State.COMPLETING_REBALANCE}),
    State.COMPLETING_REBALANCE: frozenset({State.PREPARING_REBALANCE}),
    State.STABLE: frozenset({State.COMPLETING_REBALANCE}),
    State.EMPTY: frozenset({State.PREPARING_REBALANCE}),
    State.DEAD: frozenset(State),
}


class IllegalTransition(KlammError):
    """A bug: the machine asked for a change that the table does not have."""


class Group:
    def __init__(self, group_id: str, partition: int = 0) -> None:
        self.id = group_id
        self.partition = partition
        """The partition of `__consumer_offsets` that holds it."""
        self.state = State.EMPTY
        self.state_timestamp: int | None = None
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.generation = 0
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static: dict[str, str] = {}
        """Instance id -> member id."""
        self._members_bytes = 0
        self.pending_members: set[str] = set()
        """Ids that were handed out and have not come back (KIP-394)."""
        self.awaited_syncs: set[str] = set()
        """Members of this generation that have not sent SyncGroup."""
        self.member_added = False
        """A member joined during the current delay of the first join phase."""
        self.initial_budget_ms: int | None = None
        """How much longer the first join phase may be prolonged; None outside of it."""
        self.initial_delay_ms = 0
        """The part of the budget that is being waited for."""
        self.storing = False
        """The assignment of this generation is being written."""
        self.topics: frozenset[str] | None = None
        """The topics that the members subscribe to; None if unknown."""
        self.offsets = GroupOffsets()

    @classmethod
    def loaded(cls, group_id: str, partition: int, stored: StoredGroup | None) -> Group:
        group = cls(group_id, partition)
        if stored is None:
            return group
        group.protocol_type = stored.protocol_type
        group.generation = stored.generation
        group.state_timestamp = stored.state_timestamp
        if stored.members:
            group.state = State.STABLE
            group.protocol = stored.protocol
            for member in stored.members:
                group.add(Member.stored(member, stored.protocol))
            if stored.leader in group.members:
                group.leader = stored.leader
        group.topics = group.subscribed_topics()
        return group

    # --- state ---

    def move_to(self, state: State, now_ms: int) -> None:
        if self.state not in LEGAL_BEFORE[state]:
            raise IllegalTransition(f"group {self.id!r}: {self.state.value} to {state.value}")
        self.state = state
        self.state_timestamp = now_ms

    def is_in(self, *states: State) -> bool:
        return self.state in states

    @property
    def can_rebalance(self) -> bool:
        return self.state in LEGAL_BEFORE[State.PREPARING_REBALANCE]

    @property
    def held_bytes(self) -> int:
        """An estimate of the memory that it takes. Assignments are left out: together they fit into one record."""
        members = self._members_bytes + PENDING_BYTES * len(self.pending_members)
        return GROUP_BYTES + members + OFFSET_BYTES * self.offsets.count

    # --- members ---

    def add(self, member: Member) -> None:
        self.members[member.id] = member
        self._members_bytes += member.held_bytes
        if member.instance_id is not None:
            self.static[member.instance_id] = member.id
        if self.leader is None:
            self.leader = member.id

    def update(self, member: Member, request: Join) -> None:
        """Take over what a rejoin or a restart changes."""
        self._members_bytes -= member.held_bytes
        member.update(request)
        self._members_bytes += member.held_bytes

    def restore(self, former: Member) -> None:
        """The member is again what it was before an update."""
        self._members_bytes += former.held_bytes - self.members[former.id].held_bytes
        self.members[former.id] = former

    def remove(self, member: Member) -> None:
        del self.members[member.id]
        self._members_bytes -= member.held_bytes
        self.awaited_syncs.discard(member.id)
        if member.instance_id is not None:
            self.static.pop(member.instance_id, None)
        if self.leader == member.id:
            self.leader = next(iter(self.members), None)

    def rename(self, old_id: str, new_id: str) -> None:
        """A static member has a new id. It keeps its place, its leadership and its assignment."""
        self.members = {new_id if key == old_id else key: member for key, member in self.members.items()}
        member = self.members[new_id]
        member.id = new_id
        assert member.instance_id is not None
        self.static[member.instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        if old_id in self.awaited_syncs:
            self.awaited_syncs.remove(old_id)
            self.awaited_syncs.add(new_id)

    def is_fenced(self, member_id: str, instance_id: str | None) -> bool:
        """Another member has taken over the instance id."""
        return instance_id is not None and self.static.get(instance_id, member_id) != member_id

    @property
    def joined(self) -> int:
        """The number of members that wait for the end of the join phase."""
        return sum(member.join is not None for member in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # --- protocols ---

    def _candidates(self) -> list[str]:
        """The protocols that all members support, in the leader's order."""
        leader = self.members[self.leader] if self.leader in self.members else next(iter(self.members.values()))
        return [name for name, _ in leader.protocols if all(member.supports(name) for member in self.members.values())]

    def accepts_protocols(self, protocol_type: str, names: Iterable[str]) -> bool:
        offered = set(names)
        if self.is_in(State.EMPTY):
            return bool(protocol_type and offered)
        if not self.members:
            return bool(offered) and protocol_type == self.protocol_type
        return protocol_type == self.protocol_type and not offered.isdisjoint(self._candidates())

    def choose_protocol(self) -> str:
        """Each member votes for the first candidate of its own list. In a tie the leader's preference counts."""
        candidates = self._candidates()
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes.update([next(name for name, _ in member.protocols if name in candidates)])
        return max(candidates, key=lambda name: (votes[name], -candidates.index(name)))

    def subscribed_topics(self) -> frozenset[str] | None:
        if self.protocol_type != CONSUMER:
            return None
        if not self.members:
            return frozenset()
        if self.protocol is None:
            return None
        return topics_of(member.metadata(self.protocol) for member in self.members.values())

    def is_subscribed_to(self, topic: str) -> bool:
        """An unknown subscription counts as one to every topic."""
        return self.topics is None or topic in self.topics

    # --- commits ---

    def judge_commit(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        if self.is_in(State.DEAD):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if self.is_fenced(member_id, instance_id):
            return ErrorCode.FENCED_INSTANCE_ID
        if generation < 0 and self.is_in(State.EMPTY):
            return ErrorCode.NONE  # a consumer without membership, or an administrator
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.REBALANCE_IN_PROGRESS if self.is_in(State.COMPLETING_REBALANCE) else ErrorCode.NONE

    def judge_transactional_commit(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Accepted in every state: the transaction decides, not the rebalance (KIP-447)."""
        if self.is_in(State.DEAD):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if self.is_fenced(member_id, instance_id):
            return ErrorCode.FENCED_INSTANCE_ID
        if member_id and member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if generation >= 0 and generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.NONE

    # --- storage ---

    def to_store(self, assignments: Mapping[str, bytes]) -> StoredGroup:
        return StoredGroup(
            self.protocol_type,
            self.generation,
            self.protocol,
            self.leader,
            self.state_timestamp,
            tuple(member.to_store(self.protocol, assignments.get(member.id, b"")) for member in self.members.values()),
        )
