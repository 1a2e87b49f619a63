"""What happens to transactions without a request: those that are open for too long are aborted, and transactional ids
that are not used any more are removed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from functools import partial
from typing import Final

from klamm.broker.coordinators.transactions import decisions
from klamm.broker.coordinators.transactions.coordinator import TransactionCoordinator
from klamm.broker.coordinators.transactions.decisions import Write
from klamm.broker.coordinators.transactions.owned_partition import Entry, OwnedPartition
from klamm.broker.coordinators.transactions.transaction_log import TransactionLog
from klamm.broker.handlers.slices import Pace
from klamm.model.config import BrokerConfig
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.guard import Guard
from klamm.model.ports import Clock

IDS_PER_SLICE: Final = 1_000
ABORTS_PER_SLICE: Final = 50
"""Each writes a record: up to ten milliseconds."""
TOMBSTONES_AT_ONCE: Final = 100

log = logging.getLogger(__name__)


class TransactionTimers:
    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        guard: Guard,
        transactions: TransactionLog,
        coordinator: TransactionCoordinator,
    ) -> None:
        self._config = config
        self._clock = clock
        self._guard = guard
        self._log = transactions
        self._coordinator = coordinator

    def start(self) -> None:
        self._guard.start("timer", "transaction-timeouts", self.abort_timed_out)
        self._guard.start("timer", "transactional-id-expiry", self.remove_expired)
        self._guard.start("timer", "transaction-markers-retry", self._coordinator.markers.retry_waiting)

    async def _idle_entries(self) -> AsyncIterator[tuple[OwnedPartition, Entry]]:
        """Ids without a pending write, in slices that let the loop go on."""
        for owned in self._coordinator.owned():
            for count, entry in enumerate(list(owned.entries.values())):
                if not entry.is_pending:
                    yield owned, entry
                if count % IDS_PER_SLICE == IDS_PER_SLICE - 1:
                    await asyncio.sleep(0)

    # --- timeouts ---

    async def abort_timed_out(self) -> None:
        """Runs for ever."""
        while True:
            await asyncio.sleep(self._config.transaction_abort_timed_out_interval_ms / 1000)
            now_ms, pace = self._clock.wall_ms(), Pace(ABORTS_PER_SLICE)
            async for owned, entry in self._idle_entries():
                if decisions.has_timed_out(entry.current, now_ms):
                    about = repr(entry.current.transactional_id)
                    self._guard.start("timeout of", about, partial(self._abort, owned, entry))
                    await pace.spend(1)

    async def _abort(self, owned: OwnedPartition, entry: Entry) -> None:
        """If it cannot be written now, the next round tries again."""
        now_ms = self._clock.wall_ms()
        is_due = not entry.is_pending and decisions.has_timed_out(entry.current, now_ms)
        if not is_due or not self._coordinator.owns(owned):
            return
        transactional_id = entry.current.transactional_id
        try:
            await self._coordinator.carry_out(owned, entry, Write(decisions.fence(entry.current, now_ms)))
            log.info("aborted the transaction of %r, which timed out", transactional_id)
        except KafkaError as error:
            log.warning("cannot abort the transaction of %r yet: %s", transactional_id, error)

    # --- expiry ---

    async def remove_expired(self) -> None:
        """Runs for ever."""
        while True:
            await asyncio.sleep(self._config.transaction_remove_expired_interval_ms / 1000)
            now_ms = self._clock.wall_ms()
            expired = [
                (owned, entry) async for owned, entry in self._idle_entries() if self._has_expired(entry, now_ms)
            ]
            for start in range(0, len(expired), TOMBSTONES_AT_ONCE):
                batch = expired[start : start + TOMBSTONES_AT_ONCE]
                await asyncio.gather(*(self._remove(owned, entry, now_ms) for owned, entry in batch))

    def _has_expired(self, entry: Entry, now_ms: int) -> bool:
        return decisions.has_expired(entry.current, now_ms, self._config.producer_id_expiration_ms)

    async def _remove(self, owned: OwnedPartition, entry: Entry, now_ms: int) -> None:
        """An id that is used again meanwhile, or whose tombstone is not written, stays."""
        if entry.is_pending or not self._has_expired(entry, now_ms) or not self._coordinator.owns(owned):
            return
        transactional_id = entry.current.transactional_id
        with entry.writing():
            error = await self._log.write_tombstone(owned.index, transactional_id)
        if error is ErrorCode.NONE and self._coordinator.owns(owned):
            owned.entries.pop(transactional_id, None)
        elif error is not ErrorCode.NONE:
            log.warning("cannot remove the transactional id %r yet: %s", transactional_id, error.name)
