"""The queue of controller events and its one consumer: nothing else touches the controller context, so it has no lock.

Events are handled first in, first out; only `clear_and_put` preempts, at the end of a session. The queue is unbounded:
a watch that is dropped is a change that stays unseen. An event that equals one still waiting is merged into it, because
its handler reads everything again anyway.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from klamm.controller.controller_state import TIMER_NAMES, ControllerState
from klamm.controller.events import ControllerEvent
from klamm.model.ports import Clock
from klamm.telemetry.metrics import MetricsRegistry

GROUP = "kafka.controller"
MANAGER = "ControllerEventManager"
STATS = "ControllerStats"


class ControllerEventQueue:
    def __init__(
        self, handle: Callable[[ControllerEvent], Awaitable[None]], clock: Clock, metrics: MetricsRegistry
    ) -> None:
        self._handle = handle
        self._clock = clock
        self._metrics = metrics
        self._events: deque[tuple[ControllerEvent, float]] = deque()
        self._waiting: set[ControllerEvent] = set()
        self._wakeup = asyncio.Event()
        self._state = ControllerState.IDLE

    @property
    def state(self) -> ControllerState:
        return self._state

    def __len__(self) -> int:
        return len(self._events)

    def put_nowait(self, event: ControllerEvent) -> None:
        if event in self._waiting:
            return
        self._waiting.add(event)
        self._events.append((event, self._clock.monotonic()))
        self._wakeup.set()

    def clear_and_put(self, event: ControllerEvent) -> None:
        self.clear()
        self.put_nowait(event)

    def clear(self) -> None:
        """Drop all waiting events, answering their callers."""
        dropped = [waiting for waiting, _ in self._events]
        self._events.clear()
        self._waiting.clear()
        for waiting in dropped:
            waiting.preempt()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ControllerEventQueue]:
        """A plain task, not a TaskGroup: an exception of the caller's body must reach the caller unwrapped."""
        timers = self._register_metrics()
        worker = asyncio.create_task(self._drain(), name="controller-events")
        try:
            yield self
        finally:
            worker.cancel()
            try:
                await worker  # raises the exception that ended it, if any
            except asyncio.CancelledError:
                if not worker.cancelled():
                    raise
            self.clear()
            self._metrics.remove(GROUP, MANAGER, "EventQueueSize")
            self._metrics.remove(GROUP, MANAGER, "EventQueueTimeMs")
            for name in timers:
                self._metrics.remove(GROUP, STATS, name)

    def _register_metrics(self) -> list[str]:
        self._metrics.read(GROUP, MANAGER, "EventQueueSize", lambda: float(len(self._events)))
        self._metrics.timer(GROUP, MANAGER, "EventQueueTimeMs")
        for name in TIMER_NAMES.values():
            self._metrics.timer(GROUP, STATS, name)
        return list(TIMER_NAMES.values())

    async def _drain(self) -> None:
        queue_time = self._metrics.timer(GROUP, MANAGER, "EventQueueTimeMs")
        while True:
            while not self._events:
                self._wakeup.clear()
                await self._wakeup.wait()
            event, put_at = self._events.popleft()
            self._waiting.discard(event)
            started = self._clock.monotonic()
            queue_time.update((started - put_at) * 1000)
            self._state = event.state
            try:
                await self._handle(event)
            except asyncio.CancelledError:
                event.preempt()  # stopped while it is handled: its caller is answered, too
                raise
            finally:
                self._state = ControllerState.IDLE
            if event.state in TIMER_NAMES:
                timer = self._metrics.timer(GROUP, STATS, TIMER_NAMES[event.state])
                timer.update((self._clock.monotonic() - started) * 1000)
