"""Reads the log of an internal topic from its start to its end, in slices that let the loop go on.

It reads to the log end, not to the high watermark: what this leader holds will be committed or was already. Nothing of
it may be shown or acted on before it is replicated, and `wait_until_replicated` waits for that: a decision that only
this broker has is lost with it. A batch that is damaged but whole is named and left out, because one bad record must
not take the state of others with it. If the log itself cannot be read, KafkaError ends the load.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final, NamedTuple

from klamm.broker.replica_manager import ReplicaManager
from klamm.log.log import Log
from klamm.model.errors import KafkaError
from klamm.model.ids import TopicPartition
from klamm.wire.batch import BatchHeader, check_crc, corrupt, iter_batches
from klamm.wire.records import Record, iter_records

SLICE_BYTES: Final = 32 << 10
SLICE_RECORDS: Final = 300
"""Decoded between two turns of the loop: a few milliseconds."""
LOOK_AGAIN_S: Final = 10.0

log = logging.getLogger(__name__)


async def wait_until_replicated(
    replicas: ReplicaManager, name: TopicPartition, end: int, is_wanted: Callable[[], bool]
) -> None:
    """Wait until all replicas in sync have everything below `end`, or until the load is no longer wanted."""

    def is_over(_: TopicPartition | None) -> bool:
        held = replicas.partitions.get(name)  # asked anew: the log may move to another directory meanwhile
        is_replicated = held is not None and held.log is not None and held.log.high_watermark >= end
        return is_replicated or not is_wanted()

    while not await replicas.waiting_produces.wait([name], is_over, LOOK_AGAIN_S):
        log.info("%s is read up to offset %d, which its followers do not have yet", name, end)


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

    @property
    def position(self) -> int:
        """Everything below was read."""
        return self._offset

    def _end(self, committed: bool) -> int:
        return self._log.high_watermark if committed else self._log.log_end_offset

    async def read(self, *, committed: bool = False) -> AsyncIterator[LoadedRecords]:
        """Ends at the log end as it is then, or at the high watermark, or when the load is no longer wanted. After the
        last piece it does not wait, so the caller sees everything. A second call reads what was added since."""
        while self._offset < self._end(committed):
            before, end = self._offset, self._end(committed)
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
            if self._offset < self._end(committed):
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
