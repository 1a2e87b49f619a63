"""The markers for one broker: one request at a time, with every transaction that waits for it.

A broker that does not answer delays only its own markers. Before each request the leaders are looked up again, and what
has moved to another broker goes there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final, Protocol

from klamm.broker.coordinators.transactions.markers import MarkerAnswers, MarkerEntry, TransactionEnd
from klamm.model import guard
from klamm.model.ids import BrokerId, TopicPartition

TRANSACTIONS_PER_REQUEST: Final = 500
IDLE_S: Final = 60.0
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0

log = logging.getLogger(__name__)

Queued = dict[TransactionEnd, set[TopicPartition]]


def pause_after(failures: int) -> float:
    """Seconds to wait after this many failures in a row.

    >>> [pause_after(n) for n in (1, 2, 3, 100)]
    [0.05, 0.1, 0.2, 1.0]
    """
    return guard.doubling_pause(failures, FIRST_PAUSE_S, LONGEST_PAUSE_S)


class MarkerEndpoint(Protocol):
    """A broker that takes markers: another one over the wire, or this one."""

    async def write(self, entries: Sequence[MarkerEntry]) -> MarkerAnswers:
        """Raises OSError if the broker does not answer."""

    def close(self) -> None: ...


class MarkerChannel:
    def __init__(
        self,
        broker: BrokerId,
        endpoint: MarkerEndpoint,
        *,
        is_still_leader: Callable[[TopicPartition], bool],
        answered: Callable[[Queued, MarkerAnswers], None],
        again: Callable[[Queued], None],
    ) -> None:
        self._broker = broker
        self._endpoint = endpoint
        self._is_still_leader = is_still_leader
        self._answered = answered
        self._again = again
        self._queue: Queued = {}
        self._in_flight: Queued = {}
        self._wake = asyncio.Event()
        self._failures = 0

    @property
    def is_empty(self) -> bool:
        return not self._queue and not self._in_flight

    def add(self, end: TransactionEnd, partitions: Iterable[TopicPartition]) -> None:
        self._queue.setdefault(end, set()).update(partitions)
        self._wake.set()

    async def run(self) -> None:
        """Until nothing was sent for a minute. What was in flight when an earlier run failed is sent again."""
        for end, partitions in self._in_flight.items():
            self.add(end, partitions)
        self._in_flight = {}
        try:
            while await self._has_work():
                await self._send()
        finally:
            self._endpoint.close()

    async def _has_work(self) -> bool:
        if not self._queue:
            self._wake.clear()
            try:
                async with asyncio.timeout(IDLE_S):
                    await self._wake.wait()
            except TimeoutError:
                return bool(self._queue)
        return True

    async def _send(self) -> None:
        batch = self._in_flight = self._take()
        if not batch:
            return
        try:
            answers = await self._endpoint.write([end.entry_for(names) for end, names in batch.items()])
        except OSError as error:
            self._failures += 1
            log.warning("broker %d does not take %d transaction markers: %s", self._broker, len(batch), error)
            await asyncio.sleep(pause_after(self._failures))
            self._again(batch)
        else:
            self._failures = 0
            self._answered(batch, answers)
        self._in_flight = {}

    def _take(self) -> Queued:
        """The next request's share of the queue, without what is over or has another leader by now."""
        batch: Queued = {}
        moved: Queued = {}
        for end in list(islice(self._queue, TRANSACTIONS_PER_REQUEST)):
            partitions = self._queue.pop(end) & end.missing
            if end.is_over:
                continue
            here = {name for name in partitions if self._is_still_leader(name)}
            if here:
                batch[end] = here
            if partitions - here:
                moved[end] = partitions - here
        if moved:
            self._again(moved)
        return batch
