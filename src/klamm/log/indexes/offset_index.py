"""Sparse map from offset to file position: 8-byte entries, offset relative to the segment's base, position of a batch.

An entry says: the batches at `position` and after end at `offset` or later. It carries the *last* offset of what was
appended there, so the greatest entry not above a target is always a place to start a scan from.
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
        """The greatest indexed batch boundary not above a file position; 0 if there is none."""
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
