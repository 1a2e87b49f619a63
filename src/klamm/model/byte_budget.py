"""A budget in bytes that many share: requests that were read and not answered, responses that were made and not sent.

Each kind has its own. What exceeds a budget waits its turn; it is admitted when anything at all is left, as in Kafka's
memory pool, or a request larger than the budget would wait for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class ByteBudget:
    def __init__(self, limit: int | None = None) -> None:
        """None means no limit."""
        self._limit = limit
        self.used = 0
        self._waiting: dict[Callable[[], None], None] = {}

    @property
    def is_limited(self) -> bool:
        return self._limit is not None

    @property
    def left(self) -> int | None:
        """None means no limit. Below 0 if the last one admitted was larger than what was left."""
        return None if self._limit is None else self._limit - self.used

    @property
    def has_room(self) -> bool:
        return self._limit is None or self.used < self._limit

    def take(self, size: int) -> None:
        self.used += size

    def give_back(self, size: int) -> None:
        """Calls those that wait, in their order, while there is room."""
        self.used -= size
        while self._waiting and self.has_room:
            call = next(iter(self._waiting))
            del self._waiting[call]
            call()

    def when_room(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call `call` once there is room. Returns a function that cancels this."""
        self._waiting[call] = None
        return lambda: self._waiting.pop(call, None)

    async def wait_room(self, timeout: float) -> bool:
        """False if there was none for `timeout` seconds."""
        if self.has_room:
            return True
        room: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        cancel = self.when_room(lambda: None if room.done() else room.set_result(True))
        try:
            await asyncio.wait((room,), timeout=timeout)
            return room.done()
        finally:
            cancel()
