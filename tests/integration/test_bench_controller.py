"""A small `klamm bench controller` produces every figure. `make soak` also runs it against Apache Kafka."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from klamm.bench import cluster, controller, stubs
from klamm.zookeeper.server.embedded import available

PHASES = ("cold_load", "re_election", "broker_death", "broker_return", "controlled_shutdown", "topic_created")


def test_every_figure_is_there(monkeypatch: pytest.MonkeyPatch, scaled: Callable[[int, int], int]) -> None:
    if why := available():
        pytest.fail(why)
    monkeypatch.setattr(cluster, "NEW_PARTITIONS", 100)
    against = "apache-kafka-2.5.1" if scaled(0, 1) else None
    if against is None:
        monkeypatch.setattr(controller, "FIRST_BALANCE_S", 0.0)
        monkeypatch.setattr(stubs, "QUIET_S", 0.3)
    result = controller.bench(partitions=250, brokers=3, replication=3, rounds=1, against=against)
    assert list(result["controllers"]) == ["klamm"] + ([against] if against else [])
    for name, found in result["controllers"].items():
        assert tuple(found["seconds"]) == tuple(found["cpu_seconds"]) == tuple(found["zookeeper_operations"]) == PHASES
        assert all(
            0 < figures["least"] <= figures["median"] <= figures["most"] for figures in found["seconds"].values()
        )
        operations = found["zookeeper_operations"]
        assert operations["cold_load"]["get"] >= 250
        assert operations["broker_death"]["set"] == 250  # with replication 3 of 3 the dead broker is in every ISR
        assert operations["topic_created"]["create"] == 2 * 100 + 1
        assert set(found["control_requests"]) == {"LEADER_AND_ISR", "UPDATE_METADATA", "STOP_REPLICA"}
        assert found["events_written"] >= 250
        assert (found["loop_held_longest_ms"]["cold_load"] is None) == (name != "klamm")
    assert ("ratios" in result) == (against is not None)
    if against:
        assert set(result["ratios"]) == {*PHASES, "memory"}
