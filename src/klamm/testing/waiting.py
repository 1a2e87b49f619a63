"""Waits for something that another process does, by polling. A wait that fails says what was missing.

`what` may be a function, for a message that describes the state at the end of the wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

T = TypeVar("T")

WAIT_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.02

What = str | Callable[[], str]


def wait_until(what: What, condition: Callable[[], T | None], timeout: float = WAIT_SECONDS) -> T:
    """The first true value of `condition`."""
    deadline = time.monotonic() + timeout
    while True:
        if value := condition():
            return value
        assert time.monotonic() < deadline, _message(what, timeout)
        time.sleep(POLL_SECONDS)


async def eventually(what: What, condition: Callable[[], Awaitable[T | None]], timeout: float = WAIT_SECONDS) -> T:
    """The first true value of `condition`."""
    try:
        async with asyncio.timeout(timeout):
            while not (value := await condition()):
                await asyncio.sleep(POLL_SECONDS)
            return value
    except TimeoutError:
        raise AssertionError(_message(what, timeout)) from None


def _message(what: What, timeout: float) -> str:
    return f"gave up after {timeout:g} s of waiting for {what if isinstance(what, str) else what()}"
