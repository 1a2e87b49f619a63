"""Requests that wait: an acks=all produce for its followers, a fetch for its bytes.

A waiter names the partitions that it depends on and a condition. Code that changes a partition (append, high watermark,
new role) calls `check` for it, which completes the waiters whose condition is now true: the waiting coroutine runs in
the next turn of the loop, without a timer or a poll in between. That chain bounds the latency of acks=all (design D6).

The order is: register, test once more, start the timer. Otherwise a change between the caller's own test and the
registration would be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from klamm.model.ids import TopicPartition
from klamm.model.requests import ClientConnection

Condition = Callable[[TopicPartition | None], bool]
"""True when the wait is over. The argument is the partition that changed; None means all of them."""


class _Waiter:
    __slots__ = ("condition", "done", "keys")

    def __init__(self, keys: tuple[TopicPartition, ...], condition: Condition, done: asyncio.Future[bool]) -> None:
        self.keys = keys
        self.condition = condition
        self.done = done


class Purgatory:
    def __init__(self) -> None:
        self._by_partition: dict[TopicPartition, dict[_Waiter, None]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    async def wait(
        self,
        keys: Iterable[TopicPartition],
        condition: Condition,
        timeout: float,
        client: ClientConnection | None = None,
    ) -> bool:
        """True when the condition holds; False after `timeout` seconds (at once if it is not positive) or when the
        client disconnects, because clients that ask for long waits and leave would fill the memory."""
        loop = asyncio.get_running_loop()
        waiter = _Waiter(tuple(dict.fromkeys(keys)), condition, loop.create_future())
        for key in waiter.keys:
            self._by_partition.setdefault(key, {})[waiter] = None
        self._size += 1
        try:
            if condition(None):
                return True
            if timeout <= 0:
                return False
            timer = loop.call_later(timeout, _expire, waiter.done)
            forget_client = client.when_gone(lambda: _expire(waiter.done)) if client is not None else None
            try:
                return await waiter.done
            finally:
                timer.cancel()
                if forget_client is not None:
                    forget_client()
        finally:
            self._forget(waiter)

    def check(self, key: TopicPartition) -> None:
        """Complete the waiters for `key` whose condition now holds."""
        waiters = self._by_partition.get(key)
        if waiters is None:
            return
        for waiter in list(waiters):
            if not waiter.done.done() and waiter.condition(key):
                waiter.done.set_result(True)

    def _forget(self, waiter: _Waiter) -> None:
        self._size -= 1
        for key in waiter.keys:
            waiters = self._by_partition[key]
            del waiters[waiter]
            if not waiters:
                del self._by_partition[key]


def _expire(done: asyncio.Future[bool]) -> None:
    if not done.done():
        done.set_result(False)
