"""When a waiting fetch is over: something to read, enough bytes, or an error to report.

A waiting fetch holds positions, not bytes. Its counts are running: a change costs a read of what is new in the changed
partition, not of everything that the fetch asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from klamm.broker.partition import Bound, Partition
from klamm.log.log import Log
from klamm.model.errors import KafkaError
from klamm.model.ids import TopicPartition
from klamm.wire.fetch import FetchPartition, FetchResult

LogFor = Callable[[FetchPartition], tuple[Partition, Log]]
"""Raises KafkaError if the partition cannot be read here."""


class Counted(NamedTuple):
    next_offset: int | None
    """None as long as only the size is known."""
    size: int


class FetchWait:
    def __init__(
        self,
        entries: Iterable[FetchPartition],
        results: Iterable[FetchResult],
        enough: int,
        bound: Bound,
        log_for: LogFor,
        is_held_back: Callable[[Partition], bool],
    ) -> None:
        """`results` are those of a first read, in the order of `entries`."""
        self._entries = {entry.partition: entry for entry in entries}
        self._counted: dict[TopicPartition, Counted] = {}
        if enough > 1:
            self._counted = {result.partition: Counted(None, len(result.records)) for result in results}
        self._enough = enough
        self._bound = bound
        self._log_for = log_for
        self._is_held_back = is_held_back
        self._total = sum(counted.size for counted in self._counted.values())

    def add(self, entry: FetchPartition) -> None:
        """One more partition, of which nothing was read."""
        self._entries[entry.partition] = entry
        self._counted[entry.partition] = Counted(None, 0)

    def is_over(self, changed: TopicPartition) -> bool:
        entry = self._entries[changed]
        try:
            partition, log = self._log_for(entry)
            if self._is_held_back(partition):
                return False
            if not log.log_start_offset <= entry.fetch_offset <= log.log_end_offset:
                return True  # the read will report the error
            end = partition.bound(log, self._bound)
            return entry.fetch_offset < end if self._enough <= 1 else self._count(entry, partition, log, end)
        except KafkaError:
            return True

    def _count(self, entry: FetchPartition, partition: Partition, log: Log, end: int) -> bool:
        position, size = self._counted[entry.partition]
        if position is None:  # the first change: count it all, once
            self._total -= size
            position, size = entry.fetch_offset, 0
        if position > log.log_end_offset:
            return True  # truncated: what was counted is gone
        if position < end and size < entry.max_bytes:
            left = entry.max_bytes - size
            found = partition.read(log, position, left, self._bound, at_least_one=self._total == 0)
            self._counted[entry.partition] = Counted(found.next_offset, size + len(found.records))
            self._total += len(found.records)
        return self._total >= self._enough
