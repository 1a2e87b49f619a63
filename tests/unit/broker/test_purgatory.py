"""Waits without polling: a change ends them, none is lost between test and registration, a timeout ends the rest."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from klamm.broker.purgatory import CHECKED_PER_TURN, EXPIRED_PER_TURN, Purgatory
from klamm.model.ids import TopicPartition
from klamm.model.requests import ClientConnection

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


@pytest.mark.parametrize("changed", [[A], [B, A]])
async def test_a_change_between_the_watch_and_the_wait_is_not_missed(changed: list[TopicPartition]) -> None:
    purgatory = Purgatory()
    watch = purgatory.watch([A, B])
    for name in changed:
        purgatory.check(name)
    async with asyncio.timeout(5):
        assert await watch.wait(lambda name: name == A, 60)
    watch.close()


async def test_without_time_to_wait_only_what_has_changed_counts() -> None:
    purgatory = Purgatory()
    watch = purgatory.watch([A])
    assert not await watch.wait(lambda name: True, 0)
    purgatory.check(A)
    assert await watch.wait(lambda name: True, 0)
    watch.close()


async def test_a_closed_watch_is_forgotten() -> None:
    purgatory = Purgatory()
    watch, other = purgatory.watch([A, B]), purgatory.watch([A])
    watch.remove([A, TopicPartition("never", 0)])
    purgatory.check(A)
    assert (watch.taken(), other.taken()) == ([], [A])
    purgatory.check(B)
    watch.close()
    assert watch.taken() == []
    other.close()
    assert purgatory.by_partition == {}


async def test_a_condition_that_fails_ends_its_own_wait() -> None:
    def defective(name: TopicPartition) -> bool:
        raise ValueError("a defect")

    purgatory = Purgatory()
    watch = purgatory.watch([A])
    waiting = asyncio.create_task(watch.wait(defective, 60))
    await asyncio.sleep(0)
    purgatory.check(A)
    with pytest.raises(ValueError, match="a defect"):
        await asyncio.wait_for(waiting, 5)
    watch.close()
    assert len(purgatory) == 0


async def test_clients_that_disconnect_together_end_in_several_turns() -> None:
    purgatory = Purgatory()
    clients = [ClientConnection() for _ in range(2 * EXPIRED_PER_TURN + 1)]
    waits = [asyncio.create_task(purgatory.wait([A], lambda changed: changed is not None, 1e6, c)) for c in clients]
    last = asyncio.create_task(purgatory.wait([B], lambda changed: changed is not None, 1e6, clients[-1]))
    await asyncio.sleep(0)
    for client in clients:
        client.gone()
    purgatory.check(B)  # what succeeds before its turn has succeeded
    ended = [0]
    while len(purgatory):
        await asyncio.sleep(0)
        ended.append(sum(wait.done() for wait in waits))
    assert max(after - before for before, after in pairwise(ended)) == EXPIRED_PER_TURN
    assert not any([await wait for wait in waits]) and await last
