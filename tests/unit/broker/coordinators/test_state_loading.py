"""Reading a coordinator's log: everything, in order, in slices; damage concerns what is damaged alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from klamm.broker.coordinators import state_loading
from klamm.broker.coordinators.state_loading import StateLoading
from klamm.log.log_results import ReadResult
from klamm.model.errors import KafkaError
from klamm.model.ids import TopicPartition
from klamm.wire.batch import HEADER_BYTES, pack_batch, read_header
from klamm.wire.records import Record, build_batch

TP = TopicPartition("__consumer_offsets", 3)


class BatchLog:
    """The part of a log that a load uses, over whole batches."""

    def __init__(self, *sizes: int, start: int = 0) -> None:
        self.log_start_offset = self.log_end_offset = start
        self.batches: list[bytes] = []
        self.reads: list[int] = []
        for size in sizes:
            self.add(*(Record(b"k%d" % (self.log_end_offset + i), b"v") for i in range(size)))

    def add(self, *records: Record) -> None:
        self.batches.append(build_batch(records, base_offset=self.log_end_offset))
        self.log_end_offset += len(records)

    def read(self, offset: int, max_bytes: int, *, upper_bound: int, at_least_one: bool) -> ReadResult:
        assert at_least_one
        self.reads.append(max_bytes)
        found, size = [], 0
        for batch in self.batches:
            if read_header(batch).next_offset <= offset or (found and size + len(batch) > max_bytes):
                continue
            found.append(batch)
            size += len(batch)
        return ReadResult(b"".join(found), offset, offset)


def loading(log: Any, buffer_bytes: int = 100, is_wanted: Any = lambda: True) -> StateLoading:
    return StateLoading(TP, log, buffer_bytes, is_wanted)


async def keys(load: StateLoading) -> list[bytes | None]:
    return [record.key async for piece in load.read() for record in piece.records]


async def test_every_record_in_order_from_log_start_to_log_end() -> None:
    log = BatchLog(1, 5, 2, start=4)
    assert await keys(loading(log)) == [b"k%d" % offset for offset in range(4, 12)]
    assert set(log.reads) == {100}
    assert await keys(loading(BatchLog())) == []


async def test_what_is_appended_meanwhile_is_read_too() -> None:
    log = BatchLog(1, 1)
    found = []
    async for piece in loading(log, 1).read():
        found += piece.records
        if log.log_end_offset < 4:
            log.add(Record(b"k%d" % log.log_end_offset, None))
    assert [record.key for record in found] == [b"k0", b"k1", b"k2", b"k3"]


async def test_a_large_batch_comes_in_pieces_and_lets_the_loop_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_loading, "SLICE_RECORDS", 2)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    pieces = [(p.header.base_offset, len(p.records)) async for p in loading(BatchLog(5, 2)).read()]
    task.cancel()
    assert pieces == [(0, 2), (0, 2), (0, 1), (5, 2)]
    assert turns >= 3


async def test_an_unwanted_load_stops() -> None:
    wanted = [True, True, False]
    assert await keys(loading(BatchLog(1, 1, 1, 1, 1), 1, lambda: wanted.pop(0))) == [b"k0", b"k1", b"k2"]


@pytest.mark.case("OFF-20")
async def test_a_read_that_returns_nothing_ends_the_load() -> None:
    log = BatchLog(1)
    log.log_end_offset = 9
    assert await keys(loading(log)) == [b"k0"]


async def test_a_batch_without_records_is_told() -> None:
    log = BatchLog(1)
    log.batches.append(build_batch([], base_offset=1, last_offset=3, transactional=True, control=True))
    log.log_end_offset = 4
    pieces = [(p.header.is_control, len(p.records)) async for p in loading(log).read()]
    assert pieces == [(False, 1), (True, 0)]


async def test_a_damaged_batch_is_left_out_alone(caplog: pytest.LogCaptureFixture) -> None:
    log = BatchLog(1, 2, 1)
    log.batches[1] = log.batches[1][:-1] + b"\xff"
    load = loading(log)
    assert (await keys(load), load.damaged) == ([b"k0", b"k3"], 1)
    assert "__consumer_offsets-3: left out what is at offset 1" in caplog.text


async def test_records_before_a_malformed_one_are_kept() -> None:
    log = BatchLog(1, 3, 1)
    header = read_header(log.batches[1])
    payload = bytearray(log.batches[1][HEADER_BYTES:])
    payload[len(payload) * 2 // 3] = 0xFF  # the length of the third record
    log.batches[1] = pack_batch(header, payload)
    load = loading(log)
    assert (await keys(load), load.damaged) == ([b"k0", b"k1", b"k2", b"k4"], 1)


async def test_a_log_that_cannot_be_read_ends_the_load() -> None:
    log = BatchLog(1)
    log.batches.append(log.batches[0][:30])
    log.log_end_offset = 2
    log.read = lambda *_, **__: ReadResult(log.batches[1], 0, 0)  # type: ignore[method-assign]
    with pytest.raises(KafkaError):
        await keys(loading(log))
