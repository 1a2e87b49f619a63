"""Sparse map from offset to file position: 8-byte entries of an offset, relative to the base offset, and a position.

The offset is the *last* one of what was appended at that position. So a scan for an offset may always start at
the greatest entry that is not above it.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from klamm.log.indexes.index_file import KEY, VALUE, IndexFile
from klamm.model.ports import Disk

SUFFIX: Final = ".index"


class OffsetIndex(IndexFile):
    entry = Struct(">II")

    def __init__(self, disk: Disk, path: str, base_offset: int) -> None:
        super().__init__(disk, path)
        self._base = base_offset

    def position_at_or_below(self, offset: int) -> int:
        """Where to start scanning for `offset`."""
        found = self.at_or_below(KEY, offset - self._base)
        return 0 if found is None else found[VALUE]

    def boundary_at_or_below(self, position: int) -> int:
        """The greatest indexed batch boundary at or below a file position; 0 if there is none."""
        found = self.at_or_below(VALUE, position)
        return 0 if found is None else found[VALUE]

    @property
    def last_position(self) -> int:
        last = self.last_entry
        return 0 if last is None else last[VALUE]

    def append(self, last_offset: int, position: int) -> None:
        relative, last = last_offset - self._base, self.last_entry
        if last is None or relative > last[KEY]:
            self.add(relative, position)

    def truncate_to(self, offset: int) -> None:
        """Drop entries at or above `offset`."""
        self.cut(self.count_up_to(KEY, offset - self._base - 1))
