"""What a coordinator answers survives the next fail-over, and what it dropped does not come back with it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from klamm.model.errors import ErrorCode
from klamm.model.ids import ProducerId, TopicPartition

from .group_node import HOME, PARTITIONS, GroupNode, coordinator, pass_ms, start

NONE = ErrorCode.NONE
O0, O1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
WITH_FOLLOWER = (1, 2)
AWAY = next(number for number in range(PARTITIONS) if number != HOME)
"""A partition of other groups."""


# --- loads ---


async def unreplicated(c: GroupNode, commit: Coroutine[Any, Any, list[ErrorCode]]) -> None:
    """The log ends with a commit that the follower does not have, and is loaded after a fail-over and back."""
    c.node.replicas.fetchers.add = lambda *_: None  # type: ignore[method-assign]
    await c.lead(epoch=1, isr=WITH_FOLLOWER)
    committing = start(commit)
    await pass_ms(1)
    await c.order(HOME, leader=2, epoch=2, isr=WITH_FOLLOWER)
    await c.order(HOME, leader=1, epoch=3, isr=WITH_FOLLOWER)
    assert await committing == [ErrorCode.NOT_COORDINATOR]
    await pass_ms(1)


@coordinator(led=False)
async def test_a_load_serves_only_what_is_replicated(c: GroupNode) -> None:
    """Otherwise a client reads an offset that the next fail-over takes back."""
    await unreplicated(c, c.commit(5))
    assert (await c.fetch(O0)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert await c.commit(6) == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    await pass_ms(60_000)
    assert await c.commit(6) == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    c.follower_fetches()
    await pass_ms(1)
    assert await c.offsets(O0) == {O0: 5}


@coordinator(led=False)
async def test_a_load_that_waits_for_followers_ends_with_the_leadership(c: GroupNode) -> None:
    await unreplicated(c, c.commit(5))
    await c.order(HOME, leader=2, epoch=4)
    await pass_ms(1)
    assert (await c.fetch(O0)).error_code == ErrorCode.NOT_COORDINATOR
    assert not c.node.replicas.waiting_produces.by_partition


@coordinator(led=False)
async def test_a_load_that_waits_for_followers_holds_no_other_partition_up(c: GroupNode) -> None:
    await unreplicated(c, c.commit(5))
    await c.order(AWAY, leader=2, epoch=2)
    await c.order(AWAY, leader=1, epoch=3)
    await pass_ms(1)
    ownership = c.node.groups.registry.ownership
    assert (ownership.epoch(HOME), ownership.epoch(AWAY)) == (None, 3)


@coordinator(led=False)
async def test_partitions_that_catch_up_together_are_published_one_by_one(
    c: GroupNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the groups of all partitions would be added in one turn of the loop."""
    await unreplicated(c, c.commit(5))
    c.write((b"no key", None), number=AWAY)
    await c.order(AWAY, leader=2, epoch=2, isr=WITH_FOLLOWER)
    await c.order(AWAY, leader=1, epoch=3, isr=WITH_FOLLOWER)
    await pass_ms(1)
    turns, loading = [0], c.node.groups.loading

    async def count() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    published: list[int] = []
    monkeypatch.setattr(loading, "_publish", lambda _: published.append(turns[0]))
    counting = start(count())
    for number in (HOME, AWAY):
        c.follower_fetches(number)
    await c.loaded()
    counting.cancel()
    assert len(set(published)) == 2


@coordinator(led=False)
async def test_a_marker_that_comes_while_a_load_waits_counts_when_it_is_replicated(c: GroupNode) -> None:
    await unreplicated(c, c.commit_in_transaction(9))
    c.follower_fetches()  # the load goes on in the next turn of the loop: the marker is appended before that
    c.write_marker(commit=True)
    await pass_ms(1)
    assert await c.offsets(O0, stable=True) == {O0: ErrorCode.UNSTABLE_OFFSET_COMMIT}
    c.follower_fetches()
    c.node.groups.commits.complete_transaction(HOME, ProducerId(7), True)
    assert await c.offsets(O0, stable=True) == {O0: 9}


# --- removals ---


@pytest.mark.parametrize("removal", ["delete", "delete_offsets", "topic"])
@pytest.mark.parametrize("commit", [True, False])
@coordinator()
async def test_what_an_open_transaction_had_committed_stays_removed(c: GroupNode, removal: str, commit: bool) -> None:
    assert await c.commit_in_transaction(9) == [NONE]
    await _remove(c, removal)
    assert await c.offsets(O0, stable=True) == {O0: -1}
    c.write_marker(commit=commit)
    c.node.groups.commits.complete_transaction(HOME, ProducerId(7), commit)
    assert await c.offsets(O0) == {O0: -1}
    await c.fail_over()
    assert await c.offsets(O0) == {O0: -1}


@pytest.mark.parametrize("removal", ["delete", "delete_offsets", "topic"])
@coordinator()
async def test_a_commit_that_is_under_way_is_removed_too(c: GroupNode, removal: str) -> None:
    await c.lead(epoch=1, isr=WITH_FOLLOWER)
    c.follower_fetches()
    await c.loaded()
    committing = start(c.commit(5))
    await pass_ms(1)
    removing = start(_remove(c, removal))
    await pass_ms(1)
    c.follower_fetches()
    assert await committing == [NONE]
    await removing
    assert await c.offsets(O0) == {O0: -1}
    await c.fail_over()
    assert await c.offsets(O0) == {O0: -1}


async def _remove(c: GroupNode, removal: str) -> None:
    match removal:
        case "delete":
            assert await c.delete() == NONE
        case "delete_offsets":
            assert await c.delete_offsets(O0) == [NONE]
        case "topic":
            await c.told(orders=-1)
            await pass_ms(1)


@coordinator()
async def test_a_deletion_is_answered_when_it_is_replicated(c: GroupNode) -> None:
    await c.commit({O0: 5, O1: 6})
    await c.lead(epoch=1, isr=WITH_FOLLOWER)
    c.follower_fetches()
    await c.loaded()
    offsets = start(c.delete_offsets(O0))
    await pass_ms(1)
    group = start(c.delete())
    await pass_ms(10)
    assert not offsets.done() and not group.done()
    c.follower_fetches()
    assert (await offsets, await group) == ([NONE], NONE)


@coordinator()
async def test_a_deletion_that_cannot_be_written_is_refused_and_changes_nothing(c: GroupNode) -> None:
    await c.commit(5)
    c.node.replicas.may_acknowledge = lambda: False  # type: ignore[method-assign]
    assert await c.delete() == ErrorCode.NOT_COORDINATOR
    assert await c.delete_offsets(O0) == ErrorCode.NOT_COORDINATOR
    assert await c.offsets(O0) == {O0: 5}


@coordinator()
async def test_a_deletion_that_is_not_replicated_in_time_says_so(c: GroupNode) -> None:
    await c.commit(5)
    await c.lead(epoch=1, isr=WITH_FOLLOWER)
    c.follower_fetches()
    await c.loaded()
    assert await c.delete() == ErrorCode.REQUEST_TIMED_OUT
