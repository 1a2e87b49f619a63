"""Sparse map from time to offset: 12-byte entries of the largest timestamp so far and the record's relative offset.

Timestamps rise from entry to entry, though those of the records need not. The last entry of a sealed segment has the
largest timestamp of the segment, which retention and searches by timestamp use.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from klamm.log.indexes.index_file import KEY, VALUE, IndexFile
from klamm.model.ports import Disk

SUFFIX: Final = ".timeindex"


class TimeIndex(IndexFile):
    entry = Struct(">qI")

    def __init__(self, disk: Disk, path: str, base_offset: int) -> None:
        super().__init__(disk, path)
        self._base = base_offset

    def last(self) -> tuple[int, int]:
        """(timestamp, offset) of the last entry; (-1, base offset) if there is none."""
        last = self.last_entry
        return (-1, self._base) if last is None else (last[KEY], self._base + last[VALUE])

    def offset_at_or_below(self, timestamp: int) -> int:
        """No record before this offset has `timestamp` or a later one."""
        found = self.at_or_below(KEY, timestamp)
        return self._base if found is None else self._base + found[VALUE]

    def append(self, timestamp: int, offset: int) -> None:
        last = self.last_entry
        if timestamp >= 0 and (last is None or timestamp > last[KEY]):
            self.add(timestamp, offset - self._base)

    def truncate_to(self, offset: int) -> None:
        """Drop entries at or above `offset`."""
        self.cut(self.count_up_to(VALUE, offset - self._base - 1))
