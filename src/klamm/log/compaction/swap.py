"""Replaces segments with the cleaned segment made from them: completely or not at all, whenever the process dies.

(a) the new files are complete and synced under names that end in `.cleaned`: a restart removes them;
(b) they are renamed to `.swap`, the log first: while one is still `.cleaned` the sources are valid, then the new ones;
(c) the directory is synced, in the pool: the replacement is safe before a source is removed;
(d) the sources are renamed to `.deleted`, to be removed when no reader needs them;
(e) the suffix `.swap` is dropped, from the log last: whatever else is missing then is rebuilt from it.
A restart after (b) finishes the swap. Names and order are Kafka's, so klamm and Kafka can finish each other's swaps.
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
        """The new segment. It already has its final names, so nothing may open it before the swap is finished."""
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
        """(d) and (e); returns the paths to remove later."""
        self.make_safe()
        renamed = [path for source in self.sources for path in source.rename_deleted()]
        log_path, *index_paths = self.replacement.paths
        for path in (*index_paths, log_path):
            if self._disk.exists(path + SWAP_SUFFIX):
                self._disk.rename(path + SWAP_SUFFIX, path)
        return renamed


def finish_swaps(disk: Disk, directory: str) -> None:
    """Finish the swaps that the previous run began, before anything in the directory is opened."""
    found = [(name, offset) for name in disk.list(directory) if (offset := offset_in(name)) is not None]
    unfinished = min((offset for name, offset in found if name.endswith(CLEANED_SUFFIX)), default=None)
    swapped = [offset for name, offset in found if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)]
    for base in swapped:
        if unfinished is None or base < unfinished:
            _finish(disk, directory, base, found)
    for name, base in found:
        if name.endswith(_SWAPPED_INDEXES) and base not in swapped:
            # A JVM drops `.swap` from the log first; it is then unknown which of the indexes next to it are new.
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
    """Offset after its last batch. A source beyond it lost all records; if it still exists, so do later ones."""
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
