"""Which records a cleaning keeps, and that the rest of the log stays as it was: case by case, and against a model that
only knows the rule for each record."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.log.compaction.cleanable import cleanable
from klamm.log.compaction.cleaning import CHUNK_BYTES, Cleaning, plan_cleaning
from klamm.log.compaction.offset_map import OffsetMap
from klamm.log.compaction.swap import Swap
from klamm.log.disk import FileDisk
from klamm.log.log import Log
from klamm.log.validation import AppendOrigin
from klamm.model.config import TopicConfig
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import LeaderEpoch
from klamm.wire.batch import BatchHeader, check_crc, iter_batches
from klamm.wire.compression import Codec
from klamm.wire.records import ControlType, Record, build_batch, iter_records

from .conftest import Workbench, marker

CONFIG = TopicConfig(cleanup_policy=("compact",), segment_bytes=400, index_interval_bytes=100, delete_retention_ms=1000)
BUFFER_BYTES = 1 << 20
BEGAN = 1_600_000_000_000


def put(log: Log, *pairs: tuple[str, str | None], time: int = BEGAN, epoch: int = 0, **options: int | bool) -> int:
    """Append one batch of (key, value), where None is a tombstone; returns its first offset."""
    records = [
        Record(key.encode(), None if value is None else value.encode(), time + index)
        for index, (key, value) in enumerate(pairs)
    ]
    return log.append_as_leader(build_batch(records, **options), LeaderEpoch(epoch)).first_offset  # type: ignore[arg-type]


def end_transaction(log: Log, producer: int, kind: ControlType) -> int:
    return log.append_as_leader(marker(producer, kind), LeaderEpoch(0), origin=AppendOrigin.COORDINATOR).first_offset


def put_large(log: Log, key: str) -> None:
    """Append enough that no neighbour fits into the same segment."""
    log.roll()
    put(log, (key, "x" * 300))


def seal(log: Log) -> None:
    """Commit and flush everything, and roll, so that it is in segments that are not active."""
    log.roll()
    log.update_high_watermark(log.log_end_offset)
    asyncio.run(log.flush())


def clean(log: Log, bench: Workbench, first_dirty: int = 0, buffer_bytes: int = BUFFER_BYTES) -> Cleaning:
    plan = plan_cleaning(cleanable(log, first_dirty, bench.clock.wall_ms()))
    cleaning = Cleaning(bench.disk, plan, buffer_bytes)
    for step in cleaning.steps():
        if isinstance(step, Swap):
            log.begin_swap(step)
            log.finish_swap()
    return cleaning


def batches(log: Log) -> list[tuple[BatchHeader, list[Record]]]:
    found = []
    at = log.log_start_offset
    while read := log.read(at, 1 << 20, upper_bound=log.log_end_offset, at_least_one=True).records:
        for position, header in iter_batches(read):
            check_crc(read, position, header)
            found.append((header, list(iter_records(read[position:]))))
        at = found[-1][0].next_offset
    return found


def contents(log: Log) -> list[tuple[int, str, str | None]]:
    """(offset, key, value) of all data records."""
    return [
        (record.offset, (record.key or b"?").decode(), None if record.value is None else record.value.decode())
        for header, records in batches(log)
        if not header.is_control
        for record in records
    ]


def markers(log: Log) -> list[int]:
    return [header.base_offset for header, _ in batches(log) if header.is_control]


def age(log: Log, offset: int, seconds: int) -> None:
    """Set the modification time of the segment that holds `offset` to this many seconds ago."""
    path = log.segments.at_or_below(offset).log_path
    os.utime(path, (os.stat(path).st_mtime - seconds,) * 2)


# --- records ---


def test_the_last_record_of_each_key_stays_at_its_offset(bench: Workbench) -> None:
    log = bench.open(CONFIG)
    for round in range(5):
        put(log, ("a", f"a{round}"), ("b", f"b{round}"), (f"only-{round}", "x"), time=BEGAN + 10 * round, epoch=round)
    seal(log)
    epochs, end = log.epochs.entries, log.log_end_offset
    done = clean(log, bench)
    assert done.end_offset == end == 15
    expected = [(2, "only-0", "x"), (5, "only-1", "x"), (8, "only-2", "x"), (11, "only-3", "x")]
    assert contents(log) == [*expected, (12, "a", "a4"), (13, "b", "b4"), (14, "only-4", "x")]
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (0, end, end)
    assert log.epochs.entries == epochs
    first, records = batches(log)[0]
    assert (first.base_offset, first.last_offset, first.count, first.max_timestamp) == (0, 2, 1, BEGAN + 2)
    assert records[0].timestamp == BEGAN + 2
    assert (done.tally.records_read, done.tally.records_kept) == (15, 7)
    assert log.offset_for_timestamp(BEGAN + 3, end) == (BEGAN + 12, 5, 1)
    log.close()
    again = bench.open(CONFIG)
    assert contents(again) == [*expected, (12, "a", "a4"), (13, "b", "b4"), (14, "only-4", "x")]
    assert again.epochs.entries == epochs


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("log_append_time", [False, True])
def test_a_batch_that_lost_records_keeps_everything_else(bench: Workbench, codec: Codec, log_append_time: bool) -> None:
    config = TopicConfig(
        cleanup_policy=("compact",), message_timestamp_type="LogAppendTime" if log_append_time else "CreateTime"
    )
    log = bench.open(config)
    put(
        log, ("a", "1"), ("b", "2"), ("c", "3"), codec=codec, producer_id=7, producer_epoch=2, base_sequence=40, epoch=3
    )
    put(log, ("a", "4"), ("c", "5"))
    seal(log)
    before = batches(log)[0][0]
    clean(log, bench)
    header, records = batches(log)[0]
    assert [(r.offset, r.key, r.value) for r in records] == [(1, b"b", b"2")]
    time = bench.clock.wall_ms() if log_append_time else BEGAN + 1
    assert records[0].timestamp == header.max_timestamp == time
    changed = {"length", "crc", "base_timestamp", "max_timestamp", "count"}
    for name in set(BatchHeader._fields) - changed:
        assert getattr(header, name) == getattr(before, name), name


def test_what_stays_whole_is_copied_byte_for_byte(bench: Workbench) -> None:
    log = bench.open(CONFIG)
    for number in range(12):
        put(log, (f"k{number}", "v" * number), codec=Codec.GZIP)
    seal(log)
    before = b"".join(Path(segment.log_path).read_bytes() for segment in log.segments)
    clean(log, bench)
    assert b"".join(Path(segment.log_path).read_bytes() for segment in log.segments) == before


def test_a_batch_larger_than_a_chunk(bench: Workbench) -> None:
    log = bench.open(TopicConfig(cleanup_policy=("compact",)))
    put(log, ("small", "1"))
    put(log, ("large", "x" * (CHUNK_BYTES * 2)), ("small", "2"))
    seal(log)
    clean(log, bench)
    assert [(offset, key) for offset, key, _ in contents(log)] == [(1, "large"), (2, "small")]


def test_damage_is_not_given_a_new_checksum(bench: Workbench) -> None:
    log = bench.open(CONFIG)
    put(log, ("a", "1"), ("b", "1"))
    put(log, ("a", "2"))
    seal(log)
    path = Path(log.segments.first.log_path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(KafkaError) as raised:
        clean(log, bench)
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE
    assert not list(bench.directory.glob("*.cleaned"))


# --- tombstones ---


def test_tombstones_stay_until_they_were_clean_for_long_enough(bench: Workbench) -> None:
    log = bench.open(CONFIG)
    put(log, ("gone", "1"), ("kept", "1"))
    put(log, ("gone", None))
    put_large(log, "other")
    seal(log)
    age(log, 0, 10)  # older than what follows, which does not matter: it was never clean
    clean(log, bench)
    assert [record[:2] for record in contents(log)] == [(1, "kept"), (2, "gone"), (3, "other")]
    age(log, 0, -10)
    for dirty, seconds, expected in ((4, 0, True), (5, 0, True), (6, 2, False)):
        put_large(log, f"other-{dirty}")
        seal(log)
        age(log, 0, seconds)  # compared with the last clean segment; the limit is delete.retention.ms
        clean(log, bench, dirty)
        assert ((2, "gone", None) in contents(log)) is expected, dirty


def test_a_cleaned_segment_is_as_old_as_the_last_it_was_made_from(bench: Workbench) -> None:
    log = bench.open(CONFIG)
    for number in range(3):
        put(log, ("a", str(number)))
        log.roll()
    seal(log)
    for offset, seconds in ((0, 300), (1, 200), (2, 100)):
        age(log, offset, seconds)
    expected = log.segments.at_or_below(2).modified_ms()
    clean(log, bench)
    assert log.segments.first.modified_ms() == expected
    assert [segment.base_offset for segment in log.segments] == [0, 3]


# --- transactions and producers ---


def test_aborted_records_go_and_do_not_count_as_the_last_of_their_key(bench: Workbench) -> None:
    log = bench.open(CONFIG)
    put(log, ("a", "committed"))
    put(log, ("a", "aborted"), ("b", "aborted"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    put(log, ("c", "committed"), producer_id=6, producer_epoch=0, base_sequence=0, transactional=True)
    end_transaction(log, 5, ControlType.ABORT)
    end_transaction(log, 6, ControlType.COMMIT)
    put(log, ("d", "x"), producer_id=5, producer_epoch=0, base_sequence=2)
    put(log, ("e", "x"), producer_id=6, producer_epoch=0, base_sequence=1)
    put_large(log, "large")
    seal(log)
    clean(log, bench)
    assert contents(log)[:4] == [(0, "a", "committed"), (3, "c", "committed"), (6, "d", "x"), (7, "e", "x")]
    assert markers(log) == [4, 5]
    assert [tuple(entry) for entry in log.aborted_transactions(0, 8)] == [(5, 1)]  # this pass met its batches
    log.close()
    log = bench.open(CONFIG)
    assert [tuple(entry) for entry in log.aborted_transactions(0, 8)] == [(5, 1)]
    # In a later pass the abort marker has no batch left to end, but the commit marker has.
    put(log, ("f", "x"))
    seal(log)
    for offset in range(8):
        age(log, offset, 2)
    clean(log, bench, 9)
    assert markers(log) == [5]
    assert log.aborted_transactions(0, 9) == []


def test_a_marker_is_no_record_of_a_key(bench: Workbench) -> None:
    """KAFKA-14055: four zero bytes are the key of an abort marker, and may be the key of a record."""
    log = bench.open(CONFIG)
    put(log, ("b", "aborted"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    at = end_transaction(log, 5, ControlType.ABORT)
    put(log, ("\0\0\0\0", "data"))
    seal(log)
    clean(log, bench)
    assert markers(log) == [at]


def test_an_abort_beyond_what_was_mapped_is_still_indexed(bench: Workbench) -> None:
    """KAFKA-13727: the map ends before the segment; the rest of the segment is copied, with its aborted data."""
    log = bench.open(TopicConfig(cleanup_policy=("compact",)))
    for number in range(20):
        put(log, (f"k{number}", "x"))
    put(log, ("aborted", "x"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    end_transaction(log, 5, ControlType.ABORT)
    seal(log)
    done = clean(log, bench, buffer_bytes=24 * 12)
    assert done.end_offset == 10
    assert [tuple(entry) for entry in log.aborted_transactions(0, 22)] == [(5, 20)]
    assert markers(log) == [21]


def test_nothing_of_an_open_transaction_is_touched(bench: Workbench) -> None:
    log = bench.open(CONFIG)
    put(log, ("a", "1"))
    log.roll()
    put(log, ("a", "2"))
    log.roll()
    put(log, ("a", "open"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    seal(log)
    found = cleanable(log, None, bench.clock.wall_ms())
    assert (found.first_dirty, found.first_uncleanable) == (0, 2)
    clean(log, bench)
    assert contents(log) == [(1, "a", "2"), (2, "a", "open")]


def test_the_last_batch_of_a_live_producer_stays_as_an_empty_one(bench: Workbench) -> None:
    log = bench.open(CONFIG)
    put(log, ("a", "1"), producer_id=5, producer_epoch=1, base_sequence=0)
    put(log, ("a", "2"), ("b", "2"), producer_id=5, producer_epoch=1, base_sequence=1, time=BEGAN + 50)
    put(log, ("a", "3"), ("b", "3"))
    seal(log)
    clean(log, bench)
    assert contents(log) == [(3, "a", "3"), (4, "b", "3")]
    (empty, records), *_ = batches(log)
    assert (empty.base_offset, empty.last_offset, empty.count, records) == (1, 2, 0, [])
    assert (empty.base_timestamp, empty.max_timestamp) == (-1, BEGAN + 51)
    log.close()
    for snapshot in bench.directory.glob("*.snapshot"):
        snapshot.unlink()
    log = bench.open(CONFIG, clean=False)
    entry = log.producers.get(5)
    assert entry is not None and (entry.epoch, entry.last_sequence) == (1, 2)


def test_the_last_marker_of_a_producer_without_data_keeps_its_epoch(bench: Workbench) -> None:
    log = bench.open(CONFIG)
    at = log.append_as_leader(
        marker(5, ControlType.COMMIT, epoch=3), LeaderEpoch(0), origin=AppendOrigin.COORDINATOR
    ).first_offset
    put_large(log, "a")
    seal(log)
    clean(log, bench)
    for dirty in (2, 3):  # emptied by the first pass, and still there after the second
        put_large(log, f"k{dirty}")
        seal(log)
        age(log, 0, 2)
        clean(log, bench, dirty)
        header, records = batches(log)[0]
        assert (header.base_offset, header.is_control, header.producer_epoch, records) == (at, True, 3, [])
    log.close()
    assert bench.open(CONFIG, clean=False).log_end_offset == 4


# --- the map ---


def test_a_map_that_is_too_small_cleans_a_part_and_goes_on_there(bench: Workbench) -> None:
    log = bench.open(TopicConfig(cleanup_policy=("compact",)))
    for number in range(60):
        put(log, (f"k{number % 30}", str(number)))
    seal(log)
    dirty, passes = 0, 0
    while dirty < 60:
        done = clean(log, bench, dirty, buffer_bytes=24 * 12)
        assert done.end_offset > dirty
        dirty, passes = done.end_offset, passes + 1
    assert passes > 3
    assert contents(log) == [(30 + number, f"k{number}", str(30 + number)) for number in range(30)]


def test_a_map_without_room_for_one_batch_says_so(bench: Workbench) -> None:
    log = bench.open(TopicConfig(cleanup_policy=("compact",)))
    put(log, *((f"k{number}", "x") for number in range(20)))
    seal(log)
    with pytest.raises(KafkaError, match=r"log\.cleaner\.dedupe\.buffer\.size=288 is too small"):
        clean(log, bench, buffer_bytes=288)


@given(st.lists(st.tuples(st.binary(max_size=3), st.integers(0, 1 << 40)), max_size=200), st.integers(2, 120))
def test_the_map_is_a_dict_with_a_limit(pairs: list[tuple[bytes, int]], slots: int) -> None:
    offsets, model = OffsetMap(slots), dict[bytes, int]()
    for key, offset in pairs:
        fits = key in model or len(model) < int(slots * 0.9)
        assert offsets.put(key, offset) is fits
        if fits:
            model[key] = offset
        assert len(offsets) == len(model)
    for key, _ in pairs:
        assert offsets.get(key) == model.get(key, -1)


# --- against the model ---

Operation = tuple[str, int, list[tuple[int, bool]]]
"""(kind of batch, producer, records as (key, has a value))."""

operations = st.lists(
    st.tuples(
        st.sampled_from(["plain", "plain", "idempotent", "transaction", "commit", "abort", "roll"]),
        st.integers(1, 2),
        st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=3),
    ),
    max_size=25,
)


class Model:
    """The log as lists: every record written, the transaction of each, and how the transactions ended."""

    def __init__(self) -> None:
        self.records: list[tuple[int, str, str | None, int | None]] = []
        """offset, key, value, number of the transaction"""
        self.outcome: dict[int, str] = {}
        self.open: dict[int, int] = {}

    def stay(self, mapped: Iterable[int]) -> set[int]:
        """Offsets that must survive a cleaning of `mapped` that keeps tombstones."""
        committed = [r for r in self.records if self.outcome.get(r[3] if r[3] is not None else -1) != "abort"]
        last = {key: offset for offset, key, _, _ in committed if offset in set(mapped)}
        return {offset for offset, key, _, _ in committed if offset >= last.get(key, -1) or offset not in set(mapped)}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(operations, operations, st.sampled_from([24 * 4, BUFFER_BYTES]), st.sampled_from([300, 900]))
def test_any_log_against_the_model(
    first: list[Operation], second: list[Operation], buffer_bytes: int, segment_bytes: int
) -> None:
    root = Path(tempfile.mkdtemp(prefix="klamm-compaction-"))
    disk = FileDisk(1)
    try:
        bench = Workbench(disk, root / "t-0")
        log = bench.open(TopicConfig(cleanup_policy=("compact",), segment_bytes=segment_bytes, index_interval_bytes=0))
        model, sequences, dirty = Model(), {1: 0, 2: 0}, 0
        for part in (first, second):
            for operation in part:
                write(log, model, sequences, operation)
            seal(log)
            while True:
                found = cleanable(log, dirty, bench.clock.wall_ms())
                if not found.cleanable_bytes:
                    break
                dirty = clean(log, bench, dirty, buffer_bytes).end_offset
            check(log, model, dirty)
        end, kept, state = log.log_end_offset, batches(log), sequences_of(log)
        log.close()
        for snapshot in bench.directory.glob("*.snapshot"):
            snapshot.unlink()
        log = bench.open(log.config, clean=False)
        assert (log.log_end_offset, batches(log), sequences_of(log)) == (end, kept, state)
        log.close_files()
    finally:
        disk.close()
        shutil.rmtree(root)


def write(log: Log, model: Model, sequences: dict[int, int], operation: Operation) -> None:
    kind, producer, keys = operation
    in_transaction = producer in model.open
    if kind == "roll":
        log.roll()
        return
    if kind in ("commit", "abort"):
        if in_transaction:
            end_transaction(log, producer, ControlType.COMMIT if kind == "commit" else ControlType.ABORT)
            model.outcome[model.open.pop(producer)] = kind
        return
    at = log.log_end_offset
    pairs = [(f"k{key}", f"v{at + n}" if full else None) for n, (key, full) in enumerate(keys)]
    transaction = None
    options: dict[str, int | bool] = {}
    if kind != "plain":
        transactional = kind == "transaction" or in_transaction
        options = {
            "producer_id": producer,
            "producer_epoch": 0,
            "base_sequence": sequences[producer],
            "transactional": transactional,
        }
        sequences[producer] += len(pairs)
        if transactional:
            transaction = model.open.setdefault(producer, at)
    put(log, *pairs, **options)
    model.records += [(at + n, key, value, transaction) for n, (key, value) in enumerate(pairs)]


def check(log: Log, model: Model, dirty: int) -> None:
    found = contents(log)
    written = {offset: (offset, key, value) for offset, key, value, _ in model.records}
    assert all(record == written[record[0]] for record in found)
    aborted_left = {
        offset
        for offset, _, _, transaction in model.records
        if transaction is not None and model.outcome.get(transaction) == "abort"
    }
    committed = {offset for offset, _, _ in found} - {o for o in aborted_left if o >= dirty}
    expected = model.stay(range(dirty))
    assert committed == expected
    # A reader of committed records learns of every aborted one that is left.
    for offset in aborted_left & {offset for offset, _, _ in found}:
        assert log.aborted_transactions(offset, offset + 1)
    for start in range(log.log_start_offset, log.log_end_offset):
        read = log.read(start, 1, upper_bound=log.log_end_offset, at_least_one=True)
        assert read.next_offset > start


def sequences_of(log: Log) -> dict[int, int]:
    return {entry.producer_id: entry.last_sequence for entry in log.producers.entries()}
