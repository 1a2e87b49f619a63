"""A file of fixed-size entries with rising keys: what the offset index and the time index have in common.

It is read whole into two columns when first needed, and searched by bisection. New entries stay in memory until
`write_out`: the log writes them before its recovery point passes them, and recovery rebuilds what a crash loses. So an
append to the log costs one system call, not three. A file is exactly as long as its entries. A JVM broker preallocates
the index files of the active segment; one that a crash left with zeros at the end counts as damaged.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from struct import Struct

from klamm.log.files import create_empty
from klamm.model.ports import Disk, DiskFile


class IndexFile:
    entry: Struct
    """The layout of one entry: key, value."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self._file: DiskFile | None = None
        self._loaded = False
        self._written = 0
        self.keys = array("q")
        self.values = array("q")

    def create(self) -> None:
        """A new, empty file. It does not stay open: most segments are never looked up."""
        create_empty(self._disk, self.path)
        self._loaded, self._written = True, 0

    def load(self) -> bool:
        """False if the file is missing or is not a valid index; the index is then empty until it is rebuilt."""
        if self._loaded:
            return True
        self._loaded = True
        if not self._disk.exists(self.path):
            return False
        data = self._disk.read(self.path)
        whole = len(data) % self.entry.size == 0
        if whole:
            for key, value in self.entry.iter_unpack(data):
                self.keys.append(key)
                self.values.append(value)
        if not whole or not self._plausible():
            del self.keys[:], self.values[:]
            return False
        self._written = len(self.keys)
        return True

    def _plausible(self) -> bool:
        """A crashed JVM leaves zeros after the last entry; only then is the last key not above the first."""
        return len(self.keys) < 2 or self.keys[-1] > self.keys[0]

    def __len__(self) -> int:
        self.load()
        return len(self.keys)

    def add(self, key: int, value: int) -> None:
        self.keys.append(key)
        self.values.append(value)

    def cut(self, count: int) -> None:
        """Keep the first `count` entries, on disk too."""
        if count < len(self.keys):
            del self.keys[count:], self.values[count:]
        if count < self._written:
            self._written = count
            self._open().truncate(count * self.entry.size)

    def reset(self) -> None:
        """Remove all entries, in memory and in the file."""
        del self.keys[:], self.values[:]
        self._loaded, self._written = True, 0
        self._open().truncate(0)

    def is_full(self, max_bytes: int, *, spare: int = 0) -> bool:
        return len(self) + spare >= max_bytes // self.entry.size

    def has_unwritten(self) -> bool:
        return self._written < len(self.keys)

    def write_out(self) -> None:
        if self._written < len(self.keys):
            pack = self.entry.pack
            pending = zip(self.keys[self._written :], self.values[self._written :], strict=True)
            self._open().append([b"".join([pack(key, value) for key, value in pending])])
            self._written = len(self.keys)

    def syncs(self) -> list[Callable[[], None]]:
        return [] if self._file is None else [self._file.sync]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> DiskFile:
        if self._file is None:
            self._file = self._disk.open(self.path, create=True)
        return self._file
