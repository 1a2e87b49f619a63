"""Transactions as a cleaner passes through a log: which batches were aborted, which markers nobody needs any more.

A marker stays until no batch of its transaction was met in the same pass: without it readers would wait for the end of
a transaction, or take aborted records for committed ones. Kafka's CleanedTransactionMetadata, with KAFKA-13727: the
caller hands in the aborted transactions of everything that is copied, not only of what was mapped.
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
        """By producer: the aborted transaction that it is in here."""
        self._seen_aborted: set[int] = set()
        """Producers of those that had a batch left."""
        self._seen_committed: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Of a data batch: it goes, whatever its keys."""
        self._advance_to(header.last_offset)
        if not header.is_transactional:
            return False
        aborted = header.producer_id in self._aborted
        (self._seen_aborted if aborted else self._seen_committed).add(header.producer_id)
        return aborted

    def end(self, header: BatchHeader, batch: Buffer) -> tuple[bool, AbortedEntry | None]:
        """Of a control batch: may it go, and what the transaction index must say where it is kept for its data."""
        self._advance_to(header.last_offset)
        if header.count == 0:
            return True, None  # cleaned before: only its producer's epoch is left
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
