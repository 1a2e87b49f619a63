"""What a partition knows about each producer id: its last five batches, which tell a retry from a gap, and its open
transaction, which holds the last stable offset back.

The rules are those of Kafka's ProducerStateManager in 2.5 (KIP-98, KIP-360): an unknown producer may begin with any
sequence number, and a retry of anything older than five batches is not recognised. Only a leader checks; followers and
scans of the log take every batch as it is. The state changes after a write has succeeded, never before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import ProducerId
from klamm.wire.batch import NO_SEQUENCE, BatchHeader, next_sequence
from klamm.wire.records import ControlType, EndTransactionMarker

BATCHES_KEPT: Final = 5


class ProducedBatch(NamedTuple):
    """One of the last batches of a producer."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta

    @property
    def first_sequence(self) -> int:
        return next_sequence(self.last_sequence, -self.offset_delta)


class CompletedTransaction(NamedTuple):
    producer_id: ProducerId
    first_offset: int
    last_offset: int
    """Offset of the marker."""
    aborted: bool


class ProducerEntry:
    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "freezes",
        "last_timestamp",
        "producer_id",
        "seen_ms",
        "transaction_first_offset",
    )

    def __init__(self, producer_id: ProducerId, epoch: int, seen_ms: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.batches: deque[ProducedBatch] = deque(maxlen=BATCHES_KEPT)
        self.coordinator_epoch = -1
        self.last_timestamp = -1
        self.transaction_first_offset: int | None = None
        self.seen_ms = seen_ms
        """When it last wrote, by the broker's clock: by record timestamps, a producer of old data would soon expire."""
        self.freezes = 0
        """How often its state had been frozen when this entry was made."""

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def copy(self) -> ProducerEntry:
        entry = ProducerEntry(self.producer_id, self.epoch, self.seen_ms)
        entry.batches.extend(self.batches)
        entry.coordinator_epoch = self.coordinator_epoch
        entry.last_timestamp = self.last_timestamp
        entry.transaction_first_offset = self.transaction_first_offset
        return entry

    def move_to_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()


class ProducerState:
    """The producers of one partition, up to `end_offset`."""

    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] = {}
        self._open: dict[int, int] = {}
        """Producer id -> first offset of its open transaction."""
        self._unreplicated: deque[CompletedTransaction] = deque()
        """Finished transactions whose marker is not yet below the high watermark."""
        self.end_offset = 0
        self._freezes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def entries(self) -> Iterator[ProducerEntry]:
        return iter(self._entries.values())

    def frozen(self) -> list[ProducerEntry]:
        """The entries as they are now, for a snapshot that the pool encodes: what is recorded later changes copies."""
        self._freezes += 1
        return list(self._entries.values())

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._entries.get(producer_id)

    def put(self, entry: ProducerEntry) -> None:
        """Add an entry from a snapshot."""
        self._entries[entry.producer_id] = entry
        if entry.transaction_first_offset is not None:
            self._open[entry.producer_id] = entry.transaction_first_offset

    @property
    def first_unstable_offset(self) -> int | None:
        candidates = list(self._open.values())
        if self._unreplicated:
            candidates.append(min(transaction.first_offset for transaction in self._unreplicated))
        return min(candidates, default=None)

    # --- what a leader checks before it writes -----------------------------------------------------------------------

    def duplicate_of(self, header: BatchHeader) -> ProducedBatch | None:
        """The batch that this one repeats, if it is among the last five of its producer."""
        entry = self._entries.get(header.producer_id)
        if entry is None or entry.epoch != header.producer_epoch:
            return None
        last = header.last_sequence
        for batch in entry.batches:
            if batch.last_sequence == last and batch.first_sequence == header.base_sequence:
                return batch
        return None

    def check(self, header: BatchHeader) -> None:
        """Check a client's data batch: OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE."""
        entry = self._entries.get(header.producer_id)
        if entry is None:
            return  # any sequence: earlier state may have expired or been deleted with the records (KIP-360)
        self._check_epoch(entry, header.producer_epoch)
        expected = 0
        if header.producer_epoch == entry.epoch and entry.last_sequence != NO_SEQUENCE:
            expected = next_sequence(entry.last_sequence, 1)
        if header.base_sequence != expected:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} epoch {header.producer_epoch} sent sequence {header.base_sequence}, "
                f"expected {expected} (epoch {entry.epoch}, last sequence {entry.last_sequence})",
            )
        self._check_transaction(entry, header)

    def check_coordinator_batch(self, header: BatchHeader) -> None:
        """Check offset commits of the group coordinator, which have an epoch and a transaction, but no sequence."""
        entry = self._entries.get(header.producer_id)
        if entry is not None:
            self._check_epoch(entry, header.producer_epoch)
            self._check_transaction(entry, header)

    def check_marker(self, header: BatchHeader, marker: EndTransactionMarker) -> None:
        entry = self._entries.get(header.producer_id)
        if entry is None:
            return
        self._check_epoch(entry, header.producer_epoch)
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"coordinator epoch {marker.coordinator_epoch} is below {entry.coordinator_epoch}",
            )

    @staticmethod
    def _check_epoch(entry: ProducerEntry, epoch: int) -> None:
        if epoch < entry.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {entry.producer_id} has epoch {entry.epoch}, but the batch has epoch {epoch}",
            )

    @staticmethod
    def _check_transaction(entry: ProducerEntry, header: BatchHeader) -> None:
        if entry.transaction_first_offset is not None and not header.is_transactional:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {entry.producer_id} has a transaction open since {entry.transaction_first_offset}",
            )

    # --- what every replica records after the write ------------------------------------------------------------------

    def record(self, header: BatchHeader, first_offset: int, now_ms: int) -> None:
        """Record a data batch with a producer id, at its assigned offsets."""
        entry = self._entry_of(header, now_ms)
        last_offset = first_offset + header.last_offset_delta
        if header.base_sequence != NO_SEQUENCE:
            entry.batches.append(
                ProducedBatch(header.last_sequence, last_offset, header.last_offset_delta, header.max_timestamp)
            )
        entry.last_timestamp = header.max_timestamp
        if header.is_transactional and entry.transaction_first_offset is None:
            entry.transaction_first_offset = first_offset
            self._open[entry.producer_id] = first_offset

    def record_marker(
        self, header: BatchHeader, marker: EndTransactionMarker, offset: int, now_ms: int
    ) -> CompletedTransaction | None:
        """Record the end of a transaction. None if none was open: then nothing becomes unstable (KAFKA-10702)."""
        if marker.type is None:
            return None
        entry = self._entry_of(header, now_ms)
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp = header.max_timestamp
        first_offset = entry.transaction_first_offset
        entry.transaction_first_offset = None
        if first_offset is None:
            return None
        aborted = marker.type is ControlType.ABORT
        return CompletedTransaction(entry.producer_id, first_offset, offset, aborted)

    def stable_offset_after(self, completed: CompletedTransaction) -> int:
        """The last stable offset once this transaction is complete; its index entry carries it."""
        others = [first for producer, first in self._open.items() if producer != completed.producer_id]
        return min(others, default=completed.last_offset + 1)

    def complete(self, completed: CompletedTransaction) -> None:
        """Call it after the index entry was written: if that fails, the last stable offset must not move."""
        self._open.pop(completed.producer_id, None)
        self._unreplicated.append(completed)

    def on_high_watermark(self, high_watermark: int) -> None:
        while self._unreplicated and self._unreplicated[0].last_offset < high_watermark:
            self._unreplicated.popleft()

    def expire(self, before_ms: int) -> None:
        """Forget producers that have not written since then, unless they have an open transaction."""
        for entry in list(self._entries.values()):
            if entry.seen_ms < before_ms and entry.transaction_first_offset is None:
                del self._entries[entry.producer_id]

    def _entry_of(self, header: BatchHeader, now_ms: int) -> ProducerEntry:
        entry = self._entries.get(header.producer_id)
        if entry is None:
            entry = ProducerEntry(ProducerId(header.producer_id), header.producer_epoch, now_ms)
        elif entry.freezes != self._freezes:
            entry = entry.copy()
        entry.freezes = self._freezes
        self._entries[header.producer_id] = entry
        entry.move_to_epoch(header.producer_epoch)
        entry.seen_ms = now_ms
        return entry
