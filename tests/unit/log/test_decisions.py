"""The decisions of the log as tables, at and around each limit: when a segment ends or goes, what a leader refuses,
what a truncation or a search finds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from klamm.log.directories.log_directory import NAME_MAX, future_name, parse_name
from klamm.log.directories.topic_lives import TopicLife, may_belong
from klamm.log.indexes.offset_index import OffsetIndex
from klamm.log.indexes.time_index import TimeIndex
from klamm.log.indexes.transaction_index import AbortedEntry, TransactionIndex
from klamm.log.log import Log
from klamm.log.segments.log_segment import RELATIVE_OFFSET_MAX
from klamm.log.segments.retention import deletable_segments
from klamm.log.segments.rolling import is_full, is_old
from klamm.log.storage_errors import SyncFailed, is_passing
from klamm.log.validation import STAGED_BYTES_MIN, AppendOrigin, Prepared, PreparedAppend
from klamm.model.config import TopicConfig
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import LeaderEpoch, ProducerId, TopicPartition
from klamm.wire.batch import HEADER_BYTES, iter_batches, pack_batch, read_header
from klamm.wire.records import ControlType, Record, build_batch

from .conftest import Workbench, append, batch, marker, produced, read_all
from .simulated import new_disk

EPOCH = LeaderEpoch(0)


def refused(log: Log, records: bytes, code: ErrorCode, origin: AppendOrigin = AppendOrigin.CLIENT) -> None:
    end = log.log_end_offset
    with pytest.raises(KafkaError) as caught:
        log.append_as_leader(records, EPOCH, origin=origin)
    assert caught.value.code is code
    assert log.log_end_offset == end


# --- when a segment ends ---------------------------------------------------------------------------------------------


def index(entries: int) -> Any:
    return SimpleNamespace(is_full=lambda size, spare=0: entries + spare >= size // 8)


def segment(**values: Any) -> Any:
    given = {"size": 100, "base_offset": 0, "first_timestamp": 1000, "created_ms": 500, "jitter_ms": 0}
    return SimpleNamespace(**{**given, "offset_index": index(0), "time_index": index(0), **values})


@pytest.mark.parametrize(
    ("values", "size", "last_offset", "pending", "expected"),
    [
        ({}, 900, 0, 0, False),
        ({}, 901, 0, 0, True),
        ({}, 800, 0, 100, False),
        ({}, 801, 0, 100, True),
        ({"size": 0}, 5000, 0, 0, False),  # an empty segment takes any batch
        ({"size": 0}, 901, 0, 100, True),  # but not behind another one
        ({}, 1, RELATIVE_OFFSET_MAX, 0, False),
        ({}, 1, RELATIVE_OFFSET_MAX + 1, 0, True),
        ({"base_offset": 7}, 1, RELATIVE_OFFSET_MAX + 7, 0, False),
        ({"base_offset": 7}, 1, RELATIVE_OFFSET_MAX + 8, 0, True),
        ({"offset_index": index(9)}, 1, 0, 0, False),
        ({"offset_index": index(10)}, 1, 0, 0, True),
        ({"time_index": index(8)}, 1, 0, 0, False),
        ({"time_index": index(9)}, 1, 0, 0, True),  # one slot is kept for the entry that seals the segment
    ],
)
def test_when_a_segment_is_full(
    values: dict[str, Any], size: int, last_offset: int, pending: int, expected: bool
) -> None:
    config = TopicConfig(segment_bytes=1000, segment_index_bytes=80)
    assert is_full(segment(**values), config, size, last_offset, pending=pending) is expected


@pytest.mark.parametrize(
    ("values", "policy", "max_timestamp", "now_ms", "expected"),
    [
        ({}, "delete", 1100, 9999, False),
        ({}, "delete", 1101, 0, True),
        ({"jitter_ms": 10}, "delete", 1090, 0, False),
        ({"jitter_ms": 10}, "delete", 1091, 0, True),
        ({"size": 0}, "delete", 9999, 9999, False),
        ({}, "delete", -1, 600, False),  # without timestamps the age of the file counts
        ({}, "delete", -1, 601, True),
        ({"first_timestamp": None}, "delete", 9999, 600, False),
        ({"first_timestamp": None}, "delete", 0, 601, True),
        ({"first_timestamp": -1}, "delete", 9999, 600, False),
        ({"first_timestamp": 0, "created_ms": 9999}, "delete", 101, 0, True),
        ({"jitter_ms": 10, "first_timestamp": -1}, "delete", -1, 590, False),
        ({"jitter_ms": 10, "first_timestamp": -1}, "delete", -1, 591, True),
        ({}, "compact", 1050, 0, False),
        ({}, "compact", 1051, 0, True),  # max.compaction.lag.ms is the smaller one
    ],
)
def test_when_a_segment_is_old(
    values: dict[str, Any], policy: str, max_timestamp: int, now_ms: int, expected: bool
) -> None:
    config = TopicConfig(segment_ms=100, max_compaction_lag_ms=50, cleanup_policy=(policy,))
    assert is_old(segment(**values), config, max_timestamp, now_ms) is expected


# --- which segments go -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "high_watermark", "start", "expected"),
    [
        ({"retention_ms": 49}, 6, 0, 3),  # the segments are 70, 60 and 50 ms old
        ({"retention_ms": 50}, 6, 0, 2),
        ({"retention_ms": 59}, 6, 0, 2),
        ({"retention_ms": 60}, 6, 0, 1),
        ({"retention_ms": 0}, 4, 0, 2),
        ({"retention_ms": 0}, 3, 0, 1),  # the high watermark is inside the second one
        ({"retention_ms": -1, "retention_bytes": 0}, 6, 0, 3),
        ({"retention_ms": -1, "retention_bytes": 1}, 6, 0, 2),
        ({"retention_ms": -1, "retention_bytes": 100}, 6, 0, 2),
        ({"retention_ms": -1, "retention_bytes": 101}, 6, 0, 1),
        ({"retention_ms": -1, "retention_bytes": 200}, 6, 0, 1),
        ({"retention_ms": -1, "retention_bytes": 201}, 6, 0, 0),
        ({"retention_ms": -1}, 6, 1, 0),
        ({"retention_ms": -1}, 6, 2, 1),
        ({"retention_ms": -1}, 6, 5, 2),
        ({"retention_ms": -1}, 6, 6, 2),  # the active one stays
        ({"retention_ms": 0, "cleanup_policy": ("compact",)}, 6, 2, 1),
        ({"retention_bytes": 0, "cleanup_policy": ("compact",)}, 6, 0, 0),
        ({"retention_ms": 0, "cleanup_policy": ("compact", "delete")}, 6, 0, 3),
    ],
)
def test_which_segments_retention_deletes(
    config: dict[str, Any], high_watermark: int, start: int, expected: int
) -> None:
    class Segments(list[Any]):
        @property
        def active(self) -> Any:
            return self[-1]

    def old(base_offset: int, timestamp: int) -> Any:
        return SimpleNamespace(base_offset=base_offset, size=100, retention_timestamp=lambda: timestamp)

    log: Any = SimpleNamespace(
        config=TopicConfig(**config),
        segments=Segments([old(0, 930), old(2, 940), old(4, 950)]),
        size_bytes=300,
        high_watermark=high_watermark,
        log_start_offset=start,
        log_end_offset=6,
    )
    assert deletable_segments(log, 1000) == expected
    log.segments[-1].size = 0
    assert deletable_segments(log, 1000) <= 2, "an empty active segment always stays"


# --- what a leader refuses -------------------------------------------------------------------------------------------


def test_what_a_coordinator_may_write_for_a_producer(bench: Workbench) -> None:
    """Offset commits in a transaction have an epoch and no sequence."""
    log = bench.open()
    fenced, plain = ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE

    def commit(epoch: int, *, transactional: bool = True) -> bytes:
        return batch("c", producer_id=7, producer_epoch=epoch, base_sequence=-1, transactional=transactional)

    log.append_as_leader(commit(1), EPOCH, origin=AppendOrigin.COORDINATOR)
    log.append_as_leader(commit(1), EPOCH, origin=AppendOrigin.COORDINATOR)
    assert log.first_unstable_offset == 0
    refused(log, commit(0), fenced, AppendOrigin.COORDINATOR)
    refused(log, commit(1, transactional=False), plain, AppendOrigin.COORDINATOR)
    refused(log, marker(7, ControlType.COMMIT, epoch=0), fenced, AppendOrigin.COORDINATOR)
    log.append_as_leader(
        marker(7, ControlType.COMMIT, epoch=1, coordinator_epoch=3), EPOCH, origin=AppendOrigin.COORDINATOR
    )
    late = marker(7, ControlType.COMMIT, epoch=1, coordinator_epoch=2)
    refused(log, late, ErrorCode.TRANSACTION_COORDINATOR_FENCED, AppendOrigin.COORDINATOR)
    log.append_as_leader(
        marker(7, ControlType.ABORT, epoch=1, coordinator_epoch=3), EPOCH, origin=AppendOrigin.COORDINATOR
    )
    log.append_as_leader(commit(2, transactional=False), EPOCH, origin=AppendOrigin.COORDINATOR)


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (produced(1, 0) + produced(2, 0), ErrorCode.INVALID_RECORD),
        (batch("a") + produced(2, 0), ErrorCode.INVALID_RECORD),
        (b"", ErrorCode.INVALID_RECORD),
        (batch("a")[:-1], ErrorCode.INVALID_RECORD),
        (marker(1, ControlType.ABORT), ErrorCode.INVALID_RECORD),
        (produced(1, -1), ErrorCode.INVALID_RECORD),
        (batch("a", base_offset=1), ErrorCode.INVALID_RECORD),
        (batch("x" * 2000), ErrorCode.MESSAGE_TOO_LARGE),
    ],
)
def test_appends_that_are_refused(bench: Workbench, records: bytes, code: ErrorCode) -> None:
    refused(bench.open(TopicConfig(max_message_bytes=1000)), records, code)


def test_the_largest_message(bench: Workbench) -> None:
    records = batch("a")
    append_size = len(records)
    bench.open(TopicConfig(max_message_bytes=append_size)).append_as_leader(records, EPOCH)
    small = bench.open(TopicConfig(max_message_bytes=append_size - 1), directory=bench.directory / "small")
    refused(small, records, ErrorCode.MESSAGE_TOO_LARGE)
    tight = TopicConfig(segment_bytes=append_size - 1)
    refused(bench.open(tight, directory=bench.directory / "tight"), records, ErrorCode.RECORD_LIST_TOO_LARGE)
    exact = TopicConfig(segment_bytes=append_size)
    bench.open(exact, directory=bench.directory / "exact").append_as_leader(records, EPOCH)


def test_an_unknown_codec(bench: Workbench) -> None:
    plain = batch("a")
    header = read_header(plain)
    for codec in (5, 7):
        unknown = pack_batch(header._replace(attributes=codec), plain[HEADER_BYTES:])
        refused(bench.open(), unknown, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


def test_which_batches_are_written_off_the_loop() -> None:
    def prepared(*sizes: int) -> PreparedAppend:
        _, header = next(iter(iter_batches(batch("a"))))
        return PreparedAppend(memoryview(b""), [], [Prepared(memoryview(bytes(size)), header) for size in sizes], 0)

    assert prepared(STAGED_BYTES_MIN).is_large
    assert not prepared(STAGED_BYTES_MIN - 1).is_large
    assert not prepared(STAGED_BYTES_MIN, STAGED_BYTES_MIN).is_large


# --- lives and names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "now", "is_new", "expected"),
    [
        (None, None, True, False),
        (None, None, False, True),
        (TopicLife(1, 2), None, True, False),
        (None, TopicLife(1, 2), True, False),
        (None, TopicLife(1, 2), False, True),
        (TopicLife(1, 2), TopicLife(1, 2), True, True),
        (TopicLife(1, 2), TopicLife(1, 3), False, False),
        (TopicLife(1, 2), TopicLife(4, 3), True, True),
        (TopicLife(1, 2), TopicLife(4, 2), False, True),
    ],
)
def test_whether_a_log_belongs_to_the_topic(
    known: TopicLife | None, now: TopicLife | None, is_new: bool, expected: bool
) -> None:
    assert may_belong(known, now, is_new=is_new) is expected


def test_names_of_copies() -> None:
    unique = "0" * 32
    longest = "t" * (NAME_MAX - len(f"-0.{unique}-future"))
    parsed = parse_name(future_name(TopicPartition(longest, 0), unique))
    assert parsed is not None and parsed.partition == TopicPartition(longest, 0)
    with pytest.raises(KafkaError) as caught:
        future_name(TopicPartition(longest + "t", 0), unique)
    assert caught.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize(("code", "passes"), [(28, True), (122, True), (24, True), (23, True), (5, False), (30, False)])
def test_which_errors_pass(code: int, passes: bool) -> None:
    assert is_passing(OSError(code, "")) is passes
    assert not is_passing(SyncFailed(code, ""))


# --- indexes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", [False, True])
def test_truncation_and_search_at_the_edges_of_an_index(written: bool) -> None:
    disk = new_disk()
    offsets, times = OffsetIndex(disk, "/data/1/o", 100), TimeIndex(disk, "/data/1/t", 100)
    for index in (offsets, times):
        index.create()
    for number in (10, 20, 30):
        offsets.append(100 + number, number * 50)
        times.append(1000 + number, 100 + number)
    if written:
        for index in (offsets, times):
            index.write_out()
            index.close()
    assert [offsets.position_at_or_below(at) for at in (109, 110, 119, 120, 130, 999)] == [
        0,
        500,
        500,
        1000,
        1500,
        1500,
    ]
    assert [offsets.boundary_at_or_below(at) for at in (499, 500, 999, 1000, 1501)] == [0, 500, 500, 1000, 1500]
    assert [times.offset_at_or_below(at) for at in (1009, 1010, 1019, 1020, 9999)] == [100, 110, 110, 120, 130]
    for index in (offsets, times):
        index.truncate_to(121)
        assert len(index) == 2
        index.truncate_to(120)
        assert len(index) == 1
        index.truncate_to(120)
        assert len(index) == 1
    assert offsets.last_position == 500
    assert times.last() == (1010, 110)
    offsets.append(110, 999)  # not above the last
    times.append(1010, 119)
    times.append(-1, 119)
    assert (len(offsets), len(times)) == (1, 1)
    offsets.append(111, 600)
    times.append(1011, 111)
    for index in (offsets, times):
        index.write_out()
        index.close()
    again = OffsetIndex(disk, "/data/1/o", 100), TimeIndex(disk, "/data/1/t", 100)
    assert all(index.load() for index in again)
    assert (again[0].last_entry, again[1].last_entry) == ((11, 600), (1011, 11))
    again[0].truncate_to(100)
    assert (len(again[0]), again[0].last_position) == (0, 0)
    assert disk.read("/data/1/o") == b""


def test_an_index_is_full_at_its_last_entry() -> None:
    disk = new_disk()
    index = OffsetIndex(disk, "/data/1/o", 0)
    index.create()
    index.append(1, 1)
    assert not index.is_full(16)
    assert index.is_full(16, spare=1)
    index.append(2, 2)
    assert index.is_full(16)
    assert index.is_full(23)
    assert not index.is_full(24)


def test_the_index_of_aborted_transactions() -> None:
    disk = new_disk()
    entries = [AbortedEntry(ProducerId(1), 10, 15, 12), AbortedEntry(ProducerId(2), 12, 20, 21)]
    index = TransactionIndex(disk, "/data/1/x", 10)
    for entry in entries:
        index.append(entry)
    index.truncate_to(21)
    assert TransactionIndex(disk, "/data/1/x", 10).entries() == entries
    index.truncate_to(20)
    assert TransactionIndex(disk, "/data/1/x", 10).entries() == index.entries() == entries[:1]
    assert TransactionIndex(disk, "/data/1/x", 15).is_sane()
    assert not TransactionIndex(disk, "/data/1/x", 16).is_sane(), "an entry of another segment"
    file = disk.open("/data/1/x")
    file.append([b"torn"])
    assert not index.is_sane()
    index.reset()
    assert (disk.read("/data/1/x"), index.entries()) == (b"", [])


# --- searches --------------------------------------------------------------------------------------------------------


def test_aborted_transactions_of_a_range(bench: Workbench) -> None:
    """0 and 1: producer 1 begins and ends; 2: producer 2 begins; 3: producer 3 begins; 4: 2 ends; 5: 3 ends."""
    log = bench.open()
    aborting = {"origin": AppendOrigin.COORDINATOR}
    log.append_as_leader(produced(1, 0, transactional=True), EPOCH)
    log.append_as_leader(marker(1, ControlType.ABORT), EPOCH, **aborting)
    log.append_as_leader(produced(2, 0, transactional=True), EPOCH)
    log.append_as_leader(produced(3, 0, transactional=True), EPOCH)
    log.roll()
    log.append_as_leader(marker(2, ControlType.ABORT), EPOCH, **aborting)
    log.append_as_leader(marker(3, ControlType.ABORT), EPOCH, **aborting)

    def found(start: int, end: int) -> list[int]:
        return [producer for producer, _ in log.aborted_transactions(start, end)]

    assert found(0, 6) == [1, 2, 3]
    assert found(0, 1) == [1]
    assert found(1, 2) == [1]
    assert found(2, 3) == [2]
    assert found(3, 4) == [2, 3]
    assert found(5, 6) == [3]


def test_the_first_record_at_a_time(bench: Workbench) -> None:
    log = bench.open(TopicConfig(index_interval_bytes=1))
    for first in (100, 200, 300):
        records = [Record(b"k", b"v", first), Record(b"k", b"v", first + 50)]
        log.append_as_leader(build_batch(records), EPOCH)
        log.roll()
    log.update_high_watermark(6)

    def offset(timestamp: int, bound: int = 6) -> int | None:
        found = log.offset_for_timestamp(timestamp, bound)
        return None if found is None else found.offset

    assert [offset(time) for time in (0, 100, 101, 150, 151, 300, 350, 351)] == [0, 0, 1, 1, 2, 4, 5, None]
    assert (offset(350, 5), offset(350, 6)) == (None, 5)
    log.advance_log_start(3)
    assert [offset(time) for time in (0, 200, 250, 251)] == [3, 3, 3, 4]


def test_what_flush_messages_lets_be_acknowledged(bench: Workbench) -> None:
    log = bench.open(TopicConfig(flush_messages=3))
    append(log, "a")
    append(log, "b")
    assert (log.waits_for_flush, log.may_acknowledge(2), log.committable_end) == (False, True, 2)
    append(log, "c")
    assert (log.waits_for_flush, log.may_acknowledge(1), log.committable_end) == (True, False, 0)
    log._durability.recovery_point = 1
    assert (log.waits_for_flush, log.may_acknowledge(3), log.committable_end) == (False, True, 3)
    append(log, "d")
    assert (log.may_acknowledge(1), log.may_acknowledge(2), log.committable_end) == (True, False, 1)


def test_the_bounds_of_high_watermark_and_log_start(bench: Workbench) -> None:
    log = bench.open()
    for _ in range(4):
        append(log, "v")
    assert log.update_high_watermark(3)
    assert not log.update_high_watermark(3)
    assert not log.maybe_increment_high_watermark(3)
    assert not log.maybe_increment_high_watermark(2)
    with pytest.raises(KafkaError) as caught:
        log.advance_log_start(4)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.advance_log_start(3)
    assert not log.advance_log_start(3)
    assert not log.advance_log_start(2)
    assert log.update_high_watermark(0) is False, "never below the log start"
    assert log.update_high_watermark(99)
    assert (log.log_start_offset, log.high_watermark) == (3, 4)
    assert read_all(log) == [3]


def test_what_follows_the_log_start(bench: Workbench) -> None:
    log = bench.open()
    log.append_as_leader(produced(1, 0, 2, transactional=True), EPOCH)
    append(log, "a", epoch=3)
    append(log, "b", epoch=5)
    log.update_high_watermark(4)
    assert log.last_stable_offset == 0
    log.advance_log_start(1)
    assert log.epochs.entries == ((0, 1), (3, 2), (5, 3))
    assert (log.first_unstable_offset, log.last_stable_offset) == (1, 1), "never below the log start"
    log.advance_log_start(3)
    assert log.epochs.entries == ((5, 3),)
