"""When an append begins a new segment: by size, by time, because an index is full or an offset does not fit.

Checked before every append; an idle log never rolls. Record timestamps count where they exist: a batch dated far ahead
forces a roll; as the first batch of its segment, it then keeps that segment from rolling by time. This is Kafka's rule.
"""

from __future__ import annotations

from klamm.log.segments.log_segment import RELATIVE_OFFSET_MAX, LogSegment
from klamm.model.config import TopicConfig


def is_full(segment: LogSegment, config: TopicConfig, size: int, last_offset: int, *, pending: int = 0) -> bool:
    """No room for `size` more bytes up to `last_offset`, after `pending` bytes that are about to be written.

    The time index keeps one slot free for the entry that seals the segment.
    """
    filled = segment.size + pending
    return (
        (filled > 0 and filled + size > config.segment_bytes)
        or last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
        or segment.offset_index.is_full(config.segment_index_bytes)
        or segment.time_index.is_full(config.segment_index_bytes, spare=1)
    )


def is_old(segment: LogSegment, config: TopicConfig, max_timestamp: int, now_ms: int) -> bool:
    """More than segment.ms, less the segment's jitter, lies between its first append and this one."""
    if segment.size == 0:
        return False
    limit = config.segment_ms
    if "compact" in config.cleanup_policy:
        limit = min(limit, config.max_compaction_lag_ms)
    first = segment.first_timestamp
    if first is None or first < 0 or max_timestamp < 0:
        return now_ms - segment.created_ms > limit - segment.jitter_ms
    return max_timestamp - first > limit - segment.jitter_ms
