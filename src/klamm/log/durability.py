"""The recovery point of a log, below which everything survives a power cut, and the flush that moves it.

A flush is planned in the loop, carried out in the pool, and completed in the loop again. If the log was truncated in
between, the flush does not move the recovery point: what it wrote may describe batches that are gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from klamm.log.leader_epochs import LeaderEpochCache
from klamm.log.producers.producer_state_manager import ProducerStateManager
from klamm.log.segments.log_segment import LogSegment
from klamm.log.segments.log_segments import LogSegments
from klamm.model.ports import Disk


@dataclass(slots=True)
class FlushPlan:
    target: int
    generation: int
    segments: list[LogSegment]
    syncs: list[Callable[[], None]]
    snapshots: dict[int, tuple[str, bytes]]
    epochs: bytes | None


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

    def truncating(self, offset: int) -> bool:
        """The log is about to be truncated to `offset`. True if that lowers the recovery point."""
        self.generation += 1
        lowered = self.recovery_point > offset
        self.recovery_point = min(self.recovery_point, offset)
        return lowered

    def plan(self, log_end_offset: int) -> FlushPlan:
        unflushed = self._unflushed(log_end_offset)
        for segment in unflushed:
            segment.write_out()
        epochs = self._epochs.encode() if self._epochs.dirty else None
        self._epochs.dirty = False
        return FlushPlan(
            target=log_end_offset,
            generation=self.generation,
            segments=unflushed,
            syncs=[sync for segment in unflushed for sync in segment.syncs()],
            snapshots=self._producers.pending(),
            epochs=epochs,
        )

    def _unflushed(self, log_end_offset: int) -> list[LogSegment]:
        """Segments from the recovery point on, and those sealed since then: they have a last index entry to write."""
        behind = self.recovery_point < log_end_offset
        found = self._segments.holding_or_after(self.recovery_point) if behind else []
        return found + [s for s in self._segments if s.has_unwritten_entries() and s not in found]

    def carry_out(self, plan: FlushPlan) -> None:
        for sync in plan.syncs:
            sync()
        if plan.epochs is not None:
            self._disk.write_atomically(self._epochs.path, plan.epochs)
        for path, data in plan.snapshots.values():
            self._disk.write_atomically(path, data)
        if plan.syncs:
            self._disk.sync_directory(self._directory)

    def flushed(self, plan: FlushPlan) -> None:
        for offset in plan.snapshots:
            self._producers.written(offset)
        if plan.generation != self.generation:
            self._producers.remove_above(self.recovery_point)
            self._epochs.dirty = True
            return
        self.recovery_point = max(self.recovery_point, plan.target)
        # Keep the snapshots from the segment in which a recovery would begin, and from the one before the active one.
        before_active = self._segments[max(len(self._segments) - 2, 0)].base_offset
        self._producers.remove_below(min(before_active, self._segments.at_or_below(self.recovery_point).base_offset))
        for segment in plan.segments:
            if segment is not self._segments.active:
                segment.close_files()
