"""Leaders and controllers die by kill -9 under an idempotent acks=all producer: every acknowledged record survives."""

from __future__ import annotations

import os

import pytest

from klamm.testing.cluster import KlammCluster
from klamm.testing.history import History, anomalies, read_all, steady_producer
from klamm.testing.waiting import wait_until

FULL = os.environ.get("KLAMM_SCALE") == "full"
LEADER_KILLS = 10 if FULL else 2
CONTROLLER_KILLS = 3 if FULL else 1
PARTITIONS = 6
RECORDS_PER_SECOND = 600
BETWEEN_KILLS = 300


@pytest.mark.timeout(1800)
def test_every_acknowledged_record_is_found_once_and_in_order(klamm_cluster: KlammCluster) -> None:
    cluster = klamm_cluster
    cluster.create_topic("ledger", partitions=PARTITIONS, replication_factor=3, min_insync_replicas=2)
    with steady_producer(cluster.bootstrap, "ledger", PARTITIONS, RECORDS_PER_SECOND) as history:
        for kill in range(LEADER_KILLS):
            wait_for_more(history)
            kill_and_return(cluster, cluster.leader_of("ledger", kill % PARTITIONS))
        for _ in range(CONTROLLER_KILLS):
            wait_for_more(history)
            kill_and_return(cluster, cluster.controller)
        wait_for_more(history)
    found = read_all(cluster.bootstrap, "ledger", PARTITIONS)
    failed = sum(history.failed.values())
    acknowledged = f"{history.count} acknowledged ({history.without_offset} without offset)"
    print(f"{acknowledged}, {failed} failed, {LEADER_KILLS}+{CONTROLLER_KILLS} kills")
    assert anomalies(history, found) == []


def wait_for_more(history: History) -> None:
    """A broker comes back within a fraction of a second, so kills could follow each other with few records between."""
    wanted = history.count + BETWEEN_KILLS
    wait_until(f"{wanted} acknowledged records", lambda: history.count >= wanted, 60)


def kill_and_return(cluster: KlammCluster, victim: int) -> None:
    cluster.kill(victim)
    for partition in range(PARTITIONS):
        assert cluster.leader_of("ledger", partition) != victim
    cluster.start(victim)
    cluster.wait_until_healthy()


def test_the_check_itself_finds_loss_duplicates_and_disorder() -> None:
    history = History(acknowledged={0: {0: 10, 1: 11, 2: 12}})
    assert anomalies(history, {0: [(10, 0), (11, 1), (12, 2)]}) == []
    assert "lost" in anomalies(history, {0: [(10, 0), (12, 2)]})[0]
    history.acknowledged[0][2] = None
    assert anomalies(history, {0: [(10, 0), (11, 1), (12, 2)]}) == []
    assert "lost" in anomalies(history, {0: [(10, 0), (11, 1)]})[0]
    assert "duplicate" in anomalies(history, {0: [(10, 0), (11, 1), (12, 2), (13, 2)]})[0]
    assert "reordered" in anomalies(history, {0: [(10, 0), (11, 1), (12, 2), (13, 5), (14, 4)]})[0]
