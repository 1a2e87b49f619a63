"""A file of fixed-size entries with rising keys and values: what the offset index and the time index have in common.

An index that was not written by this process is never read whole: a search reads a few entries, so a broker with a
terabyte of segments needs no memory for them. Entries that were added since the file was opened are in memory, in two
columns. They are written by `write_out`: the log calls it before its recovery point passes them, and recovery rebuilds
what a crash loses. So an append to the log costs one system call, not three.

A file is exactly as long as its entries. A JVM broker preallocates the index files of the active segment; one that a
crash left with zeros at the end counts as damaged.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable
from struct import Struct
from typing import Final

from klamm.log.files import create_empty
from klamm.model.ports import Disk, DiskFile

_ENTRIES_AT_ONCE: Final = 256
"""A search on disk halves the range until it is this small, then reads it."""
KEY: Final = 0
VALUE: Final = 1


class IndexFile:
    entry: Struct
    """The layout of one entry: key, value."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self._file: DiskFile | None = None
        self._loaded = False
        self._damaged = False
        self._written = 0
        self._on_disk = 0
        """Entries before the first one in memory."""
        self._last_on_disk: tuple[int, int] | None = None
        self._columns = (array("q"), array("q"))
        """Keys and values of the entries in memory."""

    def create(self) -> None:
        """A new, empty file. It does not stay open: most segments are never looked up."""
        create_empty(self._disk, self.path)
        self._loaded, self._written = True, 0

    def load(self) -> bool:
        """False if the file is missing or is not a valid index; the index is then empty until it is rebuilt."""
        if self._loaded:
            return not self._damaged
        self._loaded = True
        self._damaged = not self._disk.exists(self.path)
        if self._damaged:
            return False
        file = self._disk.open(self.path)
        try:
            count, rest = divmod(file.size(), self.entry.size)
            first, last = (self._entries(file, at, 1) for at in (0, count - 1)) if count else ([], [])
        finally:
            file.close()
        # A crashed JVM leaves zeros after the last entry; only then is the last key not above the first.
        self._damaged = rest > 0 or (count > 1 and last[0][KEY] <= first[0][KEY])
        if self._damaged:
            return False
        self._written = self._on_disk = count
        self._last_on_disk = last[0] if last else None
        return True

    def _entries(self, file: DiskFile, start: int, count: int) -> list[tuple[int, int]]:
        data = file.pread(count * self.entry.size, start * self.entry.size)
        return list(self.entry.iter_unpack(data[: len(data) - len(data) % self.entry.size]))

    def __len__(self) -> int:
        self.load()
        return self._on_disk + len(self._columns[KEY])

    @property
    def last_entry(self) -> tuple[int, int] | None:
        self.load()
        keys, values = self._columns
        return (keys[-1], values[-1]) if keys else self._last_on_disk

    def count_up_to(self, column: int, limit: int) -> int:
        """How many entries, from the first on, are not above `limit` in this column."""
        self.load()
        in_memory = self._columns[column]
        if in_memory and in_memory[0] <= limit:
            return self._on_disk + bisect_right(in_memory, limit)
        return self._search(column, limit)[0] if self._on_disk else 0

    def at_or_below(self, column: int, limit: int) -> tuple[int, int] | None:
        """The last entry that is not above `limit` in this column."""
        self.load()
        keys, values = self._columns
        in_memory = self._columns[column]
        if in_memory and in_memory[0] <= limit:
            found = bisect_right(in_memory, limit) - 1
            return keys[found], values[found]
        return self._search(column, limit)[1] if self._on_disk else None

    def _search(self, column: int, limit: int) -> tuple[int, tuple[int, int] | None]:
        """The same on disk: how many, and the last of them."""
        file = self._file or self._disk.open(self.path)
        try:
            low, high = 0, self._on_disk
            while high - low > _ENTRIES_AT_ONCE:
                middle = (low + high) // 2
                entry = self._entries(file, middle, 1)
                if entry and entry[0][column] <= limit:
                    low = middle
                else:
                    high = middle
            entries = self._entries(file, low, high - low)
        finally:
            if file is not self._file:
                file.close()
        found = bisect_right(entries, limit, key=lambda entry: entry[column])
        return low + found, entries[found - 1] if found else None

    def add(self, key: int, value: int) -> None:
        self._columns[KEY].append(key)
        self._columns[VALUE].append(value)

    def cut(self, count: int) -> None:
        """Keep the first `count` entries, on disk too."""
        for column in self._columns:
            del column[max(count - self._on_disk, 0) :]
        if count < self._on_disk:
            self._on_disk = count
            self._last_on_disk = self._entries(self._open(), count - 1, 1)[0] if count else None
        if count < self._written:
            self._written = count
            self._open().truncate(count * self.entry.size)

    def reset(self) -> None:
        """Remove all entries, in memory and in the file."""
        self._forget(0, None)
        self._loaded, self._damaged, self._written = True, False, 0
        self._open().truncate(0)

    def _forget(self, on_disk: int, last: tuple[int, int] | None) -> None:
        for column in self._columns:
            del column[:]
        self._on_disk, self._last_on_disk = on_disk, last

    def is_full(self, max_bytes: int, *, spare: int = 0) -> bool:
        return len(self) + spare >= max_bytes // self.entry.size

    def write_out(self) -> None:
        pending = zip(*(column[self._written - self._on_disk :] for column in self._columns), strict=True)
        data = b"".join([self.entry.pack(key, value) for key, value in pending])
        if data:
            self._open().append([data])
            self._written = self._on_disk + len(self._columns[KEY])

    def syncs(self) -> list[Callable[[], None]]:
        return [] if self._file is None else [self._file.sync]

    def close(self) -> None:
        """The file is closed until it is needed again. If all entries are in it, memory forgets them."""
        if self._written == self._on_disk + len(self._columns[KEY]):
            self._forget(self._written, self.last_entry if self._loaded else None)
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> DiskFile:
        if self._file is None:
            self._file = self._disk.open(self.path, create=True)
        return self._file
