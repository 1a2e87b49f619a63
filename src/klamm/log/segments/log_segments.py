"""The segments of one log, in order of base offset. The last one, the active segment, takes the appends."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from klamm.log.segments.log_segment import LogSegment


class LogSegments:
    def __init__(self) -> None:
        self._bases: list[int] = []
        self._list: list[LogSegment] = []

    def __len__(self) -> int:
        return len(self._list)

    def __iter__(self) -> Iterator[LogSegment]:
        return iter(self._list)

    def __getitem__(self, index: int) -> LogSegment:
        return self._list[index]

    @property
    def first(self) -> LogSegment:
        return self._list[0]

    @property
    def active(self) -> LogSegment:
        return self._list[-1]

    def add(self, segment: LogSegment) -> None:
        """Replaces a segment with the same base offset."""
        at = bisect_right(self._bases, segment.base_offset)
        if at and self._bases[at - 1] == segment.base_offset:
            self._list[at - 1] = segment
            return
        self._bases.insert(at, segment.base_offset)
        self._list.insert(at, segment)

    def index_at_or_below(self, offset: int) -> int:
        """Index of the segment that holds `offset`; 0 if the offset lies before all segments."""
        return max(bisect_right(self._bases, offset) - 1, 0)

    def at_or_below(self, offset: int) -> LogSegment:
        return self._list[self.index_at_or_below(offset)]

    def holding_or_after(self, offset: int) -> list[LogSegment]:
        return self._list[self.index_at_or_below(offset) :]

    def between(self, start: int, end: int) -> list[LogSegment]:
        """From the segment that holds `start` to the last that begins before `end`."""
        if start >= end:
            return []
        return self._list[self.index_at_or_below(start) : bisect_left(self._bases, end)]

    def replace(self, old: list[LogSegment], new: LogSegment) -> None:
        """`old` are neighbours; the first of them begins where `new` does."""
        at = self._list.index(old[0])
        assert self._list[at : at + len(old)] == old
        self._list[at : at + len(old)] = [new]
        self._bases[at : at + len(old)] = [new.base_offset]

    def take_first(self, count: int) -> list[LogSegment]:
        taken, self._list = self._list[:count], self._list[count:]
        del self._bases[:count]
        return taken

    def take_above(self, offset: int) -> list[LogSegment]:
        """Remove and return the segments that begin above `offset`."""
        at = bisect_right(self._bases, offset)
        taken = self._list[at:]
        del self._bases[at:], self._list[at:]
        return taken
