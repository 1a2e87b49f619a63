"""A small `klamm bench data` produces every figure. `make soak` runs all loads, also against Apache Kafka."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from klamm.bench import data, data_loads


def test_every_figure_is_there(monkeypatch: pytest.MonkeyPatch, scaled: Callable[[int, int], int]) -> None:
    is_full = bool(scaled(0, 1))
    if not is_full:
        monkeypatch.setattr(data_loads, "LATENCY_SECONDS", 1)
    result = data.bench(
        rounds=1,
        scale=0.005,
        against="apache-kafka-2.5.1" if is_full else None,
        only=() if is_full else ["consume", "consume-group-of-3", "transactions", "latency", "load-groups"],
        progress=print,
    )
    loads = result["clusters"]["klamm"]["loads"]
    common = {"cpu_us_per_record", "memory_mb"}
    assert set(loads["produce-acks-1-100B"]) == {"records_per_second", "p99_ms", *common}
    assert set(loads["consume"]) == set(loads["transactions"]) == {"records_per_second", *common}
    assert set(loads["consume-group-of-3"]) == {"records_per_second", "join_ms", *common}
    assert set(loads["latency"]) == {"p50_ms", "p99_ms", *common}
    assert set(loads["load-groups"]) == {"load_ms", *common}
    for figures in loads.values():
        assert all(0 <= value["least"] <= value["median"] <= value["most"] for value in figures.values())
    assert result["clusters"]["klamm"]["memory_mb"]["median"] > 10
    if is_full:
        assert set(result["ratios"]["loads"]) == {load.name for load in data_loads.LOADS}
