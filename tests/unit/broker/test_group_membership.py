"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup of one group, as clients see them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from klamm.broker.coordinators.groups.events import SyncAnswer
from klamm.broker.coordinators.groups.execution import ANSWERS_PER_SLICE
from klamm.broker.coordinators.groups.group import LEGAL_BEFORE, Group, IllegalTransition, State
from klamm.broker.coordinators.groups.members import Member
from klamm.model.errors import ErrorCode
from klamm.model.requests import ClientConnection
from klamm.wire.apis import ApiKey
from klamm.wire.errors import CloseConnection

from .group_node import GROUP, MINUTE_MS, GroupNode, coordinator, pass_ms, start

NONE = ErrorCode.NONE
UNKNOWN_MEMBER = ErrorCode.UNKNOWN_MEMBER_ID
REBALANCE = ErrorCode.REBALANCE_IN_PROGRESS
INCONSISTENT = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
FENCED = ErrorCode.FENCED_INSTANCE_ID

# --- joining ---


@pytest.mark.case("GRP-01")
@coordinator()
async def test_the_first_member_leads(c: GroupNode) -> None:
    answer = await c.join(version=3)
    assert (answer.error_code, answer.generation_id, answer.protocol_name) == (NONE, 1, "range")
    assert answer.member_id.startswith("client-") and len(answer.member_id) == len("client-") + 36
    assert answer.leader == answer.member_id
    assert [m.member_id for m in answer.members] == [answer.member_id]


@pytest.mark.case("GRP-02")
@pytest.mark.parametrize("version", [4, 5, 6, 7])
@coordinator()
async def test_a_dynamic_member_gets_its_id_first(c: GroupNode, version: int) -> None:
    answer = await c.join(version=version)
    assert (answer.error_code, answer.generation_id) == (ErrorCode.MEMBER_ID_REQUIRED, -1)
    group = c.known
    assert (c.state, group.pending_members, group.members) == ("Empty", {answer.member_id}, {})


@pytest.mark.parametrize("version", [0, 1, 2, 3])
@coordinator()
async def test_old_clients_never_hear_of_ids_first(c: GroupNode, version: int) -> None:
    assert (await c.join(version=version)).error_code == NONE


@pytest.mark.case("GRP-03")
@coordinator()
async def test_a_pending_member_without_protocols_stays_pending(c: GroupNode) -> None:
    member = (await c.join()).member_id
    assert (await c.join(member, protocols=())).error_code == INCONSISTENT
    assert c.known.pending_members == {member}
    assert (await c.join(member)).error_code == NONE


@pytest.mark.case("GRP-04")
@pytest.mark.parametrize("instance", [None, "instance"])
@coordinator()
async def test_an_id_that_was_made_up_makes_no_group(c: GroupNode, instance: str | None) -> None:
    answer = await c.join("made-up", instance=instance)
    assert (answer.error_code, answer.member_id, answer.generation_id) == (UNKNOWN_MEMBER, "made-up", -1)
    assert (answer.protocol_type, answer.protocol_name) == (None, None)
    assert c.group() is None
    assert (await c.join("made-up", version=6)).protocol_name == "", "null only from version 7 on"


@pytest.mark.case("GRP-05")
@coordinator()
async def test_an_empty_group_id(c: GroupNode) -> None:
    assert (await c.join(group="")).error_code == ErrorCode.INVALID_GROUP_ID


@pytest.mark.case("GRP-06")
@coordinator(led=False)
async def test_another_broker_coordinates_the_group(c: GroupNode) -> None:
    wrong = ErrorCode.NOT_COORDINATOR
    assert (await c.join()).error_code == wrong
    assert (await c.join(instance="i")).error_code == wrong
    assert (await c.sync("m")).error_code == wrong
    assert await c.heartbeat("m") == wrong
    assert (await c.leave("m")).error_code == wrong
    assert (await c.describe()).error_code == wrong
    assert await c.delete() == wrong
    assert (await c.fetch()).error_code == wrong
    assert await c.commit() == [wrong]
    assert await c.commit_in_transaction() == [wrong]
    assert await c.delete_offsets() == wrong


@pytest.mark.case("GRP-07")
@pytest.mark.parametrize(("session", "error"), [(9, 26), (10, 79), (1_800_000, 79), (1_800_001, 26)])
@coordinator()
async def test_the_session_timeout_is_limited(c: GroupNode, session: int, error: int) -> None:
    assert (await c.join(session=session)).error_code == error


@pytest.mark.case("GRP-08")
@coordinator()
async def test_a_member_needs_a_type_and_a_protocol(c: GroupNode) -> None:
    assert (await c.join(protocol_type="")).error_code == INCONSISTENT
    assert (await c.join(protocols=())).error_code == INCONSISTENT


@pytest.mark.case("GRP-09")
@coordinator()
async def test_another_type_than_the_groups(c: GroupNode) -> None:
    await c.stable()
    assert (await c.join(protocol_type="connect")).error_code == INCONSISTENT


@coordinator()
async def test_an_empty_group_takes_a_new_type(c: GroupNode) -> None:
    (member,) = await c.stable()
    assert await c.left(member) == [NONE]
    assert (await c.join(version=3, protocol_type="connect")).error_code == NONE
    assert (await c.describe()).protocol_type == "connect"


@pytest.mark.case("GRP-10")
@coordinator()
async def test_no_common_protocol(c: GroupNode) -> None:
    first = start(c.join(version=3))
    await pass_ms(10)
    assert (await c.join(version=3, protocols=[("roundrobin", b"")])).error_code == INCONSISTENT
    assert not first.done()
    assert (await first).error_code == NONE


@coordinator()
async def test_the_only_member_cannot_rejoin_with_other_protocols(c: GroupNode) -> None:
    (member,) = await c.stable()
    assert (await c.join(member, protocols=[("sticky", b"")])).error_code == INCONSISTENT


@pytest.mark.case("GRP-11")
@coordinator()
async def test_an_unknown_id_in_a_group_with_members(c: GroupNode) -> None:
    await c.stable()
    assert (await c.join("made-up")).error_code == UNKNOWN_MEMBER


@pytest.mark.case("GRP-12")
@coordinator()
async def test_a_dead_group_that_is_still_cached(c: GroupNode) -> None:
    (member,) = await c.stable()
    c.known.move_to(State.DEAD, 0)
    gone = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (await c.join(member)).error_code == gone
    assert (await c.sync(member)).error_code == gone
    assert await c.heartbeat(member) == gone
    assert await c.commit(member=member, generation=1) == [gone]
    left = await c.leave(member)
    assert (left.error_code, list(left.members)) == (gone, [])


# --- the first join phase ---


@pytest.mark.case("GRP-13")
@coordinator()
async def test_the_initial_delay(c: GroupNode) -> None:
    first = start(c.join(version=3))
    await pass_ms(25)
    assert not first.done()
    await pass_ms(26)
    assert first.done()


@pytest.mark.case("GRP-14")
@coordinator()
async def test_a_second_join_prolongs_the_delay(c: GroupNode) -> None:
    first = start(c.join(version=3, rebalance=150))
    await pass_ms(49)
    second = start(c.join(version=3, rebalance=150))
    await pass_ms(28)
    assert not first.done() and not second.done()
    await pass_ms(25)
    assert first.done() and second.done()
    assert (await first).generation_id == (await second).generation_id == 1


@pytest.mark.case("GRP-15")
@coordinator()
async def test_the_delay_never_exceeds_the_rebalance_timeout(c: GroupNode) -> None:
    joins = [start(c.join(version=3, rebalance=100)) for _ in range(2)]
    await pass_ms(51)
    joins.append(start(c.join(version=3, rebalance=100)))
    await pass_ms(48)
    assert not any(join.done() for join in joins)
    await pass_ms(3)
    assert all(join.done() for join in joins)


@coordinator(group_initial_rebalance_delay_ms=0)
async def test_no_initial_delay(c: GroupNode) -> None:
    first = start(c.join(version=3))
    await pass_ms(0)
    assert first.done()


# --- joining again ---


@pytest.mark.case("GRP-16")
@coordinator()
async def test_the_leader_that_joins_again_starts_a_rebalance(c: GroupNode) -> None:
    (member,) = await c.stable()
    answer = await c.join(member)
    assert (answer.error_code, answer.generation_id, answer.leader) == (NONE, 2, member)
    assert [m.member_id for m in answer.members] == [member]


@pytest.mark.case("GRP-17")
@coordinator()
async def test_a_follower_that_joins_again_while_assignments_are_awaited(c: GroupNode) -> None:
    leader, follower = await c.joined(2)
    again = await c.join(follower.member_id)
    assert (again.error_code, again.generation_id, again.leader) == (NONE, 1, leader.member_id)
    assert list(again.members) == []
    leads = await c.join(leader.member_id)
    assert (leads.generation_id, len(leads.members)) == (1, 2)
    assert c.state == "CompletingRebalance"


@coordinator()
async def test_a_follower_of_a_stable_group_that_joins_again(c: GroupNode) -> None:
    leader, follower = await c.stable(2)
    again = await c.join(follower)
    assert (again.error_code, again.generation_id, list(again.members), c.state) == (NONE, 1, [], "Stable")
    changed = start(c.join(follower, protocols=[("range", b"owns more")]))
    await pass_ms(1)
    assert not changed.done()
    assert c.state == "PreparingRebalance", "metadata is compared byte by byte (KIP-429)"
    assert (await c.join(leader)).generation_id == 2
    assert (await changed).generation_id == 2


@coordinator()
async def test_changed_protocols_while_assignments_are_awaited(c: GroupNode) -> None:
    leader, follower = await c.joined(2)
    parked = start(c.sync(follower.member_id))
    await pass_ms(1)
    changed = start(c.join(leader.member_id, protocols=[("range", b"new")]))
    await pass_ms(1)
    assert ((await parked).error_code, c.state) == (REBALANCE, "PreparingRebalance")
    again = await c.join(follower.member_id)
    listed = {m.member_id: bytes(m.metadata) for m in (await changed).members}
    assert (again.generation_id, listed[leader.member_id]) == (2, b"new")


@coordinator()
async def test_a_repeated_join_replaces_the_parked_one(c: GroupNode) -> None:
    leader, _follower = await c.stable(2)
    first = start(c.join(leader))
    await pass_ms(1)
    second = start(c.join(leader))
    await pass_ms(1)
    with pytest.raises(CloseConnection):
        await first
    assert not second.done(), "the follower is awaited"
    await pass_ms(500)
    assert (await second).error_code == NONE


@coordinator()
async def test_a_rejoin_updates_the_timeouts(c: GroupNode) -> None:
    _leader, follower = await c.stable(2)
    await c.join(follower, session=7_000, rebalance=9_000)
    member = c.known.members[follower]
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (7_000, 9_000)


@coordinator()
async def test_version_0_takes_the_session_for_the_rebalance_timeout(c: GroupNode) -> None:
    member = (await c.join(version=0, session=4_000, rebalance=1)).member_id
    assert c.known.members[member].rebalance_timeout_ms == 4_000


# --- SyncGroup ---


@pytest.mark.case("GRP-18")
@coordinator()
async def test_the_leader_assigns_and_the_follower_asks_later(c: GroupNode) -> None:
    leader, follower = (answer.member_id for answer in await c.joined(2))
    mine = await c.sync(leader, me=b"mine", **{follower.replace("-", "_"): b"yours"})
    assert (mine.error_code, bytes(mine.assignment), c.state) == (NONE, b"mine", "Stable")
    yours = await c.sync(follower)
    assert (yours.error_code, bytes(yours.assignment)) == (NONE, b"yours")


@pytest.mark.case("GRP-19")
@coordinator()
async def test_a_follower_waits_for_the_leader(c: GroupNode) -> None:
    leader, follower = (answer.member_id for answer in await c.joined(2))
    waiting = start(c.sync(follower))
    await pass_ms(10)
    assert not waiting.done()
    await c.sync(leader, **{follower.replace("-", "_"): b"yours"})
    assert bytes((await waiting).assignment) == b"yours"


@pytest.mark.case("GRP-20")
@coordinator()
async def test_an_empty_assignment(c: GroupNode) -> None:
    (leader,) = await c.joined()
    answer = await c.sync(leader.member_id)
    assert (answer.error_code, bytes(answer.assignment)) == (NONE, b"")
    assert await c.heartbeat(leader.member_id) == NONE


@pytest.mark.case("GRP-21")
@coordinator()
async def test_sync_of_strangers(c: GroupNode) -> None:
    assert (await c.sync("m")).error_code == UNKNOWN_MEMBER, "no group"
    (leader,) = await c.joined()
    assert (await c.sync("m")).error_code == UNKNOWN_MEMBER
    assert (await c.sync(leader.member_id, 2)).error_code == ErrorCode.ILLEGAL_GENERATION


@pytest.mark.case("GRP-22")
@pytest.mark.parametrize(
    ("given", "error"),
    [
        (("consumer", "range"), NONE),
        (("connect", "range"), INCONSISTENT),
        (("consumer", "sticky"), INCONSISTENT),
        ((None, "range"), INCONSISTENT),
        (("consumer", None), INCONSISTENT),
    ],
)
@coordinator()
async def test_sync_names_the_protocol(c: GroupNode, given: tuple[str | None, str | None], error: ErrorCode) -> None:
    (member,) = await c.stable()
    answer = await c.sync(member, version=5, protocol_type=given[0], protocol=given[1])
    named = ("consumer", "range") if error is NONE else (None, None)
    assert (answer.error_code, (answer.protocol_type, answer.protocol_name)) == (error, named)
    assert (await c.sync(member, version=4)).error_code == NONE, "older versions name none"


@pytest.mark.case("GRP-23")
@coordinator()
async def test_a_leader_that_never_syncs(c: GroupNode) -> None:
    leader, follower = (answer.member_id for answer in await c.joined(2, rebalance=5_000, session=1_000))
    waiting = start(c.sync(follower))
    await pass_ms(990)
    assert not waiting.done()
    await pass_ms(20)
    assert (await waiting).error_code == REBALANCE
    assert leader not in c.known.members


@coordinator()
async def test_a_leader_that_heartbeats_but_never_syncs(c: GroupNode) -> None:
    """KAFKA-12890: without the sync timer the group would wait for ever."""
    leader, follower = (answer.member_id for answer in await c.joined(2, rebalance=1_500, session=1_000))
    waiting = start(c.sync(follower))
    for _ in range(4):
        await pass_ms(400)
        if not waiting.done():
            assert await c.heartbeat(leader) == NONE
    assert (await waiting).error_code == REBALANCE
    assert list(c.known.members) == [follower]


@coordinator()
async def test_a_member_that_never_syncs_goes_although_the_group_is_stable(c: GroupNode) -> None:
    leader, follower = (answer.member_id for answer in await c.joined(2, rebalance=600, session=1_000))
    assert (await c.sync(leader)).error_code == NONE
    await pass_ms(590)
    assert follower in c.known.members
    await pass_ms(20)
    assert follower not in c.known.members


@coordinator()
async def test_a_second_sync_of_the_leader_while_the_first_is_written(c: GroupNode) -> None:
    await c.lead(epoch=1, isr=(1, 2))
    (leader,) = (answer.member_id for answer in await c.joined())
    first = start(c.sync(leader, me=b"first"))
    await pass_ms(1)
    second = start(c.sync(leader, me=b"second"))
    await pass_ms(1)
    with pytest.raises(CloseConnection):
        await first
    assert len([r for r in c.records() if r.value is not None]) == 1, "one generation is stored once"
    c.follower_fetches()
    assert bytes((await second).assignment) == b"first"


# --- heartbeats and silence ---


@pytest.mark.case("GRP-24")
@coordinator()
async def test_heartbeats(c: GroupNode) -> None:
    assert await c.heartbeat("m") == UNKNOWN_MEMBER, "no group"
    (member,) = await c.stable()
    assert await c.heartbeat(member) == NONE
    assert await c.heartbeat("m") == UNKNOWN_MEMBER
    assert await c.heartbeat(member, 2) == ErrorCode.ILLEGAL_GENERATION
    await c.left(member)
    assert (c.state, await c.heartbeat(member)) == ("Empty", UNKNOWN_MEMBER)


@pytest.mark.case("GRP-25")
@coordinator()
async def test_a_heartbeat_while_assignments_are_awaited(c: GroupNode) -> None:
    (leader,) = await c.joined(rebalance=10_000)
    await pass_ms(900)
    assert await c.heartbeat(leader.member_id) == NONE
    await pass_ms(900)
    assert await c.heartbeat(leader.member_id) == NONE, "its session was renewed"


@pytest.mark.case("GRP-26")
@coordinator()
async def test_a_heartbeat_during_the_join_phase(c: GroupNode) -> None:
    (old,) = await c.stable(rebalance=10_000)
    start(c.join(version=3, rebalance=10_000))
    await pass_ms(900)
    assert (c.state, await c.heartbeat(old)) == ("PreparingRebalance", REBALANCE)
    await pass_ms(900)
    assert await c.heartbeat(old) == REBALANCE, "its session was renewed"


@pytest.mark.case("GRP-27")
@coordinator()
async def test_a_silent_member_is_removed(c: GroupNode) -> None:
    (member,) = await c.stable(session=500)
    await pass_ms(490)
    assert c.state == "Stable"
    await pass_ms(110)
    assert (await c.heartbeat(member), c.state) == (UNKNOWN_MEMBER, "Empty")
    assert c.known.generation == 2


@pytest.mark.case("GRP-28")
@pytest.mark.parametrize("renew", ["heartbeat", "commit"])
@coordinator()
async def test_a_heartbeat_or_a_commit_renews_the_session(c: GroupNode, renew: str) -> None:
    (member,) = await c.stable(session=1_000)
    await pass_ms(500)
    if renew == "commit":
        assert await c.commit(member=member, generation=1) == [NONE]
    else:
        assert await c.heartbeat(member) == NONE
    await pass_ms(600)
    assert member in c.known.members
    await pass_ms(500)
    assert member not in c.known.members


@pytest.mark.case("GRP-29")
@coordinator()
async def test_an_old_member_that_is_silent_during_the_join_phase(c: GroupNode) -> None:
    await c.stable(session=300, rebalance=10_000)
    joining = start(c.join(version=3, rebalance=10_000))
    await pass_ms(200)
    assert not joining.done()
    await pass_ms(200)
    answer = await joining
    assert (answer.error_code, answer.generation_id, len(answer.members)) == (NONE, 2, 1)


@pytest.mark.case("GRP-30")
@coordinator()
async def test_a_new_member_that_waits_for_five_minutes(c: GroupNode) -> None:
    (old,) = await c.stable(session=10 * MINUTE_MS, rebalance=15 * MINUTE_MS)
    joining = start(c.join(version=3, session=6 * MINUTE_MS, rebalance=15 * MINUTE_MS))
    await pass_ms(5 * MINUTE_MS - 100)
    assert not joining.done()
    await pass_ms(200)
    answer = await joining
    assert (answer.error_code, answer.member_id) == (UNKNOWN_MEMBER, "")
    assert list(c.known.members) == [old]


@pytest.mark.case("GRP-31")
@coordinator()
async def test_after_its_first_join_phase_a_member_lives_by_its_session(c: GroupNode) -> None:
    (member,) = await c.stable(session=5 * MINUTE_MS + 5_000)
    await pass_ms(5 * MINUTE_MS)
    assert member in c.known.members
    await pass_ms(5_100)
    assert member not in c.known.members


@pytest.mark.case("GRP-32")
@pytest.mark.parametrize("synced", [False, True])
@coordinator()
async def test_two_members_fall_silent(c: GroupNode, synced: bool) -> None:
    await (c.stable if synced else c.joined)(2, session=100, rebalance=100)
    await pass_ms(500)
    assert (c.state, c.known.members) == ("Empty", {})


@coordinator()
async def test_a_member_that_waits_for_an_answer_is_not_silent(c: GroupNode) -> None:
    leader, follower = (answer.member_id for answer in await c.joined(2, session=100, rebalance=5_000))
    waiting = start(c.sync(follower))
    for _ in range(5):
        await pass_ms(80)
        assert await c.heartbeat(leader) == NONE
    assert not waiting.done() and follower in c.known.members


@pytest.mark.parametrize("assigned", [True, False])
@coordinator()
async def test_a_member_that_has_waited_for_its_assignment_may_fall_silent_again(c: GroupNode, assigned: bool) -> None:
    leader, member = (answer.member_id for answer in await c.joined(2, session=[5_000, 100], rebalance=3_000))
    waiting = start(c.sync(member))
    await pass_ms(200)
    assert not waiting.done()
    if assigned:
        await c.sync(leader, me=b"all")
    else:
        start(c.join(session=5_000, version=3))  # the rebalance fails the sync
    assert (await waiting).error_code == (NONE if assigned else ErrorCode.REBALANCE_IN_PROGRESS)
    await pass_ms(50)
    assert member in c.known.members
    await pass_ms(100)
    assert member not in c.known.members


@coordinator()
async def test_a_late_sync_renews_the_session(c: GroupNode) -> None:
    leader, member = (answer.member_id for answer in await c.joined(2, session=[5_000, 100], rebalance=3_000))
    await c.sync(leader, me=b"all")
    await pass_ms(70)
    assert (await c.sync(member)).error_code == NONE
    await pass_ms(70)
    assert member in c.known.members


@pytest.mark.case("GRP-33")
@coordinator()
async def test_a_pending_member_that_never_returns(c: GroupNode) -> None:
    await c.stable(session=5_000)
    assert (await c.join(session=500)).error_code == ErrorCode.MEMBER_ID_REQUIRED
    await pass_ms(490)
    assert len(c.known.pending_members) == 1
    await pass_ms(20)
    assert (c.known.pending_members, c.state) == (set(), "Stable")


async def rebalancing_with_a_pending_member(c: GroupNode) -> tuple[list[Any], str]:
    members = await c.stable(2, rebalance=10_000, session=10_000)
    pending = (await c.join(session=100, rebalance=10_000)).member_id
    joins = [start(c.join(member, rebalance=10_000, session=10_000)) for member in members]
    await pass_ms(10)
    assert c.state == "PreparingRebalance" and not any(join.done() for join in joins)
    return joins, pending


@pytest.mark.case("GRP-34")
@coordinator()
async def test_the_join_phase_waits_for_a_pending_member(c: GroupNode) -> None:
    joins, pending = await rebalancing_with_a_pending_member(c)
    assert (await c.join(pending, rebalance=10_000)).generation_id == 2
    assert len((await joins[0]).members) == 3
    assert c.known.pending_members == set()


@pytest.mark.case("GRP-35")
@coordinator()
async def test_the_join_phase_ends_when_a_pending_member_is_forgotten(c: GroupNode) -> None:
    joins, _ = await rebalancing_with_a_pending_member(c)
    await pass_ms(100)
    assert len((await joins[0]).members) == 2


@pytest.mark.case("GRP-36")
@coordinator()
async def test_the_join_phase_ends_when_a_pending_member_leaves(c: GroupNode) -> None:
    joins, pending = await rebalancing_with_a_pending_member(c)
    assert await c.left(pending) == [NONE]
    await pass_ms(1)
    assert len((await joins[0]).members) == 2


@coordinator()
async def test_members_that_do_not_join_again_are_dropped(c: GroupNode) -> None:
    leader, follower = await c.stable(2, rebalance=300, session=10_000)
    answer = await c.join(leader, rebalance=300, session=10_000)
    assert (answer.generation_id, [m.member_id for m in answer.members]) == (2, [leader])
    assert await c.heartbeat(follower, 2) == UNKNOWN_MEMBER


# --- static members ---


@pytest.mark.case("GRP-37")
@pytest.mark.parametrize("version", [5, 6, 7])
@coordinator()
async def test_a_static_member_joins_at_once(c: GroupNode, version: int) -> None:
    answer = await c.join(instance="instance", version=version)
    assert answer.error_code == NONE
    assert answer.member_id.startswith("instance-") and answer.members[0].group_instance_id == "instance"


@pytest.mark.case("GRP-38")
@coordinator()
async def test_a_registered_instance_with_a_wrong_member_id(c: GroupNode) -> None:
    await c.stable(instance="instance")
    assert (await c.join("wrong", instance="instance")).error_code == FENCED


STATIC = {"instance": ["one", "two"], "session": 10_000}


@coordinator()
async def test_an_id_that_was_handed_out_takes_no_static_place(c: GroupNode) -> None:
    """Kafka calls it an illegal state. Two members would share an instance id, and neither be fenced."""
    members = await c.stable(2, **STATIC)
    given = await c.join(session=1_000)
    assert given.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert (await c.join(given.member_id, instance="one")).error_code == FENCED
    assert (await c.join(given.member_id, instance="other")).error_code == UNKNOWN_MEMBER
    assert (list(c.known.members), c.state) == (members, "Stable")


@coordinator(group_max_size=2)
async def test_a_full_group_does_not_wait_for_the_id_that_it_refuses(c: GroupNode) -> None:
    (member,) = await c.stable(session=10_000, rebalance=60_000)
    given = await c.join(session=10_000)
    joins = [start(c.join(version=3)), start(c.join(member))]
    await pass_ms(1)
    assert (c.state, c.known.joined) == ("PreparingRebalance", 2), "the handed out id is awaited"
    assert (await c.join(given.member_id)).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    await pass_ms(1)
    assert all(join.done() for join in joins)


@coordinator()
async def test_a_refused_join_leaves_no_group(c: GroupNode) -> None:
    assert (await c.join(protocol_type="")).error_code == INCONSISTENT
    assert c.group() is None


@pytest.mark.case("GRP-39")
@coordinator()
async def test_a_static_follower_restarts(c: GroupNode) -> None:
    leader, follower = await c.stable(2, **STATIC)
    name = c.known.members[follower].instance_id
    again = await c.join(instance=name, session=10_000)
    assert (again.error_code, again.generation_id, list(again.members), again.leader) == (NONE, 1, [], leader)
    assert again.member_id != follower and c.state == "Stable"
    answer = await c.sync(again.member_id, instance=name)
    assert (answer.error_code, bytes(answer.assignment)) == (NONE, b"part 1")


@coordinator()
async def test_a_static_leader_that_restarts_does_not_believe_that_it_leads(c: GroupNode) -> None:
    leader, _ = await c.stable(2, **STATIC)
    name = c.known.members[leader].instance_id
    again = await c.join(instance=name, session=10_000)
    assert (again.leader, list(again.members)) == (leader, [])
    assert c.known.leader == again.member_id, "the coordinator knows the new one"


@coordinator()
async def test_a_restart_survives_a_fail_over(c: GroupNode) -> None:
    """Before 2.6.1 the old id came back, and the live member was fenced."""
    _, follower = await c.stable(2, **STATIC)
    name = c.known.members[follower].instance_id
    again = await c.join(instance=name, session=10_000)
    await c.fail_over()
    assert await c.heartbeat(again.member_id, instance=name) == NONE
    assert await c.heartbeat(follower, instance=name) == FENCED


@coordinator()
async def test_a_restart_that_cannot_be_stored_is_undone(c: GroupNode) -> None:
    _, follower = await c.stable(2, **STATIC)
    name = c.known.members[follower].instance_id
    c.partition().isr = ()  # fewer than min.insync.replicas
    again = await c.join(instance=name, session=10_000)
    assert (again.error_code, again.member_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, "")
    c.partition().isr = (1,)
    assert await c.heartbeat(follower, instance=name) == NONE
    assert bytes((await c.sync(follower, instance=name)).assignment) == b"part 1"


@coordinator()
async def test_a_restart_with_other_protocols_rebalances(c: GroupNode) -> None:
    both = (("range", b""), ("sticky", b""))
    leader, follower = await c.stable(2, protocols=both, **STATIC)
    name = c.known.members[follower].instance_id
    again = start(c.join(instance=name, session=10_000, protocols=[("sticky", b"")]))
    await pass_ms(1)
    assert c.state == "PreparingRebalance"
    answer = await c.join(leader, protocols=both, session=10_000)
    assert (answer.protocol_name, (await again).generation_id) == ("sticky", 2)


@coordinator()
async def test_a_restart_while_assignments_are_awaited_rebalances(c: GroupNode) -> None:
    leader, follower = await c.joined(2, **STATIC)
    name = c.known.members[follower.member_id].instance_id
    waiting = start(c.sync(follower.member_id, instance=name))
    await pass_ms(1)
    again = start(c.join(instance=name, session=10_000))
    await pass_ms(1)
    assert ((await waiting).error_code, c.state) == (FENCED, "PreparingRebalance")
    assert (await c.join(leader.member_id, instance=leader.members[0].group_instance_id)).generation_id == 2
    assert (await again).generation_id == 2


@coordinator()
async def test_a_restart_takes_over_everything(c: GroupNode) -> None:
    await c.stable(instance="one")
    c.client_id = "other"
    again = await c.join(instance="one", session=9_000, rebalance=8_000)
    member = c.known.members[again.member_id]
    assert (member.client_id, member.client_host) == ("other", "/10.0.0.7")
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (9_000, 8_000)


@pytest.mark.parametrize("syncs", [True, False])
@coordinator()
async def test_a_restarted_member_must_sync_under_its_new_id(c: GroupNode, syncs: bool) -> None:
    answers = await c.joined(2, instance=["one", "two"], session=10_000, rebalance=500)
    leader, follower = (answer.member_id for answer in answers)
    await c.sync(leader, me=b"all")
    restarted = await c.join(instance=c.known.members[follower].instance_id, session=10_000, rebalance=500)
    assert c.known.awaited_syncs == {restarted.member_id}
    if syncs:
        assert (await c.sync(restarted.member_id)).error_code == NONE
    await pass_ms(600)
    assert (restarted.member_id in c.known.members, c.state == "Stable") == (syncs, syncs)


@pytest.mark.case("GRP-40")
@coordinator()
async def test_the_old_id_of_a_restarted_member_is_fenced(c: GroupNode) -> None:
    (old,) = await c.stable(instance="one")
    await c.join(instance="one")
    assert (await c.join(old, instance="one")).error_code == FENCED
    assert (await c.sync(old, instance="one")).error_code == FENCED


@pytest.mark.case("GRP-41")
@coordinator()
async def test_each_restart_gives_another_id(c: GroupNode) -> None:
    ids = set(await c.stable(instance="one"))
    for _ in range(5):
        ids.add((await c.join(instance="one")).member_id)
    assert len(ids) == 6 and all(member.startswith("one-") for member in ids)


@pytest.mark.case("GRP-42")
@coordinator()
async def test_a_known_member_with_an_unknown_instance(c: GroupNode) -> None:
    (member,) = await c.stable()
    assert (await c.join(member, instance="unknown")).error_code == UNKNOWN_MEMBER


@pytest.mark.case("GRP-43")
@coordinator()
async def test_everything_is_fenced_by_instance_and_member(c: GroupNode) -> None:
    (member,) = await c.stable(instance="one")
    assert (await c.sync("wrong", instance="one")).error_code == FENCED
    assert await c.heartbeat("wrong", instance="one") == FENCED
    assert await c.commit(member="wrong", generation=1, instance="one") == [FENCED]
    assert (await c.sync(member, instance="one")).error_code == NONE
    assert await c.heartbeat(member, instance="one") == NONE
    assert await c.commit(member=member, generation=1, instance="one") == [NONE]


@coordinator()
async def test_absent_static_members_stay_until_their_session_ends(c: GroupNode) -> None:
    leader, follower = await c.stable(2, instance=["one", "two"], session=2_000, rebalance=300)
    answer = await c.join(
        follower,
        instance=c.known.members[follower].instance_id,
        session=2_000,
        rebalance=300,
        protocols=[("range", b"new")],
    )
    assert (answer.generation_id, answer.leader, len(answer.members)) == (2, follower, 2), "it leads, the other stays"
    assert (await c.sync(follower, 2, instance="two")).error_code == NONE
    await pass_ms(1_900)
    assert leader in c.known.members
    await pass_ms(200)
    assert leader not in c.known.members


# --- leaving ---


@pytest.mark.case("GRP-44")
@coordinator()
async def test_leaving(c: GroupNode) -> None:
    unknown = await c.leave("m")
    assert (unknown.error_code, [m.error_code for m in unknown.members]) == (NONE, [UNKNOWN_MEMBER]), "no group"
    leader, follower = await c.stable(2)
    assert await c.left("m") == [UNKNOWN_MEMBER]
    assert (await c.left(follower), c.state) == ([NONE], "PreparingRebalance")
    assert (await c.join(leader)).generation_id == 2


@pytest.mark.case("GRP-45")
@coordinator()
async def test_a_static_member_leaves_by_its_instance(c: GroupNode) -> None:
    await c.stable(instance="one")
    assert await c.left(("wrong", "one")) == [FENCED]
    assert (await c.left(("", "one")), c.state) == ([NONE], "Empty")


@pytest.mark.case("GRP-46")
@coordinator()
async def test_a_batch_of_members_leaves(c: GroupNode) -> None:
    await c.stable(2, **STATIC)
    assert await c.left(("", "one"), ("", "unknown"), ("", "two")) == [NONE, UNKNOWN_MEMBER, NONE]
    assert c.state == "Empty"


@pytest.mark.case("GRP-47")
@pytest.mark.parametrize("version", [0, 1, 2])
@coordinator()
async def test_old_versions_report_the_members_error(c: GroupNode, version: int) -> None:
    (member,) = await c.stable()
    answer = await c.ask(ApiKey.LEAVE_GROUP, version, group_id=GROUP, member_id="m")
    assert answer.error_code == UNKNOWN_MEMBER
    answer = await c.ask(ApiKey.LEAVE_GROUP, version, group_id=GROUP, member_id=member)
    assert (answer.error_code, c.state) == (NONE, "Empty")


@coordinator()
async def test_a_member_that_waits_is_answered_when_it_leaves(c: GroupNode) -> None:
    _, follower = (answer.member_id for answer in await c.joined(2))
    syncing = start(c.sync(follower))
    await pass_ms(1)
    assert await c.left(follower) == [NONE]
    assert (await syncing).error_code == UNKNOWN_MEMBER
    joining = start(c.join(version=3))
    await pass_ms(1)
    newest = list(c.known.members)[-1]
    assert await c.left(newest) == [NONE]
    assert (await joining).error_code == UNKNOWN_MEMBER


# --- disconnects ---


@coordinator()
async def test_a_disconnect_changes_nothing(c: GroupNode) -> None:
    """Redpanda #3300: members were stuck. Here a retry replaces the parked join, and both members are answered."""
    leader, follower = await c.stable(2, session=10_000, rebalance=10_000)
    c.connection = ClientConnection()
    lost = start(c.join(leader, session=10_000, rebalance=10_000))
    await pass_ms(1)
    c.connection.gone()
    with pytest.raises(CloseConnection):
        await lost
    c.connection = None
    assert c.known.members[leader].join is not None
    retry = start(c.join(leader, session=10_000, rebalance=10_000))
    assert (await c.join(follower, session=10_000, rebalance=10_000)).generation_id == 2
    assert (await retry).generation_id == 2


@coordinator()
async def test_clients_without_an_id(c: GroupNode) -> None:
    c.client_id = None
    answer = await c.join(version=3)
    assert answer.member_id.startswith("null-")
    assert c.known.members[answer.member_id].client_id == ""


# --- size, protocols, states ---


@pytest.mark.case("GRP-53")
@coordinator(group_max_size=4)
async def test_a_full_group(c: GroupNode) -> None:
    members = await c.stable(4, session=10_000)
    for version in (3, 7):
        answer = await c.join(version=version)
        assert (answer.error_code, answer.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    assert len(members) == len(c.known.members) == 4


@coordinator(group_max_size=2)
async def test_members_beyond_the_limit_of_a_join_phase(c: GroupNode) -> None:
    joins = [start(c.join(version=3)) for _ in range(3)]
    await pass_ms(60)
    assert sorted([(await join).error_code for join in joins]) == [NONE, NONE, ErrorCode.GROUP_MAX_SIZE_REACHED]


@coordinator(group_max_size=2)
async def test_a_static_member_of_a_full_group_may_restart(c: GroupNode) -> None:
    await c.stable(2, **STATIC)
    assert (await c.join(instance="one", session=10_000)).error_code == NONE


@pytest.mark.case("GRP-52")
@pytest.mark.parametrize(
    ("preferences", "chosen"),
    [
        ([("range", "rr"), ("rr", "range"), ("rr", "range")], "rr"),
        ([("range", "rr"), ("rr", "blah")], "rr"),
        ([("range", "rr"), ("rr", "range")], "range"),
    ],
)
def test_the_protocol_that_most_members_prefer(preferences: list[tuple[str, ...]], chosen: str) -> None:
    group = Group(GROUP)
    for number, names in enumerate(preferences):
        group.add(Member(f"m{number}", None, "", "", 1, 1, tuple((name, b"") for name in names)))
    assert group.choose_protocol() == chosen, "in a tie the leader decides"


@pytest.mark.case("GRP-54")
@pytest.mark.parametrize("before", State)
@pytest.mark.parametrize("after", State)
def test_transitions(before: State, after: State) -> None:
    legal = {
        *((State.EMPTY, State.PREPARING_REBALANCE), (State.STABLE, State.PREPARING_REBALANCE)),
        *((State.COMPLETING_REBALANCE, State.PREPARING_REBALANCE), (State.PREPARING_REBALANCE, State.EMPTY)),
        *((State.PREPARING_REBALANCE, State.COMPLETING_REBALANCE), (State.COMPLETING_REBALANCE, State.STABLE)),
        *((state, State.DEAD) for state in State),
    }
    group = Group(GROUP)
    group.state = before
    if (before, after) in legal:
        group.move_to(after, 42)
        assert (group.state, group.state_timestamp) == (after, 42)
    else:
        with pytest.raises(IllegalTransition):
            group.move_to(after, 42)
        assert group.state is before
    assert set(LEGAL_BEFORE) == set(State)


def subscription(*topics: str, version: int = 0) -> bytes:
    names = b"".join(len(name).to_bytes(2) + name.encode() for name in topics)
    return version.to_bytes(2) + len(topics).to_bytes(4) + names + b"\xff\xff\xff\xff" + b"later fields" * (version > 0)


@pytest.mark.case("GRP-55")
@coordinator()
async def test_the_topics_of_a_group(c: GroupNode) -> None:
    wants = [[("range", subscription("a", "b"))], [("range", subscription("b", "c", version=3))]]
    members = await c.stable(2, protocols=wants, session=10_000)
    group = c.known
    assert group.topics == {"a", "b", "c"}
    await c.left(*members)
    await pass_ms(600)
    assert (c.state, group.topics) == ("Empty", frozenset())


@pytest.mark.case("GRP-55")
@pytest.mark.parametrize(
    ("protocol_type", "metadata"),
    [
        ("consumer", b""),
        ("consumer", b"\x00"),
        ("consumer", b"\x00\x00\x7f\xff\xff\xff"),
        ("connect", subscription("a")),
    ],
)
@coordinator()
async def test_unknown_topics(c: GroupNode, protocol_type: str, metadata: bytes) -> None:
    await c.stable(protocol_type=protocol_type, protocols=[[("range", metadata)]])
    group = c.known
    assert group.topics is None and group.is_subscribed_to("any")


@coordinator()
async def test_many_members_are_answered_in_slices(c: GroupNode) -> None:
    """Each answer wakes a task; all that are woken together run in one turn of the loop."""
    execution = c.node.groups.execution
    calls, turn = [execution.call() for _ in range(2 * ANSWERS_PER_SLICE + 1)], execution.turn()
    for call in calls:
        turn.answer(call, SyncAnswer(ErrorCode.NONE))
    await c.commit(1)
    execution.carry_out(c.known, turn)
    done = []
    while not calls[-1].done():
        done.append(sum(call.done() for call in calls))
        await asyncio.sleep(0)
    assert done == [ANSWERS_PER_SLICE, 2 * ANSWERS_PER_SLICE]
    assert all(call.done() for call in calls)
