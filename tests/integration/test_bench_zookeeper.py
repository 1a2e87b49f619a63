"""A small `klamm bench zookeeper` produces every figure, and its checks hold."""

from __future__ import annotations

import gc

import pytest

from klamm.bench.zookeeper import OPERATIONS, bench
from klamm.zookeeper.server.embedded import available


def test_every_figure_is_there() -> None:
    if why := available():
        pytest.fail(why)
    thresholds = gc.get_threshold()
    result = bench(nodes=700, rounds=2)
    assert gc.get_threshold() == thresholds
    assert tuple(result["results"]) == OPERATIONS
    for figures in result["results"].values():
        assert figures["ratio"] > 0
        for client in ("klamm", "kazoo"):
            assert figures[client]["operations"] == 700
            least, median, most = (figures[client][key] for key in ("seconds_least", "seconds", "seconds_most"))
            assert 0 < least <= median <= most
