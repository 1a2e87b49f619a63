"""What of a log survives a power cut: its recovery point, and the flush that moves it.

A flush is planned in the loop, carried out in the pool, and counted in the loop again. A truncation in between makes it
promise nothing: what it wrote may describe batches that are gone.
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
        """Counts truncations."""

    def truncating(self, offset: int) -> bool:
        """The log is about to be truncated. True if the recovery point had to be lowered."""
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
        """From the recovery point on; a segment sealed since has a last index entry even if its batches are safe."""
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
        # Kept: from the segment that a recovery would begin in, and from the one before the active one.
        before_active = self._segments[max(len(self._segments) - 2, 0)].base_offset
        self._producers.remove_below(min(before_active, self._segments.at_or_below(self.recovery_point).base_offset))
        for segment in plan.segments:
            if segment is not self._segments.active:
                segment.close_files()
