"""JoinGroup: who may join, who gets an id first, and who waits for the join phase.

The rules come in Kafka's order, because clients act on the error code. A static member that restarts takes the place
of its former self (KIP-345): nothing is rebalanced if the group is stable, but its new id is written first, or a
fail-over would bring the old one back and fence the live one.
"""

from __future__ import annotations

from copy import copy
from typing import Final, NamedTuple

from klamm.broker.coordinators.groups.events import (
    NO_MEMBER,
    Call,
    Join,
    JoinAnswer,
    Purpose,
    SyncAnswer,
    TimerKind,
    Turn,
    Write,
)
from klamm.broker.coordinators.groups.group import GROUP_BYTES, Group, State
from klamm.broker.coordinators.groups.members import MEMBER_BYTES, Member, bytes_of
from klamm.broker.coordinators.groups.rebalance import (
    NEW_MEMBER_MS,
    Rules,
    current_generation,
    maybe_end_join_phase,
    maybe_prepare,
    pending_over,
    remove_member,
    renew_session,
)
from klamm.model.errors import ErrorCode

PENDING_MEMBERS_MAX: Final = 10_000
"""Ids that one group hands out and waits for. Anybody can ask for them, and each lives for a session timeout."""

PROTOCOLS_MAX: Final = 100
"""Clients offer a handful. The choice of a protocol compares those of all members."""
NAME_BYTES_MAX: Final = 16_384
"""A string in a group's record has at most 32,767 bytes, and a member's id is made of its client or instance id."""


class Replacement(NamedTuple):
    """A static member that restarted in a stable group, until its new id is stored."""

    former: Member
    new_id: str
    leader: str
    """The leader before. A restarted leader must not believe that it leads, or it would assign anew."""
    call: Call


def is_reasonable(request: Join, bytes_max: int) -> bool:
    """No client needs more, and a stranger gets no more."""
    names = (request.client_id, request.instance_id or "", request.protocol_type, *(p[0] for p in request.protocols))
    return (
        len(request.protocols) <= PROTOCOLS_MAX
        and bytes_of(request.protocols) <= bytes_max
        and all(len(name) <= NAME_BYTES_MAX and len(name.encode()) <= NAME_BYTES_MAX for name in names)
    )


def growth(group: Group | None, request: Join) -> int:
    """How many bytes more the group takes if the member is in it with these protocols."""
    wanted = MEMBER_BYTES + bytes_of(request.protocols)
    if group is None:
        return GROUP_BYTES + wanted
    known_as = group.static.get(request.instance_id or "", request.member_id)
    member = group.members.get(known_as)
    return wanted - (0 if member is None else member.held_bytes)


def join(group: Group, request: Join, call: Call, rules: Rules, turn: Turn) -> None:
    if not _has_room(group, request, rules):
        member = group.members.get(request.member_id)
        if member is not None:
            remove_member(group, member, rules, turn)
        elif request.member_id in group.pending_members:
            turn.cancel_timer(TimerKind.PENDING, request.member_id)
            pending_over(group, request.member_id, turn)  # the others need not wait for it
        turn.answer(call, JoinAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED))
        return
    error = _judge(group, request)
    if error is not ErrorCode.NONE:
        turn.answer(call, JoinAnswer(error, request.member_id))
    elif request.member_id == NO_MEMBER:
        _join_without_id(group, request, call, rules, turn)
    elif request.member_id in group.pending_members:
        group.pending_members.remove(request.member_id)
        turn.cancel_timer(TimerKind.PENDING, request.member_id)
        _add(group, request.member_id, request, call, rules, turn)
    else:
        _rejoin(group, group.members[request.member_id], request, call, rules, turn)
    maybe_end_join_phase(group, turn)


def _has_room(group: Group, request: Join, rules: Rules) -> bool:
    if request.member_id == NO_MEMBER and request.instance_id in group.static:
        return True  # a restart does not make the group larger
    member = group.members.get(request.member_id)
    if group.is_in(State.PREPARING_REBALANCE):
        # Not the size: it may exceed a maximum that was lowered. The first to join again stay.
        return (member is not None and member.join is not None) or group.joined < rules.max_size
    if group.is_in(State.COMPLETING_REBALANCE, State.STABLE):
        return member is not None or len(group.members) < rules.max_size
    return True


def _judge(group: Group, request: Join) -> ErrorCode:
    if group.is_in(State.DEAD):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if not group.accepts_protocols(request.protocol_type, (name for name, _ in request.protocols)):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    member_id, instance_id = request.member_id, request.instance_id
    if member_id == NO_MEMBER or (member_id in group.pending_members and instance_id is None):
        return ErrorCode.NONE
    # An id that was handed out belongs to a dynamic member: it must not take the place of a static one.
    if group.is_fenced(member_id, instance_id):
        return ErrorCode.FENCED_INSTANCE_ID
    if member_id not in group.members or (instance_id is not None and instance_id not in group.static):
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE


def _join_without_id(group: Group, request: Join, call: Call, rules: Rules, turn: Turn) -> None:
    new_id = request.new_member_id
    if request.instance_id is not None and request.instance_id in group.static:
        _replace(group, group.members[group.static[request.instance_id]], request, call, rules, turn)
    elif not request.needs_known_id or request.instance_id is not None:
        _add(group, new_id, request, call, rules, turn)
    elif len(group.pending_members) >= PENDING_MEMBERS_MAX:
        turn.answer(call, JoinAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED))
    else:
        group.pending_members.add(new_id)
        turn.set_timer(TimerKind.PENDING, request.session_timeout_ms, new_id)
        turn.answer(call, JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, new_id))


def _add(group: Group, member_id: str, request: Join, call: Call, rules: Rules, turn: Turn) -> None:
    member = Member.joining(member_id, request)
    if group.is_in(State.PREPARING_REBALANCE) and group.generation == 0:
        group.member_added = True
    if not group.members:
        group.protocol_type = request.protocol_type
    group.add(member)
    member.join = call
    turn.set_timer(TimerKind.SESSION, NEW_MEMBER_MS, member.id)
    maybe_prepare(group, rules, turn)


def _rejoin(group: Group, member: Member, request: Join, call: Call, rules: Rules, turn: Turn) -> None:
    changed = member.protocols != request.protocols
    leads_stable = group.is_in(State.STABLE) and member.id == group.leader
    if group.is_in(State.PREPARING_REBALANCE) or changed or leads_stable:
        _park(group, member, request, call, rules, turn)
        return
    group.update(member, request)
    turn.answer(call, current_generation(group, member))


def _park(group: Group, member: Member, request: Join, call: Call, rules: Rules, turn: Turn) -> None:
    if member.join is not None:
        turn.dropped.append(member.join)
    group.update(member, request)
    member.join = call
    maybe_prepare(group, rules, turn)


# --- restarts of static members --------------------------------------------------------------------------------------


def _replace(group: Group, member: Member, request: Join, call: Call, rules: Rules, turn: Turn) -> None:
    former, leader_before = copy(member), group.leader or ""
    _fence(member, turn)
    former.join = former.sync = None
    turn.cancel_timer(TimerKind.SESSION, member.id)
    group.rename(member.id, request.new_member_id)
    group.update(member, request)
    renew_session(member, turn)
    member.join = call
    if group.is_in(State.STABLE) and group.choose_protocol() == group.protocol:
        undo = Replacement(former, member.id, leader_before, call)
        assignments = {each.id: each.assignment for each in group.members.values()}
        turn.write = Write(Purpose.REPLACEMENT, group.to_store(assignments), group.generation, undo)
    else:
        # While assignments are awaited, the one under way would miss the new id.
        maybe_prepare(group, rules, turn)


def _fence(member: Member, turn: Turn) -> None:
    if member.join is not None:
        turn.answer(member.join, JoinAnswer(ErrorCode.FENCED_INSTANCE_ID, member.id))
    if member.sync is not None:
        turn.answer(member.sync, SyncAnswer(ErrorCode.FENCED_INSTANCE_ID))
    member.join = member.sync = None


def replacement_written(group: Group, write: Write, error: ErrorCode, turn: Turn) -> None:
    """If a rebalance has begun meanwhile, the member waits for its end like the others."""
    done: Replacement = write.undo
    member = group.members.get(done.new_id)
    if member is None or member.join is not done.call or not group.is_in(State.STABLE):
        return
    member.join = None
    if error is ErrorCode.NONE:
        answer = current_generation(group, member)._replace(leader=done.leader, members=())
        turn.answer(done.call, answer)
        renew_session(member, turn)
        return
    turn.cancel_timer(TimerKind.SESSION, member.id)
    group.rename(done.new_id, done.former.id)
    group.restore(done.former)
    renew_session(done.former, turn)
    turn.answer(done.call, JoinAnswer(error))
