"""A log in a real directory, with a clock that the test sets and an owner that does at once what the manager defers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from klamm.log.disk import FileDisk
from klamm.log.log import Log
from klamm.log.log_results import AppendInfo
from klamm.log.recovery import load_log
from klamm.model.config import TopicConfig
from klamm.model.ids import LeaderEpoch, TopicPartition
from klamm.wire.batch import read_header
from klamm.wire.records import ControlType, EndTransactionMarker, Record, build_batch, build_end_transaction_marker

PARTITION = TopicPartition("t", 0)


class SetClock:
    def __init__(self, wall_ms: int = 1_600_000_000_000) -> None:
        self.now_ms = wall_ms

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic(self) -> float:
        return self.now_ms / 1000


@dataclass
class Owner:
    """Records what a log asks of its manager."""

    removed: list[str] = field(default_factory=list)
    flushes: int = 0
    within: list[int] = field(default_factory=list)
    lowered: list[int] = field(default_factory=list)
    failures: list[OSError] = field(default_factory=list)

    def flush_soon(self, log: Log) -> None:
        self.flushes += 1

    def flush_within(self, log: Log, delay_ms: int) -> None:
        self.within.append(delay_ms)

    def remove_later(self, paths: list[str], delay_ms: int) -> None:
        self.removed += paths

    async def lowering(self, log: Log) -> None:
        self.lowered.append(log.recovery_point)

    def truncating(self, log: Log, offset: int, *, recovery_point_lowered: bool) -> None:
        if recovery_point_lowered:
            self.lowered.append(log.recovery_point)

    def storage_failed(self, log: Log, error: OSError) -> None:
        self.failures.append(error)


class Workbench:
    """Opens, closes and crashes logs in one directory."""

    def __init__(self, disk: FileDisk, directory: Path) -> None:
        self.disk = disk
        self.directory = directory
        self.clock = SetClock()
        self.owner = Owner()

    def open(
        self,
        config: TopicConfig | None = None,
        *,
        directory: Path | None = None,
        clean: bool = True,
        recovery_point: int = 0,
        log_start_offset: int = 0,
    ) -> Log:
        path = directory or self.directory
        path.mkdir(parents=True, exist_ok=True)
        config = config or TopicConfig()
        loaded = load_log(
            self.disk,
            str(path),
            config,
            log_start_offset=log_start_offset,
            recovery_point=recovery_point,
            clean=clean,
            now_ms=self.clock.wall_ms(),
        )
        return Log(self.disk, self.clock, random.Random(1), PARTITION, config, loaded, self.owner)


@pytest.fixture
def disk() -> Iterator[FileDisk]:
    disk = FileDisk(2)
    yield disk
    disk.close()


@pytest.fixture
def bench(disk: FileDisk, tmp_path: Path) -> Workbench:
    return Workbench(disk, tmp_path / "t-0")


def batch(*values: str, timestamp: int = 1_600_000_000_000, **options: int | bool) -> bytes:
    """A batch of records with these values; options are those of `build_batch`."""
    records = [Record(b"k", value.encode(), timestamp + index) for index, value in enumerate(values)]
    return build_batch(records, **options)  # type: ignore[arg-type]


def produced(producer: int, sequence: int, count: int = 1, *, epoch: int = 0, transactional: bool = False) -> bytes:
    return batch(
        *(f"v{n}" for n in range(count)),
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )


def marker(producer: int, kind: ControlType, *, epoch: int = 0, coordinator_epoch: int = 0) -> bytes:
    return build_end_transaction_marker(
        EndTransactionMarker(kind, coordinator_epoch),
        timestamp=1_600_000_000_000,
        producer_id=producer,
        producer_epoch=epoch,
    )


def append(log: Log, *values: str, epoch: int = 0, **options: int | bool) -> AppendInfo:
    return log.append_as_leader(batch(*values, **options), LeaderEpoch(epoch))


def read_all(log: Log, offset: int | None = None, upper_bound: int | None = None) -> list[int]:
    """Offsets of the batches from `offset` on, as successive reads return them."""
    at = log.log_start_offset if offset is None else offset
    bound = log.log_end_offset if upper_bound is None else upper_bound
    found: list[int] = []
    while True:
        result = log.read(at, 1 << 20, upper_bound=bound, at_least_one=True)
        if not result.records:
            return found
        position = 0
        while position < len(result.records):
            header = read_header(result.records, position)
            found += range(header.base_offset, header.next_offset)
            position += header.size_in_bytes
        assert result.next_offset == found[-1] + 1
        at = result.next_offset
