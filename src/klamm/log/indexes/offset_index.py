"""Sparse map from offset to file position: 8-byte entries of an offset, relative to the base offset, and a position.

The offset is the *last* one of what was appended at that position. So a scan for an offset may always start at
the greatest entry that is not above it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from struct import Struct
from typing import Final

from klamm.log.indexes.index_file import IndexFile
from klamm.model.ports import Disk

SUFFIX: Final = ".index"


class OffsetIndex(IndexFile):
    entry = Struct(">II")

    def __init__(self, disk: Disk, path: str, base_offset: int) -> None:
        super().__init__(disk, path)
        self._base = base_offset

    def position_at_or_below(self, offset: int) -> int:
        """Where to start scanning for `offset`."""
        self.load()
        found = bisect_right(self.keys, offset - self._base)
        return self.values[found - 1] if found else 0

    def boundary_at_or_below(self, position: int) -> int:
        """The greatest indexed batch boundary at or below a file position; 0 if there is none."""
        self.load()
        found = bisect_right(self.values, position)
        return self.values[found - 1] if found else 0

    @property
    def last_position(self) -> int:
        self.load()
        return self.values[-1] if self.values else 0

    def append(self, last_offset: int, position: int) -> None:
        self.load()
        relative = last_offset - self._base
        if not self.keys or relative > self.keys[-1]:
            self.add(relative, position)

    def truncate_to(self, offset: int) -> None:
        """Drop entries at or above `offset`."""
        self.load()
        self.cut(bisect_left(self.keys, offset - self._base))
