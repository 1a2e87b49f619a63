"""The log after any kind of stop: clean, torn at any byte, or with files missing or left over."""

from __future__ import annotations

import shutil
import struct
import zlib
from contextlib import suppress
from pathlib import Path

import pytest

from klamm.log.directories.checkpoints import encode_lines
from klamm.log.producers.producer_replay import rebuild_state
from klamm.log.producers.producer_snapshots import ProducerSnapshots, encode_snapshot
from klamm.log.producers.producer_state import ProducerState
from klamm.log.recovery import LoadedLog, _intact_batches, load_log
from klamm.log.segments.log_segment import LogSegment
from klamm.log.validation import AppendOrigin
from klamm.model.config import TopicConfig
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import LeaderEpoch
from klamm.simulation.disk import SimulatedDisk
from klamm.wire.batch import pack_batch, read_header
from klamm.wire.records import ControlType, Record, build_batch

from .conftest import Workbench, append, batch, marker, produced, read_all
from .simulated import new_disk

CONFIG = TopicConfig(segment_bytes=1000, index_interval_bytes=150)


def crashed_copy(bench: Workbench, name: str) -> Path:
    """The directory as a killed process leaves it."""
    target = bench.directory.parent / name
    shutil.copytree(bench.directory, target)
    return target


def filled(bench: Workbench, count: int = 40) -> None:
    log = bench.open(CONFIG)
    for n in range(count):
        append(log, f"value-{n}", epoch=n // 10, timestamp=1000 + n)
    log.close()


def file_bytes(directory: Path, suffix: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.glob(f"*{suffix}"))}


@pytest.mark.case("LOG-17")
def test_reopening_changes_nothing(bench: Workbench) -> None:
    filled(bench)
    before = {suffix: file_bytes(bench.directory, suffix) for suffix in (".log", ".index", ".timeindex")}
    for clean, recovery_point in ((True, 0), (True, 40), (False, 40), (False, 20), (False, 0)):
        log = bench.open(CONFIG, clean=clean, recovery_point=recovery_point)
        assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (0, 40, 40)
        assert read_all(log) == list(range(40))
        assert [tuple(e) for e in log.epochs.entries] == [(0, 0), (1, 10), (2, 20), (3, 30)]
        log.close()
        after = {suffix: file_bytes(bench.directory, suffix) for suffix in before}
        assert after == before, (clean, recovery_point)


def test_appends_go_on_with_the_same_index_after_a_restart(bench: Workbench) -> None:
    log = bench.open(CONFIG)
    other = Workbench(bench.disk, bench.directory.parent / "other")
    interrupted = other.open(CONFIG)
    for n in range(30):
        append(log, f"value-{n}")
        append(interrupted, f"value-{n}")
        interrupted.close()
        interrupted = other.open(CONFIG)
    log.close()
    interrupted.close()
    assert file_bytes(bench.directory, ".index") == file_bytes(other.directory, ".index")


def test_a_torn_tail_is_cut_at_every_byte(bench: Workbench) -> None:
    log = bench.open(CONFIG)
    for n in range(5):
        append(log, f"value-{n}", epoch=n)
    good = log.size_bytes
    log.append_as_leader(produced(9, 0), LeaderEpoch(5))
    whole = log.size_bytes
    copy = crashed_copy(bench, "crashed")
    log.close()
    data = (copy / "00000000000000000000.log").read_bytes()
    assert len(data) == whole
    for size in range(good, whole + 1):
        directory = bench.directory.parent / f"cut-{size}"
        shutil.copytree(copy, directory)
        (directory / "00000000000000000000.log").write_bytes(data[:size])
        torn = bench.open(CONFIG, directory=directory, clean=False)
        expected = 6 if size == whole else 5
        assert torn.log_end_offset == expected, size
        assert read_all(torn) == list(range(expected))
        assert torn.epochs.latest_epoch == expected - 1
        assert torn.append_as_leader(produced(9, 0), LeaderEpoch(9)).duplicate is (size == whole)
        torn.close_files()
        shutil.rmtree(directory)


@pytest.mark.parametrize(
    "tail",
    [bytes(5), bytes(100), bytes(4096), b"\xff" * 100, batch("old")[:70]],
    ids=["few-zeros", "zeros", "a-page-of-zeros", "ones", "a-torn-batch"],
)
def test_garbage_after_the_end_is_cut(bench: Workbench, tail: bytes) -> None:
    filled(bench, 8)
    path = bench.directory / "00000000000000000000.log"
    good = path.read_bytes()
    path.write_bytes(good + tail)
    for clean in (False, True):
        log = bench.open(CONFIG, clean=clean)
        assert (log.log_end_offset, log.size_bytes) == (8, len(good))
        assert append(log, "next", timestamp=1008).first_offset == 8
        log.truncate_to(8)
        log.close()
        path.write_bytes(good + tail)


def test_damage_ends_the_log_and_drops_later_segments(bench: Workbench) -> None:
    filled(bench)
    logs = sorted(bench.directory.glob("*.log"))
    assert len(logs) > 3
    data = bytearray(logs[1].read_bytes())
    data[-1] ^= 1
    logs[1].write_bytes(data)
    log = bench.open(CONFIG, clean=False, recovery_point=int(logs[1].stem))
    assert log.log_end_offset == int(logs[2].stem) - 1
    assert [path.name for path in sorted(bench.directory.glob("*.log"))] == [logs[0].name, logs[1].name]
    assert read_all(log) == list(range(log.log_end_offset))
    assert log.epochs.entries[-1].start_offset < log.log_end_offset


def test_damage_below_the_recovery_point_is_not_cut_off(bench: Workbench) -> None:
    filled(bench)
    logs = sorted(bench.directory.glob("*.log"))
    data = bytearray(logs[1].read_bytes())
    data[-1] ^= 1
    logs[1].write_bytes(data)
    logs[1].with_suffix(".index").unlink()  # makes the load check the segment
    with pytest.raises(KafkaError, match="damaged"):
        bench.open(CONFIG)
    assert len(list(bench.directory.glob("*.log"))) == len(logs)


def test_old_message_formats_are_reported_and_kept(bench: Workbench) -> None:
    bench.directory.mkdir()
    body = struct.pack(">bbqi", 1, 0, 12345, -1) + struct.pack(">i", 60) + b"v" * 60
    message = struct.pack(">qiI", 0, len(body) + 4, zlib.crc32(body)) + body
    path = bench.directory / "00000000000000000000.log"
    path.write_bytes(message)
    for clean in (False, True):
        with pytest.raises(KafkaError) as raised:
            bench.open(CONFIG, clean=clean)
        assert raised.value.code is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
        assert path.read_bytes() == message


@pytest.mark.case("LOG-16")
@pytest.mark.parametrize("damage", ["missing", "zeros", "odd", "empty"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_lost_indexes_are_rebuilt(bench: Workbench, suffix: str, damage: str) -> None:
    filled(bench)
    before = file_bytes(bench.directory, suffix)
    active = max(before)
    for name in before:
        path = bench.directory / name
        if damage == "missing":
            path.unlink()
        elif damage == "zeros" and name == active:
            path.write_bytes(before[name] + bytes(240))
        elif damage == "odd" and name == active:
            path.write_bytes(before[name] + b"1")
        elif damage == "empty" and name == active:
            path.write_bytes(b"")
    (bench.directory / f"00000000000000000777{suffix}").write_bytes(b"orphan")
    log = bench.open(CONFIG)
    assert read_all(log) == list(range(40))
    assert [log.offset_for_timestamp(1000 + n, 40) for n in range(40)] == [(1000 + n, n, n // 10) for n in range(40)]
    log.close()
    if damage != "empty":
        assert file_bytes(bench.directory, suffix) == before
    assert not (bench.directory / f"00000000000000000777{suffix}").exists()


@pytest.mark.case("LOG-10")
def test_leftovers_of_deletion_and_cleaning_go(bench: Workbench) -> None:
    filled(bench)
    names = sorted(path.name for path in bench.directory.iterdir())
    for leftover in (
        "00000000000000000003.log.deleted",
        "00000000000000000004.log.cleaned",
        "00000000000000000004.index.cleaned",
    ):
        (bench.directory / leftover).write_bytes(b"whatever")
    log = bench.open(CONFIG)
    assert log.log_end_offset == 40
    assert sorted(path.name for path in bench.directory.iterdir()) == names


def test_a_finished_swap_replaces_its_sources(bench: Workbench) -> None:
    filled(bench)
    logs = sorted(bench.directory.glob("*.log"))
    merged = b"".join(path.read_bytes() for path in logs[:2])
    (bench.directory / (logs[0].name + ".swap")).write_bytes(merged)
    log = bench.open(CONFIG)
    assert read_all(log) == list(range(40))
    assert [path.name for path in sorted(bench.directory.glob("*.log"))] == [logs[0].name] + [p.name for p in logs[2:]]
    assert not list(bench.directory.glob("*.swap"))


def test_a_swap_beside_unfinished_cleaning_is_thrown_away(bench: Workbench) -> None:
    filled(bench)
    logs = sorted(bench.directory.glob("*.log"))
    (bench.directory / (logs[1].name + ".swap")).write_bytes(logs[1].read_bytes()[:200])
    (bench.directory / (logs[0].name + ".cleaned")).write_bytes(b"half")
    log = bench.open(CONFIG)
    assert read_all(log) == list(range(40))
    assert sorted(bench.directory.glob("*.log")) == logs


@pytest.mark.case("LOG-18")
def test_a_start_offset_without_files(bench: Workbench) -> None:
    log = bench.open(CONFIG, log_start_offset=500)
    assert (log.log_start_offset, log.log_end_offset) == (500, 500)
    assert append(log, "a").first_offset == 500


def test_a_log_that_ends_before_its_start_begins_anew_there(bench: Workbench) -> None:
    filled(bench, 8)
    log = bench.open(CONFIG, log_start_offset=100)
    assert (log.log_start_offset, log.log_end_offset, read_all(log)) == (100, 100, [])


def test_a_log_start_inside_a_segment_is_kept(bench: Workbench) -> None:
    filled(bench)
    log = bench.open(CONFIG, log_start_offset=7, clean=False)
    assert (log.log_start_offset, log.log_end_offset) == (7, 40)
    assert log.epochs.entries[0] == (0, 7)
    assert read_all(log) == list(range(7, 40))


async def test_a_crash_after_a_flush_keeps_everything(bench: Workbench) -> None:
    log = bench.open(CONFIG)
    for n in range(30):
        log.append_as_leader(produced(5, n), LeaderEpoch(n // 7))
        if n == 20:
            await log.flush()
    recovery_point = log.recovery_point
    copy = crashed_copy(bench, "crashed")
    assert recovery_point == 21
    again = bench.open(CONFIG, directory=copy, clean=False, recovery_point=recovery_point)
    assert read_all(again) == list(range(30))
    assert again.epochs.entries == log.epochs.entries
    assert again.append_as_leader(produced(5, 29), LeaderEpoch(9)).duplicate
    assert again.append_as_leader(produced(5, 30), LeaderEpoch(9)).first_offset == 30


async def test_epochs_that_were_cut_off_do_not_come_back_after_a_crash(bench: Workbench) -> None:
    log = bench.open(CONFIG)
    for _ in range(10):
        append(log, "v", epoch=4)
    append(log, "v", epoch=5)
    await log.flush()
    log.truncate_to(9)
    log.append_as_follower(b"".join(batch("v", base_offset=n, leader_epoch=4) for n in range(9, 15)))
    assert [tuple(e) for e in log.epochs.entries] == [(4, 0)]
    copy = crashed_copy(bench, "crashed")
    again = bench.open(CONFIG, directory=copy, clean=False, recovery_point=log.recovery_point)
    assert again.log_end_offset == 15
    assert [tuple(e) for e in again.epochs.entries] == [(4, 0)]


def test_epochs_that_the_file_kept_too_long_are_dropped_by_the_batches(bench: Workbench) -> None:
    log = bench.open(CONFIG)
    for _ in range(12):
        append(log, "v", epoch=4)
    log.close()
    (bench.directory / "leader-epoch-checkpoint").write_text("0\n2\n4 0\n5 10\n")
    log = bench.open(CONFIG, clean=False)
    assert [tuple(e) for e in log.epochs.entries] == [(4, 0)]


@pytest.mark.parametrize("clean", [True, False])
async def test_deleted_records_that_come_back_after_a_crash_have_their_epochs(bench: Workbench, clean: bool) -> None:
    """The epochs are on disk without the deleted ones, but the checkpoint still has the old log start. The first epoch
    ended at 10: a follower that wrote other records in it must not hear that it ended at 25."""
    filled(bench)
    log = bench.open(CONFIG)
    log.update_high_watermark(40)
    log.advance_log_start(25)
    await log.flush()
    assert [tuple(e) for e in log.epochs.entries] == [(2, 25), (3, 30)]
    copy = crashed_copy(bench, "crashed")
    again = bench.open(CONFIG, directory=copy, clean=clean, recovery_point=log.recovery_point)
    assert (again.log_start_offset, again.log_end_offset) == (0, 40)
    assert [tuple(e) for e in again.epochs.entries] == [(0, 0), (1, 10), (2, 20), (3, 30)]
    assert again.epochs.end_offset_for(0) == (0, 10)
    kept = bench.open(CONFIG, directory=copy, clean=clean, recovery_point=40, log_start_offset=25)
    assert [tuple(e) for e in kept.epochs.entries] == [(2, 25), (3, 30)]


def test_producer_state_is_rebuilt_up_to_any_offset(bench: Workbench) -> None:
    log = bench.open(CONFIG)
    for n in range(6):
        log.append_as_leader(produced(5, 2 * n, 2), LeaderEpoch(0))
    snapshots = ProducerSnapshots(bench.disk, str(bench.directory))
    for target, last in ((12, 11), (6, 5), (5, 3), (0, None)):
        state = rebuild_state(log.segments, snapshots, log_start_offset=0, target=target, now_ms=0)
        entry = state.get(5)
        assert (entry and entry.last_sequence) == last
        assert state.end_offset == target


def test_damaged_producer_snapshots_are_replaced_by_a_scan(bench: Workbench) -> None:
    log = bench.open(CONFIG)
    for n in range(30):
        log.append_as_leader(produced(5, n), LeaderEpoch(0))
    log.append_as_leader(produced(6, 0, transactional=True), LeaderEpoch(0))
    log.append_as_leader(marker(6, ControlType.ABORT), LeaderEpoch(0), origin=AppendOrigin.COORDINATOR)
    log.close()
    snapshots = sorted(bench.directory.glob("*.snapshot"))
    assert int(snapshots[-1].stem) == 32
    for path in snapshots[-2:]:
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    log = bench.open(CONFIG)
    for n in range(25, 30):
        assert log.append_as_leader(produced(5, n), LeaderEpoch(0)).duplicate
    for path in bench.directory.glob("*.snapshot"):
        path.unlink()
    log = bench.open(CONFIG)
    assert log.append_as_leader(produced(5, 29), LeaderEpoch(0)).duplicate
    assert [tuple(a) for a in log.aborted_transactions(0, 32)] == [(6, 30)]


def test_a_segment_that_a_power_cut_brought_back_after_a_truncation_is_removed(bench: Workbench) -> None:
    bench.directory.mkdir()
    batches = [build_batch([Record(b"k", b"v", 1)], base_offset=at, leader_epoch=0) for at in range(5)]
    (bench.directory / f"{0:020d}.log").write_bytes(b"".join(batches))
    (bench.directory / f"{3:020d}.log").write_bytes(b"".join(batches[3:]))
    log = bench.open(clean=False)
    assert read_all(log) == [0, 1, 2, 3, 4]
    assert len(log.segments) == 1


@pytest.mark.parametrize("seed", range(12))
def test_a_recovery_is_not_undone_by_a_power_cut(seed: int) -> None:
    """The recovery point is the log end from then on: what was cut off or removed must not come back."""
    disk = new_disk(seed)
    disk.make_directories("/data/1/t-0")
    batches = [build_batch([Record(b"k", b"v", 1)], base_offset=at, leader_epoch=0) for at in range(8)]
    stray = build_batch([Record(b"k", b"stray", 1)], base_offset=3, leader_epoch=0)
    for base, content in ((0, b"".join(batches[:5])), (3, stray), (6, batches[6])):
        file = disk.open(f"/data/1/t-0/{base:020d}.log", create=True)
        file.append([content])
        file.sync()
        file.close()
    disk.sync_directory("/data/1/t-0")
    disk.sync_directory("/data/1")

    def load(recovery_point: int) -> LoadedLog:
        config = TopicConfig()
        return load_log(
            disk, "/data/1/t-0", config, log_start_offset=0, recovery_point=recovery_point, clean=False, now_ms=0
        )

    first = load(0)
    assert (first.recovery_point, len(first.segments)) == (5, 1)
    disk.cut_power()
    disk.restore_power()
    again = load(5)
    assert (again.log_end_offset, len(again.segments), again.segments.active.size) == (5, 1, len(batches[0]) * 5)


def test_producers_that_a_snapshot_kept_too_long(bench: Workbench) -> None:
    """A power cut may bring back a snapshot that a truncation removed: it describes other records."""
    log = bench.open()
    for sequence in range(6):
        log.append_as_leader(produced(5, sequence), LeaderEpoch(0))
    log.close_files()
    stale = ProducerState()
    stale.record(read_header(produced(9, 0)), 2, 0)
    ProducerSnapshots(bench.disk, str(bench.directory)).write(3, encode_snapshot(stale.entries()))
    log = bench.open(clean=False)
    log.truncate_to(4)
    assert [entry.producer_id for entry in log.producers.entries()] == [5]


@pytest.mark.parametrize("clean", [False, True])
def test_epochs_beyond_the_end_and_below_the_start(bench: Workbench, clean: bool) -> None:
    filled(bench)
    lines = [(0, 0), (1, 10), (2, 20), (3, 30), (4, 40), (5, 50)]
    path = bench.directory / "leader-epoch-checkpoint"
    path.write_bytes(encode_lines(lines))
    log = bench.open(CONFIG, clean=clean, recovery_point=40, log_start_offset=15)
    kept = [(1, 15), (2, 20), (3, 30)]
    assert [tuple(entry) for entry in log.epochs.entries] == kept
    assert path.read_bytes() == encode_lines(kept)


@pytest.mark.parametrize("clean", [False, True])
def test_snapshots_beyond_the_end_and_below_the_start(bench: Workbench, clean: bool) -> None:
    """Records will be written there, and a truncation would find producers that never wrote them."""
    filled(bench)
    snapshots = ProducerSnapshots(bench.disk, str(bench.directory))
    for offset in (14, 16, 41):
        snapshots.write(offset, encode_snapshot([]))
    log = bench.open(CONFIG, clean=clean, recovery_point=40, log_start_offset=15)
    left = [int(path.stem) for path in bench.directory.glob("*.snapshot")]
    assert min(left) >= 15 and max(left) <= log.log_end_offset == 40


@pytest.mark.parametrize("wrong", ["falls", "repeats", "ends before it begins", "overflows"])
def test_offsets_that_cannot_follow_end_the_log(bench: Workbench, wrong: str) -> None:
    """Their checksums are right, because a checksum does not cover the base offset."""
    bench.directory.mkdir()
    good = [build_batch([Record(b"k", b"v", 1)] * 2, base_offset=at, leader_epoch=0) for at in (10, 12)]
    bad = {
        "falls": build_batch([Record(b"k", b"v", 1)], base_offset=11, leader_epoch=0),
        "repeats": good[1],
        "ends before it begins": pack_batch(read_header(good[1])._replace(base_offset=14, last_offset_delta=-1), b""),
        "overflows": build_batch([Record(b"k", b"v", 1)], base_offset=10 + 2**31, leader_epoch=0),
    }[wrong]
    path = bench.directory / f"{10:020d}.log"
    path.write_bytes(b"".join([*good, bad]))
    if wrong == "overflows":
        assert [at for at, *_ in _intact_batches(segment_of(bench, 10))] == [0, len(good[0])]
        return
    log = bench.open(clean=False)
    assert (log.log_end_offset, log.size_bytes) == (14, len(good[0]) * 2)
    assert read_all(log) == [10, 11, 12, 13]


def segment_of(bench: Workbench, base_offset: int) -> LogSegment:
    return LogSegment(bench.disk, str(bench.directory), base_offset, created_ms=0)


@pytest.mark.parametrize("cut_at", range(8))
def test_the_power_is_cut_while_an_overflowed_segment_is_split(cut_at: int) -> None:
    offsets = [0, 1, 2**31 + 5, 2**31 + 6]
    config = TopicConfig()
    for seed in range(6):
        disk = new_disk(seed)
        disk.make_directories("/data/1/t-0")
        file = disk.open(f"/data/1/t-0/{0:020d}.log", create=True)
        file.append([build_batch([Record(b"k", b"v" * 50, 1)], base_offset=at, leader_epoch=0) for at in offsets])
        file.sync()
        file.close()
        disk.sync_directory("/data/1/t-0")
        disk.sync_directory("/data/1")
        disk.syncs = 0

        def cut(operation: str, _path: str, disk: SimulatedDisk = disk) -> None:
            if operation in ("sync", "sync_directory", "remove") and disk.syncs == cut_at and disk.has_power:
                disk.cut_power()

        disk.before = cut
        with suppress(OSError):
            load_log(disk, "/data/1/t-0", config, log_start_offset=0, recovery_point=0, clean=False, now_ms=0)
        disk.before = None
        if disk.has_power:
            disk.cut_power()
        disk.restore_power()
        again = load_log(disk, "/data/1/t-0", config, log_start_offset=0, recovery_point=0, clean=False, now_ms=0)
        found = [header.base_offset for segment in again.segments for _, header in segment.headers(0)]
        assert found == offsets, seed
