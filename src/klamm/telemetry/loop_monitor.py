"""Measures how long callbacks block ("hold") the event loop, which everything in a broker shares, even ZooKeeper's
heartbeat (design D1).

A task sleeps for a few milliseconds at a time. If it wakes late, either a callback held the loop or other processes
used the machine. The CPU time of the thread tells these apart. A hold above the limit becomes an event if the thread
was busy for half of the limit, or if it was long: a short hold by other processes is only counted, because no one can
act on it. The longest hold and the longest busy time are gauges. So is the idle part of the last minute, under the
names of Kafka's thread pools: this one thread does what theirs do.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from klamm.model.events import Decision
from klamm.model.ids import INITIAL_CONTROLLER_EPOCH, BrokerId
from klamm.model.ports import Clock, EventSink
from klamm.telemetry.metrics import MetricsRegistry

INTERVAL: Final = 0.005
HOLD_LIMIT: Final = 0.050
LONG_HOLD: Final = 0.5
AVERAGED_SECONDS: Final = 60.0
GROUP: Final = "klamm.server"
IDLE_NAMES: Final = (
    (("kafka.server", "KafkaRequestHandlerPool"), "RequestHandlerAvgIdlePercent"),
    (("kafka.network", "SocketServer"), "NetworkProcessorAvgIdlePercent"),
)


class LoopMonitor:
    def __init__(self, clock: Clock, broker: BrokerId, events: EventSink, metrics: MetricsRegistry) -> None:
        self._clock = clock
        self._broker = broker
        self._events = events
        self._longest = metrics.gauge(GROUP, "EventLoop", "LongestHoldMs")
        self._busiest = metrics.gauge(GROUP, "EventLoop", "LongestBusyMs")
        self._seconds = metrics.gauge("klamm", "loop", "hold_seconds")
        """The longest hold by the thread's own work."""
        self._holds = metrics.timer(GROUP, "EventLoop", "HoldMs")
        self.idle = 1.0
        """The part of the last minute in which the loop had nothing to do."""
        for pool, name in IDLE_NAMES:
            metrics.read(*pool, name, lambda: self.idle)

    @property
    def longest_ms(self) -> float:
        return self._longest.value

    @property
    def busiest_ms(self) -> float:
        """The longest CPU time of this thread within one hold."""
        return self._busiest.value

    async def run(self) -> None:
        while True:
            due, worked = self._clock.monotonic() + INTERVAL, time.thread_time()
            await asyncio.sleep(INTERVAL)
            held, worked = self._clock.monotonic() - due, time.thread_time() - worked
            busy = max(0.0, min(held, worked))
            self._average(held + INTERVAL, worked)
            self._longest.value = max(self._longest.value, held * 1000)
            self._busiest.value = max(self._busiest.value, busy * 1000)
            self._seconds.value = self._busiest.value / 1000
            if held > HOLD_LIMIT:
                self._holds.update(held * 1000)
                if busy >= HOLD_LIMIT / 2 or held >= LONG_HOLD:
                    self._events.emit([self._event(held, busy)])

    def _average(self, elapsed: float, worked: float) -> None:
        now = 1.0 - min(1.0, worked / elapsed)
        self.idle += (now - self.idle) * min(1.0, elapsed / AVERAGED_SECONDS)

    def _event(self, held: float, busy: float) -> Decision:
        return Decision(
            self._clock.wall_ms(),
            self._broker,
            "broker",
            INITIAL_CONTROLLER_EPOCH,
            "loop-held",
            f"the event loop was held longer than {HOLD_LIMIT * 1000:.0f} ms",
            held * 1000,
            {"busy_ms": round(busy * 1000)},
        )
