"""Producer state on disk: `<offset>.snapshot` holds the state before that offset, in Kafka's format version 1.

Only the newest batch of a producer is stored, as in Kafka. An unreadable file is removed and the next older one used: a
scan of the log from there restores the same state. The list of files is kept in memory (KAFKA-9393), and files are
synced (KAFKA-9892).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Generator, Iterable
from struct import Struct
from typing import Final

from klamm.log.producers.producer_state import ProducedBatch, ProducerEntry, ProducerState
from klamm.model.ids import ProducerId
from klamm.model.ports import Disk
from klamm.wire.batch import NO_SEQUENCE
from klamm.wire.checksums import crc32c

SUFFIX: Final = ".snapshot"
_VERSION: Final = 1
_PREFIX = Struct(">hI")
_COUNT = Struct(">i")
_ENTRY = Struct(">qhiqiqiq")
_NONE: Final = -1
ENTRIES_PER_SLICE: Final = 2_000
"""Decoded in a few milliseconds."""


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    ordered = sorted(entries, key=lambda entry: entry.producer_id)
    body = _COUNT.pack(len(ordered)) + b"".join(map(_encode_entry, ordered))
    return _PREFIX.pack(_VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes, now_ms: int) -> Generator[None, None, ProducerState | None]:
    """In slices. None if the snapshot is damaged or of another version: that is known in the first slice."""
    if len(data) < _PREFIX.size + _COUNT.size:
        return None
    version, crc = _PREFIX.unpack_from(data)
    body = memoryview(data)[_PREFIX.size :]
    if version != _VERSION or crc32c(body) != crc:
        return None
    (count,) = _COUNT.unpack_from(body)
    if count < 0 or len(body) != _COUNT.size + count * _ENTRY.size:
        return None
    state = ProducerState()
    for number, fields in enumerate(_ENTRY.iter_unpack(body[_COUNT.size :]), 1):
        state.put(_decode_entry(fields, now_ms))
        if number % ENTRIES_PER_SLICE == 0:
            yield
    return state


class ProducerSnapshots:
    """The snapshot files of one partition directory."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self.directory = directory
        self._offsets: list[int] = []

    def load(self, names: list[str]) -> None:
        digits = [name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)]
        self._offsets = sorted(int(name) for name in digits if name.isdigit())

    @property
    def offsets(self) -> tuple[int, ...]:
        return tuple(self._offsets)

    def path(self, offset: int) -> str:
        return f"{self.directory}/{offset:020d}{SUFFIX}"

    def write(self, offset: int, data: bytes) -> None:
        self._disk.write_atomically(self.path(offset), data)
        self.added(offset)

    def added(self, offset: int) -> None:
        """Note a file that the pool has written."""
        if offset not in self._offsets:
            insort(self._offsets, offset)

    def newest_at_or_below(self, offset: int, now_ms: int) -> Generator[None, None, tuple[int, ProducerState] | None]:
        while position := bisect_right(self._offsets, offset):
            found = self._offsets[position - 1]
            state = yield from decode_snapshot(self._disk.read(self.path(found)), now_ms)
            if state is not None:
                state.end_offset = found
                return found, state
            self._remove(found)
        return None

    def remove_above(self, offset: int) -> None:
        for found in [found for found in self._offsets if found > offset]:
            self._remove(found)

    def remove_below(self, offset: int) -> None:
        for found in [found for found in self._offsets if found < offset]:
            self._remove(found)

    def _remove(self, offset: int) -> None:
        if self._disk.exists(self.path(offset)):
            self._disk.remove(self.path(offset))
        self._offsets.remove(offset)


def _encode_entry(entry: ProducerEntry) -> bytes:
    batch = entry.batches[-1] if entry.batches else ProducedBatch(NO_SEQUENCE, _NONE, 0, entry.last_timestamp)
    first = _NONE if entry.transaction_first_offset is None else entry.transaction_first_offset
    return _ENTRY.pack(
        entry.producer_id,
        entry.epoch,
        batch.last_sequence,
        batch.last_offset,
        batch.offset_delta,
        entry.last_timestamp,
        entry.coordinator_epoch,
        first,
    )


def _decode_entry(fields: tuple[int, ...], now_ms: int) -> ProducerEntry:
    producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, first = fields
    entry = ProducerEntry(ProducerId(producer_id), epoch, now_ms)
    entry.coordinator_epoch = coordinator_epoch
    entry.last_timestamp = timestamp
    if offset >= 0:
        entry.batches.append(ProducedBatch(sequence, offset, delta, timestamp))
    entry.transaction_first_offset = None if first < 0 else first
    return entry
