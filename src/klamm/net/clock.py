"""The real clock: wall time from the system, durations from the running event loop.

Monotonic time is the loop's own, so that a deadline and a timer never disagree.
"""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """Belongs to the event loop that runs at the first call of `monotonic`."""

    instant = staticmethod(time.perf_counter)  # no method around it: every request asks several times

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop.time()
