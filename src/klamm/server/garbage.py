"""Decides when Python's garbage collector runs, because a search of all objects holds the event loop (ADR 0013).

The interpreter searches the two young generations by itself, and never the oldest. Whenever enough objects have grown
old, they are searched once, and the survivors are frozen: no later search looks at them. So each search costs what is
new, not what the broker holds. Most objects need no search: they are freed with their last reference, frozen or not.
Only cycles that die after they were frozen are missed. Everything is searched again when twice as many objects are
frozen as were alive after the last such search, so that garbage never takes more than the living.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final, NamedTuple

YOUNG_OBJECTS: Final = 10_000
"""New objects, minus freed ones, after which the youngest generation is searched. Python's default of 700 suits
scripts: a server creates that many for every large request and finds no garbage in them."""
YOUNG_SEARCHES: Final = 2
"""Searches of the youngest generation after which the middle one is searched: 30,000 objects, 5 to 10 ms."""
NEVER: Final = 2**31 - 1
LOOK_EVERY_S: Final = 0.025
LOOKS_PER_COUNT: Final = 2_400
"""A minute: no request takes that long."""

logger = logging.getLogger(__name__)


class Limits(NamedTuple):
    """Numbers of objects. A search takes 0.15 to 0.3 us for each."""

    searched_from: int = 20_000
    """Old objects that are worth a search."""
    searched_to: int = 40_000
    """With the young ones, more than this takes above 25 ms: they are frozen unsearched."""
    frozen_from: int = 10_000
    """Survivors of a search that are worth freezing. Fewer of them are searched again, with the next."""
    missed: int = 500_000
    """Garbage that frozen objects may contain, if fewer are alive."""
    missed_share: float = 1.0
    """The same, as a share of those that are alive, if they are more."""


class GarbageCollection:
    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._young_searches = _young_searches()
        self._since_count = 0
        """Objects that were frozen since the frozen ones were counted."""
        self._counted = gc.get_freeze_count()
        self._frozen_max = self._next_frozen_max()
        self._was_above = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        thresholds = gc.get_threshold()
        gc.set_threshold(YOUNG_OBJECTS, YOUNG_SEARCHES, NEVER)
        looking = asyncio.create_task(self._run(), name="garbage")
        try:
            yield
        finally:
            looking.cancel()
            with suppress(asyncio.CancelledError):
                await looking
            gc.set_threshold(*thresholds)

    async def _run(self) -> None:
        while True:
            for _ in range(LOOKS_PER_COUNT):
                await asyncio.sleep(LOOK_EVERY_S)
                self.look()
            await asyncio.sleep(0)
            self.limit_frozen()

    def look(self) -> None:
        """Searches and freezes what has grown old, if that is enough."""
        searches = _young_searches()
        if searches == self._young_searches:
            return  # only a search of the middle generation lets objects grow old
        self._young_searches = searches
        old = _old_objects()
        if old < self._limits.searched_from:
            return
        if old <= self._limits.searched_to:
            gc.collect()
            old = _old_objects()
            if old < self._limits.frozen_from:
                return
        gc.freeze()
        self._since_count += old

    def limit_frozen(self) -> None:
        """Searches everything if too many objects were frozen in two calls in a row: those of a wide request are many,
        but gone by the second one."""
        if self._counted + self._since_count <= self._frozen_max:
            return  # counting them takes a tenth of a search, so it is done only if it can matter
        self._counted, self._since_count = gc.get_freeze_count(), 0
        is_above = self._counted > self._frozen_max
        if is_above and self._was_above:
            self._search_all()
            is_above = False
        self._was_above = is_above

    def _search_all(self) -> None:
        began = time.thread_time()
        gc.unfreeze()
        found = gc.collect()
        gc.freeze()
        self._counted = gc.get_freeze_count()
        self._frozen_max = self._next_frozen_max()
        took_ms = (time.thread_time() - began) * 1000
        logger.info("searched all objects for garbage in %.0f ms: %d found, %d alive", took_ms, found, self._counted)

    def _next_frozen_max(self) -> int:
        return self._counted + max(self._limits.missed, int(self._limits.missed_share * self._counted))


def _young_searches() -> int:
    return int(gc.get_stats()[1]["collections"])


def _old_objects() -> int:
    """Without those that are frozen."""
    return len(gc.get_objects(generation=2))
