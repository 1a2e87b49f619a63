"""Background tasks that fail alone: a failure is logged, counted and tried again, and ends nothing else (design D17).

The tasks of a TaskGroup end together when one of them raises, and with them the process. So each task runs in a guard
instead. A guard is an outermost loop: it catches what was not expected. Expected errors are handled where they occur.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
FORGIVEN_AFTER_S: Final = 60.0
"""A task that ran for this long before it failed begins with the first pause again."""

log = logging.getLogger(__name__)


def doubling_pause(failures: int, first: float, longest: float) -> float:
    """The pause in seconds after this many failures in a row: it doubles from the first to the longest.

    >>> [doubling_pause(n, first=1.0, longest=30.0) for n in (1, 2, 3, 6, 1000)]
    [1.0, 2.0, 4.0, 30.0, 30.0]
    """
    return min(longest, first * 2.0 ** min(failures - 1, 16))


def pause_after(failures: int) -> float:
    """The pause of a guarded task after this many failures in a row."""
    return doubling_pause(failures, FIRST_PAUSE_S, LONGEST_PAUSE_S)


class Guard:
    """Owns background tasks, and counts their failures by kind of task."""

    def __init__(self) -> None:
        self.failures: Counter[str] = Counter()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._is_running = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Guard]:
        """Tasks can be started until the end of the context, which cancels those that still run."""
        self._is_running = True
        try:
            yield self
        finally:
            self._is_running = False
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def start(self, kind: str, about: object, work: Callable[[], Awaitable[object]]) -> asyncio.Task[None] | None:
        """Run `work` as a task, by `repeat`. None, and nothing is started, unless the guard is running."""
        if not self._is_running:
            return None
        task = asyncio.create_task(self.repeat(kind, about, work), name=f"{kind} {about}")
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    async def repeat(self, kind: str, about: object, work: Callable[[], Awaitable[object]]) -> None:
        """Run `work` until it returns. Each time it raises, record that, pause, and run it again."""
        time, in_a_row = asyncio.get_running_loop().time, 0
        while True:
            began = time()
            try:
                await work()
                return
            except Exception as error:
                self.record(kind, about, error)
            in_a_row = 1 if time() - began > FORGIVEN_AFTER_S else in_a_row + 1
            await asyncio.sleep(pause_after(in_a_row))

    def record(self, kind: str, about: object, error: Exception) -> None:
        """Count an unexpected exception, and log it with its traceback: it is a defect of ours."""
        self.failures[kind] += 1
        log.error("%s %s failed: %s: %s", kind, about, type(error).__name__, error, exc_info=error)
