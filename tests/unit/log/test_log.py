"""Append to, read, roll and truncate one log."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from klamm.log.log_results import UnexpectedAppendOffset
from klamm.log.validation import AppendOrigin
from klamm.model.config import TopicConfig
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import LeaderEpoch
from klamm.wire.batch import has_valid_crc, read_header
from klamm.wire.compression import Codec
from klamm.wire.records import ControlType, Record, build_batch, iter_records

from .conftest import Workbench, append, batch, marker, produced, read_all

E0 = LeaderEpoch(0)
SMALL = TopicConfig(segment_bytes=200)


def refused(code: ErrorCode) -> pytest.RaisesExc[KafkaError]:
    return pytest.RaisesExc(KafkaError, check=lambda error: error.code is code)


def test_offsets_are_dense_and_given_by_the_leader(bench: Workbench) -> None:
    log = bench.open()
    assert append(log, "a", "b")[:2] == (0, 1)
    assert append(log, "c")[:2] == (2, 2)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (0, 3, 0)
    result = log.read(1, 1 << 20, upper_bound=3, at_least_one=True)
    assert (result.first_offset, result.next_offset) == (0, 3)
    assert [r.value for r in iter_records(result.records)] == [b"a", b"b"]


@pytest.mark.case("LOG-14")
def test_every_batch_is_stamped_with_the_leader_epoch(bench: Workbench) -> None:
    log = bench.open()
    append(log, "a", epoch=72)
    records = log.read(0, 1000, upper_bound=1, at_least_one=True).records
    header = read_header(records)
    assert header.leader_epoch == 72
    assert has_valid_crc(records, 0, header)
    assert log.epochs.latest_epoch == 72


@pytest.mark.case("LOG-01")
def test_high_watermark_stays_within_the_log(bench: Workbench) -> None:
    log = bench.open()
    for value in "abcdef":
        append(log, value)
    assert log.high_watermark == 0
    assert log.update_high_watermark(100)
    assert log.high_watermark == 6
    assert not log.maybe_increment_high_watermark(5)
    log.truncate_to(3)
    assert (log.high_watermark, log.log_end_offset) == (3, 3)
    log.truncate_fully_and_start_at(4)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (4, 4, 4)


@pytest.mark.case("LOG-02")
def test_a_read_ends_at_its_bound(bench: Workbench) -> None:
    log = bench.open(SMALL)
    for value in "abcdefgh":
        append(log, value)
    log.update_high_watermark(5)
    assert len(log.segments) > 2
    assert read_all(log, upper_bound=log.high_watermark) == [0, 1, 2, 3, 4]
    assert not log.read(5, 1000, upper_bound=5, at_least_one=True).records
    log.roll()
    assert read_all(log, upper_bound=log.high_watermark) == [0, 1, 2, 3, 4]


def test_a_bound_inside_a_batch_leaves_the_batch_out(bench: Workbench) -> None:
    log = bench.open()
    append(log, "a", "b")
    append(log, "c", "d")
    assert read_all(log, upper_bound=3) == [0, 1]


@pytest.mark.case("LOG-04")
def test_reads_outside_the_log_are_refused(bench: Workbench) -> None:
    log = bench.open()
    append(log, "a")
    assert not log.read(1, 1000, upper_bound=1, at_least_one=True).records
    for offset in (-1, 2):
        with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
            log.read(offset, 1000, upper_bound=1, at_least_one=True)


def test_reads_are_cut_at_whole_batches(bench: Workbench) -> None:
    log = bench.open(TopicConfig(index_interval_bytes=100))
    size = len(batch("x" * 50))
    for _ in range(20):
        append(log, "x" * 50)
    for offset in (0, 7, 19):
        for limit in range(0, 4 * size, 13):
            result = log.read(offset, limit, upper_bound=20, at_least_one=True)
            whole = min(limit // size, 20 - offset)
            assert len(result.records) == max(whole, 1) * size
            assert result.first_offset == offset
            assert result.next_offset == offset + max(whole, 1)
            without = log.read(offset, limit, upper_bound=20, at_least_one=False)
            assert len(without.records) == whole * size


@pytest.mark.case("LOG-05")
def test_truncation(bench: Workbench) -> None:
    log = bench.open(SMALL)
    for value in "abcdefgh":
        append(log, value)
    assert not log.truncate_to(8)
    assert not log.truncate_to(9)
    assert log.log_end_offset == 8
    assert log.truncate_to(5)
    assert (log.log_end_offset, read_all(log)) == (5, [0, 1, 2, 3, 4])
    assert append(log, "new").first_offset == 5
    assert log.truncate_to(0)
    assert (log.log_end_offset, read_all(log), log.size_bytes) == (0, [], 0)
    log.truncate_fully_and_start_at(17)
    assert (log.log_start_offset, log.log_end_offset) == (17, 17)
    assert append(log, "z").first_offset == 17
    assert read_all(log) == [17]


def test_positions_are_found_anew_after_truncation(bench: Workbench) -> None:
    log = bench.open(TopicConfig(index_interval_bytes=0))
    for n in range(100):
        append(log, "x" * (n % 7))
    log.truncate_to(10)
    for n in range(100):
        append(log, "y" * (n % 11))
    for offset in range(110):
        result = log.read(offset, 10, upper_bound=110, at_least_one=True)
        assert (result.first_offset, result.next_offset) == (offset, offset + 1)


def test_a_remembered_position_does_not_outlive_its_batch(bench: Workbench) -> None:
    log = bench.open()
    for _ in range(20):
        append(log, "v")
    log.truncate_to(10)
    append(log, "a", "b", "c", "d", "e")
    assert log.read(12, 1000, upper_bound=15, at_least_one=True)[1:] == (10, 15)


def test_truncation_inside_a_batch_takes_the_whole_batch(bench: Workbench) -> None:
    log = bench.open()
    append(log, "a", "b", "c")
    append(log, "d", "e", "f")
    log.truncate_to(4)
    assert (log.log_end_offset, read_all(log)) == (3, [0, 1, 2])
    assert append(log, "g").first_offset == 3
    assert read_all(log) == [0, 1, 2, 3]


def test_truncation_inside_the_batch_in_which_the_log_starts_leaves_an_empty_log(bench: Workbench) -> None:
    """The leader's log starts there too, and it sends the whole batch again."""
    log = bench.open()
    append(log, "a", "b", "c", "d")
    log.update_high_watermark(4)
    log.advance_log_start(1)
    again = bytes(log.read(1, 1000, upper_bound=4, at_least_one=True).records)
    log.truncate_to(2)
    assert (log.log_start_offset, log.log_end_offset) == (1, 1)
    log.append_as_follower(again)
    assert (log.log_end_offset, read_all(log, 1)) == (4, [0, 1, 2, 3])


@pytest.mark.case("LOG-06")
def test_truncation_cuts_the_epoch_cache(bench: Workbench) -> None:
    log = bench.open()
    for offset in range(20):
        append(log, "v", epoch=0 if offset < 10 else 1 if offset < 16 else 2)
    assert [tuple(e) for e in log.epochs.entries] == [(0, 0), (1, 10), (2, 16)]
    log.truncate_to(11)
    assert len(log.epochs.entries) == 2
    log.truncate_to(10)
    assert len(log.epochs.entries) == 1
    log.truncate_to(0)
    assert log.epochs.entries == ()


def test_truncation_to_the_end_still_cuts_an_epoch_that_starts_there(bench: Workbench) -> None:
    log = bench.open()
    append(log, "a")
    log.epochs.assign(LeaderEpoch(5), 1)
    log.truncate_to(1)
    assert log.epochs.latest_epoch == 0


def test_truncation_lowers_the_recovery_point_first(bench: Workbench) -> None:
    log = bench.open()
    append(log, "a")
    append(log, "b")
    log.close()
    log = bench.open()
    assert log.recovery_point == 2
    log.truncate_to(1)
    assert bench.owner.lowered == [1]


def test_rolling_by_size_and_by_time(bench: Workbench) -> None:
    log = bench.open(TopicConfig(segment_ms=1000))
    append(log, "a", timestamp=1_000_000)
    append(log, "b", timestamp=1_001_000)
    assert len(log.segments) == 1
    append(log, "c", timestamp=1_001_001)
    assert [segment.base_offset for segment in log.segments] == [0, 2]
    log.config = TopicConfig(segment_bytes=log.segments.active.size + 1)
    append(log, "d", timestamp=1_001_001)
    assert [segment.base_offset for segment in log.segments] == [0, 2, 3]
    assert read_all(log) == [0, 1, 2, 3]
    assert bench.owner.flushes >= 2


def test_rolling_when_an_index_is_full(bench: Workbench) -> None:
    log = bench.open(TopicConfig(index_interval_bytes=0, segment_index_bytes=24))
    for value in range(8):
        append(log, str(value), timestamp=1000 * value)
    assert len(log.segments) > 2
    assert all(len(segment.time_index) <= 2 for segment in log.segments)
    assert read_all(log) == list(range(8))


@pytest.mark.case("LOG-15")
def test_a_batch_larger_than_a_segment_is_refused(bench: Workbench) -> None:
    log = bench.open(TopicConfig(segment_bytes=100))
    with refused(ErrorCode.RECORD_LIST_TOO_LARGE):
        append(log, "x" * 100)
    assert log.log_end_offset == 0


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (batch("a")[:-1], ErrorCode.INVALID_RECORD),
        (batch("a", base_offset=3), ErrorCode.INVALID_RECORD),
        (batch("x" * 600), ErrorCode.MESSAGE_TOO_LARGE),
        (batch("a")[:-1] + b"?", ErrorCode.CORRUPT_MESSAGE),
        (batch("a", control=True), ErrorCode.INVALID_RECORD),
        (batch("a", producer_id=1, producer_epoch=0), ErrorCode.INVALID_RECORD),
        (batch("a", last_offset=4), ErrorCode.INVALID_RECORD),
        (batch("a", log_append_time=5), ErrorCode.INVALID_TIMESTAMP),
        (bytes(16) + b"\x00" + bytes(60), ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_what_a_client_may_not_send(bench: Workbench, records: bytes, code: ErrorCode) -> None:
    log = bench.open(TopicConfig(max_message_bytes=512))
    with refused(code):
        log.append_as_leader(records, E0)
    assert (log.log_end_offset, log.size_bytes) == (0, 0)


def test_a_compacted_topic_wants_keys_and_names_the_record(bench: Workbench) -> None:
    log = bench.open(TopicConfig(cleanup_policy=("compact",)))
    records = build_batch([Record(b"k", b"v", 1), Record(None, b"v", 1)])
    with refused(ErrorCode.INVALID_RECORD) as raised:
        log.append_as_leader(records, E0)
    assert [index for index, _ in raised.value.record_errors] == [1]  # type: ignore[attr-defined]


def test_timestamps_too_far_from_now_are_refused(bench: Workbench) -> None:
    log = bench.open(TopicConfig(message_timestamp_difference_max_ms=1000))
    append(log, "a", timestamp=bench.clock.now_ms - 1000)
    with refused(ErrorCode.INVALID_TIMESTAMP):
        append(log, "a", timestamp=bench.clock.now_ms - 1001)


def test_log_append_time_replaces_the_records_time(bench: Workbench) -> None:
    log = bench.open(TopicConfig(message_timestamp_type="LogAppendTime"))
    info = append(log, "a", timestamp=7)
    assert (info.log_append_time, info.max_timestamp) == (bench.clock.now_ms, bench.clock.now_ms)
    records = log.read(0, 1000, upper_bound=1, at_least_one=True).records
    assert has_valid_crc(records, 0, read_header(records))
    assert [record.timestamp for record in iter_records(records)] == [bench.clock.now_ms]


def test_the_topics_codec_is_applied(bench: Workbench) -> None:
    log = bench.open(TopicConfig(compression_type="gzip"))
    append(log, "a" * 100, "b" * 100)
    records = log.read(0, 1000, upper_bound=2, at_least_one=True).records
    header = read_header(records)
    assert header.codec == Codec.GZIP
    assert has_valid_crc(records, 0, header)
    assert [record.value for record in iter_records(records)] == [b"a" * 100, b"b" * 100]


def test_the_callers_buffer_is_left_alone(bench: Workbench) -> None:
    log = bench.open()
    append(log, "first")
    records = batch("second")
    before = bytes(records)
    log.append_as_leader(memoryview(records), E0)
    assert records == before


# --- follower --------------------------------------------------------------------------------------------------------


def test_a_follower_takes_what_the_leader_sent(bench: Workbench) -> None:
    log = bench.open(SMALL)
    sent = b"".join(batch("v", base_offset=offset, leader_epoch=offset // 4) for offset in range(10))
    info = log.append_as_follower(sent + batch("torn", base_offset=10)[:-3])
    assert (info.first_offset, info.last_offset) == (0, 9)
    assert read_all(log) == list(range(10))
    assert [tuple(e) for e in log.epochs.entries] == [(0, 0), (1, 4), (2, 8)]
    assert len(log.segments) > 2
    assert all(segment.size <= 200 for segment in log.segments)


@pytest.mark.case("LOG-13")
def test_a_follower_refuses_offsets_that_go_back(bench: Workbench) -> None:
    log = bench.open()
    log.append_as_follower(batch("a", base_offset=0) + batch("b", base_offset=5))
    assert log.log_end_offset == 6
    with pytest.raises(UnexpectedAppendOffset):
        log.append_as_follower(batch("c", base_offset=5))
    with pytest.raises(UnexpectedAppendOffset):
        log.append_as_follower(batch("c", base_offset=8) + batch("d", base_offset=7))
    with refused(ErrorCode.CORRUPT_MESSAGE):
        log.append_as_follower(batch("c", base_offset=8)[:-1] + b"?")
    assert log.log_end_offset == 6


def test_an_empty_follower_that_starts_inside_a_batch_starts_at_its_base(bench: Workbench) -> None:
    log = bench.open()
    log.truncate_fully_and_start_at(12)
    log.append_as_follower(batch("a", "b", "c", base_offset=10))
    assert (log.log_start_offset, log.log_end_offset) == (10, 13)


@pytest.mark.case("LOG-12")
def test_a_follower_checks_no_sequences(bench: Workbench) -> None:
    log = bench.open()
    for offset in (0, 1):
        log.append_as_follower(batch("a", base_offset=offset, producer_id=1, producer_epoch=0, base_sequence=7))
    assert log.log_end_offset == 2


# --- idempotence -----------------------------------------------------------------------------------------------------


@pytest.mark.case("LOG-11")
def test_the_last_five_batches_are_recognised(bench: Workbench) -> None:
    log = bench.open()
    for sequence in range(0, 14, 2):
        log.append_as_leader(produced(1, sequence, 2), E0)
    for sequence in (4, 6, 8, 10, 12):
        info = log.append_as_leader(produced(1, sequence, 2), E0)
        assert (info.duplicate, info.first_offset, info.last_offset) == (True, sequence, sequence + 1)
    assert log.log_end_offset == 14
    for sequence, count in ((2, 2), (12, 1), (13, 2), (15, 1), (16, 2)):
        with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
            log.append_as_leader(produced(1, sequence, count), E0)
    with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        log.append_as_leader(produced(1, 3, epoch=1), E0)
    assert log.append_as_leader(produced(1, 0, epoch=1), E0).first_offset == 14
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        log.append_as_leader(produced(1, 14, epoch=0), E0)


def test_an_unknown_producer_may_begin_anywhere(bench: Workbench) -> None:
    log = bench.open()
    assert log.append_as_leader(produced(1, 4711), E0).first_offset == 0
    assert log.append_as_leader(produced(1, 4712), E0).first_offset == 1


def test_sequences_wrap_to_zero(bench: Workbench) -> None:
    log = bench.open()
    log.append_as_leader(produced(1, 2**31 - 2, 3), E0)
    assert log.append_as_leader(produced(1, 2**31 - 2, 3), E0).duplicate
    assert log.append_as_leader(produced(1, 1), E0).first_offset == 3


def test_a_retry_is_recognised_after_a_restart(bench: Workbench) -> None:
    log = bench.open()
    for sequence in range(3):
        log.append_as_leader(produced(1, sequence), E0)
    log.close()
    log = bench.open()
    info = log.append_as_leader(produced(1, 2), E0)
    assert (info.duplicate, info.first_offset) == (True, 2)
    assert log.append_as_leader(produced(1, 3), E0).first_offset == 3


def test_a_retry_after_truncation_is_written_again(bench: Workbench) -> None:
    log = bench.open()
    for sequence in range(3):
        log.append_as_leader(produced(1, sequence), E0)
    log.truncate_to(1)
    assert log.append_as_leader(produced(1, 0), E0).duplicate
    info = log.append_as_leader(produced(1, 1), E0)
    assert (info.duplicate, info.first_offset) == (False, 1)


def test_idle_producers_are_forgotten(bench: Workbench) -> None:
    log = bench.open()
    log.append_as_leader(produced(1, 0), E0)
    log.append_as_leader(produced(2, 0, transactional=True), E0)
    bench.clock.now_ms += 1001
    log.expire_producers(1000)
    assert not log.append_as_leader(produced(1, 0), E0).duplicate
    assert log.append_as_leader(produced(2, 0, transactional=True), E0).duplicate


# --- transactions ----------------------------------------------------------------------------------------------------


@pytest.mark.case("LOG-03")
def test_the_last_stable_offset_waits_for_replicated_markers(bench: Workbench) -> None:
    log = bench.open()
    for sequence in range(8):
        log.append_as_leader(produced(1, sequence, transactional=True), E0)
    log.append_as_leader(produced(2, 0, transactional=True), E0)
    log.update_high_watermark(log.log_end_offset)
    assert (log.first_unstable_offset, log.last_stable_offset) == (0, 0)
    log.update_high_watermark(8)
    log.append_as_leader(marker(1, ControlType.COMMIT), E0, origin=AppendOrigin.COORDINATOR)
    log.update_high_watermark(9)  # the marker is at 9, which is not below the high watermark yet
    assert log.last_stable_offset == 0
    log.update_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == 8
    log.append_as_leader(marker(2, ControlType.ABORT), E0, origin=AppendOrigin.COORDINATOR)
    assert log.last_stable_offset == 8
    log.update_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == log.log_end_offset == 11
    assert [tuple(a) for a in log.aborted_transactions(0, 11)] == [(2, 8)]
    assert log.aborted_transactions(0, 8) == []


def test_overlapping_aborted_transactions_are_all_found(bench: Workbench) -> None:
    log = bench.open()
    log.append_as_leader(produced(1, 0, transactional=True), E0)
    log.append_as_leader(produced(2, 0, transactional=True), E0)
    log.append_as_leader(marker(1, ControlType.ABORT), E0, origin=AppendOrigin.COORDINATOR)
    log.roll()
    log.append_as_leader(marker(2, ControlType.ABORT), E0, origin=AppendOrigin.COORDINATOR)
    assert [tuple(a) for a in log.aborted_transactions(0, 4)] == [(1, 0), (2, 1)]
    assert [tuple(a) for a in log.aborted_transactions(3, 4)] == [(2, 1)]
    log.truncate_to(3)
    assert [tuple(a) for a in log.aborted_transactions(0, 3)] == [(1, 0)]
    log.truncate_to(2)
    assert log.aborted_transactions(0, 2) == []
    assert log.first_unstable_offset == 0


def test_transaction_rules_of_the_leader(bench: Workbench) -> None:
    log = bench.open()
    log.append_as_leader(produced(1, 0, transactional=True), E0)
    with refused(ErrorCode.INVALID_TXN_STATE):
        log.append_as_leader(produced(1, 1), E0)
    with refused(ErrorCode.INVALID_RECORD):
        log.append_as_leader(marker(1, ControlType.ABORT), E0)
    log.append_as_leader(marker(1, ControlType.ABORT, coordinator_epoch=3), E0, origin=AppendOrigin.COORDINATOR)
    with refused(ErrorCode.TRANSACTION_COORDINATOR_FENCED):
        log.append_as_leader(marker(1, ControlType.ABORT, coordinator_epoch=2), E0, origin=AppendOrigin.COORDINATOR)
    before = log.log_end_offset
    log.update_high_watermark(before)
    log.append_as_leader(marker(1, ControlType.ABORT, coordinator_epoch=3), E0, origin=AppendOrigin.COORDINATOR)
    assert log.first_unstable_offset is None  # a marker without a transaction makes nothing unstable
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        log.append_as_leader(
            marker(1, ControlType.ABORT, epoch=-1, coordinator_epoch=3), E0, origin=AppendOrigin.COORDINATOR
        )


def test_open_and_aborted_transactions_survive_restart_and_crash(bench: Workbench) -> None:
    log = bench.open(TopicConfig(segment_bytes=300))
    log.append_as_leader(produced(1, 0, transactional=True), E0)
    log.append_as_leader(produced(2, 0, transactional=True), E0)
    log.append_as_leader(marker(1, ControlType.ABORT), E0, origin=AppendOrigin.COORDINATOR)
    for _ in range(5):
        append(log, "filler")
    log.close()
    for clean in (True, False):
        log = bench.open(TopicConfig(segment_bytes=300), clean=clean)
        log.update_high_watermark(log.log_end_offset)
        assert log.last_stable_offset == 1
        assert [tuple(a) for a in log.aborted_transactions(0, 100)] == [(1, 0)]
        log.close()


# --- time, start offset, failure -------------------------------------------------------------------------------------


def test_search_by_time_finds_the_record_not_the_batch(bench: Workbench) -> None:
    log = bench.open(TopicConfig(segment_bytes=400, index_interval_bytes=50))
    for n in range(20):
        append(log, "a", "b", "c", timestamp=1000 + 10 * n, codec=Codec.GZIP if n % 2 else Codec.NONE)
    for reopened in (False, True):
        if reopened:
            log.close()
            log = bench.open(TopicConfig(segment_bytes=400, index_interval_bytes=50))
        found = log.offset_for_timestamp(1011, 100)
        assert found == (1011, 4, 0)
        assert log.offset_for_timestamp(1013, 100) == (1020, 6, 0)
        assert log.offset_for_timestamp(0, 100) == (1000, 0, 0)
        assert log.offset_for_timestamp(1192, 100) == (1192, 59, 0)
        assert log.offset_for_timestamp(1193, 100) is None
        assert log.offset_for_timestamp(1011, 4) is None


@pytest.mark.case("LOG-09")
def test_raising_the_log_start(bench: Workbench) -> None:
    from klamm.log.segments.retention import deletable_segments

    log = bench.open(TopicConfig(retention_ms=-1))
    for n in range(15):
        append(log, "v")
        if n % 5 == 4:
            log.roll()
    log.update_high_watermark(15)
    counts = []
    for start in (1, 6, 15):
        assert log.advance_log_start(start)
        log.delete_oldest(deletable_segments(log, bench.clock.now_ms))
        counts.append(len(log.segments))
        assert log.log_start_offset == start
    assert counts == [4, 3, 1]  # the empty active segment counts too
    append(log, "not committed yet")
    with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
        log.advance_log_start(16)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (15, 15, 16)
    with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
        log.read(14, 100, upper_bound=15, at_least_one=True)


def test_a_log_whose_write_failed_takes_nothing_more(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    log = bench.open()
    append(log, "a")

    def broken(chunks: object, size: int) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(log.segments.active, "append", broken)
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        append(log, "b")
    monkeypatch.undo()
    assert log.failed
    assert len(bench.owner.failures) == 1
    for call in (lambda: append(log, "c"), lambda: log.read(0, 10, upper_bound=1, at_least_one=True), log.roll):
        with refused(ErrorCode.KAFKA_STORAGE_ERROR):
            call()
    assert log.log_end_offset == 1
    log.close()


async def test_a_segment_that_retention_deletes_before_its_flush(bench: Workbench) -> None:
    """The flush used to open its file again, and took the log directory offline."""
    log = bench.open()
    append(log, "v")
    log.roll()
    log.update_high_watermark(1)
    log.delete_oldest(1)
    append(log, "v")
    await log.flush()
    assert (log.failed, log.recovery_point) == (False, 2)


async def test_flush_moves_the_recovery_point(bench: Workbench) -> None:
    log = bench.open(SMALL)
    for value in "abcdef":
        append(log, value)
    assert log.recovery_point == 0
    await log.flush()
    assert log.recovery_point == 6
    append(log, "g")
    await log.flush()
    assert log.recovery_point == 7


async def test_a_flush_overtaken_by_a_truncation_promises_nothing(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = bench.open(SMALL)
    for sequence in range(10):
        log.append_as_leader(produced(1, sequence), E0)
    run = bench.disk.run

    async def truncating_meanwhile(job: Callable[[], None]) -> None:
        log.truncate_to(4)
        append(log, "new")
        await run(job)

    monkeypatch.setattr(bench.disk, "run", truncating_meanwhile)
    await log.flush()
    monkeypatch.undo()
    assert log.recovery_point == 0
    log.close()
    log = bench.open(SMALL)
    assert log.log_end_offset == 5
    assert log.append_as_leader(produced(1, 4), E0).first_offset == 5
