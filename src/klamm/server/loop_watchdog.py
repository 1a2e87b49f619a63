"""Says where the event loop is stuck: a thread of its own logs the stack of the loop's thread while it is held.

`LoopMonitor` measures holds, but only after they end, and then the culprit is gone. Only the CPU time of the thread
counts: on a busy machine the loop may also wait for a core, and that stack would accuse innocent code.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

HELD_S: Final = 0.1
"""A hold by more CPU time than this is reported, once."""
LOOK_EVERY_S: Final = 0.05
BEAT_EVERY_S: Final = 0.02

logger = logging.getLogger(__name__)


class LoopWatchdog:
    def __init__(self, held_s: float = HELD_S) -> None:
        self._held_s = held_s
        self._thread_id = 0
        self._beat_cpu = 0.0
        self._stopped = threading.Event()
        self.reports = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[LoopWatchdog]:
        """Watches the thread that runs this coroutine."""
        self._thread_id = threading.get_ident()
        self._beat_cpu = time.thread_time()
        beats = asyncio.create_task(self._beat(), name="loop-watchdog")
        thread = threading.Thread(target=self._watch, name="loop-watchdog", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            beats.cancel()
            self._stopped.set()

    async def _beat(self) -> None:
        while True:
            self._beat_cpu = time.thread_time()
            await asyncio.sleep(BEAT_EVERY_S)

    def _watch(self) -> None:
        clock = time.pthread_getcpuclockid(self._thread_id)
        reported = -1.0
        while not self._stopped.wait(LOOK_EVERY_S):
            beat = self._beat_cpu
            held = time.clock_gettime(clock) - beat
            if held > self._held_s and beat != reported:
                reported = beat
                self._report(held)

    def _report(self, held: float) -> None:
        frame = sys._current_frames().get(self._thread_id)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else "  (no stack)\n"
        self.reports += 1
        logger.warning("the event loop is held for %.0f ms of CPU time by:\n%s", held * 1000, stack)
