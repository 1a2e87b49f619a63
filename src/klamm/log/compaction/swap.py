"""A cleaned segment takes the place of those it was made from: whole, or not at all, whenever the process dies.

(a) its files are complete and synced under names that end in `.cleaned`: a crash throws them away;
(b) they are renamed to `.swap`, the log first: as long as one is still `.cleaned` the sources count, then it does;
(c) the directory is synced, in the pool: before a source goes, what replaces it is safe;
(d) the sources are renamed to `.deleted`, to be unlinked when nobody reads them any more;
(e) `.swap` is taken off the names, the log last: whatever else is missing then is built anew from it.
A restart after (b) finishes what was begun. These are Kafka's names and its order, so either can finish for the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from klamm.log.segments.log_segment import INDEX_SUFFIXES, LOG_SUFFIX, LogSegment, offset_in
from klamm.model.ports import Disk
from klamm.wire.batch import HEADER_BYTES, read_header

CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
_SWAPPED_INDEXES: Final = tuple(suffix + SWAP_SUFFIX for suffix in INDEX_SUFFIXES)


class Swap:
    def __init__(self, disk: Disk, directory: str, sources: Sequence[LogSegment], replacement: LogSegment) -> None:
        self._disk = disk
        self._directory = directory
        self.sources = list(sources)
        self.replacement = replacement
        """Under its final names, which nothing may open before the end."""
        self._is_safe = False

    def begin(self) -> None:
        """(b)"""
        for path in self.replacement.paths:
            if self._disk.exists(path + CLEANED_SUFFIX):
                self._disk.rename(path + CLEANED_SUFFIX, path + SWAP_SUFFIX)

    def make_safe(self) -> None:
        """(c)"""
        if not self._is_safe:
            self._disk.sync_directory(self._directory)
            self._is_safe = True

    def finish(self) -> list[str]:
        """(d) and (e); returns the paths that are to be unlinked."""
        self.make_safe()
        renamed = [path for source in self.sources for path in source.rename_deleted()]
        log_path, *index_paths = self.replacement.paths
        for path in (*index_paths, log_path):
            if self._disk.exists(path + SWAP_SUFFIX):
                self._disk.rename(path + SWAP_SUFFIX, path)
        return renamed


def finish_swaps(disk: Disk, directory: str) -> None:
    """What a former life began, before anything in the directory is opened."""
    found = [(name, offset) for name in disk.list(directory) if (offset := offset_in(name)) is not None]
    unfinished = min((offset for name, offset in found if name.endswith(CLEANED_SUFFIX)), default=None)
    swapped = [offset for name, offset in found if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)]
    for base in swapped:
        if unfinished is None or base < unfinished:
            _finish(disk, directory, base, found)
    for name, base in found:
        if name.endswith(_SWAPPED_INDEXES) and base not in swapped:
            # A JVM takes `.swap` off the log first. Which of the indexes beside it are the new ones, nobody knows.
            for path in (f"{directory}/{base:020d}{suffix}" for suffix in INDEX_SUFFIXES):
                if disk.exists(path):
                    disk.remove(path)


def _finish(disk: Disk, directory: str, base: int, found: list[tuple[str, int]]) -> None:
    end = _end_of(disk, f"{directory}/{base:020d}{LOG_SUFFIX}{SWAP_SUFFIX}", base)
    for name, offset in found:
        if name.endswith((LOG_SUFFIX, *INDEX_SUFFIXES)) and base <= offset < end:
            disk.remove(f"{directory}/{name}")
    for suffix in (*INDEX_SUFFIXES, LOG_SUFFIX):
        path = f"{directory}/{base:020d}{suffix}"
        if disk.exists(path + SWAP_SUFFIX):
            disk.rename(path + SWAP_SUFFIX, path)
    disk.sync_directory(directory)


def _end_of(disk: Disk, path: str, base: int) -> int:
    """After its last batch. A source beyond lost everything in the cleaning; if it is still there, so is the next."""
    file = disk.open(path)
    try:
        end, position, size = base + 1, 0, file.size()
        while size - position >= HEADER_BYTES:
            header = read_header(file.pread(HEADER_BYTES, position))
            end = max(end, header.next_offset)
            position += header.size_in_bytes
        return end
    finally:
        file.close()
