"""Log directories of a real broker: one that is dead at the start, all that die, and one that is not ours yet."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.testing.cluster import KlammCluster, running_cluster
from klamm.testing.waiting import wait_until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KlammCluster]:
    with running_cluster(tmp_path_factory.mktemp("directories"), brokers=1) as started:
        yield started


def test_a_refused_registration_leaves_no_meta_properties(cluster: KlammCluster, tmp_path: Path) -> None:
    (broker,) = cluster.broker_ids
    file = tmp_path / "server.properties"
    settings = {
        "broker.id": broker,
        "zookeeper.connect": cluster.zookeeper,
        "zookeeper.session.timeout.ms": 1000,
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": tmp_path / "data",
    }
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    command = [sys.executable, "-m", "klamm", "broker", str(file)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 1, finished.stderr
    assert (tmp_path / "data").is_dir()
    assert not (tmp_path / "data" / "meta.properties").exists()
    assert (cluster.directory(broker) / "meta.properties").exists()


def test_a_dead_directory_is_named_and_the_death_of_all_halts_the_broker(cluster: KlammCluster) -> None:
    (broker,) = cluster.broker_ids
    cluster.stop(broker)
    base = cluster.directory(broker)
    (base / "dead").write_text("not a directory")
    every = {"replica.high.watermark.checkpoint.interval.ms": "300"}
    cluster.start(broker, {"log.dirs": f"{base}/alive,{base}/dead", **every})
    assert f"log directory {base}/dead cannot be used and is offline" in cluster.log_text(broker)
    cluster.create_topic("t", 1, 1)
    (base / "alive").rename(base / "away")  # at once: the broker writes into it while files are being deleted
    (base / "alive").write_text("not a directory any more")
    wait_until("the end of the broker", lambda: broker not in cluster.alive, timeout=30)
    assert f"halting broker {broker}: all log directories have failed" in cluster.log_text(broker)
    assert cluster.exit_code(broker) == 1
