"""A segment: one `.log` file of batches back to back, with its offset, time and transaction index.

It handles bytes and positions; the log decides what may be appended. Only a segment that is being written holds a
descriptor: a broker has far more segments than descriptors, and to open a file costs little beside a read. A segment
remembers where the last appends began and the last reads ended, so that followers and consumers at the tail find their
position without a search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from klamm.log.files import create_empty, size_of
from klamm.log.indexes.offset_index import SUFFIX as INDEX_SUFFIX
from klamm.log.indexes.offset_index import OffsetIndex
from klamm.log.indexes.time_index import SUFFIX as TIME_SUFFIX
from klamm.log.indexes.time_index import TimeIndex
from klamm.log.indexes.transaction_index import SUFFIX as TXN_SUFFIX
from klamm.log.indexes.transaction_index import TransactionIndex
from klamm.log.log_results import ReadResult
from klamm.model.errors import KafkaError
from klamm.model.ports import Buffer, Disk, DiskFile, Staged
from klamm.wire.batch import HEADER_BYTES, LOG_OVERHEAD_BYTES, BatchHeader, corrupt, read_header

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIXES: Final = (INDEX_SUFFIX, TIME_SUFFIX, TXN_SUFFIX)
DELETED_SUFFIX: Final = ".deleted"
RELATIVE_OFFSET_MAX: Final = 2**31 - 1
_SCAN_BYTES: Final = 16 * 1024
_HINTS_MAX: Final = 32


def offset_in(name: str) -> int | None:
    """The base offset in the name of a segment's file, whatever its suffix.

    >>> offset_in("00000000000000000042.log.deleted"), offset_in("leader-epoch-checkpoint")
    (42, None)
    """
    digits = name.partition(".")[0]
    return int(digits) if digits.isdigit() else None


class LogSegment:
    def __init__(
        self,
        disk: Disk,
        directory: str,
        base_offset: int,
        *,
        created_ms: int,
        index_interval_bytes: int = 4096,
        jitter_ms: int = 0,
        suffix: str = "",
    ) -> None:
        """`suffix`: for a segment that is being written and is not part of the log yet."""
        stem = f"{directory}/{base_offset:020d}"
        self._disk = disk
        self.log_path = stem + LOG_SUFFIX + suffix
        self.base_offset = base_offset
        self.created_ms = created_ms
        self._index_interval_bytes = index_interval_bytes
        self.jitter_ms = jitter_ms
        """Drawn once and subtracted from segment.ms, so that the partitions of a topic do not all roll at once."""
        self.offset_index = OffsetIndex(disk, stem + INDEX_SUFFIX + suffix, base_offset)
        self.time_index = TimeIndex(disk, stem + TIME_SUFFIX + suffix, base_offset)
        self.transaction_index = TransactionIndex(disk, stem + TXN_SUFFIX + suffix, base_offset)
        self._file: DiskFile | None = None
        self._size: int | None = None
        self._unindexed_bytes = 0
        self._first_timestamp: int | None = None
        self._max_timestamp: tuple[int, int] | None = None
        self._hints: dict[int, int] = {}
        """Offset -> position of the batch that begins at it."""

    # --- files -------------------------------------------------------------------------------------------------------

    @property
    def paths(self) -> tuple[str, str, str, str]:
        """All its files; the last one, the transaction index, may not exist."""
        return self.log_path, self.offset_index.path, self.time_index.path, self.transaction_index.path

    def create(self) -> None:
        """Create empty files, replacing stray ones of the same name; they do not stay open."""
        create_empty(self._disk, self.log_path)
        self.offset_index.create()
        self.time_index.create()
        if self._disk.exists(self.transaction_index.path):
            self._disk.remove(self.transaction_index.path)
        self._size = 0

    def _open(self) -> DiskFile:
        """For writing: the file stays open until `close_files`."""
        if self._file is None:
            self._file = self._disk.open(self.log_path)
            self._size = self._file.size()
        return self._file

    @contextmanager
    def _reading(self) -> Iterator[DiskFile]:
        file = self._file
        if file is not None:
            yield file
            return
        file = self._disk.open(self.log_path)
        try:
            yield file
        finally:
            file.close()

    @property
    def size(self) -> int:
        if self._size is None:
            self._size = size_of(self._disk, self.log_path)
        return self._size

    def rename_deleted(self) -> list[str]:
        """Rename the files for later removal; returns the new paths."""
        self.close_files()
        renamed = []
        for path in self.paths:
            if self._disk.exists(path):
                self._disk.rename(path, path + DELETED_SUFFIX)
                renamed.append(path + DELETED_SUFFIX)
        return renamed

    def write_out(self) -> None:
        self.offset_index.write_out()
        self.time_index.write_out()

    def seal(self) -> None:
        """No more appends: write the final entry of the time index, for which rolling leaves a slot."""
        if self._file is not None:
            self._file.settle()
        self.time_index.append(*self.max_timestamp)

    def syncs(self) -> list[Callable[[], None]]:
        """Calls that sync everything written so far. They are collected in the loop, which may open and close files
        afterwards, and run in the pool."""
        return [self.log_sync(), *self.offset_index.syncs(), *self.time_index.syncs(), self.transaction_index.sync]

    def log_sync(self) -> Callable[[], None]:
        return self._open().sync

    def close_files(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self.offset_index.close()
        self.time_index.close()

    # --- writing -----------------------------------------------------------------------------------------------------

    def append(self, chunks: Sequence[Buffer], size: int) -> int:
        """Append bytes; the caller then describes each batch with `note`."""
        position = self._open().append(chunks)
        self._size = position + size
        return position

    def stage(self, body: Buffer, head_bytes: int) -> Staged:
        return self._open().stage(body, head_bytes)

    def append_staged(self, staged: Staged, head: Buffer, size: int) -> int | None:
        """As `append`, for a batch whose body was staged in this segment. None if it was dropped."""
        position = staged.commit(head)
        if position is not None:
            self._size = position + size
        return position

    def note(self, position: int, header: BatchHeader) -> None:
        """Index the batch at `position`. Recovery calls it too, so that rebuilt indexes equal the lost ones."""
        last_offset = header.last_offset
        if self._first_timestamp is None:
            self._first_timestamp = header.max_timestamp
        if header.max_timestamp > self.max_timestamp[0] and header.count:  # an empty batch has no such record
            self._max_timestamp = (header.max_timestamp, last_offset)
        self._hint(header.base_offset, position)
        if self._unindexed_bytes > self._index_interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.append(*self.max_timestamp)
            self._unindexed_bytes = 0
        self._unindexed_bytes += header.size_in_bytes

    def truncate_to(self, offset: int) -> None:
        """Drop the batch that holds `offset` and everything after it."""
        position = self.position_of(offset)
        self._hints.clear()
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.transaction_index.truncate_to(offset)
        if position < self.size:
            self._open().truncate(position)
            self._size = position
        self._max_timestamp = None
        if position == 0:
            self._first_timestamp = None
        self.restore_tail()

    def restore_tail(self) -> None:
        """Scan the batches after the last index entry for the largest timestamp and the distance to the next entry."""
        start = self.offset_index.last_position
        self._max_timestamp = self.time_index.last()
        self._unindexed_bytes = 0
        for _, header in self.headers(start):
            if header.max_timestamp > self._max_timestamp[0] and header.count:
                self._max_timestamp = (header.max_timestamp, header.last_offset)
            self._unindexed_bytes += header.size_in_bytes

    def reset(self) -> None:
        """Empty the indexes, to rebuild them."""
        self.offset_index.reset()
        self.time_index.reset()
        self.transaction_index.reset()
        self._hints.clear()
        self._unindexed_bytes = 0
        self._first_timestamp = None
        self._max_timestamp = (-1, self.base_offset)

    def cut_at(self, position: int) -> None:
        """Recovery found no intact batch at `position`: drop everything from there on."""
        self._open().truncate(position)
        self._size = position

    # --- reading -----------------------------------------------------------------------------------------------------

    def pread(self, size: int, position: int) -> bytes:
        with self._reading() as file:
            return file.pread(size, position)

    def headers(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """Headers of the batches from `position`, a batch boundary. Stops at a torn end; raises on damage."""
        end = self.size
        chunk, chunk_at = b"", position
        while end - position >= HEADER_BYTES:
            if position + HEADER_BYTES > chunk_at + len(chunk):
                chunk, chunk_at = self.pread(_SCAN_BYTES, position), position
                if len(chunk) < HEADER_BYTES:
                    return
            header = read_header(chunk, position - chunk_at)
            if position + header.size_in_bytes > end:
                return
            yield position, header
            position += header.size_in_bytes

    def position_of(self, offset: int) -> int:
        """Position of the first batch whose last offset is `offset` or later; the segment's size if there is none."""
        hint = self._hints.get(offset)
        if hint is not None:
            return hint
        for position, header in self.headers(self.offset_index.position_at_or_below(offset)):
            if header.last_offset >= offset:
                return position
        return self.size

    def batch_at(self, position: int) -> bytes:
        header = read_header(self.pread(HEADER_BYTES, position))
        return self.pread(header.size_in_bytes, position)

    def read(self, offset: int, max_bytes: int, upper_bound: int, *, at_end: bool, at_least_one: bool) -> ReadResult:
        """Whole batches from the one that holds `offset`, below `upper_bound`. `at_end`: all of it lies below."""
        start = self.position_of(offset)
        limit = self.size if at_end else self.position_of(upper_bound)
        if start >= limit:
            return ReadResult(b"", offset, offset)
        wanted = limit - start
        data = self.pread(min(wanted, max(max_bytes, HEADER_BYTES if at_least_one else 0)), start)
        if len(data) < wanted:
            data = self._cut_at_boundary(data, start, at_least_one=at_least_one)
            if not data:
                return ReadResult(b"", offset, offset)
        first = read_header(data)
        last = self._last_header(data, start)
        self._hint(last.next_offset, start + len(data))
        return ReadResult(data, first.base_offset, last.next_offset)

    def _cut_at_boundary(self, data: bytes, start: int, *, at_least_one: bool) -> bytes:
        """The read was limited by bytes: keep whole batches, and the first one even if it alone is too long."""
        whole = max(self.offset_index.boundary_at_or_below(start + len(data)) - start, 0)
        while len(data) - whole >= LOG_OVERHEAD_BYTES:
            size = int.from_bytes(data[whole + 8 : whole + 12], "big") + LOG_OVERHEAD_BYTES
            if size < HEADER_BYTES:
                raise corrupt(f"{self.log_path}: batch length {size} at position {start + whole}")
            if whole + size > len(data):
                break
            whole += size
        if whole == 0 and at_least_one:
            return self.batch_at(start)
        return data[:whole]

    def _last_header(self, data: bytes, start: int) -> BatchHeader:
        position = max(self.offset_index.boundary_at_or_below(start + len(data) - 1) - start, 0)
        header = read_header(data, position)
        while position + header.size_in_bytes < len(data):
            position += header.size_in_bytes
            header = read_header(data, position)
        return header

    def _hint(self, offset: int, position: int) -> None:
        hints = self._hints
        if offset not in hints and len(hints) >= _HINTS_MAX:
            del hints[next(iter(hints))]  # the oldest
        hints[offset] = position

    # --- content -----------------------------------------------------------------------------------------------------

    @property
    def knows_max_timestamp(self) -> bool:
        """Otherwise the time index is opened to find it."""
        return self._max_timestamp is not None

    @property
    def max_timestamp(self) -> tuple[int, int]:
        """(timestamp, offset); (-1, base offset) if no record has a timestamp."""
        if self._max_timestamp is None:
            self._max_timestamp = self.time_index.last()
        return self._max_timestamp

    @property
    def first_timestamp(self) -> int | None:
        """Timestamp of the first append, from which time-based rolling counts; None if the segment is empty."""
        if self._first_timestamp is None and self.size >= HEADER_BYTES:
            self._first_timestamp = read_header(self.pread(HEADER_BYTES, 0)).max_timestamp
        return self._first_timestamp

    def retention_timestamp(self) -> int:
        """Largest timestamp of a record; that of the file if no record has one."""
        timestamp, _ = self.max_timestamp
        return timestamp if timestamp >= 0 else self.modified_ms()

    def modified_ms(self) -> int:
        return self._disk.modified_ms(self.log_path)

    def next_offset(self) -> int:
        """Offset after the last batch, found by a scan from the last index entry."""
        end = self.base_offset
        for _, header in self.headers(self.offset_index.last_position):
            end = header.next_offset
        return end

    def lacks_indexes(self) -> bool:
        """A cheap check of every segment at start: do its indexes exist, is the transaction index readable?"""
        present = self._disk.exists(self.offset_index.path) and self._disk.exists(self.time_index.path)
        return not present or not self.transaction_index.is_sane()

    def is_damaged(self) -> bool:
        """A thorough check of the last segment: do the indexes match the batches, and can its end be found by them?"""
        if not self.offset_index.load() or not self.time_index.load() or self.offset_index.last_position > self.size:
            return True
        try:
            for position, header in self.headers(self.offset_index.last_position):
                if position + header.size_in_bytes == self.size:
                    return False
        except KafkaError:
            return True
        return self.size > 0
