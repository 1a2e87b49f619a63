"""Runs a computation in slices, and lets other tasks run between them (design D1)."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


async def in_slices(work: Generator[None, None, T]) -> T:
    """Returns what `work` returns."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
        await asyncio.sleep(0)
