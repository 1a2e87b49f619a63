"""The recovery point of a log, below which everything survives a power cut, and the flush that moves it.

A flush is planned in the loop, carried out in the pool, and completed in the loop again. If the log was truncated in
between, the flush does not move the recovery point: what it wrote may describe batches that are gone.

Only one flush of a log runs at a time, so appends that wait for one share it: group commit. A flush of the active
segment syncs one file. Its indexes are synced when it is sealed: a recovery begins in the segment that holds the
recovery point, and rebuilds them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from klamm.log.leader_epochs import LeaderEpochCache
from klamm.log.producers.producer_snapshots import encode_snapshot
from klamm.log.producers.producer_state import ProducerEntry
from klamm.log.producers.producer_state_manager import ProducerStateManager
from klamm.log.segments.log_segment import LogSegment
from klamm.log.segments.log_segments import LogSegments
from klamm.log.storage_errors import SyncFailed
from klamm.model.ports import Disk


@dataclass(slots=True)
class FlushPlan:
    target: int
    generation: int
    lowered: int
    sealed: list[LogSegment]
    syncs: list[Callable[[], None]]
    snapshots: dict[int, tuple[str, list[ProducerEntry]]]
    epochs: bytes | None
    names: bool
    """Files were created since the last flush, and a file whose name is lost is lost."""


class Durability:
    def __init__(
        self,
        disk: Disk,
        directory: str,
        segments: LogSegments,
        producers: ProducerStateManager,
        epochs: LeaderEpochCache,
        recovery_point: int,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._segments = segments
        self._producers = producers
        self._epochs = epochs
        self.recovery_point = recovery_point
        self.generation = 0
        """The number of truncations."""
        self._lowered = 0
        """How often the recovery point was lowered."""
        self.turn = asyncio.Lock()
        """Held by the flush that is running."""
        self._sealed: list[LogSegment] = []
        """Their indexes are not durable yet."""
        self._names_changed = True
        self._is_closed = False

    @property
    def recovery_begins(self) -> int:
        """For the checkpoint: an offset in the first segment whose indexes may not be durable, if the recovery point
        lies above that segment. Recovery begins in the segment that holds the offset."""
        if self._is_closed:
            return self.recovery_point
        first = self._sealed[0] if self._sealed else self._segments.active
        return min(self.recovery_point, max(first.base_offset, self.recovery_point - 1))

    def rolled(self, sealed: LogSegment) -> None:
        self._sealed.append(sealed)
        self._names_changed = True

    def deleted(self, segments: Sequence[LogSegment]) -> None:
        """Their files are gone: the next flush must not open them."""
        self._sealed = [segment for segment in self._sealed if segment not in segments]

    def lower(self, offset: int) -> bool:
        """True if the recovery point was above `offset`. A flush that is running does not raise it again."""
        lowered = self.recovery_point > offset
        if lowered:
            self.recovery_point = offset
            self._lowered += 1
        return lowered

    def truncating(self, offset: int) -> bool:
        """The log is about to be truncated to `offset`. True if that lowers the recovery point."""
        self.generation += 1
        self._sealed = [segment for segment in self._sealed if segment.base_offset <= offset]
        self._names_changed = True
        return self.lower(offset)

    def plan(self, log_end_offset: int) -> FlushPlan:
        sealed = list(self._sealed)
        for segment in sealed:
            segment.write_out()
        syncs = [sync for segment in sealed for sync in segment.syncs()]
        if self.recovery_point < log_end_offset:
            syncs.append(self._segments.active.log_sync())
        plan = FlushPlan(
            target=log_end_offset,
            generation=self.generation,
            lowered=self._lowered,
            sealed=sealed,
            syncs=syncs,
            snapshots=self._producers.pending(),
            epochs=self._epochs.encode() if self._epochs.dirty else None,
            names=self._names_changed,
        )
        self._epochs.dirty = False
        self._names_changed = False
        return plan

    def carry_out(self, plan: FlushPlan) -> None:
        for sync in plan.syncs:
            try:
                sync()
            except OSError as error:
                raise SyncFailed(error.errno, f"sync: {error.strerror}") from error
        if plan.epochs is not None:
            self._disk.write_atomically(self._epochs.path, plan.epochs)
        for path, entries in plan.snapshots.values():
            self._disk.write_atomically(path, encode_snapshot(entries))
        if plan.names:
            self._disk.sync_directory(self._directory)

    def close(self, log_end_offset: int) -> None:
        """The active segment is sealed. Afterwards everything is durable, indexes included. Runs in the pool."""
        self.rolled(self._segments.active)
        self.carry_out(self.plan(log_end_offset))
        self.recovery_point = log_end_offset
        self._is_closed = True

    def not_flushed(self, plan: FlushPlan) -> None:
        """The flush failed for want of room or descriptors: the next one repeats all of it."""
        self._epochs.dirty = self._epochs.dirty or plan.epochs is not None
        self._names_changed = self._names_changed or plan.names

    def flushed(self, plan: FlushPlan) -> None:
        for offset in plan.snapshots:
            self._producers.written(offset)
        self._sealed = [segment for segment in self._sealed if segment not in plan.sealed]
        for segment in plan.sealed:
            if segment is not self._segments.active:
                segment.close_files()
        if plan.generation != self.generation:
            self._producers.remove_above(self.recovery_point)
            self._epochs.dirty = True
            return
        if plan.lowered == self._lowered:
            self.recovery_point = max(self.recovery_point, plan.target)
        # Keep the snapshots from the segment in which a recovery would begin, and from the one before the active one.
        before_active = self._segments[max(len(self._segments) - 2, 0)].base_offset
        self._producers.remove_below(min(before_active, self._segments.at_or_below(self.recovery_point).base_offset))
