"""The producer state of a log with the snapshots by which a restart or a truncation gets back to it.

A snapshot is taken when a segment ends, kept as bytes, and written by the next flush, off the loop: a crash before that
costs a longer scan, nothing else. Snapshots that describe batches which were cut off go with them.
"""

from __future__ import annotations

from klamm.log.producers.producer_snapshots import ProducerSnapshots, encode_snapshot
from klamm.log.producers.producer_state import ProducerState
from klamm.log.recovery import rebuild_producers
from klamm.log.segments import Segments


class ProducerHistory:
    def __init__(self, state: ProducerState, snapshots: ProducerSnapshots) -> None:
        self.state = state
        self._snapshots = snapshots
        self._pending: dict[int, bytes] = {}
        self._newest = max(snapshots.offsets, default=-1)

    def take_snapshot(self) -> None:
        """Only if the state moved since the last one."""
        if self.state.end_offset > self._newest:
            self._newest = self.state.end_offset
            self._pending[self._newest] = encode_snapshot(self.state)

    def pending(self) -> dict[int, tuple[str, bytes]]:
        """Offset -> path and content of what has not been written."""
        return {offset: (self._snapshots.path(offset), data) for offset, data in self._pending.items()}

    def written(self, offset: int) -> None:
        self._pending.pop(offset, None)
        self._snapshots.added(offset)

    def remove_below(self, offset: int) -> None:
        self._snapshots.remove_below(offset)

    def remove_above(self, offset: int) -> None:
        self._pending = {at: data for at, data in self._pending.items() if at <= offset}
        self._snapshots.remove_above(offset)
        self._newest = max([*self._snapshots.offsets, *self._pending], default=-1)

    def return_to(self, target: int, segments: Segments, *, log_start_offset: int, now_ms: int) -> None:
        """The log was cut: the state as it was before `target`."""
        self.remove_above(target)
        self.state = rebuild_producers(
            segments, self._snapshots, log_start_offset=log_start_offset, target=target, now_ms=now_ms
        )

    def start_anew(self, offset: int) -> None:
        """The log is empty and begins at `offset`."""
        self.remove_above(-1)
        self.state = ProducerState()
        self.state.end_offset = offset
