"""One partition's log: what may be appended, what may be read, and where its offsets stand.

The public interface first (bodies follow with the segments): appends and reads run in the event loop and end in the
page cache; `flush` and whatever else waits for the platter runs through `Disk.run`.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from klamm.model.ids import LeaderEpoch, ProducerId, TopicPartition
from klamm.model.ports import Buffer

if TYPE_CHECKING:
    from klamm.log.leader_epochs import LeaderEpochCache
    from klamm.model.config import TopicConfig


class AppendOrigin(Enum):
    """Who appends: a client may not write control batches, the transaction coordinator writes nothing else."""

    CLIENT = "client"
    COORDINATOR = "coordinator"


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


class Log:
    topic_partition: TopicPartition
    directory: str
    """Of this partition; its parent is the log directory."""
    config: TopicConfig
    """Replaceable at any time: size and time limits count from the next append."""
    epochs: LeaderEpochCache

    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def last_stable_offset(self) -> int: ...
    @property
    def first_unstable_offset(self) -> int | None: ...
    @property
    def recovery_point(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def failed(self) -> bool:
        """A file operation failed: every append and read raises KAFKA_STORAGE_ERROR from now on."""
        ...

    def append_as_leader(
        self, records: Buffer, leader_epoch: LeaderEpoch, *, origin: AppendOrigin = AppendOrigin.CLIENT
    ) -> AppendInfo: ...

    def append_as_follower(self, records: Buffer) -> AppendInfo: ...

    def read(self, offset: int, max_bytes: int, *, upper_bound: int, at_least_one: bool) -> ReadResult:
        """Batches wholly below `upper_bound` (LEO, HW or LSO), at most `max_bytes` of them, except that the first one
        comes whole whatever its size if `at_least_one`. Raises OFFSET_OUT_OF_RANGE outside [log start, LEO]."""
        ...

    def update_high_watermark(self, offset: int) -> bool:
        """Set, bounded to [log start, LEO]; may lower it (a follower). True if it changed."""
        ...

    def maybe_increment_high_watermark(self, offset: int) -> bool:
        """The leader's form: only ever raises it."""
        ...

    def truncate_to(self, offset: int) -> bool: ...

    def truncate_fully_and_start_at(self, offset: int) -> None: ...

    def offset_for_timestamp(self, timestamp: int, bound: int) -> TimestampOffset | None:
        """The first record at or after that time, if its offset is below `bound`."""
        ...

    def aborted_transactions(self, from_offset: int, to_offset: int) -> list[AbortedTransaction]: ...

    def advance_log_start(self, offset: int) -> bool:
        """Raise LSTART. Raises OFFSET_OUT_OF_RANGE above the HW."""
        ...

    def roll(self) -> None: ...

    async def flush(self) -> None: ...

    def close(self) -> None: ...
