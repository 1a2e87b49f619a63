"""Measures for how long a coroutine holds the loop: the time of its steps, without what it waits for."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

from klamm.model.ports import Clock

T = TypeVar("T")


class Timed(Generic[T]):
    """Await it instead of the coroutine; then `seconds` says how long its steps took."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], clock: Clock) -> None:
        self._coroutine = coroutine
        self._clock = clock
        self.seconds = 0.0

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._coroutine.__await__()
        resume: Any = steps.send
        value: Any = None
        now = self._clock.instant
        while True:
            began = now()
            try:
                waited_for = resume(value)
            except StopIteration as done:
                result: T = done.value
                return result
            finally:
                self.seconds += now() - began
            try:
                value = yield waited_for
                resume = steps.send
            except BaseException as error:  # passed on to the coroutine, which may handle it
                value, resume = error, steps.throw
