"""The log against a list: any sequence of appends, truncations, rolls, flushes, clean and unclean restarts."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from klamm.log.disk import FileDisk
from klamm.log.log import Log
from klamm.model.config import TopicConfig
from klamm.model.ids import LeaderEpoch
from klamm.wire.batch import iter_batches
from klamm.wire.records import iter_records

from .conftest import Workbench, append, produced


class LogModel(RuleBasedStateMachine):
    """`self.records` is the log as a list of (offset, value, epoch): exactly what a reader must see."""

    log: Log

    @initialize(segment_bytes=st.sampled_from([250, 600, 5000]), interval=st.sampled_from([0, 100, 4096]))
    def begin(self, segment_bytes: int, interval: int) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="klamm-log-model-"))
        self.disk = FileDisk(1)
        self.config = TopicConfig(segment_bytes=segment_bytes, index_interval_bytes=interval)
        self.bench = Workbench(self.disk, self.root / "t-0")
        self.log = self.bench.open(self.config)
        self.records: list[tuple[int, bytes, int]] = []
        self.start = self.end = 0
        self.epoch = 0
        self.counter = 0
        self.lives = 0

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close_files()
            self.disk.close()
            shutil.rmtree(self.root)

    @rule(count=st.integers(1, 3))
    def append(self, count: int) -> None:
        values = []
        for _ in range(count):
            self.counter += 1
            values.append(f"value-{self.counter}")
        info = append(self.log, *values, epoch=self.epoch)
        assert info.first_offset == self.end
        self.records += [(self.end + n, value.encode(), self.epoch) for n, value in enumerate(values)]
        self.end += count

    @rule()
    def append_idempotent(self) -> None:
        self.counter += 1
        self.log.append_as_leader(produced(1000 + self.counter, 0), LeaderEpoch(self.epoch))
        assert self.log.append_as_leader(produced(1000 + self.counter, 0), LeaderEpoch(self.epoch)).duplicate
        self.records.append((self.end, b"v0", self.epoch))
        self.end += 1

    @rule()
    def new_leader(self) -> None:
        self.epoch += 1
        self.log.epochs.assign(LeaderEpoch(self.epoch), self.end)

    @rule(back=st.integers(0, 12))
    def truncate(self, back: int) -> None:
        target = max(self.end - back, 0)
        self.log.truncate_to(target)
        if target < self.end:
            # The whole batch that holds the target is removed, and the log ends before it.
            for first, last in self.batches():
                if first < target <= last:
                    target = min(target, max(first, self.start))
            self.records = [record for record in self.records if record[0] < target]
            self.end = target
            self.start = min(self.start, target)
        self.epoch += 1  # no leader appends with an epoch that was truncated

    def batches(self) -> list[tuple[int, int]]:
        return self.spans

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def flush(self) -> None:
        asyncio.run(self.log.flush())
        assert self.log.recovery_point == self.end

    @rule(ahead=st.integers(0, 5))
    def raise_start(self, ahead: int) -> None:
        self.log.update_high_watermark(self.end)
        target = min(self.start + ahead, self.end)
        self.log.advance_log_start(target)
        self.start = target
        self.records = [record for record in self.records if record[0] >= target]

    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.log = self.bench.open(self.config, log_start_offset=self.start)

    @rule()
    def crash(self) -> None:
        self.lives += 1
        directory = self.root / f"life-{self.lives}"
        shutil.copytree(self.log.directory, directory)
        recovery_point = self.log.recovery_point
        self.log.close_files()
        self.bench.directory = directory
        self.log = self.bench.open(self.config, clean=False, recovery_point=recovery_point, log_start_offset=self.start)

    @invariant()
    def reads_what_was_written(self) -> None:
        if not hasattr(self, "log"):
            return
        assert (self.log.log_start_offset, self.log.log_end_offset) == (self.start, self.end)
        self.spans: list[tuple[int, int]] = []
        found: list[tuple[int, bytes | None, int]] = []
        at = self.start
        while True:
            result = self.log.read(at, 300, upper_bound=self.end, at_least_one=True)
            if not result.records:
                break
            for position, header in iter_batches(result.records):
                self.spans.append((header.base_offset, header.last_offset))
                found += [
                    (record.offset, record.value, header.leader_epoch)
                    for record in iter_records(result.records[position:])
                    if record.offset >= self.start
                ]
            at = result.next_offset
        assert found == self.records

    @invariant()
    def epochs_tell_who_wrote(self) -> None:
        if hasattr(self, "log"):
            for offset, _, epoch in self.records:
                begun = [entry.epoch for entry in self.log.epochs.entries if entry.start_offset <= offset]
                assert begun[-1] == epoch


LogModel.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None, derandomize=True)
TestLogModel = LogModel.TestCase
