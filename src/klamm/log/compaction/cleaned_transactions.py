"""Tracks transactions as a cleaner passes through a log: which batches were aborted, which markers can be removed.

A marker stays as long as the same pass meets a batch of its transaction: without it, readers would wait for the end of
the transaction or take aborted records for committed ones. Kafka's CleanedTransactionMetadata, with KAFKA-13727: the
caller passes the aborted transactions of everything that is copied, not only of what was mapped.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from klamm.log.indexes.transaction_index import AbortedEntry
from klamm.model.ports import Buffer
from klamm.wire.batch import BatchHeader
from klamm.wire.records import ControlType, read_end_transaction_marker


class CleanedTransactions:
    def __init__(self, aborted: Iterable[AbortedEntry]) -> None:
        self._to_come = sorted(aborted, key=attrgetter("first_offset"), reverse=True)
        self._aborted: dict[int, AbortedEntry] = {}
        """Producer id -> the aborted transaction to which its current batches belong."""
        self._seen_aborted: set[int] = set()
        """Producers whose aborted transaction still has a batch left."""
        self._seen_committed: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """True if the data batch belongs to an aborted transaction: it is removed, whatever its keys."""
        self._advance_to(header.last_offset)
        if not header.is_transactional:
            return False
        aborted = header.producer_id in self._aborted
        (self._seen_aborted if aborted else self._seen_committed).add(header.producer_id)
        return aborted

    def end(self, header: BatchHeader, batch: Buffer) -> tuple[bool, AbortedEntry | None]:
        """For a control batch: whether it can be removed; if not, its entry for the transaction index, if any."""
        self._advance_to(header.last_offset)
        if header.count == 0:
            return True, None  # emptied by an earlier cleaning: it only carries its producer's epoch
        producer = header.producer_id
        match read_end_transaction_marker(batch).type:
            case ControlType.ABORT:
                entry = self._aborted.pop(producer, None)
                seen = producer in self._seen_aborted
                self._seen_aborted.discard(producer)
                return (False, entry) if entry is not None and seen else (True, None)
            case ControlType.COMMIT:
                seen = producer in self._seen_committed
                self._seen_committed.discard(producer)
                return not seen, None
            case _:
                return False, None

    def _advance_to(self, offset: int) -> None:
        while self._to_come and self._to_come[-1].first_offset <= offset:
            entry = self._to_come.pop()
            self._aborted.setdefault(entry.producer_id, entry)
