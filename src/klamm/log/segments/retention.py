"""Which of a log's oldest segments retention deletes: by age, by size, or because they lie below the log start.

It deletes only whole segments from the front, below the high watermark, and stops at the first one that stays. An empty
active segment always stays. Age is that of the records: a record dated in the future keeps its segment and all after it
(Kafka does the same, and has `message.timestamp.difference.max.ms` against it).
"""

from __future__ import annotations

from typing import Final

from klamm.log.log import Log
from klamm.log.segments.log_segment import LogSegment

SEGMENTS_AT_ONCE: Final = 50
"""A log may have thousands. To judge one may read its index, and to delete one renames five files."""


def deletable_segments(log: Log, now_ms: int, most: int = SEGMENTS_AT_ONCE) -> int:
    """How many of the oldest segments are to be deleted now, at most `most`."""
    config = log.config
    by_policy = "delete" in config.cleanup_policy
    age_limit = config.retention_ms if by_policy else -1
    excess = log.size_bytes - config.retention_bytes if by_policy and config.retention_bytes >= 0 else 0
    count = 0
    for index, segment in enumerate(log.segments):
        end = _end_of(log, index)
        if end > log.high_watermark or (segment is log.segments.active and segment.size == 0):
            break
        too_old = age_limit >= 0 and now_ms - segment.retention_timestamp() > age_limit
        too_much = excess > 0 and excess >= segment.size
        before_start = segment is not log.segments.active and end <= log.log_start_offset
        if not (too_old or too_much or before_start):
            break
        excess -= segment.size
        count += 1
        if count == most:
            break
    return count


def _end_of(log: Log, index: int) -> int:
    following: LogSegment | None = log.segments[index + 1] if index + 1 < len(log.segments) else None
    return following.base_offset if following is not None else log.log_end_offset
