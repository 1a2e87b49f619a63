"""Producer state across epochs, snapshots and truncations: no batch is lost as a duplicate, and none is taken twice."""

from __future__ import annotations

from pathlib import Path

from klamm.log.producers.producer_replay import rebuild_state
from klamm.log.producers.producer_snapshots import ProducerSnapshots, decode_snapshot, encode_snapshot
from klamm.log.producers.producer_state import ProducedBatch, ProducerEntry, ProducerState
from klamm.model.ids import LeaderEpoch, ProducerId
from klamm.wire.batch import read_header
from klamm.wire.slices import finish

from .conftest import Workbench, append, produced

EPOCH = LeaderEpoch(0)


def fields(entry: ProducerEntry | None) -> dict[str, object]:
    return {name: getattr(entry, name) for name in ProducerEntry.__slots__ if name not in ("freezes", "seen_ms")}


def test_the_batches_of_a_former_epoch_are_no_duplicates(bench: Workbench) -> None:
    log = bench.open()
    for epoch in (0, 1):
        for sequence in range(3):
            info = log.append_as_leader(produced(7, sequence, epoch=epoch), EPOCH)
            assert not info.duplicate, "it would be lost"
    assert log.append_as_leader(produced(7, 2, epoch=1), EPOCH).duplicate
    assert log.log_end_offset == 6


def test_a_snapshot_keeps_everything_about_a_producer() -> None:
    full = ProducerEntry(ProducerId(1 << 40), 5, 0)
    full.batches.append(ProducedBatch(last_sequence=9, last_offset=20, offset_delta=3, timestamp=1234))
    full.coordinator_epoch, full.last_timestamp, full.transaction_first_offset = 8, 1234, 17
    marker_only = ProducerEntry(ProducerId(2), 6, 0)
    marker_only.coordinator_epoch, marker_only.last_timestamp = 9, 99
    state = finish(decode_snapshot(encode_snapshot([full, marker_only]), now_ms=77))
    assert state is not None
    for entry in (full, marker_only):
        found = state.get(entry.producer_id)
        assert fields(found) == fields(entry)
        assert found is not None and found.seen_ms == 77
    assert state.first_unstable_offset == 17
    copied = full.copy()
    assert fields(copied) == fields(full)
    copied.batches.clear()
    assert len(full.batches) == 1


def test_a_snapshot_from_before_the_log_start_is_not_used(bench: Workbench) -> None:
    log = bench.open()
    for sequence in range(6):
        log.append_as_leader(produced(5, sequence), EPOCH)
    other = ProducerState()
    other.record(read_header(produced(9, 0)), 0, 0)
    snapshots = ProducerSnapshots(bench.disk, log.directory)
    snapshots.write(2, encode_snapshot(other.entries()))

    def producers(log_start_offset: int) -> list[int]:
        state = rebuild_state(log.segments, snapshots, log_start_offset=log_start_offset, target=6, now_ms=0)
        return sorted(entry.producer_id for entry in state.entries())

    assert (producers(2), producers(3)) == ([5, 9], [5])


async def test_snapshots_follow_truncations(bench: Workbench) -> None:
    log = bench.open()

    def on_disk() -> list[int]:
        return sorted(int(path.stem) for path in Path(log.directory).glob("*.snapshot"))

    for sequence in range(5):
        log.append_as_leader(produced(5, sequence), EPOCH)
    log.roll()
    log.truncate_to(4)  # before the snapshot is written
    await log.flush()
    assert on_disk() == []
    log.append_as_leader(produced(6, 0), EPOCH)
    log.roll()
    await log.flush()
    assert on_disk() == [5]
    log.truncate_to(2)
    assert on_disk() == []
    append(log, "without a producer")
    log.roll()
    await log.flush()
    assert on_disk() == [3], "the state at 5 is gone, so the one at 3 is the newest"
    assert [entry.last_sequence for entry in log.producers.entries()] == [1]


def test_nothing_of_the_former_records_stays(bench: Workbench) -> None:
    log = bench.open()
    for sequence in range(4):
        log.append_as_leader(produced(5, sequence, transactional=True), LeaderEpoch(3))
    log.update_high_watermark(4)
    log.advance_log_start(3)
    log.truncate_to(1)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (1, 1, 1)
    for sequence in range(2):
        log.append_as_leader(produced(6, sequence, transactional=True), LeaderEpoch(4))
    log.truncate_fully_and_start_at(7)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark, log.recovery_point) == (7, 7, 7, 7)
    assert (log.epochs.entries, len(log.producers), log.first_unstable_offset) == ((), 0, None)
    assert not log.append_as_leader(produced(5, 0), LeaderEpoch(3)).duplicate
