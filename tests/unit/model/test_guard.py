"""Background tasks fail alone: each failure is counted, and the task runs again after a pause."""

from __future__ import annotations

import asyncio

import pytest

from klamm.model import guard as module
from klamm.model.guard import Guard


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were asked for; none of them is waited for."""
    asked: list[float] = []
    sleep = asyncio.sleep

    async def remember(seconds: float) -> None:
        asked.append(seconds)
        await sleep(0)

    monkeypatch.setattr(module.asyncio, "sleep", remember)
    return asked


async def test_a_failing_task_runs_again_and_its_neighbour_never_notices(pauses: list[float]) -> None:
    runs, neighbour_done = 0, asyncio.Event()

    async def fails_three_times() -> None:
        nonlocal runs
        runs += 1
        if runs <= 3:
            raise ValueError("a defect")

    async with Guard().running() as guard:
        failing = guard.start("timer", "bad", fails_three_times)
        neighbour = guard.start("timer", "good", neighbour_done.wait)
        assert failing is not None and neighbour is not None
        await failing
        assert (runs, guard.failures["timer"], pauses) == (4, 3, [1.0, 2.0, 4.0])
        assert not neighbour.done()
    assert neighbour.cancelled(), "the end of the guard ends its tasks"


async def test_a_task_that_ran_long_begins_with_the_first_pause(
    pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FORGIVEN_AFTER_S", -1.0)
    runs = 0

    async def fails_twice() -> None:
        nonlocal runs
        runs += 1
        if runs <= 2:
            raise ValueError("a defect")

    await Guard().repeat("timer", "rare", fails_twice)
    assert pauses == [1.0, 1.0]


async def test_a_guard_that_does_not_run_starts_nothing() -> None:
    assert Guard().start("timer", "late", asyncio.Event().wait) is None
