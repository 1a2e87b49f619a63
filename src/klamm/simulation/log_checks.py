"""What must hold within one log, whatever happened to it: S13, and what its parts say about each other.

Batches are read as a client would read them. Leader epochs, producers and indexes repeat what is in the batches, so
each is compared with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from klamm.log.log import Log
from klamm.model.errors import KafkaError
from klamm.model.ids import TopicPartition
from klamm.simulation.invariants import Problem
from klamm.wire.batch import NO_SEQUENCE, has_valid_crc
from klamm.wire.records import iter_batches, read_header

READ_BYTES: Final = 1 << 20


def content_of(log: Log, end: int, start: int | None = None) -> list[bytes]:
    """The batches below `end`, from the start of the log or from the one that holds `start`."""
    found: list[bytes] = []
    at = log.log_start_offset if start is None else max(start, log.log_start_offset)
    while at < end:
        try:
            read = log.read(at, READ_BYTES, upper_bound=end, at_least_one=True)
        except KafkaError:
            break
        if not read.records:
            break
        view = memoryview(read.records)
        found += [bytes(view[p : p + header.size_in_bytes]) for p, header in iter_batches(view)]
        at = read.next_offset
    return found


def is_sound(name: TopicPartition, log: Log, batches: Sequence[bytes]) -> Problem:
    """`batches` are all of the log."""
    return (
        checksums_are_right(name, batches)
        or epochs_are_in_order(name, log, batches)
        or producers_are_those_of(name, log, batches)
        or offsets_are_found(name, log, batches)
        or offsets_are_ordered(name, log)
    )


def checksums_are_right(name: TopicPartition, batches: Sequence[bytes]) -> Problem:
    torn = [read_header(batch).base_offset for batch in batches if not has_valid_crc(batch, 0, read_header(batch))]
    return f"{name}: the batch at offset {torn[0]} is damaged" if torn else None


def epochs_are_in_order(name: TopicPartition, log: Log, batches: Sequence[bytes]) -> Problem:
    """The epochs of batches never fall, and the epoch cache says where each begins. A leader may have begun an epoch at
    the end."""
    begins: dict[int, int] = {}
    start = log.log_start_offset
    for batch in batches:
        header = read_header(batch)
        if begins and header.leader_epoch < max(begins):
            return f"{name}: epoch {header.leader_epoch} after {max(begins)} at offset {header.base_offset}"
        begins.setdefault(header.leader_epoch, max(header.base_offset, start))
    end = log.log_end_offset
    beyond = [entry for entry in log.epochs.entries if entry.start_offset > end]
    if beyond:
        return f"{name}: epoch {beyond[0].epoch} begins at {beyond[0].start_offset}, the log ends at {end}"
    known = {entry.epoch: entry.start_offset for entry in log.epochs.entries if entry.start_offset < end}
    return None if known == begins else f"{name}: the epoch cache has {known}, the batches have {begins}"


def producers_are_those_of(name: TopicPartition, log: Log, batches: Sequence[bytes]) -> Problem:
    """A retry is recognised by the last batch of its producer."""
    last: dict[int, tuple[int, int]] = {}
    for batch in batches:
        header = read_header(batch)
        if header.producer_id >= 0 and header.base_sequence != NO_SEQUENCE:
            last[header.producer_id] = (header.last_sequence, header.last_offset)
    start = log.log_start_offset
    known = {
        entry.producer_id: (entry.batches[-1].last_sequence, entry.batches[-1].last_offset)
        for entry in log.producers.entries()
        if entry.batches and entry.batches[-1].last_offset >= start
    }
    return None if known == last else f"{name}: the producers are {known}, those of the batches are {last}"


def offsets_are_found(name: TopicPartition, log: Log, batches: Sequence[bytes]) -> Problem:
    """A read from the last offset of a batch begins with that batch: the indexes lead there."""
    for batch in {*batches[-1:], *batches[len(batches) // 2 : len(batches) // 2 + 1]}:
        offset = read_header(batch).last_offset
        try:
            found = bytes(log.read(offset, 1, upper_bound=log.log_end_offset, at_least_one=True).records)
        except KafkaError as error:
            return f"{name}: offset {offset} cannot be read: {error}"
        if found != batch:
            return f"{name}: a read of offset {offset} finds another batch"
    return None


def offsets_are_ordered(name: TopicPartition, log: Log) -> Problem:
    start, high, end = log.log_start_offset, log.high_watermark, log.log_end_offset
    if start <= high <= end and log.recovery_point <= end:
        return None
    return f"{name}: log start {start}, high watermark {high}, recovery point {log.recovery_point}, log end {end}"
