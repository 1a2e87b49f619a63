"""Decides which log is cleaned next, and from which offset to which: the rules of Kafka's LogCleanerManager.

A log is clean up to its checkpoint. The dirty part can be cleaned up to the first segment that holds the last stable
offset (KAFKA-13194: never above the high watermark) or a record younger than min.compaction.lag.ms, or that is active.
klamm also stops at the recovery point: a recovery restores leader epochs from the batches, and a cleaning removes
batches.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from klamm.log.log import Log
from klamm.model.settings import LONG_MAX


class Cleanable(NamedTuple):
    log: Log
    first_dirty: int
    first_uncleanable: int
    """Base offset of a segment; `first_dirty` if nothing can be cleaned."""
    clean_bytes: int
    cleanable_bytes: int
    overdue_ms: int
    """By how much max.compaction.lag.ms is exceeded."""

    @property
    def ratio(self) -> float:
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    @property
    def is_due(self) -> bool:
        overdue = self.overdue_ms > 0 and self.cleanable_bytes > 0
        return overdue or self.ratio > self.log.config.min_cleanable_dirty_ratio


def is_compacted(log: Log) -> bool:
    return "compact" in log.config.cleanup_policy


def filthiest(found: Iterable[Cleanable]) -> Cleanable | None:
    return max((cleanable for cleanable in found if cleanable.is_due), key=lambda due: due.ratio, default=None)


def cleanable(log: Log, checkpoint: int | None, now_ms: int) -> Cleanable:
    first_dirty = _first_dirty(log, checkpoint)
    uncleanable = max(first_dirty, _first_uncleanable(log, first_dirty, now_ms))
    segments = log.segments
    first_uncleanable = segments.at_or_below(min(uncleanable, segments.active.base_offset)).base_offset
    return Cleanable(
        log,
        first_dirty,
        first_uncleanable,
        clean_bytes=sum(segment.size for segment in segments.between(0, first_dirty)),
        cleanable_bytes=sum(segment.size for segment in segments.between(first_dirty, first_uncleanable)),
        overdue_ms=_overdue_ms(log, first_dirty, now_ms),
    )


def _first_dirty(log: Log, checkpoint: int | None) -> int:
    """The checkpoint; the log start if the log has shrunk since and no longer holds the checkpoint (KAFKA-6266)."""
    if checkpoint is None or not log.log_start_offset <= checkpoint <= log.log_end_offset:
        return log.log_start_offset
    return checkpoint


def _first_uncleanable(log: Log, first_dirty: int, now_ms: int) -> int:
    active = log.segments.active.base_offset
    bound = min(log.last_stable_offset, log.recovery_begins, active)
    lag_ms = log.config.min_compaction_lag_ms
    if lag_ms > 0:
        for segment in log.segments.between(first_dirty, active):
            if segment.retention_timestamp() > now_ms - lag_ms:
                return min(bound, segment.base_offset)
    return bound


def _overdue_ms(log: Log, first_dirty: int, now_ms: int) -> int:
    lag_ms = log.config.max_compaction_lag_ms
    if lag_ms == LONG_MAX:
        return 0
    dirty = log.segments.between(first_dirty, log.segments.active.base_offset)
    times = [time for segment in dirty if (time := segment.first_timestamp) is not None and time > 0]
    return max(0, now_ms - lag_ms - min(times)) if times else 0
