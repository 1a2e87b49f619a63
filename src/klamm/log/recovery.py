"""Opens a partition directory: decides which files count, and which part of the log is intact after an unclean stop.

The steps of Kafka's Log.loadSegments (later LogLoader), including later fixes:
(a) read the leader epochs, from the batches if their file is garbled;
(b) finish `.swap` files, remove `.deleted` and unfinished `.cleaned` files;
(c) remove indexes without a log, split segments whose offsets overflow, rebuild missing indexes;
(d) without the clean-shutdown marker, read every segment from the recovery point on, batch by batch, and check the
    checksums: rebuild indexes, leader epochs, producer state and aborted transactions; the first bad byte ends the log,
    and later segments are removed;
(e) bring the producer state up to the end.
Batches in an old message format are reported and never cut off: they are valid data.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from klamm.log.compaction.swap import CLEANED_SUFFIX, SWAP_SUFFIX, finish_swaps
from klamm.log.files import create_empty
from klamm.log.leader_epochs import FILE_NAME as EPOCHS_FILE
from klamm.log.leader_epochs import LeaderEpochCache
from klamm.log.producers.producer_replay import apply_batch, complete_transaction, rebuild_state
from klamm.log.producers.producer_snapshots import ProducerSnapshots, encode_snapshot
from klamm.log.producers.producer_state import ProducerState
from klamm.log.segments.log_segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    RELATIVE_OFFSET_MAX,
    LogSegment,
    offset_in,
)
from klamm.log.segments.log_segments import LogSegments
from klamm.model.config import TopicConfig
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import LeaderEpoch
from klamm.model.ports import Buffer, Disk
from klamm.wire.batch import (
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    BatchHeader,
    has_valid_crc,
    read_header,
)

logger = logging.getLogger(__name__)

_READ_BYTES: Final = 1 << 20


@dataclass(slots=True)
class LoadedLog:
    """The content of a partition directory, consistent and ready for appends."""

    directory: str
    segments: LogSegments
    epochs: LeaderEpochCache
    snapshots: ProducerSnapshots
    producers: ProducerState
    log_start_offset: int
    log_end_offset: int
    recovery_point: int


def load_log(
    disk: Disk,
    directory: str,
    config: TopicConfig,
    *,
    log_start_offset: int,
    recovery_point: int,
    clean: bool,
    now_ms: int,
) -> LoadedLog:
    """Runs in the disk pool. `log_start_offset` and `recovery_point` come from the checkpoints of the log directory."""
    return _Loader(disk, directory, config, now_ms).load(log_start_offset, recovery_point, clean)


class _Loader:
    def __init__(self, disk: Disk, directory: str, config: TopicConfig, now_ms: int) -> None:
        self._disk = disk
        self._directory = directory
        self._config = config
        self._now_ms = now_ms
        self._segments = LogSegments()
        self._epochs = LeaderEpochCache(disk, f"{directory}/{EPOCHS_FILE}")
        self._snapshots = ProducerSnapshots(disk, directory)

    def load(self, log_start_offset: int, recovery_point: int, clean: bool) -> LoadedLog:
        epochs_are_known = self._load_epochs()
        finish_swaps(self._disk, self._directory)
        self._remove_leftovers()
        names = self._disk.list(self._directory)
        self._snapshots.load(names)
        self._open_segments(names)
        self._split_overflowed()
        if not epochs_are_known:
            self._rebuild_epochs()
        if clean:
            self._rebuild_damaged(log_start_offset)
        elif len(self._segments):
            self._recover_from(recovery_point, log_start_offset)
        end = self._segments.active.next_offset() if len(self._segments) else log_start_offset
        if end < log_start_offset:
            logger.warning(
                "%s ends at %d, before its log start %d: it starts empty there", self._directory, end, log_start_offset
            )
            self._drop(self._segments.take_first(len(self._segments)))
            end = log_start_offset
        if not len(self._segments):
            self._segments.add(self._new_segment(log_start_offset))
        return self._finish(max(log_start_offset, self._segments.first.base_offset), end)

    def _finish(self, log_start_offset: int, log_end_offset: int) -> LoadedLog:
        self._epochs.truncate_from_end(log_end_offset)
        self._restore_epochs(log_start_offset)
        self._epochs.truncate_from_start(log_start_offset)
        if self._epochs.dirty:
            self._epochs.write()
        self._segments.active.restore_tail()
        producers = self._producers_at(log_end_offset, log_start_offset)
        self._snapshots.remove_above(log_end_offset)
        self._snapshots.remove_below(log_start_offset)
        return LoadedLog(
            directory=self._directory,
            segments=self._segments,
            epochs=self._epochs,
            snapshots=self._snapshots,
            producers=producers,
            log_start_offset=log_start_offset,
            log_end_offset=log_end_offset,
            recovery_point=log_end_offset,
        )

    # --- files -------------------------------------------------------------------------------------------------------

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def _remove_leftovers(self) -> None:
        names = self._disk.list(self._directory)
        logs = {name.removesuffix(LOG_SUFFIX) for name in names if name.endswith(LOG_SUFFIX)}
        for name in names:
            transient = name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX)) and offset_in(name) is not None
            orphan = name.endswith(INDEX_SUFFIXES) and name.rpartition(".")[0] not in logs
            if transient or orphan:
                self._disk.remove(self._path(name))

    def _open_segments(self, names: list[str]) -> None:
        for name in names:
            base_offset = offset_in(name)
            if name.endswith(LOG_SUFFIX) and base_offset is not None:
                self._segments.add(self._segment(base_offset, self._disk.modified_ms(self._path(name))))

    def _segment(self, base_offset: int, created_ms: int) -> LogSegment:
        return LogSegment(
            self._disk,
            self._directory,
            base_offset,
            created_ms=created_ms,
            index_interval_bytes=self._config.index_interval_bytes,
        )

    def _new_segment(self, base_offset: int) -> LogSegment:
        segment = self._segment(base_offset, self._now_ms)
        segment.create()
        return segment

    def _drop(self, segments: list[LogSegment]) -> None:
        for segment in segments:
            for path in segment.rename_deleted():
                self._disk.remove(path)

    # --- offsets that do not fit into an index -----------------------------------------------------------------------

    def _split_overflowed(self) -> None:
        """Kafka before 1.1.1 and 2.0 could compact segments into one whose offsets do not fit into its indexes. The
        rest of such a segment is copied into one of its own, which has its final name before the copied part is cut
        off: a crash in between leaves both, and the next start repeats it."""
        for base in [segment.base_offset for segment in self._segments]:
            segment = self._segments.at_or_below(base)
            while (found := self._first_overflow(segment)) is not None:
                position, new_base = found
                logger.warning("%s overflows at offset %d: splitting it there", segment.log_path, new_base)
                segment = self._split(segment, position, new_base)

    def _first_overflow(self, segment: LogSegment) -> tuple[int, int] | None:
        following = [s.base_offset for s in self._segments.holding_or_after(segment.base_offset)[1:2]]
        try:
            end = following[0] if following else segment.next_offset()
            if end - segment.base_offset <= RELATIVE_OFFSET_MAX:
                return None
            for position, header in segment.headers(0):
                if header.last_offset - segment.base_offset > RELATIVE_OFFSET_MAX:
                    return position, header.base_offset
        except KafkaError:
            pass  # damaged: that is for the recovery to judge
        return None

    def _split(self, segment: LogSegment, position: int, base_offset: int) -> LogSegment:
        rest = self._segment(base_offset, segment.created_ms)
        temporary = rest.log_path + CLEANED_SUFFIX
        create_empty(self._disk, temporary)
        file = self._disk.open(temporary)
        try:
            for at in range(position, segment.size, _READ_BYTES):
                file.append([segment.pread(_READ_BYTES, at)])
            file.sync()
        finally:
            file.close()
        self._disk.rename(temporary, rest.log_path)
        self._disk.sync_directory(self._directory)
        segment.cut_at(position)
        segment.close_files()
        for path in segment.paths[1:]:
            if self._disk.exists(path):
                self._disk.remove(path)  # rebuilt without what was cut off
        cut = self._segment(segment.base_offset, segment.created_ms)
        self._segments.add(cut)
        self._segments.add(rest)
        return rest

    # --- leader epochs -----------------------------------------------------------------------------------------------

    def _load_epochs(self) -> bool:
        try:
            self._epochs.load()
            return True
        except KafkaError as error:
            logger.error("%s; reading the leader epochs from the batches", error.message)
            return False

    def _rebuild_epochs(self) -> None:
        """Epochs without a batch are lost, as in a recovery: nothing was replicated in them."""
        for segment in self._segments:
            try:
                for _, header in segment.headers(0):
                    self._note_epoch(header)
            except KafkaError:
                pass  # a recovery judges the damage; the next segment may be intact
            segment.close_files()

    def _restore_epochs(self, log_start_offset: int) -> None:
        """The epochs of deleted records are forgotten at once, but the new log start is written later. After a crash in
        between the records are back. Without their epochs this broker would tell a follower, which has other records
        there, that both logs agree up to the first epoch it knows."""
        known = self._epochs.entries
        if not known or known[0].start_offset <= log_start_offset:
            return
        self._epochs.clear()
        for segment in self._segments.between(log_start_offset, known[0].start_offset):
            try:
                for _, header in segment.headers(segment.position_of(log_start_offset)):
                    if header.base_offset >= known[0].start_offset:
                        break
                    self._note_epoch(header)
            except KafkaError:
                pass  # `_rebuild_indexes` judges the damage
            segment.close_files()
        for entry in known:
            self._epochs.assign(entry.epoch, entry.start_offset)

    def _note_epoch(self, header: BatchHeader) -> None:
        latest = self._epochs.latest_epoch
        if latest is None or header.leader_epoch > latest:
            self._epochs.assign(LeaderEpoch(header.leader_epoch), header.base_offset)

    # --- recovery ----------------------------------------------------------------------------------------------------

    def _rebuild_damaged(self, log_start_offset: int) -> None:
        """After a clean stop: rebuild what is visibly damaged; recover the last segment if its end cannot be found."""
        self._rebuild_indexes(log_start_offset)
        if len(self._segments) and self._segments.active.is_damaged():
            logger.warning("%s: indexes and log do not match, recovering it", self._segments.active.log_path)
            self._recover(self._segments.active, log_start_offset)

    def _recover_from(self, recovery_point: int, log_start_offset: int) -> None:
        end = 0
        for segment in self._segments.holding_or_after(recovery_point):
            if segment.base_offset < end:
                self._drop_stale(segment, end)
                break
            if not self._recover(segment, log_start_offset):
                break
            end = segment.next_offset()
        self._rebuild_indexes(log_start_offset)
        self._disk.sync_directory(self._directory)

    def _drop_stale(self, segment: LogSegment, end: int) -> None:
        """A power cut undid a part of a truncation: either the removal of this segment, or the cut of the one before.
        Nothing here was flushed since then, or both would be on disk."""
        stale = self._segments.take_above(segment.base_offset - 1)
        logger.warning(
            "%s begins before offset %d, where the segment before it ends: removed it, and %d later segments",
            segment.log_path,
            end,
            len(stale) - 1,
        )
        self._drop(stale)

    def _rebuild_indexes(self, log_start_offset: int) -> None:
        """Rebuild missing indexes. Damage in the middle of a log is not a torn tail: truncating there would drop
        acknowledged records, so the partition stays offline on this broker and other replicas serve it."""
        for segment in [segment for segment in self._segments if segment.lacks_indexes()]:
            logger.warning("%s: indexes are missing or damaged, rebuilding them", segment.log_path)
            state = self._producers_at(segment.base_offset, log_start_offset)
            valid = self._replay_segment(segment, state)
            if valid < segment.size and segment is not self._segments.active:
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    f"{segment.log_path} is damaged at position {valid} of {segment.size}",
                )
            segment.close_files()

    def _recover(self, segment: LogSegment, log_start_offset: int) -> bool:
        """True if the whole segment is intact; otherwise it was truncated and the later segments were removed."""
        base = segment.base_offset
        state = self._producers_at(base, log_start_offset)
        self._snapshots.remove_above(base)
        self._epochs.truncate_from_end(base)  # the batches restore them; an entry without a batch was never replicated
        valid = self._replay_segment(segment, state)
        lost = segment.size - valid
        if lost:
            later = self._segments.take_above(base)
            segment.cut_at(valid)
            self._drop(later)
            text = "%s: removed %d bytes from offset %d on, and %d later segments"
            logger.warning(text, segment.log_path, lost, segment.next_offset(), len(later))
        for sync in segment.syncs():
            sync()
        if self._epochs.dirty:
            self._epochs.write()
        self._snapshots.write(state.end_offset, encode_snapshot(state.entries()))
        segment.close_files()
        return not lost

    def _producers_at(self, target: int, log_start_offset: int) -> ProducerState:
        return rebuild_state(
            self._segments,
            self._snapshots,
            log_start_offset=min(log_start_offset, target),
            target=target,
            now_ms=self._now_ms,
        )

    def _replay_segment(self, segment: LogSegment, state: ProducerState) -> int:
        """Rebuild indexes, epochs and producer state from the intact batches; returns the position where these end."""
        segment.reset()
        valid = 0
        for position, header, batch in _intact_batches(segment):
            self._replay(segment, position, header, batch, state)
            valid = position + header.size_in_bytes
        segment.seal()
        segment.write_out()
        return valid

    def _replay(
        self, segment: LogSegment, position: int, header: BatchHeader, batch: Buffer, state: ProducerState
    ) -> None:
        self._note_epoch(header)
        segment.note(position, header)
        completed = apply_batch(header, batch, state, self._now_ms)
        if completed is not None:
            complete_transaction(segment, state, completed)


def _intact_batches(segment: LogSegment) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """The batches from the start, up to the first with an impossible length, a wrong checksum or a falling offset.

    Raises UNSUPPORTED_FOR_MESSAGE_FORMAT for formats 0 and 1.
    """
    size, position, next_offset = segment.size, 0, segment.base_offset
    chunk, chunk_at = b"", 0
    while size - position >= HEADER_BYTES:
        if position + HEADER_BYTES > chunk_at + len(chunk):
            chunk, chunk_at = segment.pread(_READ_BYTES, position), position
        try:
            header = read_header(chunk, position - chunk_at)
        except KafkaError as error:
            if _is_old_format(chunk[position - chunk_at :]):
                raise error
            return
        if position + header.size_in_bytes > size:
            return
        if position + header.size_in_bytes > chunk_at + len(chunk):
            chunk, chunk_at = segment.pread(max(_READ_BYTES, header.size_in_bytes), position), position
        in_range = next_offset <= header.base_offset and header.last_offset_delta >= 0
        if not in_range or header.last_offset - segment.base_offset > RELATIVE_OFFSET_MAX:
            return
        if not has_valid_crc(chunk, position - chunk_at, header):
            return
        start = position - chunk_at
        yield position, header, memoryview(chunk)[start : start + header.size_in_bytes]
        position += header.size_in_bytes
        next_offset = header.next_offset


def _is_old_format(data: bytes) -> bool:
    """True for a whole message of format 0 or 1 with a valid checksum. Zeros, left by a power cut, do not count."""
    size = int.from_bytes(data[8:LOG_OVERHEAD_BYTES], "big", signed=True) + LOG_OVERHEAD_BYTES
    if data[MAGIC_POSITION] not in (0, 1) or not MAGIC_POSITION < size <= len(data):
        return False
    return zlib.crc32(data[MAGIC_POSITION:size]) == int.from_bytes(data[LOG_OVERHEAD_BYTES:MAGIC_POSITION], "big")
