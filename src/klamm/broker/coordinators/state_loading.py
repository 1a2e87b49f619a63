"""Reads the log of an internal topic from its start to its end, in slices that let the loop go on.

It reads to the log end, not to the high watermark: what this leader holds will be committed or was already. A batch
that is damaged but whole is named and left out, because one bad record must not take the state of others with it. If
the log itself cannot be read, KafkaError ends the load.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final, NamedTuple

from klamm.log.log import Log
from klamm.model.errors import KafkaError
from klamm.model.ids import TopicPartition
from klamm.wire.batch import BatchHeader, check_crc, corrupt, iter_batches
from klamm.wire.records import Record, iter_records

SLICE_BYTES: Final = 32 << 10
SLICE_RECORDS: Final = 300
"""Decoded between two turns of the loop: a few milliseconds."""

log = logging.getLogger(__name__)


class LoadedRecords(NamedTuple):
    """Some records of one batch, in order; a large batch comes in several pieces, an empty one in one."""

    header: BatchHeader
    records: list[Record]


class StateLoading:
    """One load of one partition."""

    def __init__(self, partition: TopicPartition, state_log: Log, buffer_bytes: int, is_wanted: Callable[[], bool]):
        self._partition = partition
        self._log = state_log
        self._read_bytes = min(buffer_bytes, SLICE_BYTES)
        self._is_wanted = is_wanted
        self._offset = state_log.log_start_offset
        self.damaged = 0
        """Records or batches that were left out."""

    async def read(self) -> AsyncIterator[LoadedRecords]:
        """Ends at the log end as it is then, or when the load is no longer wanted. After the last piece it does not
        wait, so the caller sees the whole log. A second call reads what was appended since."""
        while self._offset < self._log.log_end_offset:
            before, end = self._offset, self._log.log_end_offset
            found = self._log.read(before, self._read_bytes, upper_bound=end, at_least_one=True)
            if not found.records:
                return
            view = memoryview(found.records)
            for position, header in iter_batches(view):
                for piece in self._pieces(header, view[position : position + header.size_in_bytes]):
                    yield piece
                    if len(piece.records) == SLICE_RECORDS:
                        await asyncio.sleep(0)
                        if not self._is_wanted():
                            return
                self._offset = header.next_offset
            if self._offset == before:
                raise corrupt(f"{self._partition} has no whole batch at offset {before}")
            if self._offset < self._log.log_end_offset:
                await asyncio.sleep(0)
                if not self._is_wanted():
                    return

    def _pieces(self, header: BatchHeader, batch: memoryview) -> Iterator[LoadedRecords]:
        piece: list[Record] = []
        try:
            check_crc(batch, 0, header)
            for record in iter_records(batch):
                piece.append(record)
                if len(piece) == SLICE_RECORDS:
                    yield LoadedRecords(header, piece)
                    piece = []
        except KafkaError as error:
            self.leave_out(header.base_offset, str(error))
        if piece or header.count == 0:
            yield LoadedRecords(header, piece)

    def leave_out(self, offset: int, reason: str) -> None:
        """Name and count what cannot be understood."""
        self.damaged += 1
        log.error("%s: left out what is at offset %d: %s", self._partition, offset, reason)
