"""One member of a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from klamm.broker.coordinators.groups.events import Call, Join, ListedMember, Protocols
from klamm.broker.coordinators.groups.records import StoredMember

MEMBER_BYTES: Final = 2_048
"""What a member takes besides its protocols: the object, its ids, a timer, a parked call."""


def bytes_of(protocols: Protocols) -> int:
    return sum(len(name) + len(metadata) for name, metadata in protocols)


@dataclass(slots=True)
class Member:
    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    join: Call | None = None
    """JoinGroup that waits for the end of the join phase."""
    sync: Call | None = None
    """SyncGroup that waits for the leader's assignment."""
    is_new: bool = False
    """It has not seen the end of a join phase yet."""

    @classmethod
    def joining(cls, member_id: str, request: Join) -> Member:
        return cls(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.protocols,
            is_new=True,
        )

    @classmethod
    def stored(cls, stored: StoredMember, protocol: str | None) -> Member:
        return cls(
            stored.member_id,
            stored.instance_id,
            stored.client_id,
            stored.client_host,
            stored.session_timeout_ms,
            stored.rebalance_timeout_ms,
            ((protocol or "", stored.subscription),),
            stored.assignment,
        )

    @property
    def held_bytes(self) -> int:
        return MEMBER_BYTES + bytes_of(self.protocols)

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    def supports(self, protocol: str) -> bool:
        return any(name == protocol for name, _ in self.protocols)

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def update(self, request: Join) -> None:
        """Take over everything that a rejoin or a restart may change (KAFKA-14009)."""
        self.client_id = request.client_id
        self.client_host = request.client_host
        self.session_timeout_ms = request.session_timeout_ms
        self.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.protocols = request.protocols

    def listed(self, protocol: str | None) -> ListedMember:
        return ListedMember(self.id, self.instance_id, self.metadata(protocol))

    def to_store(self, protocol: str | None, assignment: bytes) -> StoredMember:
        return StoredMember(
            self.id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.metadata(protocol),
            assignment,
        )
