"""Is it still the log that was ingested? Decided by records whose checksums the table remembers.

Log start and log end do not show that a topic was recreated, or truncated by an unclean election, once it has grown
past the table's position. The checksum of the batch that holds the newest ingested record does: batches are cut anew in
every log. Compaction rewrites batches, so the record itself is compared too.

The first ingested record tells both cases apart: a truncated log still begins as it did, a recreated one does not. If
retention has removed that record, the leader epochs decide: an epoch that ends below the position was cut there.

Pure: `kafka_topic` reads the log.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from klamm.pipelines.lake_state import Anchor, IngestState
from klamm.pipelines.offset_kinds import LogBounds

UNKNOWN = -1
_LENGTH = struct.Struct(">q")


def record_crc(timestamp: int, key: bytes | None, value: bytes | None) -> int:
    """Checksum of what a record says; lengths keep key and value apart, and null from empty."""
    parts = (_LENGTH.pack(timestamp), _sized(key), _sized(value))
    return zlib.crc32(b"".join(parts))


def _sized(data: bytes | None) -> bytes:
    return _LENGTH.pack(UNKNOWN) if data is None else _LENGTH.pack(len(data)) + data


class EpochEnd(NamedTuple):
    """The answer to OffsetForLeaderEpoch: the largest epoch up to the one asked for, and where it ends."""

    epoch: int
    end: int


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What the log of one partition shows now."""

    bounds: LogBounds
    at_anchor: Anchor | None = None
    """The record at the anchor's offset; None if there is none."""
    at_origin: Anchor | None = None
    epoch_end: EpochEnd | None = None
    compacted: bool = False


class LogChange(StrEnum):
    EXPIRED = "expired"
    RECREATED = "recreated"
    TRUNCATED = "truncated"
    HEAD_MISSING = "head-missing"


@dataclass(frozen=True, slots=True)
class NotTheSameLog:
    partition: int
    change: LogChange
    detail: str

    @property
    def is_new_log(self) -> bool:
        """Another log, which may be ingested as a new incarnation. Expired records are just lost."""
        return self.change in (LogChange.RECREATED, LogChange.TRUNCATED)


def is_same(known: Anchor, found: Anchor | None) -> bool:
    """By the batch, or by the record if compaction rewrote the batch."""
    if found is None:
        return False
    return UNKNOWN != known.batch_crc == found.batch_crc or known.record_crc == found.record_crc


def compare_log(
    state: IngestState, facts: Mapping[int, LogFacts], partitions: Collection[int] | None = None
) -> list[NotTheSameLog]:
    """Each partition, of these or all, whose log is not the one that was ingested or does not join the table."""
    found = []
    for partition, end in sorted(state.ends.items()):
        if partitions is not None and partition not in partitions:
            continue
        change = _compare(partition, end, state.anchors.get(partition), state.origins.get(partition), facts)
        if change is not None:
            found.append(change)
    if state.ends:
        found += [
            NotTheSameLog(
                partition,
                LogChange.HEAD_MISSING,
                f"offsets 0..{log.bounds.start - 1} are lost: the partition is new, "
                f"but its log already starts at {log.bounds.start}",
            )
            for partition, log in sorted(facts.items())
            if partition not in state.ends and log.bounds.start > 0
        ]
    return found


def _compare(
    partition: int, end: int, anchor: Anchor | None, origin: Anchor | None, facts: Mapping[int, LogFacts]
) -> NotTheSameLog | None:
    log = facts.get(partition)
    if log is None:
        return NotTheSameLog(
            partition, LogChange.RECREATED, f"the partition does not exist any more, but the table has it up to {end}"
        )
    start, log_end = log.bounds
    if log_end < end:
        return _changed(partition, end, anchor, origin, log, f"the log ends at {log_end}, but the table ends at {end}")
    if start > end:
        return NotTheSameLog(
            partition,
            LogChange.EXPIRED,
            f"offsets {end}..{start - 1} are lost: the log starts at {start}, but the table ends at {end} "
            "(because of retention or DeleteRecords)",
        )
    if anchor is None or anchor.offset < start or is_same(anchor, log.at_anchor):
        return None
    if log.at_anchor is None and log.compacted and not _is_cut(anchor, log):
        return None  # compaction removed the record
    told = "another record is" if log.at_anchor else "no record is"
    return _changed(
        partition, end, anchor, origin, log, f"{told} at offset {anchor.offset}, the last one that was ingested"
    )


def _is_cut(anchor: Anchor, log: LogFacts) -> bool:
    """An epoch that was ingested ends below the position, or is not known any more."""
    answer = log.epoch_end
    return (
        answer is not None
        and anchor.leader_epoch != UNKNOWN
        and (answer.epoch < anchor.leader_epoch or answer.end < anchor.offset + 1)
    )


def _changed(
    partition: int, end: int, anchor: Anchor | None, origin: Anchor | None, log: LogFacts, detail: str
) -> NotTheSameLog:
    if origin is not None and log.bounds.start <= origin.offset < log.bounds.end and log.at_origin is not None:
        truncated = is_same(origin, log.at_origin)
    else:
        truncated = anchor is not None and _is_cut(anchor, log)
    if truncated:
        where = f" at {log.epoch_end.end}" if log.epoch_end is not None and 0 <= log.epoch_end.end < end else ""
        return NotTheSameLog(partition, LogChange.TRUNCATED, f"{detail}: the log was truncated{where}")
    return NotTheSameLog(partition, LogChange.RECREATED, f"{detail}: the topic was recreated")
