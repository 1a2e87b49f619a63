"""An event loop in virtual time: when nothing is ready, the clock jumps to the next timer.

Everything runs in one thread: ready callbacks in the order of scheduling, timers by (time, order). So a run depends
only on the code and the seed. If nothing is ready and there is no timer, the loop raises Deadlock instead of hanging.
If there is always something ready, so that time stands still, it raises Livelock: a retry without a pause.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any, Final, TypeVar

from klamm.model.errors import KlammError

T = TypeVar("T")

EPOCH_MS = 1_700_000_000_000
"""Wall-clock time at virtual second 0."""


class Deadlock(KlammError):
    """Every task is waiting and there is no timer, so nothing can ever happen again."""


class Livelock(KlammError):
    """Time stands still: some task always has something to do at once, usually a retry without a pause."""


TURNS_AT_ONE_MOMENT_MAX: Final = 50_000
"""Far more than a request in slices needs."""


class _JumpingSelector(selectors.BaseSelector):
    """Moves the clock by t instead of waiting for t seconds. It ignores the loop's wake-up pipe, because there is no
    other thread that could write to it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turns = 0
        self._turns_at_this_moment = 0
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        self._keys[fd] = selectors.SelectorKey(fileobj, fd, events, data)
        return self._keys[fd]

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("every task is waiting and there is no timer")
        self._turns_at_this_moment = 0 if timeout > 0 else self._turns_at_this_moment + 1
        if self._turns_at_this_moment > TURNS_AT_ONE_MOMENT_MAX:
            raise Livelock(f"{TURNS_AT_ONE_MOMENT_MAX} turns of the loop at {self.now:.6f} s")
        self.now += max(timeout, 0.0)
        self.turns += 1
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    @property
    def turns(self) -> int:
        """Number of iterations of the loop; equal for equal runs."""
        return self._jumping.turns


class VirtualClock:
    """ports.Clock on the virtual loop."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._loop = loop

    def wall_ms(self) -> int:
        return EPOCH_MS + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()

    def instant(self) -> float:
        return self._loop.time()


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end in a new loop, then cancel the tasks that are left."""
    loop = VirtualTimeLoop()
    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            return runner.run(main)
    finally:
        loop.close()
