"""A hold reports how much of it was the thread's own work."""

from __future__ import annotations

import asyncio
import time

from klamm.model.events import Decision
from klamm.model.ids import BrokerId
from klamm.net.clock import SystemClock
from klamm.telemetry.loop_monitor import HOLD_LIMIT, LONG_HOLD, LoopMonitor
from klamm.telemetry.metrics import MetricsRegistry
from klamm.telemetry.state_changes import EventList


async def holds(hold: float, *, working: bool) -> tuple[LoopMonitor, list[Decision]]:
    events = EventList()
    monitor = LoopMonitor(SystemClock(), BrokerId(1), events, MetricsRegistry())
    task = asyncio.create_task(monitor.run())
    await asyncio.sleep(0.02)
    if working:
        until = time.thread_time() + hold
        while time.thread_time() < until:
            pass
    else:
        time.sleep(hold)  # noqa: ASYNC251
    await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return monitor, [record for record in events.records if isinstance(record, Decision)]


async def test_work_is_told_from_waiting() -> None:
    hold = HOLD_LIMIT + 0.02
    monitor, events = await holds(hold, working=True)
    longest = max(events, key=lambda event: event.duration_ms)
    assert longest.event == "loop-held" and longest.counts["busy_ms"] >= HOLD_LIMIT * 1000
    assert monitor.longest_ms >= monitor.busiest_ms >= HOLD_LIMIT * 1000
    monitor, events = await holds(hold, working=False)
    short = [event for event in events if event.duration_ms < LONG_HOLD * 1000]
    assert short == [], "a short wait is counted, not written"
    assert monitor.longest_ms >= HOLD_LIMIT * 1000 > monitor.busiest_ms
    _, events = await holds(LONG_HOLD + 0.02, working=False)
    longest = max(events, key=lambda event: event.duration_ms)
    assert longest.duration_ms >= LONG_HOLD * 1000 > longest.counts["busy_ms"]


async def test_the_idle_part_is_an_average_of_a_minute() -> None:
    metrics = MetricsRegistry()
    monitor = LoopMonitor(SystemClock(), BrokerId(1), EventList(), metrics)
    pool = ("kafka.server", "KafkaRequestHandlerPool", "RequestHandlerAvgIdlePercent")
    assert metrics.value(*pool) == 1.0
    for _ in range(60):
        monitor._average(1.0, 1.0)
    assert 0.3 < metrics.value(*pool) < 0.4, "after a busy minute about a third of the past is left"
    monitor._average(600.0, 0.0)
    assert metrics.value(*pool) == 1.0
