"""Timers of groups, by key, on the event loop's time.

A heartbeat only moves a deadline: the loop's own timer stays, finds the deadline later when it fires, and waits for the
rest. A thousand heartbeats a second then cost a thousand assignments, not as many changes of the loop's schedule.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Timers(Generic[K]):
    def __init__(self) -> None:
        self._deadlines: dict[K, tuple[float, Callable[[], None]]] = {}
        self._handles: dict[K, tuple[float, asyncio.Handle]] = {}
        """What the loop will call, and when; never later than the deadline."""

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
        for key in list(self._handles):
            self.cancel(key)

    def _fire(self, key: K) -> None:
        when, _ = self._handles.pop(key)
        deadline, call = self._deadlines[key]
        if deadline > when:
            self._schedule(key, deadline)
            return
        del self._deadlines[key]
        call()
