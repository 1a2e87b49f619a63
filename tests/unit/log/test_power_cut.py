"""The real log manager on the simulated disk: the power is cut at one sync after the other. Then the next start is
judged.

Judged by what a client could have seen: a record that a flush covered is there, nothing torn is served, and no offset
has two records.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from klamm.log.log import Log
from klamm.log.log_manager import LogManager
from klamm.model.config import BrokerConfig, TopicConfig
from klamm.model.errors import KafkaError
from klamm.model.ids import LeaderEpoch, TopicPartition
from klamm.simulation.disk import SimulatedDisk
from klamm.simulation.loop import run_in_virtual_time
from klamm.wire.batch import check_crc, iter_batches
from klamm.wire.records import iter_records

from .conftest import SetClock, batch, produced

CONFIG = TopicConfig(segment_bytes=600, index_interval_bytes=100, file_delete_delay_ms=10, segment_index_bytes=1000)
BROKER = BrokerConfig(zookeeper_connect="x", log_dirs=("/data/1", "/data/2"), log_cleaner_enable=False)
PARTITIONS = [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)]


@dataclass
class History:
    """What was written to one partition, and up to which offset a flush promised it."""

    values: dict[int, list[bytes]] = field(default_factory=dict)
    current: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    """By offset: the value, and the first offset of its batch, because a truncation removes whole batches."""
    promised: int = 0
    start: int = 0

    def wrote(self, first_offset: int, *values: str) -> None:
        for offset, value in enumerate(values, first_offset):
            self.values.setdefault(offset, []).append(value.encode())
            self.current[offset] = (value.encode(), first_offset)

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
            ["append", "idempotent", "flush", "truncate", "roll", "start", "checkpoint", "retention"],
            [40, 10, 15, 5, 3, 5, 5, 2],
        )[0]:
            case "append":
                values = [f"{number}-{n}" * self._rng.randint(1, 9) for n in range(self._rng.randint(1, 3))]
                info = log.append_as_leader(batch(*values), LeaderEpoch(self._epoch))
                history.wrote(info.first_offset, *values)
            case "idempotent":
                info = log.append_as_leader(produced(1000 + number, 0), LeaderEpoch(self._epoch))
                history.wrote(info.first_offset, "v0")
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
    at = log.log_start_offset
    while True:
        result = log.read(at, 200, upper_bound=log.log_end_offset, at_least_one=True)
        if not result.records:
            break
        for position, header in iter_batches(result.records):
            check_crc(result.records, position, header)
            for record in iter_records(result.records[position:]):
                assert record.offset not in found
                found[record.offset] = record.value
        at = result.next_offset
    assert list(found) == sorted(found)
    for offset, value in found.items():
        assert value in history.values[offset]
    assert list(found) == [offset for offset in found if offset < log.log_end_offset]
    for offset, (value, _) in history.current.items():
        if max(history.start, log.log_start_offset) <= offset < history.promised:
            assert found[offset] == value


async def _cut_at(seed: int, cut_at: int, *, steps: int = 60) -> bool:
    """Run until the sync number `cut_at`, then judge what the next start finds. False if there were fewer syncs."""
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

    life = Life(disk, rng, histories)
    await life.start()
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
