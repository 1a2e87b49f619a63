"""What the coordinator holds of one partition of `__transaction_state`."""

from __future__ import annotations

from klamm.broker.coordinators.transactions.transaction import Transaction
from klamm.model.ids import LeaderEpoch


class Entry:
    """One transactional id."""

    __slots__ = ("current", "is_pending")

    def __init__(self, current: Transaction) -> None:
        self.current = current
        self.is_pending = False
        """A write of the next value is under way."""


class OwnedPartition:
    """What was loaded from one partition under one leader epoch, the coordinator epoch of its transactions."""

    __slots__ = ("entries", "epoch", "index")

    def __init__(self, index: int, epoch: LeaderEpoch, loaded: dict[str, Transaction]) -> None:
        self.index = index
        self.epoch = epoch
        self.entries = {transactional_id: Entry(transaction) for transactional_id, transaction in loaded.items()}
