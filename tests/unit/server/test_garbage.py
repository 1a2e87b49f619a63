"""Garbage stays bounded, although most searches look only at what is new (ADR 0013)."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from klamm.server.garbage import NEVER, GarbageCollection, Limits

LIMITS = Limits(searched_from=1_000, searched_to=20_000, frozen_from=500, missed=10_000, missed_share=0.0)


class Node:
    """Refers to itself, so only a search finds it after its last use."""

    alive = 0

    def __init__(self) -> None:
        self.itself = self
        Node.alive += 1
        weakref.finalize(self, Node.died)

    @staticmethod
    def died() -> None:
        Node.alive -= 1


@pytest.fixture
def collection() -> Iterator[GarbageCollection]:
    """The interpreter searches nothing by itself; `grow_old` does it instead."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(0)
    yield GarbageCollection(LIMITS)
    gc.set_threshold(*before)
    gc.unfreeze()
    gc.collect()
    assert Node.alive == 0


def grow_old() -> None:
    gc.collect(1)


def oldest() -> int:
    return len(gc.get_objects(generation=2))


def test_what_is_alive_is_frozen_and_not_searched_again(collection: GarbageCollection) -> None:
    held = [Node() for _ in range(2_000)]
    grow_old()
    assert oldest() >= 2_000
    collection.look()
    assert oldest() < 2_000, "what is frozen is in no generation"
    assert Node.alive == len(held)


def test_few_old_objects_are_left_for_later(collection: GarbageCollection) -> None:
    held = [Node() for _ in range(100)]
    grow_old()
    collection.look()
    held.clear()
    assert Node.alive == 100, "no search"


def test_garbage_that_grew_old_is_found_before_the_rest_is_frozen(collection: GarbageCollection) -> None:
    """As many requests leave it behind: cycles that were in use while the young generations were searched."""
    most = 0
    for _ in range(100):
        held = [Node() for _ in range(200)]
        grow_old()
        held.clear()
        collection.look()
        collection.limit_frozen()
        most = max(most, Node.alive)
    assert most < 3_000, "of 20,000"


def test_garbage_among_frozen_objects_is_found_when_there_is_much_of_it(collection: GarbageCollection) -> None:
    most = 0
    for _ in range(100):
        held = [Node() for _ in range(1_000)]
        grow_old()
        collection.look()  # frozen alive
        held.clear()
        collection.limit_frozen()
        most = max(most, Node.alive)
    assert 1_000 < most < 15_000, "of 100,000"


def test_a_wide_request_does_not_cause_a_search_of_everything(collection: GarbageCollection) -> None:
    kept = [Node() for _ in range(2_000)]
    grow_old()
    collection.look()
    kept.clear()  # frozen garbage: only a search of everything would find it
    for _ in range(3):
        wide: list[list[int]] = [[] for _ in range(15_000)]
        grow_old()
        collection.look()
        collection.limit_frozen()
        wide.clear()
        collection.limit_frozen()
    assert Node.alive == 2_000


def test_too_many_for_one_search_are_frozen_unsearched(collection: GarbageCollection) -> None:
    held = [Node() for _ in range(LIMITS.searched_to + 1)]
    grow_old()
    held.clear()
    collection.look()
    assert Node.alive == LIMITS.searched_to + 1
    assert oldest() < 1_000
    collection.limit_frozen()
    collection.limit_frozen()
    assert Node.alive == 0


def test_while_it_runs_the_interpreter_leaves_the_oldest_generation_alone() -> None:
    before = gc.get_threshold()

    async def run() -> tuple[int, int, int]:
        async with GarbageCollection().running():
            return gc.get_threshold()

    assert asyncio.run(run())[2] == NEVER
    assert gc.get_threshold() == before
