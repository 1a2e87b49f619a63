"""The real log manager on the simulated disk: the power is cut at one sync after the other. Then the next start is
judged.

Judged by what a client could have seen: a record that a flush covered is there, nothing torn is served, no offset has
two records, a retry is recognised, an aborted transaction is known, and the leader epochs are those of the batches. A
process may also be killed before the power is cut: what the recovery then promises must be on the disk too.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from klamm.log.log import Log
from klamm.log.log_manager import LogManager
from klamm.log.validation import AppendOrigin
from klamm.model.config import BrokerConfig, TopicConfig
from klamm.model.errors import KafkaError
from klamm.model.ids import LeaderEpoch, TopicPartition
from klamm.simulation.disk import SimulatedDisk
from klamm.simulation.loop import run_in_virtual_time
from klamm.wire.batch import BatchHeader, check_crc, iter_batches
from klamm.wire.records import ControlType, iter_records

from .conftest import SetClock, batch, marker, produced

CONFIG = TopicConfig(segment_bytes=600, index_interval_bytes=100, file_delete_delay_ms=10, segment_index_bytes=1000)
BROKER = BrokerConfig(zookeeper_connect="x", log_dirs=("/data/1", "/data/2"), log_cleaner_enable=False)
PARTITIONS = [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)]


@dataclass
class History:
    """What was written to one partition, and up to which offset a flush promised it."""

    values: dict[int, list[bytes | None]] = field(default_factory=dict)
    current: dict[int, tuple[bytes | None, int]] = field(default_factory=dict)
    """By offset: the value, and the first offset of its batch, because a truncation removes whole batches."""
    promised: int = 0
    start: int = 0

    def wrote(self, first_offset: int, *values: str) -> None:
        for offset, value in enumerate(values, first_offset):
            self.values.setdefault(offset, []).append(value.encode())
            self.current[offset] = (value.encode(), first_offset)

    def wrote_marker(self, offset: int) -> None:
        self.values.setdefault(offset, []).append(None)
        self.current[offset] = (None, offset)

    def truncated(self, offset: int) -> None:
        cut = self.current[offset][1] if offset in self.current else offset
        self.promised = min(self.promised, cut)
        self.current = {at: value for at, value in self.current.items() if at < cut}


class Life:
    """One process, from its start to the power cut."""

    def __init__(self, disk: SimulatedDisk, rng: random.Random, histories: dict[TopicPartition, History]) -> None:
        self._disk = disk
        self._rng = rng
        self._histories = histories
        self._clock = SetClock()
        self.logs = LogManager(disk, self._clock, BROKER, rng)
        self._epoch = 0

    async def start(self) -> None:
        self.logs.directories.lock()
        await self.logs.load(lambda _: CONFIG)

    async def work(self, steps: int) -> None:
        created = await self.logs.create_many([(name, CONFIG, True) for name in PARTITIONS])
        for number in range(steps):
            if not self._disk.has_power:
                return
            name = self._rng.choice(PARTITIONS)
            log = created[name]
            assert isinstance(log, Log)
            try:
                await self._step(number, log, self._histories[name])
            except KafkaError:
                assert not self._disk.has_power
                return

    async def _step(self, number: int, log: Log, history: History) -> None:
        self._clock.now_ms += 50
        match self._rng.choices(
            ["append", "idempotent", "aborted", "flush", "truncate", "roll", "start", "checkpoint", "retention"],
            [40, 10, 5, 15, 5, 3, 5, 5, 2],
        )[0]:
            case "append":
                values = [f"{number}-{n}" * self._rng.randint(1, 9) for n in range(self._rng.randint(1, 3))]
                info = log.append_as_leader(batch(*values), LeaderEpoch(self._epoch))
                history.wrote(info.first_offset, *values)
            case "idempotent":
                info = log.append_as_leader(produced(1000 + number, 0), LeaderEpoch(self._epoch))
                history.wrote(info.first_offset, "v0")
            case "aborted":
                info = log.append_as_leader(produced(1000 + number, 0, transactional=True), LeaderEpoch(self._epoch))
                history.wrote(info.first_offset, "v0")
                end = marker(1000 + number, ControlType.ABORT)
                info = log.append_as_leader(end, LeaderEpoch(self._epoch), origin=AppendOrigin.COORDINATOR)
                history.wrote_marker(info.first_offset)
            case "flush":
                end = log.log_end_offset
                await log.flush()
                if self._disk.has_power:
                    history.promised = max(history.promised, end)
            case "truncate":
                offset = max(log.log_end_offset - self._rng.randint(1, 12), log.log_start_offset)
                history.truncated(offset)
                log.truncate_to(offset)
                self._epoch += 1
            case "roll":
                log.roll()
            case "start":
                log.update_high_watermark(log.log_end_offset)
                history.start = min(log.log_start_offset + 2, log.log_end_offset)
                log.advance_log_start(history.start)
            case "checkpoint":
                await self.logs.checkpoint_recovery_points()
                await self.logs.checkpoint_log_start_offsets()
            case "retention":
                await self.logs.apply_retention()
                history.start = max(history.start, log.log_start_offset)


def judge(log: Log, history: History) -> None:
    """What is below the log start is gone on purpose, and the start itself may have been forgotten."""
    found: dict[int, bytes | None] = {}
    headers: list[BatchHeader] = []
    at = log.log_start_offset
    while True:
        result = log.read(at, 200, upper_bound=log.log_end_offset, at_least_one=True)
        if not result.records:
            break
        for position, header in iter_batches(result.records):
            check_crc(result.records, position, header)
            headers.append(header)
            for record in iter_records(result.records[position:]):
                assert record.offset not in found
                found[record.offset] = None if header.is_control else record.value
        at = result.next_offset
    assert list(found) == sorted(found)
    for offset, value in found.items():
        assert value in history.values[offset]
    assert list(found) == [offset for offset in found if offset < log.log_end_offset]
    for offset, (value, _) in history.current.items():
        if max(history.start, log.log_start_offset) <= offset < history.promised:
            assert found[offset] == value
    judge_details(log, headers)


def judge_details(log: Log, headers: list[BatchHeader]) -> None:
    """Indexes, epochs and producers agree with the batches."""
    epochs: list[tuple[int, int]] = []
    for header in headers:
        first, last = max(header.base_offset, log.log_start_offset), header.last_offset
        for offset in (first, last):
            read = log.read(offset, 1, upper_bound=log.log_end_offset, at_least_one=True)
            assert (read.first_offset, read.next_offset) == (header.base_offset, header.next_offset)
        by_time = log.offset_for_timestamp(header.max_timestamp, log.log_end_offset)
        assert by_time is not None and by_time.offset <= last
        if not epochs or header.leader_epoch > epochs[-1][0]:
            epochs.append((header.leader_epoch, first))
        if header.is_control:
            assert (header.producer_id, header.base_offset - 1) in log.aborted_transactions(last - 1, last)
        elif header.has_producer_id and header.base_offset >= log.log_start_offset:
            known = log.producers.duplicate_of(header)
            assert known is not None and known.first_offset == header.base_offset
    if headers:
        assert list(log.epochs.entries) == epochs
    else:  # an empty log may know the epoch of the records that it had
        assert [entry.start_offset for entry in log.epochs.entries] in ([], [log.log_start_offset])
    ends = {header.last_offset for header in headers if header.has_producer_id}
    known_ends = {one.last_offset for entry in log.producers.entries() for one in entry.batches}
    assert {end for end in known_ends if end >= log.log_start_offset} <= ends


async def _cut_at(seed: int, cut_at: int, *, steps: int = 60) -> bool:
    """Run until the sync number `cut_at`, then judge what the next start finds. False if there were fewer syncs. If the
    seed is odd, another process was killed before."""
    rng = random.Random(seed)
    disk = SimulatedDisk(SetClock(), rng)
    disk.make_directories("/data")
    disk.sync_directory("/")
    for path in BROKER.log_dirs:
        disk.make_directories(path)
    disk.sync_directory("/data")
    histories = {name: History() for name in PARTITIONS}

    def cut(operation: str, _path: str) -> None:
        if operation in ("sync", "sync_directory") and disk.syncs == cut_at and disk.has_power:
            disk.cut_power()

    if seed % 2:
        killed = Life(disk, rng, histories)
        await killed.start()
        await killed.work(steps // 2)
        disk.end_process()
        disk.restore_power()
    life = Life(disk, rng, histories)
    await life.start()
    if seed % 2:
        for name, history in histories.items():
            found = life.logs.get(name)
            if found is not None:
                judge(found, history)
                history.promised = max(history.promised, found.log_end_offset)
    disk.syncs, disk.before = 0, cut
    try:
        await life.work(steps)
    finally:
        disk.before = None
    if disk.has_power:
        return False
    disk.restore_power()
    after = Life(disk, rng, histories)
    await after.start()
    for name, history in histories.items():
        found = after.logs.get(name)
        assert not after.logs.is_offline(name)
        if found is None:
            assert not any(offset < history.promised for offset in history.current)
            continue
        judge(found, history)
        end = found.log_end_offset
        found.append_as_leader(batch("next"), LeaderEpoch(99))
        assert found.log_end_offset == end + 1
    await after.logs.close()
    return True


@pytest.mark.parametrize("seed", range(6))
def test_the_power_is_cut_at_every_sync(seed: int) -> None:
    cuts = 0
    while run_in_virtual_time(_cut_at(seed, cuts)):
        cuts += 1
    assert cuts > 10
