"""Runs a computation in slices, and lets other tasks run between them (design D1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from typing import Final, TypeVar

from klamm.model.ids import TopicPartition

R = TypeVar("R")
T = TypeVar("T")

ITEMS_PER_SLICE: Final = 500


async def each(items: Iterable[T], per_slice: int = ITEMS_PER_SLICE) -> AsyncIterator[T]:
    """All items. Other tasks run after each slice, so the world may have changed between two of them."""
    for number, item in enumerate(items, 1):
        yield item
        if number % per_slice == 0:
            await asyncio.sleep(0)


async def mapped(function: Callable[[T], R], items: Iterable[T], per_slice: int = ITEMS_PER_SLICE) -> list[R]:
    """What `function` makes of each item."""
    return [function(item) async for item in each(items, per_slice)]


async def topics_of(
    results: Iterable[tuple[TopicPartition, T]], make: Callable[[TopicPartition, T], R]
) -> dict[str, list[R]]:
    """What `make` makes of each partition's result, by topic, in the order of the results."""
    topics: dict[str, list[R]] = {}
    async for name, result in each(results):
        topics.setdefault(name.topic, []).append(make(name, result))
    return topics


async def in_slices(work: Generator[None, None, T]) -> T:
    """Returns what `work` returns."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
        await asyncio.sleep(0)
