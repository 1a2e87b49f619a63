"""Timers of groups, by key, on the event loop's time.

A heartbeat only moves a deadline: the loop's own timer stays, finds the deadline later when it fires, and waits for the
rest. A thousand heartbeats a second then cost a thousand assignments, not as many changes of the loop's schedule.

Timers that end together run in several turns of the loop: the sessions of all members begin together after a load, and
end together if their clients are gone. A heartbeat that arrives before its timer's turn still counts.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Final, Generic, TypeVar

ENDED_PER_TURN: Final = 50
"""Each may remove a member and write the group: up to ten milliseconds."""

K = TypeVar("K", bound=Hashable)


class Timers(Generic[K]):
    def __init__(self) -> None:
        self._deadlines: dict[K, tuple[float, Callable[[], None]]] = {}
        self._handles: dict[K, tuple[float, asyncio.Handle]] = {}
        """What the loop will call, and when; never later than the deadline."""
        self._due: deque[tuple[K, float]] = deque()
        """Timers that the loop has called, and that have not had their turn, and when they ended."""

    def __len__(self) -> int:
        return len(self._deadlines)

    def __iter__(self) -> Iterator[K]:
        return iter(self._deadlines)

    def __contains__(self, key: K) -> bool:
        return key in self._deadlines

    def set(self, key: K, delay: float, call: Callable[[], None]) -> None:
        """Replaces the timer of that key. `delay` is in seconds."""
        deadline = asyncio.get_running_loop().time() + delay
        self._deadlines[key] = deadline, call
        when, handle = self._handles.get(key, (deadline, None))
        if handle is None or when > deadline:
            if handle is not None:
                handle.cancel()
            self._schedule(key, deadline)

    def _schedule(self, key: K, when: float) -> None:
        self._handles[key] = when, asyncio.get_running_loop().call_at(when, self._fire, key)

    def cancel(self, key: K) -> None:
        self._deadlines.pop(key, None)
        _, handle = self._handles.pop(key, (0, None))
        if handle is not None:
            handle.cancel()

    def cancel_all(self) -> None:
        for key in list(self._deadlines):
            self.cancel(key)

    def _fire(self, key: K) -> None:
        when, _ = self._handles.pop(key)
        deadline, _ = self._deadlines[key]
        if deadline > when:
            self._schedule(key, deadline)
            return
        self._due.append((key, when))
        if len(self._due) == 1:
            asyncio.get_running_loop().call_soon(self._end_some)

    def _end_some(self) -> None:
        """In calls of their own, so that one that fails takes no other with it."""
        loop = asyncio.get_running_loop()
        for _ in range(min(ENDED_PER_TURN, len(self._due))):
            loop.call_soon(self._end, *self._due.popleft())
        if self._due:
            loop.call_soon(self._end_some)

    def _end(self, key: K, when: float) -> None:
        deadline, call = self._deadlines.get(key, (math.inf, None))
        if call is not None and deadline <= when:  # else it was cancelled or set anew meanwhile
            del self._deadlines[key]
            call()
