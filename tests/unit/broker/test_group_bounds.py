"""What a stranger can make a coordinator keep: groups, members, names, offsets. Those who are in may go on."""

from __future__ import annotations

import pytest

from klamm.broker.coordinators import internal_topic
from klamm.broker.coordinators.groups.group import GROUP_BYTES, OFFSET_BYTES, PENDING_BYTES
from klamm.broker.coordinators.groups.join import NAME_BYTES_MAX, PROTOCOLS_MAX
from klamm.broker.coordinators.groups.members import MEMBER_BYTES
from klamm.broker.coordinators.internal_topic import KEY_BYTES_MAX
from klamm.broker.handlers import find_coordinator
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.wire.apis import ApiKey

from .group_node import GroupNode, coordinator, pass_ms, start

NONE = ErrorCode.NONE
FULL = ErrorCode.GROUP_MAX_SIZE_REACHED
REFUSED = ErrorCode.POLICY_VIOLATION
TOO_MUCH = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
MIB = 1 << 20
ORDERS = TopicPartition("orders", 0)
OTHERS = TopicPartition("orders", 1)


def held(c: GroupNode) -> int:
    return c.node.groups.registry.held_bytes


def metric(c: GroupNode, name: str) -> float:
    return c.metrics.value("klamm.server", "group-coordinator-metrics", name)


def of(size: int) -> tuple[tuple[str, bytes], ...]:
    """One protocol whose name and metadata have this many bytes."""
    return (("range", bytes(size - len("range"))),)


@coordinator(group_bytes_max=MIB)
async def test_no_group_and_no_member_is_added_to_a_full_memory(c: GroupNode) -> None:
    (member,) = await c.stable(protocols=of(MIB - 10_000))
    assert held(c) > MIB - 10_000
    assert (await c.join(group="other", protocols=of(10_000))).error_code == FULL
    assert c.group("other") is None
    assert (await c.join(protocols=of(10_000))).error_code == FULL
    assert not c.known.pending_members
    assert await c.heartbeat(member) == NONE
    rejoined = start(c.join(member, protocols=of(MIB - 10_000), version=3))
    await pass_ms(600)
    assert (await rejoined).error_code == NONE, "who is in stays in"


@coordinator(group_bytes_max=MIB)
async def test_a_member_of_a_full_group_does_not_grow(c: GroupNode) -> None:
    members = await c.stable(2, protocols=of(500_000))
    grown = await c.join(members[0], protocols=of(900_000))
    assert grown.error_code == FULL
    assert list(c.known.members) == members
    assert [member.held_bytes for member in c.known.members.values()] == [MEMBER_BYTES + 500_000] * 2


@coordinator(group_bytes_max=MIB)
async def test_an_id_that_was_handed_out_needs_room_when_it_comes_back(c: GroupNode) -> None:
    given = await c.join(group="other")
    assert given.error_code == ErrorCode.MEMBER_ID_REQUIRED
    await c.stable(protocols=of(MIB - 10_000))
    back = await c.join(given.member_id, group="other", protocols=of(20_000))
    assert back.error_code == FULL


@coordinator(group_bytes_max=MIB)
async def test_offsets_of_further_partitions_need_room(c: GroupNode) -> None:
    assert await c.commit({ORDERS: 1}) == [NONE]
    await c.stable(group="large", protocols=of(MIB - 8_000))
    assert await c.commit({ORDERS: 2, OTHERS: 1}) == [NONE, TOO_MUCH]
    assert await c.commit({ORDERS: 1}, group="new") == [TOO_MUCH]
    assert await c.offsets() == {ORDERS: 2}
    assert c.group("new") is None
    assert metric(c, "refused-for-size-count") == 2


@coordinator()
async def test_what_is_held_is_counted_until_it_is_gone(c: GroupNode) -> None:
    assert held(c) == 0
    await c.join(session=1_000)
    assert held(c) == GROUP_BYTES + PENDING_BYTES
    await pass_ms(1_100)
    members = await c.stable(2, protocols=of(100), session=10_000)
    assert held(c) == GROUP_BYTES + 2 * (MEMBER_BYTES + 100)
    await c.commit({ORDERS: 1, OTHERS: 2}, member=members[0], generation=c.known.generation)
    assert held(c) == metric(c, "held-bytes") == GROUP_BYTES + 2 * (MEMBER_BYTES + 100) + 2 * OFFSET_BYTES
    before = held(c)
    await c.fail_over()
    assert held(c) == before, "loaded groups count too"
    await c.leave(members[0])
    await pass_ms(11_000)
    assert held(c) == GROUP_BYTES + 2 * OFFSET_BYTES
    assert await c.delete() == NONE
    assert held(c) == 0


@pytest.mark.parametrize("commit", [True, False])
@coordinator()
async def test_offsets_of_open_transactions_count(c: GroupNode, commit: bool) -> None:
    await c.commit_in_transaction({ORDERS: 1, OTHERS: 2})
    await c.commit_in_transaction({OTHERS: 3})
    assert held(c) == GROUP_BYTES + 2 * OFFSET_BYTES
    await c.fail_over()
    assert held(c) == GROUP_BYTES + 2 * OFFSET_BYTES
    c.node.groups.commits.complete_transaction(c.known.partition, 7, commit)  # type: ignore[arg-type]
    assert held(c) == GROUP_BYTES + (2 * OFFSET_BYTES if commit else 0)


@coordinator(led=False)
async def test_groups_that_move_away_take_no_memory(c: GroupNode) -> None:
    await c.lead()
    await c.stable()
    assert held(c) > 0
    await c.order(0, leader=2, epoch=5)
    await c.order(1, leader=2, epoch=5)
    assert held(c) == 0


@coordinator(group_member_bytes_max=10_000)
async def test_a_join_beyond_reason(c: GroupNode) -> None:
    for protocols in (
        of(10_001),
        tuple((f"protocol-{number}", b"") for number in range(PROTOCOLS_MAX + 1)),
        (("x" * (NAME_BYTES_MAX + 1), b""),),
    ):
        assert (await c.join(protocols=protocols)).error_code == REFUSED
    assert (await c.join(protocol_type="x" * (NAME_BYTES_MAX + 1))).error_code == REFUSED
    assert (await c.join(instance="ü" * NAME_BYTES_MAX)).error_code == REFUSED
    assert c.group() is None
    assert metric(c, "refused-for-size-count") == 5


@coordinator()
async def test_the_longest_names_are_stored(c: GroupNode) -> None:
    c.client_id = "c" * NAME_BYTES_MAX
    long = "g" * KEY_BYTES_MAX
    await c.stable(group=long, instance="i" * NAME_BYTES_MAX, protocol_type="t" * NAME_BYTES_MAX)
    await c.fail_over()
    loaded = c.group(long)
    assert loaded is not None and len(loaded.members) == 1


@coordinator()
async def test_names_that_no_key_can_hold(c: GroupNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are refused before they are hashed, which would hold the loop for a second."""
    monkeypatch.setattr(internal_topic, "java_hash", lambda text: pytest.fail(f"hashed {len(text)} characters"))
    vast = "g" * (8 << 20)
    assert (await c.join(group=vast)).error_code == ErrorCode.INVALID_GROUP_ID
    assert await c.commit({ORDERS: 1}, group=vast, version=8) == [ErrorCode.INVALID_GROUP_ID]
    found = await c.ask(ApiKey.FIND_COORDINATOR, key=vast, key_type=find_coordinator.GROUP)
    assert found.error_code == ErrorCode.INVALID_REQUEST
    assert held(c) == 0
