"""The latest observation, and a wait for the next one. It belongs to the event loop that serves the pages."""

from __future__ import annotations

import asyncio

from klamm.dashboard.observation import Observation


class Feed:
    def __init__(self) -> None:
        self.current = Observation()
        self.is_closed = False
        self._changed = asyncio.Event()

    def put(self, observation: Observation) -> None:
        is_new = observation.version != self.current.version
        self.current = observation
        if is_new:
            self._wake()

    def close(self) -> None:
        """Everyone who waits goes on and sees that it is over."""
        self.is_closed = True
        self._wake()

    async def after(self, version: int, timeout: float) -> Observation:
        """The next observation of another version, or the current one when the time is over."""
        if self.current.version == version and not self.is_closed:
            try:
                await asyncio.wait_for(self._changed.wait(), timeout)
            except TimeoutError:
                pass
        return self.current

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
