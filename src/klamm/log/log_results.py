"""What a log returns from an append, a read and a search."""

from __future__ import annotations

from typing import NamedTuple

from klamm.model.errors import KlammError
from klamm.model.ids import LeaderEpoch, ProducerId, TopicPartition


class AppendInfo(NamedTuple):
    first_offset: int
    last_offset: int
    max_timestamp: int
    """Largest timestamp of the appended batches (for a duplicate: of the original batch); -1 if no record has one."""
    log_append_time: int
    """The broker's time if the topic uses LogAppendTime, else -1. Produce returns it."""
    log_start_offset: int
    duplicate: bool = False
    """A retry: nothing was written; the offsets are the original's. It still waits for the high watermark."""


class ReadResult(NamedTuple):
    records: bytes
    """Whole batches of one segment; the first one contains the requested offset, or is the next one that exists."""
    first_offset: int
    """Base offset of the first batch; the requested offset if there are no records."""
    next_offset: int
    """Offset after the last batch returned: the next read starts there."""


class TimestampOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: LeaderEpoch | None


class AbortedTransaction(NamedTuple):
    producer_id: ProducerId
    first_offset: int


class UnexpectedAppendOffset(KlammError):
    """A follower was given batches that do not continue its log: a bug in the fetcher, not bad data."""

    def __init__(self, partition: TopicPartition, first_offset: int, log_end_offset: int) -> None:
        super().__init__(
            f"{partition}: batches from offset {first_offset} do not continue a log that ends at {log_end_offset}"
        )
        self.first_offset = first_offset
