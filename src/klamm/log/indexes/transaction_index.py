"""Aborted transactions of one segment: 34-byte entries in the order of their abort markers.

An entry has version 0, the producer id, the first and last offset of the transaction, and the last stable offset after
it: a reader may stop at the first entry whose last stable offset lies beyond what it reads. The file does not exist
until there is an entry.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from klamm.model.ids import ProducerId
from klamm.model.ports import Disk

SUFFIX: Final = ".txnindex"
_ENTRY = Struct(">hqqqq")
_VERSION: Final = 0


class AbortedEntry(NamedTuple):
    producer_id: ProducerId
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    def __init__(self, disk: Disk, path: str, base_offset: int) -> None:
        self._disk = disk
        self.path = path
        self._base = base_offset
        self._entries: list[AbortedEntry] | None = None

    def is_sane(self) -> bool:
        """A segment with damaged entries is recovered even after a clean shutdown."""
        if not self._disk.exists(self.path):
            return True
        data = self._disk.read(self.path)
        if len(data) % _ENTRY.size:
            return False
        return all(entry[0] == _VERSION and entry[3] >= self._base for entry in _ENTRY.iter_unpack(data))

    def entries(self) -> list[AbortedEntry]:
        if self._entries is None:
            data = self._disk.read(self.path) if self._disk.exists(self.path) else b""
            whole = len(data) - len(data) % _ENTRY.size
            self._entries = [
                AbortedEntry(ProducerId(producer), first, last, stable)
                for _, producer, first, last, stable in _ENTRY.iter_unpack(data[:whole])
            ]
        return self._entries

    def append(self, entry: AbortedEntry) -> None:
        """Written at once: without its entry, aborted records would reach readers that want committed ones."""
        entries = self.entries()
        file = self._disk.open(self.path, create=True)
        try:
            file.append([_ENTRY.pack(_VERSION, *entry)])
        finally:
            file.close()
        entries.append(entry)

    def truncate_to(self, offset: int) -> None:
        """Drop the transactions whose marker is at or above `offset`."""
        entries = self.entries()
        keep = [entry for entry in entries if entry.last_offset < offset]
        if len(keep) < len(entries):
            self._rewrite(keep)

    def reset(self) -> None:
        self._entries = []
        if self._disk.exists(self.path):
            self._rewrite([])

    def sync(self) -> None:
        """Does nothing without a file: none was written, or the segment has been truncated or replaced."""
        try:
            file = self._disk.open(self.path)
        except FileNotFoundError:
            return
        try:
            file.sync()
        finally:
            file.close()

    def _rewrite(self, entries: list[AbortedEntry]) -> None:
        file = self._disk.open(self.path, create=True)
        try:
            file.truncate(len(entries) * _ENTRY.size)
        finally:
            file.close()
        self._entries = entries
