"""The real clock behind the port: wall time from the system, durations from the running event loop.

Monotonic time is the loop's own, so that a deadline compared here and a timer set there never disagree.
"""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """Of one event loop: made while it runs, or bound to it on the first question."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop.time()
