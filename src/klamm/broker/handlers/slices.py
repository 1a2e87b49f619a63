"""Runs a computation in slices, or in the disk pool, and lets other tasks run meanwhile (design D1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from typing import Final, Protocol, TypeVar

from klamm.model.ids import TopicPartition

R = TypeVar("R")
T = TypeVar("T")

ITEMS_PER_SLICE: Final = 500


class Pool(Protocol):
    """Runs a job that would hold the loop; `Disk.run` is one."""

    async def __call__(self, job: Callable[[], T], /) -> T: ...


async def at_once(job: Callable[[], T], /) -> T:
    return job()


class Pace:
    """Counts the items of nested loops together: many topics with a few partitions each are many partitions."""

    def __init__(self, per_slice: int = ITEMS_PER_SLICE) -> None:
        self._per_slice = per_slice
        self._count = 0

    async def each(self, items: Iterable[T]) -> AsyncIterator[T]:
        """All items. Other tasks run after each slice, so the world may have changed between two of them."""
        for item in items:
            yield item
            self._count += 1
            if self._count % self._per_slice == 0:
                await asyncio.sleep(0)

    async def spend(self, count: int) -> None:
        """Something that costs as much as so many items was done."""
        slices = self._count // self._per_slice
        self._count += count
        if self._count // self._per_slice > slices:
            await asyncio.sleep(0)


def each(items: Iterable[T], per_slice: int = ITEMS_PER_SLICE) -> AsyncIterator[T]:
    """All items of a loop that has no other inside."""
    return Pace(per_slice).each(items)


async def mapped(function: Callable[[T], R], items: Iterable[T], per_slice: int = ITEMS_PER_SLICE) -> list[R]:
    """What `function` makes of each item."""
    return [function(item) async for item in each(items, per_slice)]


async def topics_of(
    results: Iterable[tuple[TopicPartition, T]], make: Callable[[TopicPartition, T], R], pace: Pace | None = None
) -> dict[str, list[R]]:
    """What `make` makes of each partition's result, by topic, in the order of the results."""
    topics: dict[str, list[R]] = {}
    async for name, result in (pace or Pace()).each(results):
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
