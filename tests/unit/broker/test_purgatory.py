"""Waits without polling: a change ends them, none is lost between test and registration, a timeout ends the rest."""

from __future__ import annotations

import asyncio

from klamm.broker.purgatory import CHECKED_PER_TURN, Purgatory
from klamm.model.ids import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


async def test_completed_by_the_change_it_waits_for() -> None:
    purgatory = Purgatory()
    seen: list[TopicPartition | None] = []

    def condition(changed: TopicPartition | None) -> bool:
        seen.append(changed)
        return changed == B

    waiting = asyncio.create_task(purgatory.wait([A, B, A], condition, 60))
    await asyncio.sleep(0)
    purgatory.check(A)
    purgatory.check(TopicPartition("other", 0))
    await asyncio.sleep(0)
    assert not waiting.done()
    purgatory.check(B)
    purgatory.check(B)
    assert await waiting
    assert seen == [None, A, B]
    assert len(purgatory) == 0
    purgatory.check(B)


async def test_what_became_true_before_registration_is_found_by_the_second_test() -> None:
    assert await Purgatory().wait([A], lambda changed: changed is None, 60)


async def test_timeout_and_no_wait_at_all() -> None:
    purgatory = Purgatory()
    assert not await purgatory.wait([A], lambda changed: False, 0.001)
    assert not await purgatory.wait([A], lambda changed: False, 0)
    assert len(purgatory) == 0


async def test_a_cancelled_waiter_leaves_nothing_behind() -> None:
    purgatory = Purgatory()
    waiting = asyncio.create_task(purgatory.wait([A], lambda changed: False, 60))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert len(purgatory) == 0
    purgatory.check(A)


async def test_very_many_waits_for_one_partition_end_in_several_turns() -> None:
    purgatory, key = Purgatory(), TopicPartition("t", 0)
    count = 2 * CHECKED_PER_TURN + 1
    waits = [asyncio.create_task(purgatory.wait([key], lambda changed: changed is not None, 1e6)) for _ in range(count)]
    await asyncio.sleep(0)
    purgatory.check(key)
    ended = []
    while not all(wait.done() for wait in waits):
        await asyncio.sleep(0)
        ended.append(sum(wait.done() for wait in waits))
    assert max(after - before for before, after in zip([0, *ended], ended, strict=False)) <= CHECKED_PER_TURN
    assert all([await wait for wait in waits])
