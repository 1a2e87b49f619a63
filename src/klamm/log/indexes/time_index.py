"""Sparse map from time to offset: 12-byte entries of the largest timestamp so far and the record's relative offset.

Timestamps rise from entry to entry, though those of the records need not. The last entry of a sealed segment has the
largest timestamp of the segment, which retention and searches by timestamp use.
"""

from __future__ import annotations

from bisect import bisect_right
from struct import Struct
from typing import Final

from klamm.log.indexes.index_file import IndexFile
from klamm.model.ports import Disk

SUFFIX: Final = ".timeindex"


class TimeIndex(IndexFile):
    entry = Struct(">qI")

    def __init__(self, disk: Disk, path: str, base_offset: int) -> None:
        super().__init__(disk, path)
        self._base = base_offset

    def last(self) -> tuple[int, int]:
        """(timestamp, offset) of the last entry; (-1, base offset) if there is none."""
        self.load()
        return (self.keys[-1], self._base + self.values[-1]) if self.keys else (-1, self._base)

    def offset_at_or_below(self, timestamp: int) -> int:
        """No record before this offset has `timestamp` or a later one."""
        self.load()
        found = bisect_right(self.keys, timestamp)
        return self._base + self.values[found - 1] if found else self._base

    def append(self, timestamp: int, offset: int) -> None:
        self.load()
        if timestamp >= 0 and (not self.keys or timestamp > self.keys[-1]):
            self.add(timestamp, offset - self._base)

    def truncate_to(self, offset: int) -> None:
        """Drop entries at or above `offset`."""
        self.load()
        keep = len(self.values)
        while keep and self._base + self.values[keep - 1] >= offset:
            keep -= 1
        self.cut(keep)
