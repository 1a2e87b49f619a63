"""Committed offsets, as clients see them: commits, transactions, fetches, deletion and expiry."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from klamm.broker.coordinators.groups.commits import LOOKS_PER_SLICE, WRITE_LOOKS
from klamm.broker.coordinators.groups.expiry import expired_offsets
from klamm.broker.coordinators.groups.group import Group
from klamm.broker.coordinators.groups.group_log import commit_error, group_error
from klamm.broker.coordinators.groups.offsets import Committed, GroupOffsets
from klamm.broker.coordinators.groups.records import (
    GroupKey,
    Offset,
    OffsetKey,
    decode_key,
    decode_offset,
    encode_offset_key,
)
from klamm.broker.handlers.services import Services
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import ProducerId, TopicPartition
from klamm.wire.apis import ApiKey
from klamm.wire.messages import request_class
from klamm.zookeeper.znodes import consumer_offset

from .group_node import GROUP, HOME, MINUTE_MS, OFFSETS, GroupNode, coordinator, pass_ms, start
from .test_group_membership import subscription

NONE = ErrorCode.NONE
O0, O1, P0 = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("payments", 0)
PRODUCER = ProducerId(7)

# --- commits ---


@pytest.mark.case("OFF-01")
@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 6, 7, 8])
@coordinator()
async def test_a_commit_without_membership(c: GroupNode, version: int) -> None:
    assert await c.commit(42, version=version, metadata="note", epoch=3) == [NONE]
    assert (c.state, c.known.protocol_type) == ("Empty", None)
    entry = (await c.fetch(O0)).topics[0].partitions[0]
    epoch = 3 if version >= 6 else -1
    assert (entry.committed_offset, entry.committed_leader_epoch, entry.metadata) == (42, epoch, "note")


@pytest.mark.case("OFF-02")
@coordinator()
async def test_a_commit_with_a_generation_to_no_group(c: GroupNode) -> None:
    assert await c.commit(generation=1) == [ErrorCode.ILLEGAL_GENERATION]
    assert c.group() is None


@pytest.mark.case("OFF-03")
@coordinator()
async def test_a_commit_after_the_last_member_left(c: GroupNode) -> None:
    (member,) = await c.stable()
    await c.left(member)
    assert await c.commit(9) == [NONE]
    assert await c.offsets(O0) == {O0: 9}


@pytest.mark.case("OFF-04")
@coordinator()
async def test_a_commit_while_assignments_are_awaited(c: GroupNode) -> None:
    (leader,) = await c.joined()
    assert await c.commit(member=leader.member_id, generation=1) == [ErrorCode.REBALANCE_IN_PROGRESS]
    assert await c.commit(member="m", generation=1) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert await c.commit(member=leader.member_id, generation=2) == [ErrorCode.ILLEGAL_GENERATION]


@coordinator()
async def test_the_old_generation_commits_during_the_join_phase_and_not_after_it(c: GroupNode) -> None:
    leader, follower = await c.stable(2)
    joining = start(c.join(leader))
    await pass_ms(1)
    assert await c.commit(member=follower, generation=1) == [NONE]
    await pass_ms(600)
    assert (await joining).generation_id == 2
    assert await c.commit(member=leader, generation=1) == [ErrorCode.ILLEGAL_GENERATION]


@pytest.mark.case("OFF-05")
@coordinator()
async def test_a_commit_without_membership_to_a_group_with_members(c: GroupNode) -> None:
    await c.stable()
    assert await c.commit() == [ErrorCode.UNKNOWN_MEMBER_ID]


@pytest.mark.case("OFF-06")
@coordinator()
async def test_fetching(c: GroupNode) -> None:
    for version in range(1, 8):
        entry = (await c.fetch(O0, version=version)).topics[0].partitions[0]
        found = (entry.committed_offset, entry.committed_leader_epoch, entry.metadata, entry.error_code)
        assert found == (-1, -1, "", NONE), "no group"
    assert await c.offsets() == {}
    assert await c.commit({O0: 1, O1: 2, P0: 3}) == [NONE] * 3
    assert await c.offsets() == {O0: 1, O1: 2, P0: 3}
    assert await c.offsets(TopicPartition("orders", 3)) == {TopicPartition("orders", 3): -1}


@coordinator()
async def test_what_never_reaches_the_coordinator(c: GroupNode) -> None:
    unknown = TopicPartition("unknown", 0)
    assert await c.commit({unknown: 1, O0: 2}) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NONE]
    assert await c.offsets(unknown, O0) == {unknown: -1, O0: 2}, "never an error in a fetch"


@pytest.mark.case("OFF-07")
@coordinator()
async def test_the_empty_group_id(c: GroupNode) -> None:
    assert await c.commit(3, group="") == [NONE]
    assert await c.offsets(O0, group="") == {O0: 3}
    assert (await c.describe("")).group_state == "Empty"
    assert await c.delete("") == NONE
    assert await c.offsets(O0, group="") == {O0: -1}


@pytest.mark.case("OFF-08")
@pytest.mark.parametrize(
    ("appended", "heard"),
    [(3, 15), (19, 15), (20, 15), (6, 16), (56, 16), (10, 28), (18, 28), (4, 28), (2, 2), (7, 7), (47, 47)],
)
@coordinator()
async def test_a_commit_that_cannot_be_written(c: GroupNode, appended: int, heard: int) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise KafkaError(ErrorCode(appended))

    await c.commit(1)
    c.partition().log.append_as_leader = refuse
    assert await c.commit({O0: 2, O1: 3}) == [ErrorCode(heard)] * 2
    assert await c.offsets(O0, O1, stable=True) == {O0: 1, O1: -1}, "the old offset, and nothing is pending"
    assert commit_error(ErrorCode(appended)) == heard


@pytest.mark.case("OFF-08")
@coordinator(offsets_commit_timeout_ms=300)
async def test_a_commit_that_is_not_acknowledged_in_time(c: GroupNode) -> None:
    await c.commit(1)
    await c.lead(epoch=1, isr=(1, 2))
    committing = start(c.commit(2))
    await pass_ms(290)
    assert not committing.done()
    assert await c.offsets(O0, stable=True) == {O0: ErrorCode.UNSTABLE_OFFSET_COMMIT}
    await pass_ms(20)
    assert await committing == [ErrorCode.REQUEST_TIMED_OUT]
    assert await c.offsets(O0, stable=True) == {O0: 1}


@pytest.mark.case("OFF-09")
@pytest.mark.parametrize(
    ("appended", "heard"),
    [(3, 15), (19, 15), (20, 15), (6, 16), (56, 16), (10, -1), (18, -1), (4, -1), (2, 2), (7, 27)],
)
def test_a_groups_state_that_cannot_be_written(appended: int, heard: int) -> None:
    assert group_error(ErrorCode(appended)) == heard


@pytest.mark.case("OFF-09")
@coordinator()
async def test_members_hear_that_the_assignment_was_not_written(c: GroupNode) -> None:
    leader, follower = (answer.member_id for answer in await c.joined(2))
    waiting = start(c.sync(follower))
    await pass_ms(1)
    c.partition().isr = ()
    assert (await c.sync(leader)).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert ((await waiting).error_code, c.state) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, "PreparingRebalance")


@coordinator()
async def test_a_group_that_is_too_large_to_be_stored(c: GroupNode) -> None:
    """As in Kafka, its members hear of it when the leader assigns; other groups do not."""
    await c.stable(group="neighbour")
    vast = (("range", bytes(600_000)),)
    leader, follower = (answer.member_id for answer in await c.joined(2, protocols=vast))
    waiting = start(c.sync(follower))
    await pass_ms(1)
    assert (await c.sync(leader)).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert ((await waiting).error_code, c.state) == (ErrorCode.UNKNOWN_SERVER_ERROR, "PreparingRebalance")
    assert (await c.describe("neighbour")).group_state == "Stable"
    assert await c.leave(leader) and await c.leave(follower)
    await c.stable()
    assert c.state == "Stable", "smaller members can have it"


@coordinator()
async def test_a_full_disk_under_the_offsets(c: GroupNode) -> None:
    """Clients look for the coordinator again, and find it here, until there is room. Nothing that was kept is lost."""
    (member,) = await c.stable(session=60_000)
    assert await c.commit({O0: 1}, member=member, generation=1) == [NONE]
    disk = c.partition().log._disk
    disk.room = 30  # a part of the next batch fits
    assert await c.commit({O0: 2}, member=member, generation=1) == [ErrorCode.NOT_COORDINATOR]
    assert await c.commit_in_transaction({O1: 2}) == [ErrorCode.NOT_COORDINATOR]
    assert await c.offsets(O0, O1, stable=True) == {O0: 1, O1: -1}
    assert await c.heartbeat(member) == NONE
    joining = start(c.join(member, protocols=(("range", b"changed"),)))
    await pass_ms(1)
    assert (await joining).generation_id == 2
    assert (await c.sync(member, 2)).error_code == ErrorCode.NOT_COORDINATOR
    assert c.state == "PreparingRebalance"
    disk.room = None
    assert (await c.join(member)).generation_id == 3
    assert (await c.sync(member, 3)).error_code == NONE
    assert await c.commit({O0: 3}, member=member, generation=3) == [NONE]
    await c.fail_over()
    assert (c.state, c.known.generation, await c.offsets()) == ("Stable", 3, {O0: 3})


@pytest.mark.case("OFF-10")
@coordinator()
async def test_a_commit_without_a_local_log(c: GroupNode) -> None:
    await c.commit(1)
    del c.node.replicas.partitions[TopicPartition(OFFSETS, HOME)]
    assert await c.commit(2) == [ErrorCode.NOT_COORDINATOR]


@pytest.mark.case("OFF-11")
@coordinator()
async def test_of_two_commits_in_flight_the_first_fails(c: GroupNode) -> None:
    first, second = {O0: Offset(1)}, {O0: Offset(2)}
    offsets = GroupOffsets()
    offsets.prepare(first)
    offsets.prepare(second)
    offsets.failed(first)
    assert offsets.is_unstable(O0) and offsets.value(O0) is None
    offsets.acknowledged(second, 5)
    assert not offsets.is_unstable(O0) and offsets.value(O0) == Offset(2)


@pytest.mark.case("OFF-12")
@coordinator()
async def test_two_commits_in_flight_become_visible_in_order(c: GroupNode) -> None:
    await c.lead(epoch=1, isr=(1, 2))
    first = start(c.commit(4))
    await pass_ms(1)
    partition = c.partition()
    end_of_first = partition.log.log_end_offset
    second = start(c.commit(5))
    await pass_ms(1)
    name = TopicPartition(OFFSETS, HOME)
    c.node.replicas.follower_fetched(name, 2, end_of_first, 0)  # type: ignore[arg-type]
    assert (await first, await c.offsets(O0), second.done()) == ([NONE], {O0: 4}, False)
    c.follower_fetches()
    assert (await second, await c.offsets(O0)) == ([NONE], {O0: 5})


def test_the_later_record_counts_whatever_is_acknowledged_first() -> None:
    earlier, later = {O0: Offset(1)}, {O0: Offset(2)}
    offsets = GroupOffsets()
    offsets.prepare(earlier)
    offsets.prepare(later)
    offsets.acknowledged(later, 8)
    offsets.acknowledged(earlier, 7)
    assert offsets.committed == {O0: Committed(8, Offset(2))}
    offsets.stage(PRODUCER, {O0: Offset(3)}, 6)
    offsets.end_transaction(PRODUCER, committed=True)
    assert offsets.value(O0) == Offset(2), "a marker does not make an earlier record count"


@pytest.mark.case("OFF-13")
@coordinator(offset_metadata_max_bytes=4)
async def test_too_much_metadata(c: GroupNode) -> None:
    too_large = ErrorCode.OFFSET_METADATA_TOO_LARGE
    notes: Any = {O0: "12345", O1: "1234"}
    assert await c.commit({O0: 1, O1: 2}, metadata=notes) == [too_large, NONE]
    assert await c.offsets(O0, O1, stable=True) == {O0: -1, O1: 2}
    end = c.partition().log.log_end_offset
    assert await c.commit(metadata="12345") == [too_large]
    assert await c.commit(metadata="\U0001f600\U0001f600") == [NONE], "counted in UTF-16 units"
    assert await c.commit(metadata="\U0001f600\U0001f600a") == [too_large]
    assert c.partition().log.log_end_offset == end + 1


@coordinator()
async def test_all_offsets_of_a_request_are_one_batch(c: GroupNode) -> None:
    await c.commit({O0: 1, O1: 2, P0: 3}, metadata=None)
    keys = [decode_key(record.key) for record in c.records()]
    assert keys == [OffsetKey(GROUP, name) for name in (O0, O1, P0)]
    assert {held.record_offset for held in c.known.offsets.committed.values()} == {0}


# --- transactions ---


def marker(c: GroupNode, *, commit: bool, producer: int = 7, number: int = HOME) -> None:
    c.node.groups.commits.complete_transaction(number, ProducerId(producer), commit)


@pytest.mark.case("OFF-24")
@pytest.mark.parametrize("commit", [True, False])
@coordinator()
async def test_transactional_offsets_count_from_the_marker_on(c: GroupNode, commit: bool) -> None:
    assert await c.commit_in_transaction(8) == [NONE]
    assert await c.offsets(O0) == {O0: -1}
    marker(c, commit=commit, number=1 - HOME)
    marker(c, commit=commit, producer=8)
    assert await c.offsets(O0) == {O0: -1}, "another partition's or producer's marker"
    marker(c, commit=commit)
    assert await c.offsets(O0) == {O0: 8 if commit else -1}
    assert c.node.groups.registry.open_transactions == {}


@coordinator()
async def test_the_log_decides_between_plain_and_transactional_commits(c: GroupNode) -> None:
    await c.commit_in_transaction({O0: 8, O1: 8})
    await c.commit(9)
    marker(c, commit=True)
    assert await c.offsets(O0, O1) == {O0: 9, O1: 8}
    await c.fail_over()
    c.write_marker(commit=True)
    await c.fail_over(20)
    assert await c.offsets(O0, O1) == {O0: 9, O1: 8}, "a load finds the same"


@pytest.mark.case("OFF-25")
@pytest.mark.parametrize("stable", [True, False])
@coordinator()
async def test_a_fetch_of_stable_offsets(c: GroupNode, stable: bool) -> None:
    await c.commit({O0: 1, O1: 2})
    await c.commit_in_transaction(8)
    assert await c.offsets(O0, O1, stable=stable) == {O0: ErrorCode.UNSTABLE_OFFSET_COMMIT if stable else 1, O1: 2}
    marker(c, commit=True)
    assert await c.offsets(O0, O1, stable=stable) == {O0: 8, O1: 2}


@pytest.mark.case("OFF-26")
@coordinator()
async def test_transactional_commits_are_fenced(c: GroupNode) -> None:
    assert await c.commit_in_transaction(member="m", generation=1) == [ErrorCode.UNKNOWN_MEMBER_ID], "no group"
    (answer,) = await c.joined(instance="one")
    member = answer.member_id
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert await c.commit_in_transaction(instance="one") == [fenced]
    assert await c.commit_in_transaction(member="wrong", generation=1, instance="one") == [fenced]
    assert await c.commit_in_transaction(member="unknown", generation=1) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert await c.commit_in_transaction(member=member, generation=2) == [ErrorCode.ILLEGAL_GENERATION]
    assert c.state == "CompletingRebalance"
    assert await c.commit_in_transaction(member=member, generation=1, instance="one") == [NONE]
    assert await c.commit_in_transaction() == [NONE], "old versions name no member"


@coordinator()
async def test_a_fenced_producer_does_not_commit(c: GroupNode) -> None:
    assert await c.commit_in_transaction(1, producer_epoch=3) == [NONE]
    assert await c.commit_in_transaction(2, producer_epoch=2) == [ErrorCode.INVALID_PRODUCER_EPOCH]


@coordinator()
async def test_the_empty_group_id_takes_no_transaction(c: GroupNode) -> None:
    assert await c.commit_in_transaction(group="") == [ErrorCode.INVALID_GROUP_ID]


@coordinator()
async def test_completion_does_not_depend_on_the_groups_state(c: GroupNode) -> None:
    """Redpanda #5543: offsets stayed unstable for ever because the group was rebalancing."""
    (member,) = await c.stable()
    await c.commit_in_transaction(member=member, generation=1)
    start(c.join(version=3))
    await pass_ms(1)
    assert c.state == "PreparingRebalance"
    marker(c, commit=True)
    assert await c.offsets(O0, stable=True) == {O0: 5}


# --- expiry ---

DAY = {"offsets_retention_minutes": 1, "offsets_retention_check_interval_ms": 10_000}
"""One minute of retention, for tests that wait."""


def tombstones(c: GroupNode) -> list[Any]:
    return [decode_key(record.key) for record in c.records() if record.value is None]


@pytest.mark.case("OFF-27")
@coordinator(**DAY)
async def test_offsets_of_a_group_without_members_expire(c: GroupNode) -> None:
    await c.commit({O0: 1})
    await pass_ms(30_000)
    await c.commit({O1: 1})
    await pass_ms(29_000)
    assert await c.offsets() == {O0: 1, O1: 1}
    await pass_ms(11_500)
    assert await c.offsets() == {O1: 1}
    await pass_ms(30_000)
    assert c.group() is None
    assert tombstones(c) == [OffsetKey(GROUP, O0), OffsetKey(GROUP, O1)], "none for the group: it was never stored"


@pytest.mark.case("OFF-28")
@coordinator(**DAY)
async def test_offsets_of_a_managed_group_expire_while_it_is_empty(c: GroupNode) -> None:
    (member,) = await c.stable(session=1_000_000)
    now = c.clock.wall_ms()
    for name, retention in ((O0, 1), (O1, 3), (P0, -1)):
        commit = c.commit({name: 1}, member=member, generation=1, version=2, retention_ms=retention)
        assert await commit == [NONE]
    await pass_ms(120_000)
    assert len(await c.offsets()) == 3, "not while it has members"
    group = c.known
    await c.left(member)
    empty_since = group.state_timestamp
    assert empty_since is not None and group.state.value == "Empty"
    assert expired_offsets(group, now, MINUTE_MS) == []
    assert expired_offsets(group, now + 2, MINUTE_MS) == [O0]
    assert expired_offsets(group, now + 4, MINUTE_MS) == [O0, O1]
    assert expired_offsets(group, empty_since + MINUTE_MS - 1, MINUTE_MS) == [O0, O1]
    assert expired_offsets(group, empty_since + MINUTE_MS, MINUTE_MS) == [O0, O1, P0]
    await pass_ms(80_000)
    assert c.group() is None
    assert GroupKey(GROUP) in tombstones(c)


@coordinator()
async def test_a_commit_after_the_last_member_left_is_as_old_as_itself(c: GroupNode) -> None:
    """Kafka counts from the moment the group became empty, and forgets what was committed a minute ago."""
    (member,) = await c.stable(session=1_000_000)
    await c.left(member)
    await pass_ms(3 * MINUTE_MS)
    await c.commit(5)
    group, now = c.known, c.clock.wall_ms()
    assert expired_offsets(group, now + MINUTE_MS - 1, MINUTE_MS) == []
    assert expired_offsets(group, now + MINUTE_MS, MINUTE_MS) == [O0]


@coordinator(**DAY)
async def test_an_offset_whose_tombstone_cannot_be_written_stays_until_it_can(c: GroupNode) -> None:
    await c.commit(5)
    c.node.replicas.may_acknowledge = lambda: False  # type: ignore[method-assign]
    await pass_ms(3 * MINUTE_MS)
    assert await c.offsets(O0) == {O0: 5}
    c.node.replicas.may_acknowledge = lambda: True  # type: ignore[method-assign]
    await pass_ms(3 * MINUTE_MS)
    assert c.group() is None


@pytest.mark.parametrize("names", [(), (O0, O1, P0)])
@coordinator()
async def test_a_fetch_asks_once_for_each_topic(
    c: GroupNode, monkeypatch: pytest.MonkeyPatch, names: tuple[TopicPartition, ...]
) -> None:
    """A frame has room for millions of partitions of one topic."""
    await c.commit({O0: 1, O1: 2, P0: 3})
    asked: list[str] = []
    may = Services.may

    def counted(services: Services, context: Any, operation: Any, topic: str) -> bool:
        asked.append(topic)
        return may(services, context, operation, topic)

    monkeypatch.setattr(Services, "may", counted)
    assert await c.offsets(*names) == {O0: 1, O1: 2, P0: 3}
    assert sorted(asked) == ["orders", "payments"]


@coordinator()
async def test_a_refused_commit_leaves_no_group(c: GroupNode) -> None:
    too_long = "m" * 5_000
    assert await c.commit(5, metadata=too_long) == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert await c.commit_in_transaction(5, generation=3) == [ErrorCode.ILLEGAL_GENERATION]
    assert c.group() is None


@pytest.mark.case("OFF-29")
@coordinator(**DAY)
async def test_offsets_of_topics_that_are_no_longer_read_expire(c: GroupNode) -> None:
    wants = [[("range", subscription("orders", "payments"))]]
    (member,) = await c.stable(protocols=wants, session=1_000_000)
    await c.commit({O0: 1, P0: 1}, member=member, generation=1)
    await pass_ms(90_000)
    assert len(await c.offsets()) == 2
    joining = await c.join(member, protocols=[("range", subscription("orders"))], session=1_000_000)
    await pass_ms(1)
    assert expired_offsets(c.known, c.clock.wall_ms(), MINUTE_MS) == [], "not during a rebalance"
    await c.sync(member, joining.generation_id)
    await pass_ms(20_000)
    assert await c.offsets() == {O0: 1}


@coordinator(**DAY)
async def test_an_open_transaction_keeps_an_offset(c: GroupNode) -> None:
    """Redpanda #31483: expiry removed an offset that a transaction was about to replace."""
    await c.commit(1)
    await c.commit_in_transaction(2)
    await pass_ms(120_000)
    assert await c.offsets() == {O0: 1}
    marker(c, commit=False)
    await pass_ms(20_000)
    assert c.group() is None


@pytest.mark.case("OFF-30")
@coordinator(**DAY)
async def test_an_empty_group_without_offsets_is_removed(c: GroupNode) -> None:
    (member,) = await c.stable()
    await c.left(member)
    await pass_ms(20_000)
    assert c.group() is None
    last = c.records()[-1]
    assert (decode_key(last.key), last.value) == (GroupKey(GROUP), None)
    assert last.timestamp > 0 and tombstones(c) == [GroupKey(GROUP)]


@pytest.mark.parametrize("removal", ["expiry", "deleted topic"])
@coordinator(**DAY)
async def test_many_groups_lose_their_offsets_in_several_turns(c: GroupNode, removal: str) -> None:
    """Each group is a write, so a slice is not a number of groups."""
    for number in range(100):
        await c.commit(5, group=f"{number}")
    groups = c.node.groups.registry.groups
    c.node.groups.commits._config = replace(c.node.groups.commits._config, offsets_retention_minutes=0)
    left = [len(groups)]
    removing = start(
        c.node.groups.commits.expire()
        if removal == "expiry"
        else c.node.groups.commits._forget_partitions(frozenset({O0}))
    )
    while not removing.done():
        await asyncio.sleep(0)
        left.append(len(groups))
    assert left[0] == 100 and left[-1] == 0
    assert max(before - after for before, after in pairwise(left)) <= LOOKS_PER_SLICE // WRITE_LOOKS + 1


@pytest.mark.case("OFF-33")
def test_the_largest_retention() -> None:
    group = Group(GROUP)
    group.offsets.commit(O0, Committed(0, Offset(1, commit_timestamp=0)))
    retention_ms = 2_147_483_647 * MINUTE_MS
    assert expired_offsets(group, retention_ms - 1, retention_ms) == []
    assert expired_offsets(group, retention_ms, retention_ms) == [O0]


# --- deletion ---


@pytest.mark.case("OFF-31")
@coordinator()
async def test_deleting_offsets(c: GroupNode) -> None:
    assert await c.delete_offsets(O0) == ErrorCode.GROUP_ID_NOT_FOUND
    await c.commit({O0: 1, O1: 2})
    assert await c.delete_offsets(O0) == [NONE]
    assert await c.offsets() == {O1: 2}
    assert tombstones(c) == [OffsetKey(GROUP, O0)]
    assert await c.delete_offsets(TopicPartition("unknown", 0)) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    await c.stable(protocol_type="connect")
    assert await c.delete_offsets(O1) == ErrorCode.NON_EMPTY_GROUP


@pytest.mark.case("OFF-32")
@coordinator()
async def test_deleting_offsets_of_a_group_that_reads(c: GroupNode) -> None:
    wants = [[("range", subscription("orders"))]]
    (member,) = await c.stable(protocols=wants)
    await c.commit({O0: 1, P0: 2}, member=member, generation=1)
    assert await c.delete_offsets(O0, P0) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, NONE]
    assert await c.offsets() == {O0: 1}


@pytest.mark.case("OFF-32")
@coordinator()
async def test_an_unknown_subscription_protects_every_topic(c: GroupNode) -> None:
    (member,) = await c.stable(protocols=[[("range", b"?")]])
    await c.commit({P0: 2}, member=member, generation=1)
    assert await c.delete_offsets(P0) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]


@coordinator()
async def test_the_offsets_of_a_deleted_topic_go(c: GroupNode) -> None:
    await c.commit({O0: 1, P0: 2})
    await c.commit({P0: 2}, group="other")
    await c.commit_in_transaction({P0: 3})
    await c.told(payments=-2)
    await pass_ms(1)
    assert await c.offsets() == {O0: 1}
    assert c.group("other") is None
    marker(c, commit=True)
    assert await c.offsets() == {O0: 1}


# --- version 0: ZooKeeper ---


@coordinator(led=False)
async def test_version_0_lives_in_zookeeper(c: GroupNode) -> None:
    unknown = TopicPartition("unknown", 0)
    assert await c.commit({O0: 42, unknown: 1}, version=0) == [NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert c.zk.data("/consumers/group/offsets/orders/0") == b"42"
    assert await c.commit({O0: 43}, version=0) == [NONE]
    cls = request_class(ApiKey.OFFSET_FETCH).OffsetFetchRequestTopic
    topics = [cls(name="orders", partition_indexes=[0, 1])]
    entries = (await c.ask(ApiKey.OFFSET_FETCH, 0, group_id=GROUP, topics=topics)).topics[0].partitions
    found = [(entry.committed_offset, entry.error_code) for entry in entries]
    assert found == [(43, NONE), (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    assert await c.commit({O0: 1}, version=0, group="a/b") == [ErrorCode.INVALID_GROUP_ID]
    assert not consumer_offset.is_valid("..")


# --- what is written ---


@coordinator()
async def test_the_retention_of_old_clients_is_kept(c: GroupNode) -> None:
    await c.commit({O0: 1}, version=3, retention_ms=5_000)
    (record,) = c.records()
    assert record.key == encode_offset_key(GROUP, O0) and record.value is not None
    value = decode_offset(record.value)
    assert value.expire_timestamp == value.commit_timestamp + 5_000


@coordinator()
async def test_version_1_brings_its_own_timestamp(c: GroupNode) -> None:
    await c.commit({O0: 1}, version=1, timestamp=123)
    await c.commit({O1: 1}, version=1)
    stamps = [decode_offset(record.value or b"").commit_timestamp for record in c.records()]
    assert stamps == [123, c.clock.wall_ms()], "-1 means now, not the year 1969 (kop #303)"


# --- large commits ---

MANY = {TopicPartition("wide", n): n for n in range(1_200)}


@coordinator()
async def test_a_large_commit_is_one_batch(c: GroupNode) -> None:
    """It is encoded and checked off the loop."""
    await c.told(wide=len(MANY))
    assert set(await c.commit(MANY)) == {NONE}
    assert [record.offset for record in c.records()] == list(range(len(MANY)))
    assert {committed.record_offset for committed in c.known.offsets.committed.values()} == {0}
    await c.fail_over()
    assert {name: c.known.offsets.value(name).offset for name in MANY} == MANY  # type: ignore[union-attr]


@coordinator()
async def test_a_large_commit_loses_its_coordinator_while_it_is_encoded(c: GroupNode) -> None:
    await c.told(wide=len(MANY))
    commit = start(c.commit(MANY))
    await pass_ms(0)
    assert not commit.done()
    c.node.replicas.fetchers.add = lambda *_: None  # type: ignore[method-assign]
    await c.order(HOME, leader=2, epoch=1)
    assert set(await commit) == {ErrorCode.NOT_COORDINATOR}
    assert c.group() is None, "no group is created for a partition that others coordinate"


@coordinator()
async def test_a_large_commit_meets_the_group_as_it_is_after_the_encoding(c: GroupNode) -> None:
    (member,) = await c.stable()
    await c.told(wide=len(MANY))
    commit = start(c.commit(MANY, member=member, generation=1))
    await pass_ms(0)
    assert not commit.done()
    await c.left(member)
    assert set(await commit) == {ErrorCode.UNKNOWN_MEMBER_ID}
