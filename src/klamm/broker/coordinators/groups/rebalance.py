"""One rebalance: the join phase, the leader's assignment, and the members that leave or fall silent meanwhile.

`prepare` begins the join phase. It ends early when every member has joined, else by its timer; the first one of a
group always takes the initial delay, so that members that start together share a generation. Then the members are
answered, the leader among them with the list of all, and the group waits for the leader's SyncGroup. Its assignment is
written before anybody gets it.

All functions change the group and note in the turn what must happen outside.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from klamm.broker.coordinators.groups.events import (
    JoinAnswer,
    LeavingMember,
    Purpose,
    Sync,
    SyncAnswer,
    TimerKind,
    Turn,
    Write,
)
from klamm.broker.coordinators.groups.group import Group, State
from klamm.broker.coordinators.groups.members import Member
from klamm.model.errors import ErrorCode

NEW_MEMBER_MS: Final = 5 * 60_000
"""How long a new member may wait in its first join phase: it frees clients that hang up during a long one."""

log = logging.getLogger(__name__)


class Rules(NamedTuple):
    """What the configuration says about rebalances."""

    initial_delay_ms: int
    max_size: int


# --- the join phase --------------------------------------------------------------------------------------------------


def maybe_prepare(group: Group, rules: Rules, turn: Turn) -> None:
    """Begin the join phase, unless it is under way."""
    if not group.can_rebalance:
        return
    if group.is_in(State.COMPLETING_REBALANCE):
        _fail_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS, turn)
    turn.cancel_timer(TimerKind.SYNC)
    group.awaited_syncs.clear()
    group.storing = False
    is_first = group.is_in(State.EMPTY)
    group.move_to(State.PREPARING_REBALANCE, turn.now_ms)
    if is_first:
        group.initial_delay_ms = rules.initial_delay_ms
        group.initial_budget_ms = max(group.rebalance_timeout_ms - rules.initial_delay_ms, 0)
        group.member_added = False
        turn.set_timer(TimerKind.JOIN, rules.initial_delay_ms)
    else:
        turn.set_timer(TimerKind.JOIN, group.rebalance_timeout_ms)


def maybe_end_join_phase(group: Group, turn: Turn) -> None:
    """End it early if every member has joined and no id that was handed out is awaited."""
    if not group.is_in(State.PREPARING_REBALANCE) or group.initial_budget_ms is not None:
        return
    if group.joined == len(group.members) and not group.pending_members:
        _end_join_phase(group, turn)


def join_time_over(group: Group, rules: Rules, turn: Turn) -> None:
    if not group.is_in(State.PREPARING_REBALANCE):
        return
    budget = group.initial_budget_ms
    if budget is not None and group.member_added and budget > 0:
        spent = group.initial_delay_ms
        group.member_added = False
        group.initial_delay_ms = min(rules.initial_delay_ms, budget)
        group.initial_budget_ms = max(budget - spent, 0)
        turn.set_timer(TimerKind.JOIN, group.initial_delay_ms)
        return
    _end_join_phase(group, turn)


def _end_join_phase(group: Group, turn: Turn) -> None:
    for member in [m for m in group.members.values() if m.join is None and not m.is_static]:
        _forget(group, member, turn)
    group.initial_budget_ms = None
    if not _elect_joined_leader(group):
        turn.set_timer(TimerKind.JOIN, group.rebalance_timeout_ms)  # only static members, and none of them is back
        return
    turn.cancel_timer(TimerKind.JOIN)
    group.generation += 1
    if not group.members:
        group.protocol = None
        group.move_to(State.EMPTY, turn.now_ms)
        group.topics = group.subscribed_topics()
        turn.write = Write(Purpose.EMPTY, group.to_store({}), group.generation)
        return
    group.protocol = group.choose_protocol()
    group.move_to(State.COMPLETING_REBALANCE, turn.now_ms)
    group.topics = group.subscribed_topics()
    # A static member that is absent lives by its session.
    group.awaited_syncs = {member.id for member in group.members.values() if member.join is not None}
    turn.set_timer(TimerKind.SYNC, group.rebalance_timeout_ms)
    for member in group.members.values():
        answer_join(group, member, turn)
        member.is_new = False
        renew_session(member, turn)


def _elect_joined_leader(group: Group) -> bool:
    """False if there are members, but none of them has joined."""
    if not group.members:
        return True
    leader = group.members[group.leader] if group.leader is not None else None
    if leader is None or leader.join is None:
        joined = next((member for member in group.members.values() if member.join is not None), None)
        if joined is None:
            return False
        group.leader = joined.id
    return True


def answer_join(group: Group, member: Member, turn: Turn) -> None:
    call, member.join = member.join, None
    if call is not None:
        turn.answer(call, current_generation(group, member))


def current_generation(group: Group, member: Member) -> JoinAnswer:
    is_leader = member.id == group.leader
    listed = tuple(each.listed(group.protocol) for each in group.members.values()) if is_leader else ()
    return JoinAnswer(
        ErrorCode.NONE,
        member.id,
        group.generation,
        group.protocol_type,
        group.protocol,
        group.leader or "",
        listed,
    )


def renew_session(member: Member, turn: Turn) -> None:
    turn.set_timer(TimerKind.SESSION, member.session_timeout_ms, member.id)


# --- SyncGroup -------------------------------------------------------------------------------------------------------


def sync(group: Group, request: Sync, call: object, turn: Turn) -> None:
    error = _judge_sync(group, request)
    if error is not ErrorCode.NONE:
        turn.answer(call, SyncAnswer(error))
        return
    member = group.members[request.member_id]
    _sync_arrived(group, member, turn)
    if group.is_in(State.STABLE):
        turn.answer(call, _own_assignment(group, member))
        renew_session(member, turn)
        return
    if member.sync is not None:
        turn.dropped.append(member.sync)
    member.sync = call
    if member.id == group.leader and not group.storing:
        group.storing = True
        assignments = {member_id: request.assignments.get(member_id, b"") for member_id in group.members}
        turn.write = Write(Purpose.ASSIGNMENT, group.to_store(assignments), group.generation)


def _judge_sync(group: Group, request: Sync) -> ErrorCode:
    error = _judge_member(group, request.member_id, request.instance_id, request.generation)
    if error is not ErrorCode.NONE:
        return error
    if request.protocol_type is not None and request.protocol_type != group.protocol_type:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if request.protocol is not None and request.protocol != group.protocol:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.REBALANCE_IN_PROGRESS if group.is_in(State.PREPARING_REBALANCE) else ErrorCode.NONE


def _judge_member(group: Group, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
    if group.is_in(State.DEAD):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if group.is_fenced(member_id, instance_id):
        return ErrorCode.FENCED_INSTANCE_ID
    if member_id not in group.members:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if generation == group.generation else ErrorCode.ILLEGAL_GENERATION


def _sync_arrived(group: Group, member: Member, turn: Turn) -> None:
    if member.id in group.awaited_syncs:
        group.awaited_syncs.remove(member.id)
        if not group.awaited_syncs:
            turn.cancel_timer(TimerKind.SYNC)


def _own_assignment(group: Group, member: Member) -> SyncAnswer:
    return SyncAnswer(ErrorCode.NONE, member.assignment, group.protocol_type, group.protocol)


def assignment_written(group: Group, write: Write, error: ErrorCode, rules: Rules, turn: Turn) -> None:
    """Nothing happens if the group has moved on: who waited then has been answered."""
    if not group.is_in(State.COMPLETING_REBALANCE) or group.generation != write.generation:
        return
    group.storing = False
    if error is not ErrorCode.NONE:
        log.warning("group %r: cannot store the assignment of generation %d: %s", group.id, group.generation, error)
        _fail_syncs(group, error, turn)
        maybe_prepare(group, rules, turn)
        return
    for stored in write.value.members:
        if stored.member_id in group.members:
            group.members[stored.member_id].assignment = stored.assignment
    group.move_to(State.STABLE, turn.now_ms)
    for member in group.members.values():
        call, member.sync = member.sync, None
        if call is not None:
            turn.answer(call, _own_assignment(group, member))
            renew_session(member, turn)


def _fail_syncs(group: Group, error: ErrorCode, turn: Turn) -> None:
    for member in group.members.values():
        member.assignment = b""
        call, member.sync = member.sync, None
        if call is not None:
            turn.answer(call, SyncAnswer(error))
            renew_session(member, turn)


def sync_time_over(group: Group, rules: Rules, turn: Turn) -> None:
    """Without this, a leader that sends heartbeats but never an assignment would block the group (KAFKA-12890)."""
    if not group.is_in(State.COMPLETING_REBALANCE, State.STABLE) or not group.awaited_syncs:
        return
    for member_id in list(group.awaited_syncs):
        _forget(group, group.members[member_id], turn)
    maybe_prepare(group, rules, turn)
    maybe_end_join_phase(group, turn)


# --- heartbeats, and members that go ---------------------------------------------------------------------------------


def heartbeat(group: Group, member_id: str, instance_id: str | None, generation: int, turn: Turn) -> ErrorCode:
    error = _judge_member(group, member_id, instance_id, generation)
    if error is ErrorCode.NONE:
        renew_session(group.members[member_id], turn)
        if group.is_in(State.PREPARING_REBALANCE):
            return ErrorCode.REBALANCE_IN_PROGRESS
    return error


def session_over(group: Group, member_id: str, rules: Rules, turn: Turn) -> bool:
    """True if the member is removed. One that waits for an answer of ours is not silent, unless it is new."""
    member = group.members.get(member_id)
    if member is None or group.is_in(State.DEAD):
        return False
    if not member.is_new and (member.join is not None or member.sync is not None):
        return False
    remove_member(group, member, rules, turn)
    return True


def pending_over(group: Group, member_id: str, turn: Turn) -> None:
    group.pending_members.discard(member_id)
    maybe_end_join_phase(group, turn)


def leave(group: Group, leaving: LeavingMember, rules: Rules, turn: Turn) -> ErrorCode:
    member_id, instance_id = leaving
    if member_id and group.is_fenced(member_id, instance_id):
        return ErrorCode.FENCED_INSTANCE_ID
    if member_id in group.pending_members:
        turn.cancel_timer(TimerKind.PENDING, member_id)
        pending_over(group, member_id, turn)
        return ErrorCode.NONE
    known_as = group.static.get(instance_id, member_id) if instance_id is not None else member_id
    member = group.members.get(known_as)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    remove_member(group, member, rules, turn)
    return ErrorCode.NONE


def remove_member(group: Group, member: Member, rules: Rules, turn: Turn) -> None:
    _forget(group, member, turn)
    if group.is_in(State.STABLE, State.COMPLETING_REBALANCE):
        maybe_prepare(group, rules, turn)
    maybe_end_join_phase(group, turn)


def _forget(group: Group, member: Member, turn: Turn) -> None:
    """The member is answered before it is gone, so that a live client joins again."""
    if member.join is not None:
        turn.answer(member.join, JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID))
    if member.sync is not None:
        turn.answer(member.sync, SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID))
    member.join = member.sync = None
    turn.cancel_timer(TimerKind.SESSION, member.id)
    group.remove(member)


def die(group: Group, error: ErrorCode, turn: Turn) -> None:
    """The group is deleted, expired or moves to another broker. Parked calls get `error`, and timers end."""
    group.move_to(State.DEAD, turn.now_ms)
    for member in group.members.values():
        if member.join is not None:
            turn.answer(member.join, JoinAnswer(error, member.id))
        if member.sync is not None:
            turn.answer(member.sync, SyncAnswer(error))
        member.join = member.sync = None
        turn.cancel_timer(TimerKind.SESSION, member.id)
    for member_id in group.pending_members:
        turn.cancel_timer(TimerKind.PENDING, member_id)
    turn.cancel_timer(TimerKind.JOIN)
    turn.cancel_timer(TimerKind.SYNC)
