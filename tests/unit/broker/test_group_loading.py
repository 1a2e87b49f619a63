"""Groups that are loaded from the log, that move away, and that are administered."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from klamm.broker.coordinators.groups import loading, rebalance
from klamm.broker.coordinators.groups.events import Turn
from klamm.broker.coordinators.groups.group import Group
from klamm.broker.coordinators.groups.records import (
    Offset,
    StoredGroup,
    StoredMember,
    encode_group,
    encode_group_key,
    encode_offset,
    encode_offset_key,
)
from klamm.broker.coordinators.internal_topic import partition_for
from klamm.model.control import StopOrder
from klamm.model.errors import ConnectionLoss, ErrorCode
from klamm.model.ids import LeaderEpoch, TopicPartition
from klamm.wire.apis import ApiKey
from klamm.wire.records import Record, build_batch

from .group_node import GROUP, HOME, OFFSETS, PARTITIONS, SENDER, GroupNode, coordinator, pass_ms, start

NONE = ErrorCode.NONE
O0, O1, P0 = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("payments", 0)
OTHER = next(name for name in map(str, range(99)) if partition_for(name, PARTITIONS) != HOME)
"""A group of the other partition."""
NEIGHBOUR = next(name for name in map(str, range(99)) if partition_for(name, PARTITIONS) == HOME)
MEMBER = StoredMember("m-1", None, "client", "/10.0.0.7", 500, 1_000, b"sub", b"assigned")
STABLE = StoredGroup("consumer", 935, "range", "m-1", 77, (MEMBER,))


def offset(name: TopicPartition, value: int | None, group: str = GROUP) -> tuple[bytes, bytes | None]:
    data = None if value is None else encode_offset(Offset(value, commit_timestamp=5), 3)
    return encode_offset_key(group, name), data


def state(value: StoredGroup | None, group: str = GROUP) -> tuple[bytes, bytes | None]:
    return encode_group_key(group), None if value is None else encode_group(value, 3)


# --- loading ---


@pytest.mark.case("OFF-14")
@coordinator()
async def test_offsets_alone(c: GroupNode) -> None:
    c.write(offset(O0, 1), offset(O1, 2))
    await c.fail_over()
    assert (c.state, c.known.protocol_type, await c.offsets()) == ("Empty", None, {O0: 1, O1: 2})


@pytest.mark.case("OFF-15")
@coordinator()
async def test_an_empty_group(c: GroupNode) -> None:
    c.write(offset(O0, 1), state(StoredGroup("consumer", 15, None, None, 77)))
    await c.fail_over()
    group = c.known
    assert (group.state.value, group.generation, group.protocol_type) == ("Empty", 15, "consumer")
    assert (group.leader, group.protocol, group.state_timestamp, group.topics) == (None, None, 77, frozenset())


@pytest.mark.case("OFF-16")
@coordinator()
async def test_a_group_with_a_member(c: GroupNode) -> None:
    c.write(offset(O0, 1), state(STABLE))
    await c.fail_over()
    group = c.known
    assert (group.state.value, group.generation, group.leader, group.protocol) == ("Stable", 935, "m-1", "range")
    assert list(group.members) == ["m-1"] and not group.members["m-1"].is_static
    assert all(held.value.expire_timestamp is None for held in group.offsets.committed.values())
    assert bytes((await c.sync("m-1", 935)).assignment) == b"assigned"
    await pass_ms(900)
    assert await c.heartbeat("m-1", 935) == NONE, "a whole session from the load on"
    await pass_ms(1_100)
    assert await c.heartbeat("m-1", 935) == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("leader", ["m-9", None])
@coordinator()
async def test_a_leader_that_is_no_member_is_replaced(c: GroupNode, leader: str | None) -> None:
    """Such a value would otherwise end every rebalance of the group with an error."""
    c.write(state(STABLE._replace(leader=leader)))
    await c.fail_over()
    assert c.known.leader == "m-1"
    rejoined = await c.join("m-1", protocols=[("range", b"new")])
    assert (rejoined.error_code, rejoined.generation_id, rejoined.leader) == (0, 936, "m-1")


@coordinator()
async def test_a_stable_group_survives_a_fail_over_without_a_rebalance(c: GroupNode) -> None:
    members = await c.stable(3)
    await c.fail_over()
    assert (c.state, c.known.generation) == ("Stable", 1)
    for number, member in enumerate(members):
        assert await c.heartbeat(member) == NONE
        assert bytes((await c.sync(member)).assignment) == b"part %d" % number


@pytest.mark.case("OFF-17")
@coordinator()
async def test_tombstones(c: GroupNode) -> None:
    c.write(offset(O0, 1), offset(O1, 2), offset(O0, None))
    c.write(state(STABLE, NEIGHBOUR), state(None, NEIGHBOUR))
    await c.fail_over()
    assert await c.offsets() == {O1: 2}
    assert c.group(NEIGHBOUR) is None
    c.write(state(None), offset(O0, 7))
    c.write(offset(P0, 3, NEIGHBOUR))
    await c.fail_over(20)
    assert (c.state, await c.offsets()) == ("Empty", {O0: 7, O1: 2})
    assert c.group(NEIGHBOUR).state.value == "Empty"  # type: ignore[union-attr]


@coordinator()
async def test_a_deleted_group_stays_deleted(c: GroupNode) -> None:
    """Redpanda #4900: deleted groups came back after a restart."""
    (member,) = await c.stable()
    await c.commit(3, member=member, generation=1)
    await c.left(member)
    assert await c.delete() == NONE
    await c.fail_over()
    assert (c.group(), await c.offsets(O0)) == (None, {O0: -1})


@pytest.mark.case("OFF-18")
@coordinator()
async def test_the_later_segment_wins(c: GroupNode) -> None:
    c.write(offset(O0, 1), offset(O1, 1), state(StoredGroup("consumer", 1, None, None, 1)))
    c.partition().log.roll()
    c.write(offset(O0, 2), state(STABLE))
    assert len(c.partition().log.segments) == 2
    await c.fail_over()
    assert (await c.offsets(), c.known.generation, c.state) == ({O0: 2, O1: 1}, 935, "Stable")


@pytest.mark.case("OFF-19")
@coordinator(offsets_load_buffer_size=100)
async def test_a_value_larger_than_the_buffer(c: GroupNode) -> None:
    large = STABLE._replace(members=(MEMBER._replace(assignment=bytes(10_000)),))
    c.write(state(large), offset(O0, 4))
    await c.fail_over()
    assert (len(c.known.members["m-1"].assignment), await c.offsets()) == (10_000, {O0: 4})


@pytest.mark.case("OFF-23")
@pytest.mark.parametrize(("marker", "visible"), [("commit", {O0: 9}), ("abort", None), (None, {})])
@coordinator()
async def test_transactional_offsets(c: GroupNode, marker: str | None, visible: dict[Any, int] | None) -> None:
    c.write(offset(O0, 9), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    if marker is not None:
        c.write_marker(commit=marker == "commit")
    await c.fail_over()
    if visible is None:
        assert c.group() is None
        return
    assert (c.state, await c.offsets()) == ("Empty", visible)
    assert c.known.offsets.is_unstable(O0) is (marker is None)
    if marker is None:
        c.node.groups.commits.complete_transaction(HOME, 7, True)  # type: ignore[arg-type]
        assert await c.offsets() == {O0: 9}


@coordinator()
async def test_a_marker_that_arrives_during_the_load_is_part_of_it(c: GroupNode) -> None:
    c.write(offset(O0, 9), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    await c.fail_over()
    await c.order(HOME, leader=2, epoch=20)
    await c.order(HOME, epoch=21)
    c.write_marker(commit=True)
    c.node.groups.commits.complete_transaction(HOME, 7, True)  # type: ignore[arg-type]
    await pass_ms(1)
    assert await c.offsets(stable=True) == {O0: 9}


@coordinator()
async def test_a_group_over_the_limit_rebalances(c: GroupNode) -> None:
    c.node.groups.execution.rules = c.node.groups.execution.rules._replace(max_size=1)
    c.write(state(STABLE._replace(members=(MEMBER, MEMBER._replace(member_id="m-2")))))
    await c.fail_over()
    assert c.state == "PreparingRebalance"


# --- damage ---


@pytest.mark.parametrize(
    "bad",
    [
        (b"\x00\x01", b"value"),
        (encode_offset_key(GROUP, O0), b"\x00\x03short"),
        (encode_offset_key(GROUP, O0), b"\x00\x63"),
        (encode_group_key(GROUP), b"\x00\x03\xff\xff"),
        (b"\xff\xfe", None),
    ],
)
@coordinator()
async def test_one_bad_record_does_not_take_others_with_it(
    c: GroupNode, bad: tuple[bytes, bytes | None], caplog: pytest.LogCaptureFixture
) -> None:
    c.write(offset(O1, 1), bad, offset(P0, 2))
    c.write(offset(O0, 3, NEIGHBOUR), state(STABLE, NEIGHBOUR))
    await c.fail_over()
    assert await c.offsets() == {O1: 1, P0: 2}
    assert await c.offsets(group=NEIGHBOUR) == {O0: 3}
    assert c.node.groups.loading.damaged == 1
    assert f"{OFFSETS}-{HOME}: left out what is at offset 1" in caplog.text


@coordinator()
async def test_records_of_newer_kinds_of_groups_are_skipped(c: GroupNode) -> None:
    c.write(offset(O0, 1), (b"\x00\x05\x00\x01g", b"\x00\x00"), offset(O1, 2))
    await c.fail_over()
    assert (await c.offsets(), c.node.groups.loading.damaged) == ({O0: 1, O1: 2}, 0)


# --- loads that fail, are slow, or are overtaken ---


@pytest.mark.case("GRP-51")
@coordinator(led=False)
async def test_what_clients_hear_during_a_load(c: GroupNode) -> None:
    await c.order(1 - HOME)
    await pass_ms(1)
    is_loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    async with c.node.groups.loading._one_reads:
        await c.order(HOME)
        assert (await c.join()).error_code == is_loading
        assert (await c.sync("m")).error_code == ErrorCode.REBALANCE_IN_PROGRESS
        assert await c.commit() == [is_loading]
        assert await c.heartbeat("m") == NONE
        assert (await c.describe()).error_code == is_loading
        assert await c.delete() == is_loading
        assert (await c.fetch()).error_code == is_loading
        assert (await c.fetch(O0, version=1)).topics[0].partitions[0].error_code == is_loading, "old versions: in each"
        assert (await c.leave("m")).error_code == is_loading
        assert await c.commit_in_transaction() == [is_loading]
        assert await c.commit_in_transaction(version=1) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        assert (await c.ask(ApiKey.LIST_GROUPS)).error_code == is_loading
        assert await c.commit(group=OTHER) == [NONE], "other partitions work"
    await pass_ms(1)
    assert await c.commit() == [NONE]
    assert (await c.ask(ApiKey.LIST_GROUPS)).error_code == NONE


@coordinator(led=False)
async def test_a_load_that_fails_is_repeated(c: GroupNode) -> None:
    """Kafka 2.5.1 would serve half a partition."""
    topic, count = c.node.groups.registry.topic, 0
    read = topic.read_count

    async def unreliable() -> None:
        nonlocal count
        count += 1
        if count < 3:
            raise ConnectionLoss("/brokers/topics")
        await read()

    topic.read_count = unreliable  # type: ignore[method-assign]
    await c.order(HOME)
    await pass_ms(10)
    assert await c.commit() == [ErrorCode.NOT_COORDINATOR], "the number of partitions is not known"
    await pass_ms(1000 * loading.RETRY_SECONDS)
    assert count == 2
    await pass_ms(1000 * loading.RETRY_SECONDS)
    assert (count, await c.commit()) == (3, [NONE])


@coordinator()
async def test_resigning_answers_everyone_who_waits(c: GroupNode) -> None:
    leader, follower = (answer.member_id for answer in await c.joined(2))
    syncing = start(c.sync(follower))
    joining = start(c.join(leader, protocols=[("range", b"new")]))
    await pass_ms(1)
    assert (await syncing).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    c.node.replicas.fetchers.add = lambda *_: None  # type: ignore[method-assign]
    await c.order(HOME, leader=2, epoch=5)
    await pass_ms(1)
    assert (await joining).error_code == ErrorCode.NOT_COORDINATOR
    assert (c.group(), len(c.node.groups.execution.timers)) == (None, 0)
    assert await c.heartbeat(leader) == ErrorCode.NOT_COORDINATOR


@coordinator()
async def test_a_commit_in_flight_when_the_partition_moves(c: GroupNode) -> None:
    await c.lead(epoch=1, isr=(1, 2))
    committing = start(c.commit(5))
    await pass_ms(1)
    c.node.replicas.fetchers.add = lambda *_: None  # type: ignore[method-assign]
    await c.order(HOME, leader=2, epoch=5)
    assert await committing == [ErrorCode.NOT_COORDINATOR]


@coordinator()
async def test_a_deleted_replica_is_forgotten(c: GroupNode) -> None:
    await c.commit(1)
    await c.node.replicas.stop_replica(SENDER, [StopOrder(TopicPartition(OFFSETS, HOME), LeaderEpoch(1), delete=True)])
    assert (c.group(), await c.heartbeat("m")) == (None, ErrorCode.NOT_COORDINATOR)


@coordinator()
async def test_ten_thousand_groups_leave_the_loop_free(c: GroupNode) -> None:
    held = []
    for first in range(0, 10_000, 100):
        rows = []
        for number in range(first, first + 100):
            rows += [offset(O0, number, f"g{number}"), state(STABLE, f"g{number}")]
        c.write(*rows)
    c.node.replicas.fetchers.add = lambda *_: None  # type: ignore[method-assign]
    await c.order(HOME, leader=2, epoch=2)
    await c.order(HOME, epoch=3)
    before = time.process_time()
    while c.node.groups.registry.ownership.is_loading:
        await asyncio.sleep(0)
        now = time.process_time()
        held.append(now - before)
        before = now
    assert len(c.node.groups.registry.groups) == 10_000
    assert sorted(held)[len(held) * 95 // 100] < 0.05, "nearly all: the garbage collector may come in between"
    assert len(held) > 100


async def many_groups(c: GroupNode, count: int) -> None:
    for number in range(count):
        c.write(state(STABLE, f"g{number}"))
    c.node.replicas.fetchers.add = lambda *_: None  # type: ignore[method-assign]
    await c.order(HOME, leader=2, epoch=2)
    await c.order(HOME, epoch=3)
    await c.loaded()


@coordinator()
async def test_groups_are_let_go_in_slices(c: GroupNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once for requests; those who wait hear of it a few turns later."""
    died: list[str] = []

    def die(group: Group, error: ErrorCode, turn: Turn) -> None:
        died.append(group.id)
        rebalance.die(group, error, turn)

    monkeypatch.setattr(loading, "die", die)
    await many_groups(c, 1_000)
    await c.order(HOME, leader=2, epoch=4)
    assert (c.node.groups.registry.groups, len(died) < 1_000) == ({}, True)
    per_turn = [0]
    while len(died) < 1_000:
        before = len(died)
        await asyncio.sleep(0)
        per_turn.append(len(died) - before)
    assert max(per_turn) <= loading.GROUPS_PER_SLICE
    assert len(c.node.groups.execution.timers) == 0


@coordinator()
async def test_groups_that_come_back_at_once_keep_their_timers(c: GroupNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "GROUPS_PER_SLICE", 1)
    await many_groups(c, 1_000)
    await c.order(HOME, leader=2, epoch=4)
    await c.order(HOME, epoch=5)
    await c.loaded()
    await pass_ms(500)
    assert len(c.node.groups.registry.groups) == 1_000
    assert len(c.node.groups.execution.timers) == 1_000


# --- administration ---


@pytest.mark.case("GRP-48")
@coordinator()
async def test_describing(c: GroupNode) -> None:
    unknown = await c.describe("unknown")
    assert (unknown.error_code, unknown.group_state, list(unknown.members)) == (NONE, "Dead", [])
    await c.joined(instance="one", protocols=[[("range", b"meta")]])
    awaiting = await c.describe()
    assert (awaiting.group_state, awaiting.protocol_data) == ("CompletingRebalance", "")
    assert [(bytes(m.member_metadata), bytes(m.member_assignment)) for m in awaiting.members] == [(b"", b"")]
    await c.sync(awaiting.members[0].member_id, me=b"part")
    stable = await c.describe()
    (member,) = stable.members
    assert (stable.group_state, stable.protocol_type, stable.protocol_data) == ("Stable", "consumer", "range")
    assert (member.group_instance_id, member.client_id, member.client_host) == ("one", "client", "/10.0.0.7")
    assert (bytes(member.member_metadata), bytes(member.member_assignment)) == (b"meta", b"part")
    assert stable.authorized_operations == -(2**31)
    asked = await c.ask(ApiKey.DESCRIBE_GROUPS, groups=[GROUP], include_authorized_operations=True)
    assert asked.groups[0].authorized_operations == 0b101001000, "read, delete, describe"


@pytest.mark.case("GRP-49")
@coordinator()
async def test_listing(c: GroupNode) -> None:
    await c.stable()
    start(c.join(group=OTHER, version=3, protocol_type="connect"))
    await c.commit(group=NEIGHBOUR)
    await pass_ms(1)
    for version in range(4):
        listed = (await c.ask(ApiKey.LIST_GROUPS, version)).groups
        types = {each.group_id: each.protocol_type for each in listed}
        assert types == {GROUP: "consumer", OTHER: "connect", NEIGHBOUR: ""}


@pytest.mark.case("GRP-50")
@coordinator()
async def test_deleting(c: GroupNode) -> None:
    assert await c.delete() == ErrorCode.GROUP_ID_NOT_FOUND
    assert await c.node.groups.delete(None) == ErrorCode.INVALID_GROUP_ID
    (member,) = await c.stable()
    await c.commit(3, member=member, generation=1)
    assert await c.delete() == ErrorCode.NON_EMPTY_GROUP
    await c.left(member)
    assert await c.delete() == NONE
    assert ((await c.describe()).group_state, await c.offsets(O0)) == ("Dead", {O0: -1})
    c.node.replicas.fetchers.add = lambda *_: None  # type: ignore[method-assign]
    await c.order(HOME, leader=2, epoch=9)
    assert await c.delete() == ErrorCode.NOT_COORDINATOR


@coordinator()
async def test_metrics(c: GroupNode) -> None:
    (member,) = await c.stable()
    await c.commit({O0: 1, O1: 2}, member=member, generation=1)
    await c.commit(3, group=NEIGHBOUR)
    await c.delete(NEIGHBOUR)

    def value(name: str, *, of: tuple[str, str] = ("kafka.server", "group-coordinator-metrics"), **tags: str) -> float:
        return c.metrics.value(*of, name, **tags)

    manager = ("kafka.coordinator.group", "GroupMetadataManager")
    names = ("NumGroups", "NumOffsets", "NumGroupsStable", "NumGroupsEmpty", "NumGroupsPreparingRebalance")
    assert [value(name, of=manager) for name in names] == [1, 2, 1, 0, 0]
    counts = ("offset-commit-count", "offset-deletion-count", "group-completed-rebalance-count")
    assert [value(name) for name in counts] == [3, 1, 1]
    waiting = ("kafka.server", "DelayedOperationPurgatory")
    assert value("PurgatorySize", of=waiting, delayedOperation="Heartbeat") == 1
    assert value("partition-load-time-max") >= value("partition-load-time-avg") >= 0


# --- timers ---


@coordinator()
async def test_a_timer_that_is_moved_fires_once_at_its_last_deadline(c: GroupNode) -> None:
    timers, fired = c.node.groups.execution.timers, []
    key: Any = ("group", "timer")
    timers.set(key, 0.1, lambda: fired.append(c.clock.monotonic()))
    begun = c.clock.monotonic()
    for _ in range(5):
        await pass_ms(50)
        timers.set(key, 0.1, lambda: fired.append(c.clock.monotonic()))
    await pass_ms(1_000)
    assert [round(when - begun, 3) for when in fired] == [0.35]
    timers.set(key, 10, lambda: fired.append(0))
    timers.set(key, 0.1, lambda: fired.append(1))
    await pass_ms(200)
    assert fired[1:] == [1] and key not in timers
    timers.set(key, 0.1, lambda: fired.append(2))
    timers.cancel(key)
    await pass_ms(200)
    assert fired[1:] == [1]


@coordinator()
async def test_a_batch_of_an_old_load_is_not_mixed_in(c: GroupNode) -> None:
    """A load that was overtaken by an order publishes nothing."""
    c.write_batch(build_batch([*(_record(n) for n in range(1_500))]))
    c.node.replicas.fetchers.add = lambda *_: None  # type: ignore[method-assign]
    await c.order(HOME, leader=2, epoch=5)
    await c.order(HOME, epoch=6)
    await asyncio.sleep(0)
    await c.order(HOME, leader=2, epoch=7)
    await pass_ms(10)
    assert (c.node.groups.registry.groups, await c.heartbeat("m")) == ({}, ErrorCode.NOT_COORDINATOR)


def _record(number: int) -> Record:
    key, value = offset(TopicPartition("orders", number), number)
    return Record(key, value, 1)
