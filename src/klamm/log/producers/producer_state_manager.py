"""The producer state of a log, what a leader checks against it, and the snapshots that a restart or truncation uses.

Kafka's ProducerStateManager. A snapshot is taken when a segment ends, and encoded and written by the next flush, off
the loop: a crash before that costs a longer scan, nothing else. A truncation removes snapshots of what it removes.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from klamm.log.producers.producer_replay import rebuild_in_slices, rebuild_state
from klamm.log.producers.producer_snapshots import ProducerSnapshots
from klamm.log.producers.producer_state import ProducedBatch, ProducerEntry, ProducerState
from klamm.log.segments.log_segments import LogSegments
from klamm.log.validation import AppendOrigin
from klamm.model.errors import ErrorCode, KafkaError
from klamm.wire.batch import BatchHeader
from klamm.wire.records import read_end_transaction_marker


class ProducerStateManager:
    def __init__(self, state: ProducerState, snapshots: ProducerSnapshots) -> None:
        self.state = state
        self._snapshots = snapshots
        self._pending: dict[int, list[ProducerEntry]] = {}
        self._newest = max(snapshots.offsets, default=-1)

    def check(
        self, records: memoryview, batches: Sequence[tuple[int, BatchHeader]], origin: AppendOrigin
    ) -> ProducedBatch | None:
        """The batch that a retry repeats, or None for new batches. Raises KafkaError to refuse them."""
        position, header = batches[0]
        if len(batches) > 1 and any(header.has_producer_id for _, header in batches):
            raise KafkaError(ErrorCode.INVALID_RECORD, "more than one batch with a producer id")
        if not header.has_producer_id:
            return None
        if header.is_control:
            self.state.check_marker(header, read_end_transaction_marker(records[position:]))
        elif origin is AppendOrigin.COORDINATOR:
            self.state.check_coordinator_batch(header)
        else:
            duplicate = self.state.duplicate_of(header)
            if duplicate is not None:
                return duplicate
            self.state.check(header)
        return None

    def take_snapshot(self) -> None:
        """Only if the state changed since the last one."""
        if self.state.end_offset > self._newest:
            self._newest = self.state.end_offset
            self._pending[self._newest] = self.state.frozen()

    def pending(self) -> dict[int, tuple[str, list[ProducerEntry]]]:
        """Snapshots not written yet: offset -> (path, entries)."""
        return {offset: (self._snapshots.path(offset), entries) for offset, entries in self._pending.items()}

    def written(self, offset: int) -> None:
        self._pending.pop(offset, None)
        self._snapshots.added(offset)

    def remove_below(self, offset: int) -> None:
        self._snapshots.remove_below(offset)

    def remove_above(self, offset: int) -> None:
        self._pending = {at: entries for at, entries in self._pending.items() if at <= offset}
        self._snapshots.remove_above(offset)
        self._newest = max([*self._snapshots.offsets, *self._pending], default=-1)

    def rewind_in_slices(
        self, offset: int, segments: LogSegments, *, log_start_offset: int, now_ms: int
    ) -> Generator[None, None, ProducerState | None]:
        """The state before `offset`, for a later truncation to it. None if that has nothing to go back to; reading a
        segment of a gigabyte for it takes seconds."""
        if not len(self.state):
            return None
        return (
            yield from rebuild_in_slices(
                segments, self._snapshots, log_start_offset=log_start_offset, target=offset, now_ms=now_ms
            )
        )

    def truncate_to(
        self, offset: int, segments: LogSegments, rewound: ProducerState | None, *, log_start_offset: int, now_ms: int
    ) -> None:
        """The log was truncated: go back to the state before `offset`. It is read from the log unless it is given."""
        self.remove_above(offset)
        if not len(self.state):
            self.reset_state(offset)
            return
        if rewound is None:
            rewound = rebuild_state(
                segments, self._snapshots, log_start_offset=log_start_offset, target=offset, now_ms=now_ms
            )
        self.state = rewound

    def reset_to(self, offset: int) -> None:
        """The log is empty and begins at `offset`."""
        self.remove_above(-1)
        self.reset_state(offset)

    def reset_state(self, offset: int) -> None:
        self.state = ProducerState()
        self.state.end_offset = offset
