"""The watchdog names the code that holds the loop, while it does, and only if it works."""

from __future__ import annotations

import asyncio
import time

import pytest

from klamm.server.loop_watchdog import LoopWatchdog


def the_culprit(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def test_the_stack_of_a_hold_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with LoopWatchdog(0.05).running() as watchdog:
        await asyncio.sleep(0.03)
        the_culprit(0.5)
        await asyncio.sleep(0.03)
    assert watchdog.reports == 1
    assert "the_culprit" in caplog.text


async def test_a_loop_that_waits_is_not_accused() -> None:
    async with LoopWatchdog(0.05).running() as watchdog:
        time.sleep(0.2)  # noqa: ASYNC251
        await asyncio.sleep(0.1)
    assert watchdog.reports == 0
