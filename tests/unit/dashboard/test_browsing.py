"""Reading records for a page: where it begins, what it finds, and where it stops."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from klamm.dashboard import browsing
from klamm.dashboard.browsing import browse, shown
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.wire.records import Record, build_batch

NAME = TopicPartition("t", 0)
START, END = 10, 1_010


class Partition:
    """A log of offsets 10 to 1009, in batches of ten; record n has the key n % 7."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fetches = 0
        self.error = ErrorCode.NONE
        monkeypatch.setattr(browsing, "offsets_at", self.offsets_at)
        monkeypatch.setattr(browsing, "fetch", self.fetch)

    async def offsets_at(
        self, _cluster: object, partitions: list[TopicPartition], at: int
    ) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, START if at == browsing.EARLIEST else END)

    async def fetch(self, _cluster: object, _leader: int, positions: dict[TopicPartition, int]) -> dict[Any, Any]:
        self.fetches += 1
        base = positions[NAME] // 10 * 10
        records = [Record(b"%d" % (n % 7), b"value %d" % n, 5, offset=n) for n in range(base, min(base + 10, END))]
        return {NAME: SimpleNamespace(error_code=self.error, records=build_batch(records))}

    async def leader_of(self, *_name: object) -> int:
        return 1

    async def repeating(self, _what: str, attempt: Any) -> Any:
        return await attempt()


async def test_a_page_of_records(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await browse(Partition(monkeypatch), NAME, 13, 20)  # type: ignore[arg-type]
    assert [record.offset for record in found.records] == list(range(13, 33))
    assert (found.first, found.next, found.start, found.end, found.is_complete) == (13, 33, START, END, True)


@pytest.mark.parametrize(("first", "offsets"), [(0, [10, 11]), (1_009, [1_009]), (5_000, [])])
async def test_offsets_outside_the_log(monkeypatch: pytest.MonkeyPatch, first: int, offsets: list[int]) -> None:
    found = await browse(Partition(monkeypatch), NAME, first, 2)  # type: ignore[arg-type]
    assert [record.offset for record in found.records] == offsets


async def test_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await browse(Partition(monkeypatch), NAME, START, 3, b"3")  # type: ignore[arg-type]
    assert [record.offset for record in found.records] == [10, 17, 24]
    assert (found.scanned, found.next) == (15, 25)


async def test_a_search_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsing, "SCANNED_MAX", 100)
    partition = Partition(monkeypatch)
    found = await browse(partition, NAME, START, 3, b"absent")  # type: ignore[arg-type]
    assert (found.is_complete, found.scanned, found.next, partition.fetches) == (False, 100, 110, 10)


async def test_an_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    partition = Partition(monkeypatch)
    partition.error = ErrorCode.OFFSET_OUT_OF_RANGE
    with pytest.raises(browsing.ClientError, match="its records expired meanwhile"):
        await browse(partition, NAME, START, 3)  # type: ignore[arg-type]


def test_values_are_shown_so_that_they_do_nothing() -> None:
    assert shown(b"a\x00\x1b[31m\n", "text").text == "a␀␛[31m\n"
    assert shown("é".encode() * 10, "text", 4).text == "éééé"
    long = shown(b"x" * 5_000, "hex", 30)
    assert len(long.text) == 30 and long.note == "cut, 5000 bytes in all"
