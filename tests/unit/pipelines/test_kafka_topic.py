"""What the lake reads from a log: gaps explained in one walk, anchors behind markers, bad and committed records.

The log is made of real batches; only the connection is replaced.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from klamm.model.ids import TopicPartition
from klamm.pipelines.bad_records import find_bad
from klamm.pipelines.kafka_topic import KafkaTopics
from klamm.pipelines.lake_state import IngestState, LakeError, OffsetRange
from klamm.pipelines.offset_kinds import LogBounds, OffsetKind
from klamm.wire.records import (
    ControlType,
    EndTransactionMarker,
    Record,
    build_batch,
    build_end_transaction_marker,
    read_header,
)

T = TypeVar("T")
NANOSECONDS = 1_760_000_000_000_000_000


def data(base: int, count: int, producer: int = -1, timestamp: int = 1000) -> bytes:
    records = [Record(b"k", b"v%d" % (base + i), timestamp) for i in range(count)]
    return build_batch(records, base_offset=base, producer_id=producer, transactional=producer >= 0, leader_epoch=3)


def marker(offset: int, producer: int, kind: ControlType) -> bytes:
    return build_end_transaction_marker(
        EndTransactionMarker(kind, 0), timestamp=1, producer_id=producer, producer_epoch=0, base_offset=offset
    )


class Log(KafkaTopics):
    """Partition 0 of a topic, answered from these batches, of which one answer has at most `at_once`."""

    def __init__(self, batches: list[bytes], aborted: Sequence[tuple[int, int]] = (), at_once: int = 1000) -> None:
        super().__init__("nowhere:1")
        self.batches = batches
        self.aborted = [SimpleNamespace(producer_id=p, first_offset=o) for p, o in aborted]
        self.at_once = at_once
        self.fetches: list[int] = []
        self.bounds = LogBounds(read_header(batches[0]).base_offset, read_header(batches[-1]).next_offset)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(work)

    def log_bounds(self, topic: str, isolation: int = 0) -> dict[int, LogBounds]:
        return {0: self.bounds}

    def is_compacted(self, topic: str) -> bool:
        return False

    async def _fetch(self, name: TopicPartition, offset: int) -> Any:
        self.fetches.append(offset)
        found = [batch for batch in self.batches if read_header(batch).last_offset >= offset][: self.at_once]
        return SimpleNamespace(records=b"".join(found), aborted_transactions=self.aborted)

    async def _fetch_each(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, Any]:
        return {name: await self._fetch(name, offset) for name, offset in positions.items()}


def transactions(count: int) -> list[bytes]:
    """One record and its marker each: every second offset is a gap."""
    batches = []
    for i in range(count):
        batches += [data(2 * i, 1, 7), marker(2 * i + 1, 7, ControlType.COMMIT)]
    return batches


def test_hole_10_all_gaps_are_explained_by_few_fetches() -> None:
    log = Log(transactions(500), at_once=400)
    gaps = [OffsetRange(2 * i + 1, 2 * i + 2) for i in range(500)]
    spans = log.kinds_at("t", 0, gaps)
    assert [span[1:] for span in spans] == gaps
    assert {span.kind for span in spans} == {OffsetKind.MARKER}
    assert len(log.fetches) == 3


def test_distant_gaps_are_jumped_to() -> None:
    log = Log(transactions(500), at_once=10)
    assert len(log.kinds_at("t", 0, [OffsetRange(1, 2), OffsetRange(901, 902)])) == 2
    assert log.fetches == [1, 901]


def test_hole_14_what_lies_outside_the_log_is_told_apart() -> None:
    log = Log([data(10, 10)])
    assert log.kinds_at("t", 0, [OffsetRange(5, 12), OffsetRange(18, 30)]) == [
        (OffsetKind.BELOW_LOG_START, 5, 10),
        (OffsetKind.RECORD, 10, 12),
        (OffsetKind.RECORD, 18, 20),
        (OffsetKind.BEYOND_LOG_END, 20, 30),
    ]


def test_the_anchor_is_the_newest_record_behind_markers() -> None:
    log = Log([data(0, 5, 7), marker(5, 7, ControlType.COMMIT), marker(6, 8, ControlType.ABORT)])
    anchors = log.newest_records("t", {0: OffsetRange(0, 7)})
    assert anchors == log.records_at("t", {0: 4})
    assert (anchors[0].offset, anchors[0].leader_epoch, anchors[0].batch_crc) == (4, 3, read_header(log.batches[0]).crc)
    assert log.newest_records("t", {0: OffsetRange(5, 7)}) == {}, "no record of the range itself"


def test_hole_1_a_log_of_the_same_length_with_other_batches_is_another_one() -> None:
    log = Log([data(0, 10)])
    anchors, origins = log.newest_records("t", {0: OffsetRange(0, 10)}), log.records_at("t", {0: 0})
    state = IngestState("klamm:main:t", 1, 1, "me", {0: 10}, anchors, origins)
    facts = log.log_facts("t", state)[0]
    assert facts.at_anchor == anchors[0]
    again = Log([data(0, 4, timestamp=5000), data(4, 8, timestamp=5000)])
    again._epoch_end = lambda *_: None  # type: ignore[method-assign]
    facts = again.log_facts("t", state)[0]
    assert facts.at_anchor is not None
    assert facts.at_anchor != anchors[0]
    assert facts.at_origin != origins[0]


@pytest.mark.parametrize("timestamp", [NANOSECONDS, 2**63 - 1])
def test_hole_6_records_that_spark_cannot_read_are_found(timestamp: int) -> None:
    log = Log([data(0, 5), data(5, 1, timestamp=timestamp), data(6, 4), data(10, 1, timestamp=timestamp), data(11, 9)])
    assert find_bad(log, "t", {0: OffsetRange(0, 20)}) == {0: (5, 11)}
    assert find_bad(log, "t", {0: OffsetRange(6, 10)}) == {}


def test_only_committed_records_are_read_around_bad_ones() -> None:
    batches = [
        *(data(0, 2, 7), marker(2, 7, ControlType.ABORT)),
        *(data(3, 2, 7), marker(5, 7, ControlType.COMMIT), data(6, 1)),
    ]
    log = Log(batches, aborted=[(7, 0)], at_once=3)
    read = [record.offset for _, record in log.committed_records("t", 0, OffsetRange(1, 7))]
    assert read == [3, 4, 6]


def test_a_batch_that_outlives_the_connection_is_refused_without_a_warning() -> None:
    """Else Python prints that a coroutine was never awaited, when Ctrl-C ends the ingest."""
    kafka = KafkaTopics("nowhere:1")
    kafka.__exit__(None, None, None)
    work = asyncio.sleep(0)
    with pytest.raises(LakeError, match="the connection to nowhere:1 is closed"):
        kafka._run(work)
    assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED
