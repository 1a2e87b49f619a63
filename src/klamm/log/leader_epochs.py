"""Which leader epoch wrote which offsets (KIP-101): a follower finds here where its log diverges from the leader's.

Kafka's LeaderEpochFileCache. Entries rise strictly in epoch and in start offset. A change is kept in memory and marked
dirty; the log writes the file off the loop, before its recovery point passes a new entry. Recovery does not trust the
entries from its first segment on: it rebuilds them from the batches, epoch 0 included (KAFKA-10432). So a truncation,
which lowers the recovery point first, need not wait for the file either.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Final, NamedTuple

from klamm.log.directories.checkpoints import decode_lines, encode_lines
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import LeaderEpoch
from klamm.model.ports import Disk

FILE_NAME: Final = "leader-epoch-checkpoint"
UNDEFINED_EPOCH: Final = LeaderEpoch(-1)
UNDEFINED_OFFSET: Final = -1


class EpochEntry(NamedTuple):
    epoch: LeaderEpoch
    start_offset: int


class EpochEndOffset(NamedTuple):
    """Answer to OffsetsForLeaderEpoch: the largest epoch not above the requested one, and its end offset."""

    epoch: LeaderEpoch
    offset: int


UNDEFINED: Final = EpochEndOffset(UNDEFINED_EPOCH, UNDEFINED_OFFSET)


class LeaderEpochCache:
    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self._log_end_offset: Callable[[], int] = lambda: UNDEFINED_OFFSET
        self._entries: list[EpochEntry] = []
        self._on_change: Callable[[], None] = lambda: None
        self.dirty = False
        """The file differs from what is in memory."""

    def bind(self, log_end_offset: Callable[[], int], on_change: Callable[[], None]) -> None:
        """Bind it to its log, which knows the end of the latest epoch and when to write the file."""
        self._log_end_offset = log_end_offset
        self._on_change = on_change

    def load(self) -> None:
        if not self._disk.exists(self.path):
            return
        entries: list[EpochEntry] = []
        for epoch, start in decode_lines(self.path, self._disk.read(self.path), 2):
            try:
                entry = EpochEntry(LeaderEpoch(int(epoch)), int(start))
            except ValueError as error:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"malformed checkpoint {self.path}: {error}") from error
            entries = _assign(entries, entry)  # repairs a file that another version wrote with overlaps
        self._entries = entries

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        return tuple(self._entries)

    @property
    def latest_epoch(self) -> LeaderEpoch | None:
        return self._entries[-1].epoch if self._entries else None

    @property
    def earliest(self) -> EpochEntry | None:
        return self._entries[0] if self._entries else None

    def assign(self, epoch: LeaderEpoch, start_offset: int) -> bool:
        """True if the list changed. A known epoch keeps its first start offset."""
        if epoch < 0:
            return False
        last = self._entries[-1] if self._entries else None
        if last is not None and last.epoch == epoch and start_offset >= last.start_offset:
            return False
        self._entries = _assign(self._entries, EpochEntry(epoch, start_offset))
        self._changed()
        return True

    def end_offset_for(self, epoch: int) -> EpochEndOffset:
        if epoch == UNDEFINED_EPOCH or not self._entries or epoch > self._entries[-1].epoch:
            return UNDEFINED
        if epoch == self._entries[-1].epoch:
            return EpochEndOffset(LeaderEpoch(epoch), self._log_end_offset())
        after = bisect_right(self._entries, epoch, key=_epoch_of)
        if after == 0:
            return EpochEndOffset(LeaderEpoch(epoch), self._entries[0].start_offset)
        return EpochEndOffset(self._entries[after - 1].epoch, self._entries[after].start_offset)

    def truncate_from_end(self, offset: int) -> None:
        """The log now ends at `offset`: drop the epochs that start there or later."""
        keep = bisect_left(self._entries, offset, key=_start_of)
        if offset >= 0 and keep < len(self._entries):
            del self._entries[keep:]
            self._changed()

    def truncate_from_start(self, offset: int) -> None:
        """The log now starts at `offset`: so does the epoch that covers it; drop older ones."""
        covering = bisect_right(self._entries, offset, key=_start_of) - 1
        if covering >= 0 and self._entries[covering].start_offset < offset:
            self._entries[: covering + 1] = [EpochEntry(self._entries[covering].epoch, offset)]
            self._changed()
        elif covering > 0:
            del self._entries[:covering]
            self._changed()

    def clear(self) -> None:
        self._entries.clear()
        self._changed()

    def _changed(self) -> None:
        self.dirty = True
        self._on_change()

    def encode(self) -> bytes:
        return encode_lines(self._entries)

    def write(self) -> None:
        self._disk.write_atomically(self.path, self.encode())
        self.dirty = False


def _assign(entries: list[EpochEntry], new: EpochEntry) -> list[EpochEntry]:
    """Drops what the new entry contradicts: a later epoch, or one that starts at its start offset or above."""
    return [entry for entry in entries if entry.epoch < new.epoch and entry.start_offset < new.start_offset] + [new]


def _epoch_of(entry: EpochEntry) -> int:
    return entry.epoch


def _start_of(entry: EpochEntry) -> int:
    return entry.start_offset
