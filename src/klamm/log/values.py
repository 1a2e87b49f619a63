"""What a log answers, and what it asks of whoever keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from klamm.model.errors import KlammError
from klamm.model.ids import LeaderEpoch, ProducerId, TopicPartition

if TYPE_CHECKING:
    from klamm.log.log import Log


class AppendInfo(NamedTuple):
    first_offset: int
    last_offset: int
    max_timestamp: int
    """Of the appended batches (of the original batch for a duplicate); -1 when no record has a time."""
    log_append_time: int
    """The broker's time where the topic says LogAppendTime, else -1: what Produce answers."""
    log_start_offset: int
    duplicate: bool = False
    """Nothing was written: the offsets are those of the batch that a retry repeats. It still waits for the HW."""


class ReadResult(NamedTuple):
    records: bytes
    """Whole batches of one segment; the first one contains the asked offset (or is the next that exists)."""
    first_offset: int
    """Base offset of the first batch; the asked offset when there are no records."""
    next_offset: int
    """Offset after the last batch returned: where the next read goes on."""


class TimestampOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: LeaderEpoch | None


class AbortedTransaction(NamedTuple):
    producer_id: ProducerId
    first_offset: int


class UnexpectedAppendOffset(KlammError):
    """A follower got batches that do not continue its log: the fetcher of this partition is wrong, not the data."""

    def __init__(self, partition: TopicPartition, first_offset: int, log_end_offset: int) -> None:
        super().__init__(
            f"{partition}: batches from {first_offset} do not continue a log that ends at {log_end_offset}"
        )
        self.first_offset = first_offset


class LogOwner(Protocol):
    """Who keeps the log: told what must happen outside the append that caused it."""

    def flush_soon(self, log: Log) -> None: ...

    def flush_within(self, log: Log, delay_ms: int) -> None: ...

    def remove_later(self, paths: list[str], delay_ms: int) -> None: ...

    def truncating(self, log: Log, offset: int, *, recovery_point_lowered: bool) -> None:
        """Checkpoints must not promise what a truncation takes back: written before this returns."""

    def storage_failed(self, log: Log, error: OSError) -> None: ...
