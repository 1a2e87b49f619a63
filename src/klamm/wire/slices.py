"""Work on wide messages is a generator that yields after each slice, so that a caller can let other tasks run."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def finish(work: Generator[None, None, T]) -> T:
    """Run it to its end at once, for messages that are known to be small, and for tests."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
