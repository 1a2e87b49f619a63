"""The leader-epoch cache, case by case."""

from __future__ import annotations

from pathlib import Path

import pytest

from klamm.log.disk import FileDisk
from klamm.log.leader_epochs import UNDEFINED, LeaderEpochCache
from klamm.model.errors import KafkaError
from klamm.model.ids import LeaderEpoch


class Cache(LeaderEpochCache):
    def __init__(self, disk: FileDisk, path: Path) -> None:
        super().__init__(disk, str(path))
        self.end = 0
        self.bind(lambda: self.end, lambda: None)

    def having(self, *entries: tuple[int, int], end: int = 0) -> Cache:
        self.end = end
        for epoch, offset in entries:
            self.assign(LeaderEpoch(epoch), offset)
        return self

    def listed(self) -> list[tuple[int, int]]:
        return [(entry.epoch, entry.start_offset) for entry in self.entries]


@pytest.fixture
def cache(disk: FileDisk, tmp_path: Path) -> Cache:
    return Cache(disk, tmp_path / "leader-epoch-checkpoint")


@pytest.mark.case("EPO-01")
def test_the_latest_epoch_ends_at_the_log_end(cache: Cache) -> None:
    cache.having((2, 10), end=11)
    assert cache.latest_epoch == 2
    assert cache.end_offset_for(2) == (2, 11)


@pytest.mark.case("EPO-02")
def test_an_epoch_keeps_its_first_start(cache: Cache) -> None:
    assert cache.having((2, 10), (2, 12)).listed() == [(2, 10)]


@pytest.mark.case("EPO-03")
def test_a_later_epoch_at_the_same_offset_replaces(cache: Cache) -> None:
    assert cache.having((2, 9), (3, 9)).listed() == [(3, 9)]


@pytest.mark.case("EPO-04")
def test_nothing_known_is_undefined(cache: Cache) -> None:
    assert cache.end_offset_for(5) == UNDEFINED
    assert cache.latest_epoch is None
    assert cache.having((5, 0)).end_offset_for(-1) == UNDEFINED


@pytest.mark.case("EPO-05")
def test_an_epoch_ends_where_the_next_begins(cache: Cache) -> None:
    cache.having((1, 11), (2, 13), (3, 15), end=17)
    assert cache.end_offset_for(2) == (2, 15)


@pytest.mark.case("EPO-06")
def test_an_epoch_above_the_latest_is_undefined(cache: Cache) -> None:
    assert cache.having((1, 11), (2, 13), end=17).end_offset_for(3) == UNDEFINED


@pytest.mark.case("EPO-07")
def test_epochs_without_records_and_gaps_between(cache: Cache) -> None:
    cache.having((0, 0), (1, 0), (2, 5), end=10)
    assert [cache.end_offset_for(epoch) for epoch in (2, 1, 0)] == [(2, 10), (1, 5), (0, 0)]
    cache.having((5, 8), end=10)
    assert cache.end_offset_for(4) == (2, 8)


@pytest.mark.case("EPO-08")
@pytest.mark.parametrize(
    ("offset", "left"), [(8, [(2, 6)]), (9, [(2, 6), (3, 8)]), (-1, [(2, 6), (3, 8), (4, 11)]), (12, None), (0, [])]
)
def test_cutting_the_end(cache: Cache, offset: int, left: list[tuple[int, int]] | None) -> None:
    cache.having((2, 6), (3, 8), (4, 11))
    cache.truncate_from_end(offset)
    assert cache.listed() == ([(2, 6), (3, 8), (4, 11)] if left is None else left)


@pytest.mark.case("EPO-09")
@pytest.mark.parametrize(
    ("offset", "left"),
    [
        (8, [(3, 8), (4, 11)]),
        (1, [(2, 6), (3, 8), (4, 11)]),
        (6, [(2, 6), (3, 8), (4, 11)]),
        (11, [(4, 11)]),
        (7, [(2, 7), (3, 8), (4, 11)]),
        (15, [(4, 15)]),
    ],
)
def test_cutting_the_start(cache: Cache, offset: int, left: list[tuple[int, int]]) -> None:
    cache.having((2, 6), (3, 8), (4, 11))
    cache.truncate_from_start(offset)
    assert cache.listed() == left


@pytest.mark.case("EPO-10")
def test_the_file_holds_what_memory_holds(cache: Cache, disk: FileDisk, tmp_path: Path) -> None:
    cache.having((0, 0), (3, 7))
    assert cache.dirty
    cache.write()
    file = tmp_path / "leader-epoch-checkpoint"
    assert file.read_text() == "0\n2\n0 0\n3 7\n"
    again = Cache(disk, file)
    again.load()
    assert again.listed() == [(0, 0), (3, 7)]
    again.truncate_from_end(7)
    assert again.dirty
    again.write()
    assert file.read_text() == "0\n1\n0 0\n"
    again.clear()
    assert again.dirty
    again.write()
    assert file.read_text() == "0\n0\n"


@pytest.mark.parametrize("content", ["7\n0\n", "0\n2\n0 0\n", "0\n1\n0\n", "0\n1\na b\n"])
def test_a_malformed_file_is_a_storage_error(cache: Cache, tmp_path: Path, content: str) -> None:
    (tmp_path / "leader-epoch-checkpoint").write_text(content)
    with pytest.raises(KafkaError, match="malformed"):
        cache.load()
