"""What the coordinator holds of one partition of `__transaction_state`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from klamm.broker.coordinators.transactions.transaction import Transaction
from klamm.model.ids import LeaderEpoch


class Entry:
    """One transactional id."""

    __slots__ = ("_written", "current", "is_pending")

    def __init__(self, current: Transaction) -> None:
        self.current = current
        self.is_pending = False
        """A write of the next value is under way."""
        self._written: asyncio.Event | None = None

    @contextmanager
    def writing(self) -> Iterator[None]:
        assert not self.is_pending
        self.is_pending = True
        try:
            yield
        finally:
            self.is_pending = False
            if self._written is not None:
                self._written.set()
                self._written = None

    async def next_write(self) -> None:
        """Return when the next write has ended, well or badly."""
        if self._written is None:
            self._written = asyncio.Event()
        await self._written.wait()


class OwnedPartition:
    """What was loaded from one partition under one leader epoch, the coordinator epoch of its transactions."""

    __slots__ = ("entries", "epoch", "index")

    def __init__(self, index: int, epoch: LeaderEpoch, loaded: dict[str, Transaction]) -> None:
        self.index = index
        self.epoch = epoch
        self.entries = {transactional_id: Entry(transaction) for transactional_id, transaction in loaded.items()}
