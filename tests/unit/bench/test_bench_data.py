"""What `klamm bench data` makes of its samples."""

from __future__ import annotations

import pytest

from klamm.bench.data import bench, report
from klamm.bench.data_loads import LOADS
from klamm.bench.stubs import BenchFailed


def _round(rate: float, p99: float, memory: float) -> dict[str, dict[str, float]]:
    return {"produce": {"records_per_second": rate, "p99_ms": p99, "memory_mb": memory}}


def test_ratios_are_above_one_where_klamm_is_better() -> None:
    ours = [_round(300, 5, 40), _round(100, 9, 42), _round(200, 4, 41)]
    theirs = [_round(100, 10, 400), _round(90, 11, 410), _round(110, 12, 420)]
    result = report({"klamm": ours, "apache-kafka-2.5.1": theirs}, rounds=3, scale=1.0)
    assert result["clusters"]["klamm"]["loads"]["produce"]["records_per_second"] == {
        "median": 200,
        "least": 100,
        "most": 300,
    }
    assert result["ratios"]["loads"]["produce"] == {"records_per_second": 2.0, "p99_ms": 2.2, "memory_mb": 10.0}
    assert result["ratios"]["memory_mb"] == 10.0


def test_without_a_rival_there_are_no_ratios() -> None:
    assert "ratios" not in report({"klamm": [_round(1, 1, 1)]}, rounds=1, scale=1.0)


def test_an_unknown_load_is_refused_with_the_names_of_all() -> None:
    with pytest.raises(BenchFailed, match=r"unknown loads nonsense; choose from produce-acks-1-100B, .*latency"):
        bench(rounds=1, scale=1.0, against=None, only=["nonsense"], progress=print)


def test_what_a_load_reads_is_written_before() -> None:
    names = [load.name for load in LOADS]
    for load in LOADS:
        assert not load.reads or names.index(load.reads) < names.index(load.name)
