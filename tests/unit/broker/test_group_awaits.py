"""Groups that change while a write of theirs is under way: its outcome concerns the group as it was."""

from __future__ import annotations

import asyncio
from copy import copy
from typing import Any

import pytest

from klamm.broker.coordinators.groups import commits
from klamm.broker.coordinators.groups.events import Purpose, Turn, Write
from klamm.broker.coordinators.groups.group import Group
from klamm.broker.coordinators.groups.join import Replacement, replacement_written
from klamm.broker.coordinators.groups.records import StoredGroup, StoredMember
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition

from .group_node import HOME, OFFSETS, GroupNode, coordinator, pass_ms, start

NONE = ErrorCode.NONE
O0, O1, P0 = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("payments", 0)
STATIC = {"instance": ["one", "two"], "session": 10_000}


def resign(c: GroupNode, epoch: int = 5) -> None:
    """Another broker leads the partition of the groups, as of this step."""
    c.node.groups.loading.resigned(TopicPartition(OFFSETS, HOME), epoch)  # type: ignore[arg-type]


# --- rebalances ---


@coordinator()
async def test_an_assignment_of_the_former_generation_is_not_that_of_the_present_one(c: GroupNode) -> None:
    await c.lead(epoch=1, isr=(1, 2))
    (leader,) = (answer.member_id for answer in await c.joined(session=10_000))
    stored = start(c.sync(leader, me=b"former"))
    await pass_ms(1)
    joining = start(c.join(session=10_000, version=3))
    await pass_ms(1)
    assert (await stored).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    again = await c.join(leader, session=10_000)
    other = await joining
    assert (again.generation_id, other.generation_id, c.state) == (2, 2, "CompletingRebalance")
    c.follower_fetches()
    await pass_ms(1)
    assert c.state == "CompletingRebalance", "the write of generation 1 says nothing about generation 2"
    syncing = start(c.sync(leader, 2, me=b"present"))
    await pass_ms(1)
    c.follower_fetches()
    assert bytes((await syncing).assignment) == b"present"


@coordinator()
async def test_a_member_that_waits_for_its_assignment_hears_that_the_coordinator_moved(c: GroupNode) -> None:
    _, follower = (answer.member_id for answer in await c.joined(2))
    waiting = start(c.sync(follower))
    await pass_ms(1)
    resign(c)
    await pass_ms(1)
    assert (await waiting).error_code == ErrorCode.NOT_COORDINATOR


@coordinator()
async def test_a_group_that_is_let_go_leaves_no_timer(c: GroupNode) -> None:
    await c.stable(2)
    assert (await c.join(version=4, group="another")).error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert len(c.node.groups.execution.timers) > 2
    for number in range(4):
        c.node.groups.loading.resigned(TopicPartition(OFFSETS, number), 5)  # type: ignore[arg-type]
    await pass_ms(1)
    assert list(c.node.groups.execution.timers) == []


@coordinator()
async def test_a_restart_is_not_answered_by_the_write_of_the_restart_before(c: GroupNode) -> None:
    leader, follower = await c.stable(2, **STATIC)
    name = c.known.members[follower].instance_id
    await c.lead(epoch=1, isr=(1, 2))
    first = start(c.join(instance=name, session=10_000))
    await pass_ms(1)
    end_of_first = c.partition().log.log_end_offset
    second = start(c.join(instance=name, session=10_000))
    await pass_ms(1)
    assert (await first).error_code == ErrorCode.FENCED_INSTANCE_ID
    c.node.replicas.follower_fetched(TopicPartition(OFFSETS, HOME), 2, end_of_first, 0)  # type: ignore[arg-type]
    await pass_ms(1)
    assert not second.done(), "its own write is not replicated"
    c.follower_fetches()
    answer = await second
    assert (answer.error_code, answer.leader) == (NONE, leader)
    assert await c.heartbeat(answer.member_id, instance=name) == NONE


@coordinator()
async def test_a_restart_waits_for_a_rebalance_that_began_meanwhile(c: GroupNode) -> None:
    leader, follower = await c.stable(2, **STATIC)
    names = {member: c.known.members[member].instance_id for member in (leader, follower)}
    await c.lead(epoch=1, isr=(1, 2))
    restarting = start(c.join(instance=names[follower], session=10_000))
    await pass_ms(1)
    joining = start(c.join(session=10_000, version=3))
    await pass_ms(1)
    c.follower_fetches()
    await pass_ms(1)
    assert (c.state, restarting.done()) == ("PreparingRebalance", False)
    again = start(c.join(leader, instance=names[leader], session=10_000))
    await pass_ms(1)
    assert {(await call).generation_id for call in (restarting, joining, again)} == {2}


@coordinator()
async def test_an_assignment_that_is_stored_after_the_coordinator_moved_changes_nothing_here(c: GroupNode) -> None:
    await c.lead(epoch=1, isr=(1, 2))
    (leader,) = (answer.member_id for answer in await c.joined(session=10_000))
    storing = start(c.sync(leader, me=b"mine"))
    await pass_ms(1)
    resign(c)
    c.follower_fetches()
    await pass_ms(1)
    assert (await storing).error_code == ErrorCode.NOT_COORDINATOR
    assert (c.group(), c.node.groups.registry.held_bytes, len(c.node.groups.execution.timers)) == (None, 0, 0)


@coordinator()
async def test_the_timers_of_a_group_that_moved_change_nothing(c: GroupNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """With many groups, some are let go only after their timers end."""
    await c.stable()
    group, end = c.known, c.partition().log.log_end_offset
    monkeypatch.setattr(c.node.groups.loading, "_let_go", lambda partition: asyncio.sleep(10))
    resign(c)
    await pass_ms(5_000)
    assert (len(group.members), group.state.value) == (1, "Stable")
    assert (c.node.groups.execution.expired_members, c.partition().log.log_end_offset) == (0, end)


def test_a_stored_restart_does_not_answer_a_later_join_of_the_member() -> None:
    stored = StoredGroup(
        "consumer", 1, "range", "id", 0, (StoredMember("id", "one", "client", "host", 500, 1_000, b"", b"part"),)
    )
    group, turn, later = Group.loaded("group", 0, stored), Turn(0), object()
    member = group.members["id"]
    member.join = later
    undo = Replacement(copy(member), "id", "id", object())
    replacement_written(group, Write(Purpose.REPLACEMENT, stored, 1, undo), NONE, turn)
    assert (turn.answers, turn.timers, member.join) == ([], {}, later)


# --- offsets ---


@coordinator()
async def test_offsets_are_not_deleted_further_once_the_coordinator_moved(
    c: GroupNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "TOMBSTONES_PER_SLICE", 1)
    await c.commit({O0: 1, O1: 2})
    group_log = c.node.groups.commits._log
    append, written = group_log.append_tombstones, []

    def and_resign(partition: int, group_id: str, offsets: Any, **how: Any) -> Any:
        written.append(list(offsets))
        resign(c)
        return append(partition, group_id, offsets, **how)

    monkeypatch.setattr(group_log, "append_tombstones", and_resign)
    assert await c.delete_offsets(O0, O1) == ErrorCode.NOT_COORDINATOR
    assert len(written) == 1


@pytest.mark.parametrize("meanwhile", ["a member joins", "the coordinator moves"])
@coordinator()
async def test_a_group_that_changes_while_it_is_deleted(
    c: GroupNode, meanwhile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "TOMBSTONES_PER_SLICE", 1)
    await c.commit({O0: 1, O1: 2, P0: 3})
    await c.lead(epoch=1, isr=(1, 2))
    deleting = start(c.delete())
    await pass_ms(1)
    group = c.known
    if meanwhile == "a member joins":
        joining = start(c.join(session=10_000, version=3))
        await pass_ms(1)
        c.follower_fetches()
        assert await deleting == ErrorCode.NON_EMPTY_GROUP
        c.follower_fetches()
        assert (await joining).error_code == NONE
        assert c.group() is group and len(group.offsets.committed) == 2
    else:
        resign(c)
        c.follower_fetches()
        await pass_ms(1)
        assert await deleting == ErrorCode.NOT_COORDINATOR


@coordinator()
async def test_a_commit_that_is_acknowledged_after_a_fail_over_changes_nothing_here(c: GroupNode) -> None:
    """The group that is loaded now has what the log has; the former one is not held any more."""
    await c.commit(1)
    await c.lead(epoch=1, isr=(1, 2))
    committing = start(c.commit(2))
    await pass_ms(1)
    former = c.known
    resign(c)
    c.follower_fetches()
    await pass_ms(1)
    assert committing.done()
    assert former.offsets.value(O0) is not None and former.offsets.value(O0).offset == 1  # type: ignore[union-attr]
