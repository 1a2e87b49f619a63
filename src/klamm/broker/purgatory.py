"""Requests that wait: an acks=all produce for its followers, a fetch for its bytes.

A `Watch` names the partitions that a request depends on. Code that changes a partition (append, high watermark, new
role) calls `check` for it. A watch without a waiter only remembers which partitions changed, so a reader that
takes several turns of the loop misses nothing, and a reader that comes again asks only for what changed (`taken`).
Once it waits, its condition is tested for each change in the same step, and the waiting coroutine runs in the next turn
of the loop, without a timer or a poll in between. That chain bounds the latency of acks=all (design D6). If hundreds
wait for one partition, or end without success together, they take several turns.

The order is: watch, test once more, start the timer. Otherwise a change between the caller's own test and the watch
would be lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from klamm.model.ids import TopicPartition
from klamm.model.requests import ClientConnection

CHECKED_PER_TURN: Final = 200
EXPIRED_PER_TURN: Final = 50
"""A fetch that ends without success reads all its partitions once more."""

Condition = Callable[[TopicPartition], bool]
"""True when the wait is over. The argument is the partition that changed."""


class Watcher(Protocol):
    def check(self, key: TopicPartition) -> None:
        """`key` has changed."""


class Watch:
    """The partitions of one reader, and which of them changed since it last asked. Close it after use."""

    __slots__ = ("_changed", "_condition", "_done", "_keys", "_purgatory")

    def __init__(self, purgatory: Purgatory, keys: Iterable[TopicPartition]) -> None:
        self._purgatory = purgatory
        self._keys: dict[TopicPartition, None] = {}
        self._changed: dict[TopicPartition, None] = {}
        self._condition: Condition | None = None
        self._done: asyncio.Future[bool] | None = None
        self.add(keys)

    def add(self, keys: Iterable[TopicPartition]) -> None:
        for key in keys:
            self._keys[key] = None
            self._purgatory.add(key, self)

    def remove(self, keys: Iterable[TopicPartition]) -> None:
        for key in keys:
            if key not in self._keys:
                continue
            del self._keys[key]
            self._changed.pop(key, None)
            self._purgatory.remove(key, self)

    def close(self) -> None:
        self.remove(list(self._keys))

    def taken(self) -> list[TopicPartition]:
        """The partitions that changed since the last call, in the order of their changes."""
        changed, self._changed = list(self._changed), {}
        return changed

    def check(self, key: TopicPartition) -> None:
        """A condition that fails ends its own wait; the append or the order that led to the check goes on."""
        done, condition = self._done, self._condition
        if done is None or condition is None:
            self._changed[key] = None
        elif not done.done():
            try:
                is_over = condition(key)
            except Exception as error:
                done.set_exception(error)
            else:
                if is_over:
                    done.set_result(True)

    async def wait(self, condition: Condition, timeout: float, client: ClientConnection | None = None) -> bool:
        """True when the condition holds for a partition that has changed since the watch began, or changes now. False
        after `timeout` seconds (at once if it is not positive), or when the client disconnects: clients that ask for
        long waits and leave would fill the memory."""
        for key in self.taken():
            if condition(key):
                return True
        if timeout <= 0:
            return False
        loop = asyncio.get_running_loop()
        done: asyncio.Future[bool] = loop.create_future()
        self._done = done
        self._condition = condition
        self._purgatory.waiting += 1
        timer = loop.call_later(timeout, self._purgatory.expire, done)
        forget_client = client.when_gone(lambda: self._purgatory.expire(done)) if client is not None else None
        try:
            return await done
        finally:
            self._done = self._condition = None
            self._purgatory.waiting -= 1
            timer.cancel()
            if forget_client is not None:
                forget_client()


class Purgatory:
    def __init__(self) -> None:
        self.by_partition: dict[TopicPartition, dict[Watcher, None]] = {}
        self.waiting = 0
        self._expired: deque[asyncio.Future[bool]] = deque()
        """Waits that are over without success, and that were not told yet."""

    def __len__(self) -> int:
        """How many requests wait."""
        return self.waiting

    def add(self, key: TopicPartition, watcher: Watcher) -> None:
        watchers = self.by_partition.get(key)
        if watchers is None:
            self.by_partition[key] = {watcher: None}
        else:
            watchers[watcher] = None

    def remove(self, key: TopicPartition, watcher: Watcher) -> None:
        watchers = self.by_partition[key]
        del watchers[watcher]
        if not watchers:
            del self.by_partition[key]

    def watch(self, keys: Iterable[TopicPartition]) -> Watch:
        return Watch(self, keys)

    async def wait(
        self,
        keys: Iterable[TopicPartition],
        condition: Callable[[TopicPartition | None], bool],
        timeout: float,
        client: ClientConnection | None = None,
    ) -> bool:
        """Watch, test all partitions once (the condition gets None), wait as `Watch.wait` does."""
        watch = self.watch(keys)
        try:
            return condition(None) or await watch.wait(condition, timeout, client)
        finally:
            watch.close()

    def check(self, key: TopicPartition) -> None:
        """`key` has changed: complete the waits whose condition now holds."""
        watches = self.by_partition.get(key)
        if watches is not None:
            self._check(key, list(watches))

    def _check(self, key: TopicPartition, watches: list[Watcher]) -> None:
        """All that complete at once run in one turn of the loop, so very many are checked in several turns."""
        for watch in watches[:CHECKED_PER_TURN]:
            watch.check(key)
        if len(watches) > CHECKED_PER_TURN:
            asyncio.get_running_loop().call_soon(self._check, key, watches[CHECKED_PER_TURN:])

    def expire(self, done: asyncio.Future[bool]) -> None:
        """The time is over, or the client has disconnected. When a process with a thousand consumers ends, all of them
        disconnect at once."""
        self._expired.append(done)
        if len(self._expired) == 1:
            asyncio.get_running_loop().call_soon(self._expire_some)

    def _expire_some(self) -> None:
        for _ in range(min(EXPIRED_PER_TURN, len(self._expired))):
            done = self._expired.popleft()
            if not done.done():
                done.set_result(False)
        if self._expired:
            asyncio.get_running_loop().call_soon(self._expire_some)
