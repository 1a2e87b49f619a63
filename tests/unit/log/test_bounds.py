"""What a large log costs: searches read a few entries, deletions sync once, first looks take turns."""

from __future__ import annotations

import asyncio
import random
import resource
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from klamm.log import durability
from klamm.log.disk import FileDisk
from klamm.log.indexes.offset_index import OffsetIndex
from klamm.log.indexes.time_index import TimeIndex
from klamm.log.producers import producer_snapshots
from klamm.log.producers.producer_snapshots import encode_snapshot
from klamm.log.producers.producer_state import ProducerEntry
from klamm.log.validation import AppendOrigin
from klamm.model.config import TopicConfig
from klamm.model.ids import LeaderEpoch, TopicPartition
from klamm.server.runtime import raise_descriptor_limit
from klamm.simulation.disk import SimulatedDisk, SimulatedFile
from klamm.wire.records import ControlType, Record, build_batch

from .conftest import SetClock, Workbench, append, marker, produced, read_all
from .simulated import created, new_disk, opened

ENTRIES = 50_000


class CountingDisk(SimulatedDisk):
    """Counts the bytes that are read."""

    bytes_read = 0

    def read(self, path: str) -> bytes:
        data = super().read(path)
        self.bytes_read += len(data)
        return data

    def open(self, path: str, *, create: bool = False) -> SimulatedFile:
        file = super().open(path, create=create)
        pread = file.pread

        def counted(size: int, position: int) -> bytes:
            self.bytes_read += size
            return pread(size, position)

        file.pread = counted  # type: ignore[method-assign]
        return file


@pytest.fixture
def counting() -> CountingDisk:
    disk = CountingDisk(SetClock(), random.Random(1))
    disk.make_directories("/d")
    return disk


def written(index: OffsetIndex | TimeIndex) -> None:
    index.create()
    for number in range(1, ENTRIES + 1):
        index.append(*((number * 10, number * 4096) if isinstance(index, OffsetIndex) else (number * 5, number * 10)))
    index.write_out()
    index.close()


def test_a_search_in_an_offset_index_reads_little_of_it(counting: CountingDisk) -> None:
    written(OffsetIndex(counting, "/d/0.index", 0))
    index = OffsetIndex(counting, "/d/0.index", 0)
    counting.bytes_read = 0
    for offset, position in ((9, 0), (10, 4096), (19, 4096), (123_456, 12_345 * 4096), (10**9, ENTRIES * 4096)):
        assert index.position_at_or_below(offset) == position
        assert index.boundary_at_or_below(position + 100) == position
    assert (index.last_position, len(index)) == (ENTRIES * 4096, ENTRIES)
    assert counting.bytes_read < 40_000


def test_entries_on_disk_and_in_memory_are_one_index(counting: CountingDisk) -> None:
    written(OffsetIndex(counting, "/d/0.index", 0))
    index = OffsetIndex(counting, "/d/0.index", 0)
    index.append(ENTRIES * 10, 1)  # not above the last one
    for number in range(ENTRIES + 1, ENTRIES + 100):
        index.append(number * 10, number * 4096)
    for number in (1, 500, ENTRIES, ENTRIES + 1, ENTRIES + 99):
        assert index.position_at_or_below(number * 10 + 5) == number * 4096
    index.truncate_to((ENTRIES + 50) * 10)
    assert index.last_position == (ENTRIES + 49) * 4096
    index.truncate_to(700 * 10 + 1)
    assert (len(index), index.last_position) == (700, 700 * 4096)
    index.append(7010, 12345)
    index.write_out()
    index.close()
    again = OffsetIndex(counting, "/d/0.index", 0)
    assert (len(again), again.last_position, again.position_at_or_below(7005)) == (701, 12345, 700 * 4096)


def test_an_index_that_is_closed_keeps_what_it_has_not_written(counting: CountingDisk) -> None:
    index = OffsetIndex(counting, "/d/i", 0)
    index.create()
    index.append(10, 4096)
    index.write_out()
    index.append(20, 8192)
    index.close()
    assert (len(index), index.position_at_or_below(20)) == (2, 8192)
    index.write_out()
    assert counting.read("/d/i") == index.entry.pack(10, 4096) + index.entry.pack(20, 8192)


def test_a_time_index_on_disk(counting: CountingDisk) -> None:
    written(TimeIndex(counting, "/d/0.timeindex", 0))
    index = TimeIndex(counting, "/d/0.timeindex", 0)
    assert index.last() == (ENTRIES * 5, ENTRIES * 10)
    assert index.offset_at_or_below(504) == 1000
    index.truncate_to(1001)
    assert index.last() == (500, 1000)


def test_zeros_at_the_end_of_an_index_are_damage(counting: CountingDisk) -> None:
    written(OffsetIndex(counting, "/d/0.index", 0))
    file = counting.open("/d/0.index")
    file.append([bytes(80)])
    assert not OffsetIndex(counting, "/d/0.index", 0).load()
    file.truncate(81)
    assert not OffsetIndex(counting, "/d/0.index", 0).load()


async def test_many_deletions_share_their_syncs() -> None:
    disk = new_disk()
    logs = await opened(disk)
    names = [TopicPartition("t", number) for number in range(200)]
    await logs.create_many([(name, TopicConfig(), True) for name in names])
    await logs.checkpoint_recovery_points()
    before = disk.syncs
    for name in names:
        logs.delete(name)
    assert disk.syncs == before
    await logs.settle_deletions()
    assert disk.syncs - before < 12
    assert disk.read("/data/1/recovery-point-offset-checkpoint") == b"0\n0\n"
    disk.cut_power()
    disk.restore_power()
    assert (await opened(disk)).get(names[0]) is None


async def test_a_new_log_does_not_find_the_recovery_point_of_the_old_one() -> None:
    disk = new_disk()
    logs = await opened(disk)
    log = await created(logs)
    append(log, "v")
    await log.flush()
    append(log, "v")
    await log.flush()
    await logs.checkpoint_recovery_points()
    logs.delete(log.topic_partition)
    await created(logs)
    assert disk.read("/data/1/recovery-point-offset-checkpoint") == b"0\n0\n"


async def test_the_first_search_by_time_takes_turns() -> None:
    disk = new_disk()
    config = TopicConfig(segment_bytes=150)
    logs = await opened(disk)
    log = await created(logs, config)
    for number in range(300):
        log.append_as_leader(build_batch([Record(b"k", b"v" * 40, 1000 + number)]), LeaderEpoch(0))
    await logs.close()
    found = (await opened(disk, config)).get(log.topic_partition)
    assert found is not None
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    await found.read_timestamps()
    other.cancel()
    assert turns >= 2
    assert found.offset_for_timestamp(1250, 300) == (1250, 250, 0)


def test_a_truncation_without_producers_reads_no_batch_twice(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    log = bench.open()
    for number in range(200):
        append(log, f"{number}", epoch=0)
    monkeypatch.setattr("klamm.log.producers.producer_state_manager.rebuild_state", None)
    assert log.truncate_to(150)
    assert (read_all(log)[-1], log.producers.end_offset) == (149, 150)


def test_a_truncation_restores_the_state_of_producers(bench: Workbench) -> None:
    log = bench.open()
    for sequence in range(3):
        log.append_as_leader(produced(7, sequence), LeaderEpoch(0))
    log.truncate_to(2)
    assert not log.append_as_leader(produced(7, 2), LeaderEpoch(1)).duplicate
    assert log.append_as_leader(produced(7, 1), LeaderEpoch(1)).duplicate


@pytest.mark.parametrize("clean", [True, False])
def test_a_segment_whose_offsets_overflow_is_split(tmp_path: Path, clean: bool) -> None:
    real = FileDisk(1)
    bench = Workbench(real, tmp_path / "t-0")
    bench.directory.mkdir()
    offsets = [0, 1, 2**31 + 5, 2**31 + 6, 2**32 + 20]
    data = b"".join(build_batch([Record(b"k", b"v", 1)], base_offset=at, leader_epoch=0) for at in offsets)
    (bench.directory / f"{0:020d}.log").write_bytes(data)
    log = bench.open(clean=clean)
    assert [segment.base_offset for segment in log.segments] == [0, 2**31 + 5, 2**32 + 20]
    assert read_all(log) == offsets
    log.close()
    assert read_all(bench.open()) == offsets
    real.close()


def test_a_split_that_was_interrupted_is_repeated(tmp_path: Path) -> None:
    real = FileDisk(1)
    bench = Workbench(real, tmp_path / "t-0")
    bench.directory.mkdir()
    offsets = [0, 2**31 + 5, 2**31 + 6]
    data = [build_batch([Record(b"k", b"v", 1)], base_offset=at, leader_epoch=0) for at in offsets]
    (bench.directory / f"{0:020d}.log").write_bytes(b"".join(data))
    (bench.directory / f"{2**31 + 5:020d}.log").write_bytes(b"".join(data[1:]))
    assert read_all(bench.open(clean=False)) == offsets
    real.close()


def test_the_limit_of_open_files_is_raised() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def descriptors_below(directory: Path) -> int:
    links = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing itself
            links.append(str(link.readlink()))
    return sum(link.startswith(f"{directory}/") for link in links)


async def test_only_the_segment_that_is_written_holds_descriptors(bench: Workbench) -> None:
    """A consumer that reads everything must not leave a descriptor for each of thousands of segments."""
    log = bench.open()
    for number in range(30):
        append(log, f"v{number}")
        log.roll()
    await log.flush()
    append(log, "last")
    assert read_all(log) == list(range(31))
    await log.read_timestamps()
    assert log.offset_for_timestamp(0, log.log_end_offset) is not None
    assert descriptors_below(bench.directory) == 1
    log.close()

    again = bench.open(recovery_point=31)
    assert read_all(again) == list(range(31))
    assert descriptors_below(bench.directory) == 0


def test_deleted_segments_hold_no_descriptors(bench: Workbench) -> None:
    log = bench.open()
    for _ in range(3):
        append(log, "v")
        log.roll()
    assert descriptors_below(bench.directory) == 3
    log.update_high_watermark(1)
    log.delete_oldest(1)
    assert descriptors_below(bench.directory) == 2
    log.truncate_to(1)
    assert descriptors_below(bench.directory) == 1, "that of the active segment"


async def test_a_snapshot_of_many_producers_is_encoded_off_the_loop(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows the producers as they were when the segment ended, whatever they write before the pool encodes it."""
    log = bench.open(TopicConfig(segment_bytes=1 << 20))
    for producer in range(3):
        log.append_as_leader(produced(producer, 0, transactional=producer == 1), LeaderEpoch(0))
    as_they_were = encode_snapshot(log.producers.entries())
    threads: list[int] = []

    def encode(entries: list[ProducerEntry]) -> bytes:
        threads.append(threading.get_ident())
        return encode_snapshot(entries)

    monkeypatch.setattr(durability, "encode_snapshot", encode)
    log.roll()
    log.append_as_leader(produced(0, 1), LeaderEpoch(0))
    log.append_as_leader(produced(2, 0, epoch=1), LeaderEpoch(0))
    log.append_as_leader(marker(1, ControlType.COMMIT), LeaderEpoch(0), origin=AppendOrigin.COORDINATOR)
    log.expire_producers(-1)
    await log.flush()
    assert Path(log.directory, f"{3:020d}.snapshot").read_bytes() == as_they_were
    assert threads and threading.get_ident() not in threads


async def test_a_snapshot_of_many_producers_is_read_in_turns(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_snapshots, "ENTRIES_PER_SLICE", 10)
    log = bench.open()
    for producer in range(100):
        log.append_as_leader(produced(producer, 0), LeaderEpoch(0))
    log.roll()
    await log.flush()
    append(log, "cut off")
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    await log.prepare_truncation(100)
    other.cancel()
    assert turns >= 10
    log.truncate_to(100)
    assert len(log.producers) == 100
