"""Fast fail-over with real processes: the order of events, and that a wrong suspicion loses nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from klamm.bench import failover
from klamm.testing.cluster import KlammCluster, running_cluster
from klamm.testing.gate import Gate, gate_before
from klamm.testing.history import History, anomalies, read_all, steady_producer
from klamm.testing.waiting import wait_until
from klamm.zookeeper.server.child import release_port, reserve_port

TOPIC, PARTITIONS = "ledger", 6
RECORDS_PER_SECOND = 200


def events(cluster: KlammCluster) -> list[dict[str, Any]]:
    """Decisions of all brokers by time, and at equal times in the order of writing."""
    found: list[dict[str, Any]] = []
    for broker in cluster.broker_ids:
        text = (cluster.directory(broker) / "state-change.json").read_text()
        found += [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    return sorted(found, key=lambda event: int(event["time_ms"]))


def decisions(cluster: KlammCluster, *names: str) -> list[dict[str, Any]]:
    return [event for event in events(cluster) if event.get("event") in names]


@pytest.mark.parametrize("victim", [failover.BROKER, failover.CONTROLLER])
def test_killed_and_replaced_before_its_session_ends(victim: str, tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        controller = cluster.controller
        sample = failover.measure(cluster, 3, victim)
        assert list(sample.split) == ["detect", "decide", "commit", "tell", "client"]
        assert sum(sample.split.values()) == pytest.approx(sample.seconds, abs=0.05)
        (dead,) = set(cluster.broker_ids) - set(cluster.alive)
        assert (dead == controller) is (victim == failover.CONTROLLER)
        names = ("controller-suspected", "controller-moved", "broker-suspected", "suspect-relieved")
        cause = f"broker {dead} suspected"

        def seen() -> list[str]:
            """Several brokers may suspect a controller; one of them moves it."""
            return [event["event"] for event in decisions(cluster, *names)]

        wait_until("the end of the fail-over", lambda: "suspect-relieved" in seen())
        first, *_ = seen()
        taken = ["controller-moved"] if dead == controller else []
        assert [name for name in seen() if name != "controller-suspected"] == [*taken, *names[2:]]
        assert (first == "controller-suspected") is (dead == controller)
        changes = [e for e in events(cluster) if e.get("cause") == cause and "partition" in e]
        assert {(c["topic"], c["partition"]) for c in changes} == {
            (topic, number) for topic in (failover.LED, failover.FOLLOWED) for number in range(3)
        }
        assert all(dead not in change["isr"] for change in changes)
        if victim == failover.CONTROLLER:
            return
        # All of this happened while it was still registered; the end of its session comes later and changes nothing.
        (suspected,) = decisions(cluster, "broker-suspected")
        assert "registered with epoch" in suspected["detail"]
        wait_until("the end of its session", lambda: decisions(cluster, "suspicion-ended"))
        assert "registration ended" in decisions(cluster, "suspicion-ended")[0]["detail"]
        wait_until("its failure", lambda: [e for e in decisions(cluster, "broker-change") if "dead" in e["cause"]])
        last = decisions(cluster, "broker-change")[-1]["time_ms"]
        later = [e for e in events(cluster) if e["time_ms"] >= last and e.get("role") == "controller" and "isr" in e]
        assert later == [], "nothing is decided twice"


@contextmanager
def cluster_with_a_gate(directory: Path) -> Iterator[tuple[KlammCluster, int, Gate]]:
    """A broker that is not the controller and whose peers reach it only through a gate; clients reach it directly."""
    port = reserve_port()
    try:
        with running_cluster(directory) as cluster:
            gated = next(b for b in cluster.broker_ids if b != cluster.controller)
            address = cluster.bootstrap.split(",")[cluster.broker_ids.index(gated)]
            cluster.stop(gated)
            with gate_before(cluster.internal_port(gated), port) as gate:
                cluster.start(gated, {"advertised.listeners": f"CLIENT://{address},INTERNAL://127.0.0.1:{port}"})
                cluster.create_topic(TOPIC, PARTITIONS, replication_factor=3, min_insync_replicas=2)
                cluster.wait_until_healthy()
                yield cluster, gated, gate
    finally:
        release_port(port)


def acknowledge_more(history: History, records: int) -> None:
    wanted = history.count + records
    wait_until(f"{records} more acknowledgements", lambda: history.count >= wanted)


def shut_out(cluster: KlammCluster, gated: int, gate: Gate, history: History) -> None:
    """It loses its leaderships although it is alive; records are acknowledged without it; it returns."""
    before = len(decisions(cluster, "suspicion-ended"))
    gate.shut()
    wait_until("the fail-over", lambda: len(decisions(cluster, "suspect-relieved")) > before)
    acknowledge_more(history, RECORDS_PER_SECOND)
    assert gated in cluster.alive
    other = next(b for b in cluster.alive if b != gated)
    wait_until(
        "leaders other than that broker",
        lambda: all(p.leader_id != gated for p in cluster.partitions(TOPIC, seen_by=other)),
    )
    gate.open()
    wait_until("the end of the suspicion", lambda: len(decisions(cluster, "suspicion-ended")) > before)
    assert "same broker epoch" in decisions(cluster, "suspicion-ended")[-1]["detail"]
    cluster.wait_until_healthy()
    acknowledge_more(history, RECORDS_PER_SECOND)


@pytest.mark.timeout(600)
def test_a_living_broker_whose_port_refuses_costs_no_acknowledged_record(tmp_path: Path) -> None:
    with cluster_with_a_gate(tmp_path) as (cluster, gated, gate):
        with steady_producer(cluster.bootstrap, TOPIC, PARTITIONS, RECORDS_PER_SECOND) as history:
            acknowledge_more(history, RECORDS_PER_SECOND)
            shut_out(cluster, gated, gate, history)
            move = [sys.executable, "-m", "klamm", "controller", "move", "--zookeeper", cluster.zookeeper, str(gated)]
            subprocess.run(move, check=True, capture_output=True, timeout=60)
            wait_until("the controller behind the gate", lambda: cluster.controller == gated)
            shut_out(cluster, gated, gate, history)
            assert cluster.controller != gated, "another broker took over as controller"
        assert anomalies(history, read_all(cluster.bootstrap, TOPIC, PARTITIONS)) == []
        assert one_leader_per_epoch(events(cluster)) > 2 * PARTITIONS


def one_leader_per_epoch(recorded: list[dict[str, Any]]) -> int:
    leaders: dict[tuple[str, int, int], int] = {}
    for event in recorded:
        if event.get("role") == "broker" and event.get("to") == "leader":
            key = (event["topic"], event["partition"], event["leader_epoch"])
            assert leaders.setdefault(key, event["broker"]) == event["broker"], f"two leaders: {key}"
    return len(leaders)


def test_the_check_itself_finds_two_leaders_in_one_epoch() -> None:
    led = {"role": "broker", "to": "leader", "topic": "t", "partition": 0, "leader_epoch": 3, "broker": 1}
    assert one_leader_per_epoch([led, led, {**led, "leader_epoch": 4, "broker": 2}]) == 2
    with pytest.raises(AssertionError, match="two leaders"):
        one_leader_per_epoch([led, {**led, "broker": 2}])
