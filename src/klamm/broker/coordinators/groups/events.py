"""What goes into a group's state machine and what comes out of it (design D20).

A `Turn` is one event. It has the time at which the event happens and collects what follows from it: answers to calls,
timers to set or cancel, and a group value to write. The machine does nothing itself; the coordinator carries the turn
out, and reports the end of a timer or a write as the next event.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

from klamm.broker.coordinators.groups.records import StoredGroup
from klamm.model.errors import ErrorCode

Call = Any
"""A request that waits for its answer. The machine only passes it on."""
Protocols = tuple[tuple[str, bytes], ...]
"""Name and metadata, in the member's order of preference."""

NO_GENERATION = -1
NO_MEMBER = ""


class Join(NamedTuple):
    member_id: str
    new_member_id: str
    """The id to give to the member if it needs one: `<client or instance id>-<uuid>`."""
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    needs_known_id: bool = False
    """A dynamic member without an id must come back with one (KIP-394)."""


class ListedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinAnswer(NamedTuple):
    error: ErrorCode
    member_id: str = NO_MEMBER
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[ListedMember, ...] = ()
    """For the leader alone."""


class Sync(NamedTuple):
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes] = {}


class SyncAnswer(NamedTuple):
    error: ErrorCode
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


class LeavingMember(NamedTuple):
    member_id: str
    instance_id: str | None = None


Answer = JoinAnswer | SyncAnswer


class TimerKind(Enum):
    SESSION = "session"
    """A member must be heard of within it; for a new member it lasts until its first generation begins."""
    PENDING = "pending"
    """How long an id that was handed out may take to come back."""
    JOIN = "join"
    """Ends the join phase, or prolongs the first one."""
    SYNC = "sync"
    """Until all members must have sent SyncGroup."""


class Timer(NamedTuple):
    kind: TimerKind
    member_id: str = ""


class Purpose(Enum):
    ASSIGNMENT = "assignment"
    EMPTY = "empty"
    REPLACEMENT = "replacement"


class Write(NamedTuple):
    """A group value to write. The machine hears of the outcome by `written`."""

    purpose: Purpose
    value: StoredGroup
    generation: int
    undo: Any = None
    """For a replaced static member: what to restore when the write fails."""


class Turn:
    __slots__ = ("answers", "dropped", "now_ms", "timers", "write")

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.answers: list[tuple[Call, Answer]] = []
        self.dropped: list[Call] = []
        """Calls that a later one of the same member replaces: their clients no longer wait."""
        self.timers: dict[Timer, int | None] = {}
        """Milliseconds from now; None cancels."""
        self.write: Write | None = None

    def answer(self, call: Call, answer: Answer) -> None:
        self.answers.append((call, answer))

    def set_timer(self, kind: TimerKind, delay_ms: int, member_id: str = "") -> None:
        self.timers[Timer(kind, member_id)] = delay_ms

    def cancel_timer(self, kind: TimerKind, member_id: str = "") -> None:
        self.timers[Timer(kind, member_id)] = None
