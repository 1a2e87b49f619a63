"""Wide work lets other tasks run."""

from __future__ import annotations

import asyncio

import pytest

from klamm.broker.handlers.slices import ITEMS_PER_SLICE, Pace, each


async def turns(work: object) -> int:
    """How often another task ran meanwhile."""
    count = 0

    async def count_turns() -> None:
        nonlocal count
        while True:
            await asyncio.sleep(0)
            count += 1

    other = asyncio.create_task(count_turns())
    await asyncio.sleep(0)
    await work  # type: ignore[misc]
    other.cancel()
    return count


@pytest.mark.parametrize("count", [1, ITEMS_PER_SLICE - 1])
async def test_few_items_are_handled_at_once(count: int) -> None:
    async def work() -> list[int]:
        return [item async for item in each(range(count))]

    assert await turns(work()) == 0


@pytest.mark.parametrize(("topics", "partitions"), [(1, 5_000), (5_000, 1), (70, 70), (499, 10)])
async def test_nested_loops_are_counted_together(topics: int, partitions: int) -> None:
    async def work() -> None:
        pace = Pace()
        async for _ in pace.each(range(topics)):
            async for _ in pace.each(range(partitions)):
                pass

    assert await turns(work()) == (topics + topics * partitions) // ITEMS_PER_SLICE


async def test_what_costs_more_counts_more() -> None:
    async def work() -> None:
        pace = Pace(100)
        for cost in (60, 30, 20, 250, 40):  # the sum passes 100 with the third, 300 with the fourth, 400 with the last
            await pace.spend(cost)

    assert await turns(work()) == 3
