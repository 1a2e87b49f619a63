"""Removes renamed files and directories after their delay, in the disk pool.

Nothing depends on it: the next start recognises leftovers by their names and removes them.
"""

from __future__ import annotations

import asyncio
import logging

from klamm.model.ports import Disk

logger = logging.getLogger(__name__)


class DelayedRemoval:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._timers: set[asyncio.TimerHandle] = set()
        self._jobs: set[asyncio.Task[None]] = set()

    def remove_later(self, paths: list[str], delay_ms: int) -> None:
        if not paths:
            return
        loop = asyncio.get_running_loop()

        def due() -> None:
            self._timers.discard(timer)
            job = loop.create_task(self._remove(paths), name="remove-deleted")
            self._jobs.add(job)
            job.add_done_callback(self._jobs.discard)

        timer = loop.call_later(delay_ms / 1000, due)
        self._timers.add(timer)

    async def _remove(self, paths: list[str]) -> None:
        def job() -> None:
            for path in paths:
                if self._disk.is_directory(path):
                    self._disk.remove_tree(path)
                elif self._disk.exists(path):
                    self._disk.remove(path)

        try:
            await self._disk.run(job)
        except OSError as error:
            logger.warning("could not remove %s: %s (the next start tries again)", ", ".join(paths), error)

    async def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        await asyncio.gather(*self._jobs)
